"""Bring your own scores: arrays, tables and files of scores or counts in, bounds and measures out."""
