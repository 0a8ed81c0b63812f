"""How much one run of the tests plays: little in `make test`, all of it in `make nightly`."""

from __future__ import annotations

import os
from typing import Any, TypeVar

import pytest

SWITCH = "DPAUDIT_NIGHTLY"
"""Set by `make nightly`: tests marked `nightly` run as well, and games are played in full number."""
QUICK = 100
"""Games of a simulation in the quick run."""
T = TypeVar("T")


def on() -> bool:
    """Whether this is the nightly run."""
    return bool(os.environ.get(SWITCH))


def nightly_games(number: int) -> int:
    """Return the number of games of a simulation, of which the quick run plays the first `QUICK`.

    A threshold is to follow from what this gives, so that the test fails as seldom in either run when all is well.
    """
    return number if on() else min(number, QUICK)


def by_day(size: T, *, by_night: T) -> T:
    """Return a size of the quick run, or that of the nightly run: of a planted fault, say, one that few games show."""
    return by_night if on() else size


def too(*cases: object) -> list[Any]:
    """Return parameters of a test that runs by night with these as well: those that follow the same lines of code."""
    return [pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.nightly) for case in cases]
