"""Wing: audits of language models."""
