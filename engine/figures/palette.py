"""The colours of figures, and the claims that fit on an axis. Needs no Matplotlib."""

INK, MEMBER, OTHER, CLAIM = "#1f2933", "#c2410c", "#2563a8", "#15803d"
QUIET = "#9aa5b1"
COLOURS = (OTHER, MEMBER, "#7c3aed", "#111827", "#0e7490", "#be185d", "#a16207", "#65a30d")
"""Colours of lines without a fixed colour, in this order."""

LARGEST_CLAIM = 700.0
"""Largest claim in nats that a figure marks: about the logarithm of the largest float.

A larger claim implies nothing measurable, and its axis would flatten everything else.
"""


def can_be_drawn(claimed: float) -> bool:
    """Return True if a claim of `claimed` nats fits on an axis together with measured values."""
    return abs(claimed) <= LARGEST_CLAIM
