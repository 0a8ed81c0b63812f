"""Recorded results of the audits of `specs.yaml`: a refactoring must not change a number."""
