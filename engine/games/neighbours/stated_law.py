"""What a mechanism says of its own noise, as log-odds of the two data sets: of a release the most that can be known.

By Neyman and Pearson no other order of the releases is better, and nothing has to be learned: forty columns hide no
direction. A mechanism that says what is not true of it loses in the choice among the classifiers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpaudit.engine.games.neighbours.poisonings.protocol import Worlds
from dpaudit.errors import require
from dpaudit.mechanisms.compute import Compute
from dpaudit.mechanisms.protocols import StatedLaw
from dpaudit.mechanisms.threads import limited_threads

Floats = NDArray[np.float64]
StatedOdds = Callable[[Floats], Floats]
"""Log-odds of D' of summaries, in nats, shape (n, width) to (n,)."""
STATED_LAW = "stated"
"""What attacks call a classifier that takes the law from the mechanism."""
MAX_LOG_ODDS = 40.0
"""Log-odds of what is impossible on one of the data sets, in nats; 0 of what is impossible on both."""


def stated_odds(mechanism: Any, worlds: Worlds, compute: Compute) -> StatedOdds | None:
    """By the mechanism's `log_density`; None where it has none."""
    if not isinstance(mechanism, StatedLaw):
        return None
    law = mechanism

    def odds(summaries: Floats) -> Floats:
        double_summaries = np.asarray(summaries, np.float64)
        with limited_threads(compute.threads):
            log_density_one, log_density_zero = (
                np.asarray(law.log_density(world, double_summaries, compute=compute), np.float64)
                for world in (worlds.world_one, worlds.world_zero)
            )
        shape = (len(summaries),)
        require(
            log_density_one.shape == log_density_zero.shape == shape,
            "log_density must give a number for each summary",
            shape=log_density_one.shape,
        )
        with np.errstate(invalid="ignore"):
            return np.clip(
                np.nan_to_num(log_density_one - log_density_zero, nan=0.0, posinf=MAX_LOG_ODDS, neginf=-MAX_LOG_ODDS),
                -MAX_LOG_ODDS,
                MAX_LOG_ODDS,
            )

    return odds
