"""How much one run of the tests plays: little in `make test`, all of it in `make nightly`."""

from __future__ import annotations

import os

SWITCH = "DPAUDIT_NIGHTLY"
"""Set by `make nightly`: tests marked `nightly` run as well, and games are played in full number."""
QUICK = 300


def on() -> bool:
    """Whether this is the nightly run."""
    return bool(os.environ.get(SWITCH))


def nightly_games(number: int) -> int:
    """So many games of a coverage test, of which the quick run plays the first `QUICK`.

    A threshold is to follow from what this gives, so that the test fails as seldom in either run when all is well.
    """
    return number if on() else min(number, QUICK)
