"""Generators of synthetic tables with known privacy, and one without any."""
