"""Benchmarks. A package, since one that is installed may hold another of this name."""
