"""Law of the scores of an audit: fitted to a table of scores, and what becomes of it with less noise.

A law is a trade-off function: the share of world 0 (false alarms) and of world 1 (hits) above each threshold. A score
of many values has the law of randomised response, Laplace noise or Gaussian noise, whichever fits best: one parameter,
which noise that is c times too small multiplies by c. Scores that none of them explains, and scores of few values, keep
their levels, and noise that is c times too small multiplies the log-odds of each level by c.

Source: the trade-off functions of Dong, Roth and Su (2022), arXiv:1905.02383; the choice of the law is ours.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

from dpaudit.claims import PrivacyCurve
from dpaudit.engine.games.reference import GuessLevels
from dpaudit.estimators.bisection import last_true

Floats = NDArray[np.float64]
LEVELS = 16
"""Groups of scores with equal numbers of trials; scores of fewer values are discrete."""
MISFIT = 1e-3
"""Smallest p-value at which a law explains the scores."""
LARGEST_LOSS = 40.0
"""Largest log-odds of a level, in nats."""
_TAIL = np.geomspace(1e-6, 0.1, 60)
_ALARMS = np.unique(np.concatenate([[0.0], _TAIL, np.linspace(0.1, 0.9, 161), 1 - _TAIL, [1.0]]))
_PARAMETERS = np.geomspace(0.02, 8.0, 150)


class ScoreLaw(ABC):
    """Law of the scores of one trial in both worlds."""

    @abstractmethod
    def scaled(self, factor: float) -> ScoreLaw:
        """Return the law with the noise scaled down `factor` times; below 1, with more noise."""

    @abstractmethod
    def clipped(self, epsilon: float) -> ScoreLaw:
        """Return the law with log-odds of at most `epsilon`, which may be inf."""

    @abstractmethod
    def corners(self) -> tuple[Floats, Floats]:
        """Return ascending rates of false alarms and of hits, from (0, 0) to (1, 1), both of shape (n,)."""

    @property
    def accuracy(self) -> float:
        """Probability that the best guess of a fair coin is right, in [1/2, 1]."""
        alarm, hit = self.corners()
        return float((1 + (hit - alarm).max()) / 2)

    def within(self, curve: PrivacyCurve) -> ScoreLaw:
        """Return the law, with more noise if it reveals more than a claim's epsilon(0) and total variation allow."""
        return self.clipped(curve.epsilon(0.0)).with_accuracy((1 + curve.delta(0.0)) / 2)

    def with_accuracy(self, most: float) -> ScoreLaw:
        """Return the law, or with more noise, such that the best guess is right with probability at most `most`."""
        if self.accuracy <= most:
            return self
        return self.scaled(last_true(lambda scale: self.scaled(scale).accuracy <= most, 0.0, 1.0, relative=1e-6))

    @property
    def levels(self) -> GuessLevels:
        """Log-odds of the trials between two corners each."""
        zeros, ones = (np.diff(rates) for rates in self.corners())
        present = zeros + ones > 1e-12
        with np.errstate(divide="ignore"):
            log_odds = np.log(np.maximum(ones[present], 0.0)) - np.log(np.maximum(zeros[present], 0.0))
        share = (zeros + ones)[present]
        return GuessLevels(share / share.sum(), np.clip(log_odds, -LARGEST_LOSS, LARGEST_LOSS))


def _response_hits(alarm: Floats, epsilon: float) -> Floats:
    return np.asarray(np.minimum(math.exp(epsilon) * alarm, 1 - math.exp(-epsilon) * (1 - alarm)))


def _laplace_hits(alarm: Floats, epsilon: float) -> Floats:
    edge = math.exp(-epsilon) / 2
    middle = 1 - edge / 2 / np.maximum(alarm, edge)
    outer = np.minimum(math.exp(epsilon) * alarm, 1 - math.exp(-epsilon) * (1 - alarm))
    return np.asarray(np.where((alarm > edge) & (alarm < 0.5), middle, outer))


def _gaussian_hits(alarm: Floats, mu: float) -> Floats:
    return np.asarray(special.ndtr(special.ndtri(alarm) + mu))


HITS: Mapping[str, Callable[[Floats, float], Floats]] = {
    "response": _response_hits,
    "laplace": _laplace_hits,
    "gaussian": _gaussian_hits,
}
"""Rates of hits at rates of false alarms of the most powerful tests, by law and parameter."""


