"""What a mechanism says of its own noise, as log-odds of the two data sets: of a release the most that can be known.

By Neyman and Pearson no other order of the releases is better, and nothing has to be learned: forty columns hide no
direction. A mechanism that says what is not true of it loses in the choice among the classifiers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from dpaudit.actors.seed import Seed
from dpaudit.actors.work import unit
from dpaudit.engine.games.neighbours.poisonings.protocol import Worlds
from dpaudit.errors import require
from dpaudit.mechanisms.compute import Compute
from dpaudit.mechanisms.protocols import SampledLearner, StatedLaw
from dpaudit.mechanisms.ranges import NoiseByEpsilon

Floats = NDArray[np.float64]
StatedOdds = Callable[[Floats], Floats]
"""Log-odds of D' of summaries, in nats, shape (n, width) to (n,)."""
STATED = "stated"
"""What attacks call a classifier that takes the law from the mechanism."""
LARGEST = 40.0
"""Log-odds of what is impossible on one of the data sets, in nats; 0 of what is impossible on both."""
FACTORS = 2.0 ** (np.arange(-12, 13) / 4)
"""Of the mechanism's epsilon, at which noise is planted: from an eighth to eight times."""
PLANTED = 2_000
"""Trainings at each of them, half of them on either data set."""
LEVELS = 50
"""Into which their log-odds are grouped."""


def stated_odds(mechanism: Any, worlds: Worlds, compute: Compute) -> StatedOdds | None:
    """By the mechanism's `log_density`; None where it has none."""
    if not isinstance(mechanism, StatedLaw):
        return None
    law = mechanism

    def odds(summaries: Floats) -> Floats:
        with threadpool_limits(compute.threads):
            one, zero = (
                np.asarray(law.log_density(world, summaries, compute=compute), np.float64)
                for world in (worlds.one, worlds.zero)
            )
        shape = (len(summaries),)
        require(one.shape == zero.shape == shape, "log_density must give a number for each summary", shape=one.shape)
        with np.errstate(invalid="ignore"):
            return np.clip(np.nan_to_num(one - zero, nan=0.0, posinf=LARGEST, neginf=-LARGEST), -LARGEST, LARGEST)

    return odds


@dataclass(frozen=True, eq=False)
class PlantedNoise:
    """What trainings tell at several epsilons, by the law that is stated; each row stands for as many of them."""

    epsilon: Floats  # of the mechanism, > 0, shape (rows,)
    log_odds: Floats  # of D', in nats, shape (rows,)


def is_planted(mechanism: Any, attack: Any) -> bool:
    """Whether the mechanism can be drawn at another epsilon and says what its releases tell then, and the attack uses
    that."""
    sides = (StatedLaw, SampledLearner, NoiseByEpsilon)
    return all(isinstance(mechanism, side) for side in sides) and STATED in getattr(attack, "classifiers", ())


@unit
def plant_noise(mechanism: Any, worlds: Worlds, compute: Compute, *, seed: Seed) -> PlantedNoise:
    """The mechanism at smaller and larger epsilons on the two data sets that were chosen."""
    epsilons = mechanism.epsilon * FACTORS
    told = [_told(replace(mechanism, epsilon=float(epsilon)), worlds, compute, seed) for epsilon in epsilons]
    return PlantedNoise(np.repeat(epsilons, LEVELS), np.concatenate(told))


def _told(mechanism: Any, worlds: Worlds, compute: Compute, seed: Seed) -> Floats:
    """The log-odds of groups of trainings, as many in each, shape (LEVELS,)."""
    odds = stated_odds(mechanism, worlds, compute)
    assert odds is not None
    drawn = [
        mechanism.sample_summaries(
            worlds.world(world), worlds.points, PLANTED // 2, seed=seed.child(int(world)).sequence(), compute=compute
        )
        for world in (False, True)
    ]
    summaries = np.concatenate(drawn).astype(np.float32).astype(np.float64)
    likely = np.sort(special.expit(odds(summaries))).reshape(LEVELS, -1).mean(1)
    return np.asarray(special.logit(likely))
