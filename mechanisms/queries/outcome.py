"""The outcome of one call of an audited function, as a worker process returns it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

UNREADABLE = "unreadable: "
"""Prefix of the ending of a call that returned an unreadable object; the worker writes it."""

UNKNOWN = "?"
"""Checksum of what cannot be read; the worker writes it."""


@dataclass(frozen=True, eq=False)
class CallOutcome:
    """The discrete and the numeric part of what a call returned or raised.

    Attributes:
        ending: The discrete part: type, keys, columns, shape, dtype, words, an exception's class and text, warnings.
        numbers: The numeric part, shape (n,), all finite; all outcomes with one ending have the same n.
        fault: Description of a failure; "" if there is none.
        low_bits: How many of the last numbers are low bits of the numbers before them, >= 0.
        unread: What of the result, the printed text and the files was not read: pairs of a description and a checksum,
            `UNKNOWN` if it cannot be read at all.
    """

    ending: str
    numbers: NDArray[np.float64]
    fault: str = ""
    low_bits: int = 0
    unread: tuple[tuple[str, str], ...] = ()


def is_unreadable(ending: str) -> bool:
    """True if a call returned an unreadable object, alone or in a container."""
    return ending.startswith(UNREADABLE) or f"; measurements: {UNREADABLE}" in ending