@dataclass(frozen=True)
class NoiseLaw(ScoreLaw):
    """Law of randomised response, Laplace noise or Gaussian noise.

    Attributes:
        name: A key of `HITS`.
        parameter: Epsilon of the first two, or mu, > 0.
    """

    name: str
    parameter: float

    def scaled(self, factor: float) -> NoiseLaw:
        return NoiseLaw(self.name, factor * self.parameter)

    def clipped(self, epsilon: float) -> NoiseLaw:
        return self if self.name == "gaussian" else NoiseLaw(self.name, min(self.parameter, epsilon))

    def corners(self) -> tuple[Floats, Floats]:
        """Return about a hundred rates, dense at both ends, where few guesses are sure."""
        some = _ALARMS[::3]
        alarm = np.unique(np.concatenate([some, 1 - HITS[self.name](some, self.parameter), [1.0]]))
        return alarm, HITS[self.name](alarm, self.parameter)

    def likelihood(self, trials: Floats, ones: Floats) -> tuple[float, float]:
        """Return the log-likelihood of counts by level of the score, highest first, and the p-value of their misfit."""
        above = np.concatenate([[0.0], np.cumsum(trials) / trials.sum()])
        hit = HITS[self.name](_ALARMS, self.parameter)
        alarm = np.interp(above, (_ALARMS + hit) / 2, _ALARMS)
        share = np.clip(np.diff(2 * above - alarm) / (2 * np.diff(above)), 1e-9, 1 - 1e-9)
        misfit = ((ones - trials * share) ** 2 / (trials * share * (1 - share))).sum()
        likelihood = (special.xlogy(ones, share) + special.xlogy(trials - ones, 1 - share)).sum()
        return float(likelihood), float(special.chdtrc(trials.size - 1, misfit))


@dataclass(frozen=True, eq=False)
class LevelLaw(ScoreLaw):
    """Law of few levels, each with its log-odds.

    Attributes:
        share: Share of the trials at each level, shape (levels,), sum 1.
        log_odds: Log-odds of world 1 at each level, ascending, in nats, shape (levels,).
    """

    share: Floats
    log_odds: Floats

    def scaled(self, factor: float) -> LevelLaw:
        return LevelLaw(self.share, factor * self.log_odds)

    def clipped(self, epsilon: float) -> LevelLaw:
        return LevelLaw(self.share, np.clip(self.log_odds, -epsilon, epsilon))

    def corners(self) -> tuple[Floats, Floats]:
        ones = (self.share * special.expit(self.log_odds))[::-1]
        zeros = (self.share * special.expit(-self.log_odds))[::-1]
        rates = [np.minimum(np.append(0.0, np.cumsum(part / part.sum())), 1.0) for part in (zeros, ones)]
        return rates[0], rates[1]


def score_law(score: Floats, truth: NDArray[np.bool_]) -> ScoreLaw:
    """Return the law that fits scores and worlds of n trials best, both of shape (n,)."""
    place, discrete = places_of(score)
    trials, ones = (np.bincount(place, weights=weights).astype(np.float64) for weights in (None, truth))
    if not discrete:
        counts = trials[::-1], ones[::-1]
        fits = [
            (*law.likelihood(*counts), law)
            for name in HITS
            for law in (NoiseLaw(name, float(parameter)) for parameter in _PARAMETERS)
        ]
        _, p, law = max(fits, key=lambda fit: fit[0])
        if p >= MISFIT:
            return law
    trials, ones = isotonic(trials, ones)
    levels = LevelLaw(trials / truth.size, np.log((ones + 0.5) / (trials - ones + 0.5)))
    # Levels that were fitted to these trials look more accurate than they are.
    return levels.with_accuracy(max(0.5, right_guesses(place, truth) / truth.size))


def places_of(score: Floats) -> tuple[NDArray[np.int64], bool]:
    """Return the level of each score, 0 for the lowest ones, shape (n,); True if the score has few values."""
    _, place = np.unique(score, return_inverse=True)
    if place.max() < LEVELS:
        return place, True
    return np.argsort(np.argsort(place, kind="stable"), kind="stable") * LEVELS // place.size, False


def right_guesses(place: NDArray[np.int64], truth: NDArray[np.bool_]) -> int:
    """Return the number of right guesses by a threshold that is chosen on the other half of the trials."""
    half = np.random.default_rng(0).permutation(truth.size) < truth.size // 2
    right = 0
    for part in (half, ~half):
        ones, trials = (np.bincount(place[~part], weights, place.max() + 1) for weights in (truth[~part], None))
        cut = int(np.argmin(np.append(0.0, np.cumsum(ones - trials / 2))))
        right += int(((place[part] >= cut) == truth[part]).sum())
    return right


def isotonic(trials: NDArray[Any], ones: NDArray[Any]) -> tuple[Floats, Floats]:
    """Return trials and ones of levels, merged until the share of ones rises (isotonic regression)."""
    points: list[tuple[float, float]] = []
    for block in zip(trials.tolist(), ones.tolist(), strict=True):
        while points and points[-1][1] * block[0] >= block[1] * points[-1][0]:
            before = points.pop()
            block = before[0] + block[0], before[1] + block[1]
        points.append(block)
    pooled = np.array(points, np.float64)
    return pooled[:, 0], pooled[:, 1]
