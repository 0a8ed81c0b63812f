"""Sensitivity of an audit with rare coins: laws of the scores of planted and other canaries, and those for less noise.

Noise that is c times too small multiplies the log-likelihood ratio of a canary by c, as for fair coins
(`sensitivity.detectable_factor`). The levels of scores keep their shares of an equal mixture of both worlds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special

from dpaudit.estimators.bisection import last_true
from dpaudit.estimators.scores import Scores

FIRST_LEVEL = 10
"""Canaries in the highest level of scores; each further level has twice as many."""


def level_of_rank(canaries: int) -> NDArray[np.int64]:
    """Return the level of each rank, from the highest score on: 0, ..., 0, 1, ...; shape (canaries,)."""
    return np.log2(1 + np.arange(canaries) / FIRST_LEVEL).astype(np.int64)


@dataclass(frozen=True, eq=False)
class RareLevels:
    """Levels of scores, lowest first.

    Attributes:
        share: Share of each level in an equal mixture of planted and other canaries, shape (levels,), sum 1.
        ratio: Log-likelihood ratio of planted to other canaries at each level, in nats, shape (levels,).
        planted: Number of planted canaries, >= 1.
        others: Number of other canaries, >= 1.
    """

    share: NDArray[np.float64]
    ratio: NDArray[np.float64]
    planted: int
    others: int

    @classmethod
    def of(cls, canaries: NDArray[np.float64], planted: NDArray[np.float64]) -> RareLevels:
        """Return the levels with these numbers of canaries and of planted ones, the share of planted ones rising."""
        others = canaries - planted
        ratio = np.log((planted + 0.5) / planted.sum()) - np.log((others + 0.5) / others.sum())
        share = (planted / planted.sum() + others / others.sum()) / 2
        return cls(share, ratio, int(planted.sum()), int(others.sum()))

    def scaled(self, factor: float) -> RareLevels:
        """Return the levels with all log-likelihood ratios multiplied by `factor`."""
        return RareLevels(self.share, factor * self.ratio, self.planted, self.others)

    @property
    def laws(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Probabilities of the levels for planted and for other canaries, shape (levels,)."""
        planted, others = self.share * special.expit(self.ratio), self.share * special.expit(-self.ratio)
        return planted / planted.sum(), others / others.sum()

    @property
    def share_captured(self) -> float:
        """Expected share of planted canaries among as many highest scores as there are planted ones."""
        planted, others = self.laws
        expected = (planted * self.planted)[::-1]
        rows = np.cumsum(expected + (others * self.others)[::-1])
        return float(np.interp(self.planted, np.append(0.0, rows), np.append(0.0, np.cumsum(expected)))) / self.planted

    def weakened(self, limit: float) -> RareLevels:
        """Return the levels with ratios scaled down until the share captured is at most `limit`."""
        if self.share_captured <= limit:
            return self
        scale = last_true(lambda scale: self.scaled(scale).share_captured <= limit, 0.0, 1.0)
        return self.scaled(scale)

    def typical(self, z: float) -> Scores:
        """Return scores of a game in which the share captured is `z` standard deviations above its mean."""
        mean = self.share_captured
        planted, others = self.weakened(mean + z * np.sqrt(mean * (1 - mean) / self.planted)).laws
        counts = [_apportioned(planted, self.planted), _apportioned(others, self.others)]
        level = np.concatenate([np.repeat(np.arange(self.share.size), count) for count in counts])
        truth = np.arange(level.size) < self.planted
        order = np.random.default_rng(0)  # equal levels in random order, so that ties carry no information
        shuffled = order.permutation(level.size)
        return Scores((level + order.random(level.size))[shuffled], truth[shuffled])


def _apportioned(law: NDArray[np.float64], count: int) -> NDArray[np.int64]:
    """Return whole numbers with the sum `count` in the proportions of a law."""
    return np.diff(np.rint(np.cumsum(law) * count), prepend=0.0).astype(np.int64)
