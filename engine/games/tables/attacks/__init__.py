"""Membership attacks on a synthetic table, one file each."""
