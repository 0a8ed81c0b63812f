"""How large generated data may be."""

from __future__ import annotations

from dpaudit.errors import require

MOST_NUMBERS = 2**31
"""8 GiB of 32-bit features."""


def require_size(rows: int, columns: int) -> None:
    """Refuses to generate more than memory could hold, before it is tried."""
    require(
        rows * columns <= MOST_NUMBERS,
        f"generated data must have at most {MOST_NUMBERS:,} numbers",
        do="ask for fewer rows, columns or classes",
        rows=rows,
        columns=columns,
    )
