"""Functions on rows: what their rows are, and what came of a call."""
