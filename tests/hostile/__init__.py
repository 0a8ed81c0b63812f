"""Hostile run folders, specs, caches and files, made to execute, read, send or overwrite something."""
