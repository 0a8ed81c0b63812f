"""What a game is planned against before anything runs: randomised response with a given epsilon, and the best attack.

What one canary or trial tells is its log-odds: the attack guesses their sign and is right with the probability they
say. So for each game a response is a finite table of log-odds with their shares; at epsilon = inf without privacy.
Source: Warner (1965); with K answers Kairouz, Bonawitz and Ramage (2016), arXiv:1602.07387.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy import special

from dpaudit.errors import require
from dpaudit.estimators.scores import Scores

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class GuessLevels:
    """How much single canaries or trials tell."""

    share: Floats  # of the rows at each level, shape (levels,), > 0, with sum 1
    log_odds: Floats  # what a row there says for world 1 against world 0, in nats, shape (levels,); may be infinite

    def typical(self, rows: int, *, z: float = 0.0, order: int = 0) -> Scores:
        """The scores of a game in which as many guesses are right as in a game of middling luck.

        Args:
            rows: Canaries or trials, >= 1.
            z: How many standard deviations above the mean the number of right guesses lies: -1.28 for a game that
                nine in ten surpass.
            order: Seed of the order in which the rows come, which decides ties and streaks.
        """
        counts = _apportioned(self.share * rows, rows)
        wrong = special.expit(-np.abs(self.log_odds))
        variances = counts * wrong * (1 - wrong)
        deviation = math.sqrt(variances.sum())
        expected = counts * wrong - (z * variances / deviation if deviation else 0.0)
        expected = np.clip(expected, 0, counts)
        missed = np.minimum(_apportioned(expected, round(float(expected.sum()))), counts)
        level = np.repeat(np.arange(counts.size), counts)
        place = np.arange(rows) - np.repeat(np.cumsum(counts) - counts, counts)
        # Trials are read in order by some estimators: an order that tells nothing.
        shuffled = np.random.default_rng(order).permutation(rows)
        return self._scores(level[shuffled], place[shuffled] < missed[level[shuffled]])

    def drawn(self, rows: int, rng: np.random.Generator) -> Scores:
        level = rng.choice(self.share.size, rows, p=self.share)
        return self._scores(level, rng.random(rows) < special.expit(-np.abs(self.log_odds[level])))

    def _scores(self, level: Ints, wrong: NDArray[np.bool_]) -> Scores:
        scores = self.log_odds[level].astype(np.float32).astype(np.float64)  # as score tables hold them
        return Scores(scores, (self.log_odds[level] > 0) != wrong)


class Response(ABC):
    """What a game makes of randomised response."""

    assumes: ClassVar[str] = ""
    """What the planned numbers take for granted of the data; "" where they depend on none."""

    @abstractmethod
    def levels(self, epsilon: float) -> GuessLevels:
        """How much each canary or trial tells when the mechanism spends epsilon >= 0, which may be inf."""


@dataclass(frozen=True)
class FairCoins(Response):
    """One answer about each fair coin, right with the odds e^epsilon: membership, one training a trial."""

    def levels(self, epsilon: float) -> GuessLevels:
        return GuessLevels(np.array([0.5, 0.5]), np.array([epsilon, -epsilon]))


@dataclass(frozen=True)
class _EvenLabels(Response):
    """K-ary randomised response on labels drawn evenly."""

    classes: int  # K, >= 2

    def __post_init__(self) -> None:
        require(self.classes >= 2, "a label must be one of at least 2 classes", classes=self.classes)


@dataclass(frozen=True)
class PlantedLabels(_EvenLabels):
    """K-ary randomised response on labels drawn evenly; shown are the planted label or, as likely, another one."""

    def levels(self, epsilon: float) -> GuessLevels:
        """The released label is the shown one, or it is not."""
        kept, other = _response(epsilon, self.classes)
        with np.errstate(divide="ignore"):
            log_odds = np.array([epsilon, np.log((self.classes - 1) * other) - math.log1p(-other)])
        return GuessLevels(np.array([kept + other, 2 - kept - other]) / 2, log_odds)


@dataclass(frozen=True)
class PairedLabels(_EvenLabels):
    """K-ary randomised response; shown are the planted label and another one, in an order that a fair coin chose."""

    def levels(self, epsilon: float) -> GuessLevels:
        """The released label is the first one shown, the second one, or neither."""
        kept, other = _response(epsilon, self.classes)
        told = (kept + other) / 2
        share = np.array([told, told, 1 - 2 * told])
        there = share > 1e-15
        return GuessLevels(share[there] / share[there].sum(), np.array([epsilon, -epsilon, 0.0])[there])


@dataclass(frozen=True)
class ProxyLabels(Response):
    """K-ary randomised response on labels of given frequencies; in world 0 a label drawn alike is shown."""

    frequencies: tuple[float, ...]  # of each class, >= 0, with sum 1
    assumes: ClassVar[str] = (
        "as if features told nothing of what is at stake; the better the proxy, the less can be shown"
    )

    def __post_init__(self) -> None:
        total = math.fsum(self.frequencies)
        require(abs(total - 1) < 1e-9, "frequencies must have the sum 1", sum=total)

    def levels(self, epsilon: float) -> GuessLevels:
        """The released label z is the shown one, or it is not: a level for each z and each of both."""
        share = np.array(self.frequencies)
        kept, other = _response(epsilon, share.size)
        by_proxy = other + share * (kept - other)
        same, differs = share * (kept + by_proxy) / 2, (1 - share) * (other + by_proxy) / 2
        weight = np.concatenate([same, differs])
        with np.errstate(divide="ignore", invalid="ignore"):
            log_odds = np.concatenate([np.log(kept / by_proxy), np.log(other / by_proxy)])
        there = weight > 0
        return GuessLevels(weight[there] / weight.sum(), log_odds[there])


@dataclass(frozen=True)
class Reference:
    """What the power of one audit is planned with."""

    response: Response  # what a canary or trial tells
    rows: int  # canaries or trials
    unit: str  # what a row is, in the plural: "canaries", "trials"
    replays: int = 1  # bounds that are combined by their median, >= 1

    def __post_init__(self) -> None:
        require(self.rows >= 1, "a game must have at least one canary or trial", rows=self.rows)
        require(self.replays >= 1, "replays must be >= 1", replays=self.replays)


def _response(epsilon: float, classes: int) -> tuple[float, float]:
    """Probability that randomised response keeps a label, and that it releases one certain other."""
    other = math.exp(-epsilon)
    return 1 / (1 + (classes - 1) * other), other / (1 + (classes - 1) * other)


def _apportioned(expected: Floats, total: int) -> Ints:
    """Whole numbers near `expected` that sum to `total`: the largest remainders are rounded up."""
    whole = np.floor(expected).astype(np.int64)
    missing = total - int(whole.sum())
    whole[np.argsort(whole - expected, kind="stable")[: max(missing, 0)]] += 1
    return whole
