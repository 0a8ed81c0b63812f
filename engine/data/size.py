"""Limits on the size of generated data."""

from __future__ import annotations

import os

from dpaudit.errors import require

MAX_NUMBERS = 2**31
"""8 GiB of 32-bit features."""
BYTES_PER_NUMBER = 12
"""Memory for each number while rows are assigned to parts: three copies of 4 bytes."""


def require_size(rows: int, columns: int) -> None:
    """Raise InputError if generated data would not fit into memory."""
    require(
        rows * columns <= MAX_NUMBERS,
        f"generated data must have at most {MAX_NUMBERS:,} numbers",
        do="ask for fewer rows, columns or classes",
        rows=rows,
        columns=columns,
    )
    needed, memory = rows * columns * BYTES_PER_NUMBER, memory_bytes()
    require(
        not memory or needed <= memory,
        f"generated data must fit into this machine's memory, {memory / 1e9:.1f} GB, these take {needed / 1e9:.1f} GB",
        do="ask for fewer rows or columns",
        rows=rows,
        columns=columns,
    )


def memory_bytes() -> int:
    """Return the total memory of this machine; 0 if unknown."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 0
