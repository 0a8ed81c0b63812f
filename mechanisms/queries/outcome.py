"""What came of one call of a function: the one thing that crosses from another Python, or from this one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

UNREADABLE = "unreadable: "
"""Prefix of the ending of a call that returned an object in which nothing could be read; the worker writes it."""


@dataclass(frozen=True, eq=False)
class CallOutcome:
    """A call, summed up; failing is an outcome like any other.

    Attributes:
        ending: Everything discrete: type, keys, columns, shape, dtype, words, an exception's class and text, warnings.
        numbers: Everything else, shape (n,), all finite; n is the same for all outcomes of one ending.
        fault: What is wrong with it, for people; "" for nothing.
        low_bits: How many of the last numbers tell the low bits of numbers before them, >= 0.
    """

    ending: str
    numbers: NDArray[np.float64]
    fault: str = ""
    low_bits: int = 0


def is_unreadable(ending: str) -> bool:
    """True if a call returned something, or something inside of a container, in which nothing could be read."""
    return ending.startswith(UNREADABLE)
