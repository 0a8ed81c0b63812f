"""How much one run of the tests plays: little in `make test`, all of it in `make nightly`."""

from __future__ import annotations

import os

SWITCH = "DPAUDIT_NIGHTLY"
"""Set by `make nightly`: tests marked `nightly` run as well, and games are played in full number."""
NIGHTLY = bool(os.environ.get(SWITCH))
QUICK = 300


def games(number: int, *, quick: int = QUICK) -> int:
    """So many games of a coverage test, of which the quick run plays the first `quick`.

    A threshold is to follow from what this gives, so that the test fails as seldom in either run when all is well.
    """
    return number if NIGHTLY else min(number, quick)
