"""Log-odds of two data sets by the law that a mechanism states for its releases.

By the Neyman-Pearson lemma, no other order of the releases is better, and nothing has to be learned in many
dimensions. If the stated law is wrong, another classifier has a better likelihood on held-out samples and is chosen.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpaudit.errors import require
from dpaudit.mechanisms.compute import Compute, limited_threads
from dpaudit.mechanisms.protocols import StatedLaw

Floats = NDArray[np.float64]
StatedOdds = Callable[[Floats], Floats]
"""Function from summaries, shape (n, width), to log-odds of D' in nats, shape (n,)."""
STATED_LAW = "stated"
"""Name of the classifier that uses the law stated by the mechanism."""
MAX_LOG_ODDS = 40.0
"""Log-odds of a release that is impossible on one data set, in nats; 0 if it is impossible on both."""


def stated_odds(mechanism: Any, worlds: Any, compute: Compute) -> StatedOdds | None:
    """Return the log-odds by the worlds' recorded law, else by the mechanism's `log_density`; None without both."""
    recorded = getattr(worlds, "recorded_law", None)
    if recorded is not None:
        law_of_draws: StatedOdds = recorded.log_odds
        return law_of_draws
    if not isinstance(mechanism, StatedLaw):
        return None
    law = mechanism  # keeps its narrowed type inside the closure

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
