"""Reference for planning the sensitivity of a game: randomised response with a given epsilon, and the best attack.

The evidence of a canary or trial is its log-odds. The attack guesses their sign and is correct with the probability
that they imply. A response is therefore a finite table of log-odds with their shares, at epsilon = inf without privacy.
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
WITHOUT_PRIVACY = "a training without privacy"
"""Label of a training that measures the maximum detectable epsilon of a game with one training."""


@dataclass(frozen=True, eq=False)
class GuessLevels:
    """Distribution of the log-odds of canaries or trials."""

    share: Floats  # share of rows at each level, shape (levels,), > 0, with sum 1
    log_odds: Floats  # log-odds of world 1 at each level, in nats, shape (levels,); may be infinite

    def typical(self, rows: int, *, z: float = 0.0, order: int = 0) -> Scores:
        """Return scores of a game with a typical number of correct guesses.

        Args:
            rows: Number of canaries or trials, >= 1.
            z: Standard deviations between the number of correct guesses and its mean; -1.28 for a game that nine in ten
                games exceed.
            order: Seed of the order of the rows, which decides ties and streaks.
        """
        counts, wrong, variances = self._guesses(rows)
        deviation = math.sqrt(variances.sum())
        return self._played(counts, counts * wrong - (z * variances / deviation if deviation else 0.0), order)

    def unlucky(self, rows: int, *, z: float) -> Scores:
        """Return scores of a game with few correct guesses among the surest ones, however many of these are counted.

        Args:
            rows: Number of canaries or trials, >= 1.
            z: Standard deviations, >= 0, between each number of correct guesses and its mean.
        """
        counts, wrong, variances = self._guesses(rows)
        _, place = np.unique(-np.abs(self.log_odds).round(9), return_inverse=True)
        groups = np.bincount(place, variances)
        more = np.diff(z * np.sqrt(np.cumsum(groups)), prepend=0.0) / np.maximum(groups, 1e-300)
        return self._played(counts, counts * wrong + variances * more[place], 0)

    def _guesses(self, rows: int) -> tuple[Ints, Floats, Floats]:
        """Return the rows at each level, the probability that a guess is wrong, and the variance of their number."""
        counts, wrong = _apportioned(self.share * rows, rows), special.expit(-np.abs(self.log_odds))
        return counts, wrong, counts * wrong * (1 - wrong)

    def _played(self, counts: Ints, expected: Floats, order: int) -> Scores:
        """Return scores with these rows and expected wrong guesses at each level."""
        rows, expected = int(counts.sum()), np.clip(expected, 0, counts)
        missed = np.minimum(_apportioned(expected, round(float(expected.sum()))), counts)
        level = np.repeat(np.arange(counts.size), counts)
        place = np.arange(rows) - np.repeat(np.cumsum(counts) - counts, counts)
        # Some estimators read trials in order, so the order must carry no information.
        shuffled = np.random.default_rng(order).permutation(rows)
        return self._scores(level[shuffled], place[shuffled] < missed[level[shuffled]])

    def sample(self, rows: int, rng: np.random.Generator) -> Scores:
        """Return scores of a random game with `rows` canaries or trials."""
        level = rng.choice(self.share.size, rows, p=self.share)
        return self._scores(level, rng.random(rows) < special.expit(-np.abs(self.log_odds[level])))

    def _scores(self, level: Ints, wrong: NDArray[np.bool_]) -> Scores:
        scores = self.log_odds[level].astype(np.float32).astype(np.float64)  # precision of score tables
        return Scores(scores, (self.log_odds[level] > 0) != wrong)


class Response(ABC):
    """Log-odds of a game against randomised response."""

    assumes: ClassVar[str] = ""
    """Assumptions of the planned numbers about the data; "" if there are none."""

    @abstractmethod
    def levels(self, epsilon: float) -> GuessLevels:
        """Return the log-odds of canaries or trials for a mechanism with epsilon >= 0, which may be inf."""


@dataclass(frozen=True)
class CoinResponse(Response):
    """One answer about each fair coin, correct with odds e^epsilon: membership, or one training for each trial."""

    def levels(self, epsilon: float) -> GuessLevels:
        return GuessLevels(np.array([0.5, 0.5]), np.array([epsilon, -epsilon]))


@dataclass(frozen=True)
class RareCoinResponse(Response):
    """One answer about each coin that is heads with probability `rate`, correct with odds e^epsilon."""

    rate: float  # probability of heads, in (0, 1)

    def __post_init__(self) -> None:
        require(0 < self.rate < 1, "the rate of coins must be in (0, 1)", rate=self.rate)

    def levels(self, epsilon: float) -> GuessLevels:
        """Return two levels: the answer is heads, or tails."""
        correct, prior = float(special.expit(epsilon)), float(special.logit(self.rate))
        heads = self.rate * correct + (1 - self.rate) * (1 - correct)
        return GuessLevels(np.array([heads, 1 - heads]), np.array([prior + epsilon, prior - epsilon]))


@dataclass(frozen=True)
class _UniformLabels(Response):
    """K-ary randomised response on uniform labels."""

    classes: int  # K, >= 2

    def __post_init__(self) -> None:
        require(self.classes >= 2, "a label must be one of at least 2 classes", classes=self.classes)


@dataclass(frozen=True)
class PlantedLabels(_UniformLabels):
    """K-ary randomised response on uniform labels; shown is the planted label or, equally likely, another label."""

    def levels(self, epsilon: float) -> GuessLevels:
        """Return two levels: the released label is the shown one, or it is not."""
        keep, other = _response_probabilities(epsilon, self.classes)
        with np.errstate(divide="ignore"):
            log_odds = np.array([epsilon, np.log((self.classes - 1) * other) - math.log1p(-other)])
        return GuessLevels(np.array([keep + other, 2 - keep - other]) / 2, log_odds)


@dataclass(frozen=True)
class PairedLabels(_UniformLabels):
    """K-ary randomised response; shown are the planted label and another one, in random order."""

    def levels(self, epsilon: float) -> GuessLevels:
        """Return up to three levels: the released label is the first one shown, the second one, or neither."""
        keep, other = _response_probabilities(epsilon, self.classes)
        match_share = (keep + other) / 2
        share = np.array([match_share, match_share, 1 - 2 * match_share])
        present = share > 1e-15
        return GuessLevels(share[present] / share[present].sum(), np.array([epsilon, -epsilon, 0.0])[present])


@dataclass(frozen=True)
class ProxyLabels(Response):
    """K-ary randomised response on labels of given frequencies; in world 0 a label of the same law is shown."""

    frequencies: tuple[float, ...]  # frequency of each class, >= 0, with sum 1
    assumes: ClassVar[str] = "for features that are independent of the label; a more accurate proxy lowers it"

    def __post_init__(self) -> None:
        total = math.fsum(self.frequencies)
        require(abs(total - 1) < 1e-9, "frequencies must sum to 1", sum=total)

    def levels(self, epsilon: float) -> GuessLevels:
        """Return two levels for each released label z: it is the shown label, or it is not."""
        share = np.array(self.frequencies)
        keep, other = _response_probabilities(epsilon, share.size)
        by_proxy = other + share * (keep - other)
        same, differs = share * (keep + by_proxy) / 2, (1 - share) * (other + by_proxy) / 2
        weight = np.concatenate([same, differs])
        with np.errstate(divide="ignore", invalid="ignore"):
            log_odds = np.concatenate([np.log(keep / by_proxy), np.log(other / by_proxy)])
        present = weight > 0
        return GuessLevels(weight[present] / weight.sum(), log_odds[present])


@dataclass(frozen=True)
class Reference:
    """Reference game from which the sensitivity of an audit is planned."""

    response: Response  # log-odds of canaries or trials
    rows: int  # number of canaries or trials
    unit: str  # name of the rows in the plural: "canaries", "trials"
    replays: int = 1  # number of bounds that are combined by their median, >= 1

    def __post_init__(self) -> None:
        require(self.rows >= 1, "a game must have at least one canary or trial", rows=self.rows)
        require(self.replays >= 1, "replays must be >= 1", replays=self.replays)


def _response_probabilities(epsilon: float, classes: int) -> tuple[float, float]:
    """Return the probabilities that randomised response keeps a label, and that it releases a given other label."""
    other = math.exp(-epsilon)
    return 1 / (1 + (classes - 1) * other), other / (1 + (classes - 1) * other)


def _apportioned(expected: Floats, total: int) -> Ints:
    """Return integers near `expected` that sum to `total`, rounding up the largest remainders."""
    whole = np.floor(expected).astype(np.int64)
    missing = total - int(whole.sum())
    whole[np.argsort(whole - expected, kind="stable")[: max(missing, 0)]] += 1
    return whole
