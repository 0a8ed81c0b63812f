"""Audits of a language model in Python: canaries, the check that they were trained on, and the bound."""
