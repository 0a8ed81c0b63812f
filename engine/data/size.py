"""How large generated data may be."""

from __future__ import annotations

import os

from dpaudit.errors import require

MAX_NUMBERS = 2**31
"""8 GiB of 32-bit features."""
BYTES_EACH = 12
"""Of memory that a number takes while its rows are dealt to their parts: as it is made, in its part, and on the way."""


def require_size(rows: int, columns: int) -> None:
    """Refuses to generate more than memory could hold, before it is tried."""
    require(
        rows * columns <= MAX_NUMBERS,
        f"generated data must have at most {MAX_NUMBERS:,} numbers",
        do="ask for fewer rows, columns or classes",
        rows=rows,
        columns=columns,
    )
    needed, memory = rows * columns * BYTES_EACH, memory_bytes()
    require(
        not memory or needed <= memory,
        f"generated data must fit into this machine's memory, {memory / 1e9:.1f} GB, these take {needed / 1e9:.1f} GB",
        do="ask for fewer rows or columns",
        rows=rows,
        columns=columns,
    )


def memory_bytes() -> int:
    """What this machine has in all; 0 where it does not tell."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 0
