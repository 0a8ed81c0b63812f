"""Benchmarks. A package, because an installed distribution may contain another module of this name."""
