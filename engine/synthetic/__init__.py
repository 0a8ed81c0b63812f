"""Audits of a synthetic table from files."""
