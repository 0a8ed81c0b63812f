"""Kinds of canary texts, one file each."""
