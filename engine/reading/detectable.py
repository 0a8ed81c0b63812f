"""The smallest under-noising that an audit would refute, judged from the scores it has."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special

from dpaudit.claims import PrivacyCurve
from dpaudit.engine.games.neighbours.stated_law import PlantedNoise
from dpaudit.engine.games.reference import GuessLevels
from dpaudit.estimators.scores import Scores

POWER = 0.9
"""Probability with which the stated factor would be refuted."""
MOST = 8.0
"""The largest factor that is stated: the scores tell too little of larger ones."""
MAX_ROWS = 1 << 21  # of all replays: more take longer than a reader waits
_LEVELS = 16  # of scores, each with as many trials
_PRECISION = 1.02
_DOUBT = 0.01  # probability that trials tell less than is taken
_EACH = special.ndtri(1 - (1 - POWER) / 2)  # luck below which neither the first pass nor the confirmatory run falls


def detectable_factor(
    estimator: Any, evidence: Sequence[Scores], curve: PrivacyCurve, *, replays: int = 1
) -> float | None:
    """The smallest factor on the noise, to 2 %, that would be refuted with probability `POWER`.

    Noise that is c times too small makes the log-odds that a trial tells c times as large: exactly so for randomised
    response and the tails of Laplace noise, at least so for Gaussian noise. How much trials tell is learned from the
    scores themselves, and taken at the lower end of what their number of right guesses allows.

    Args:
        estimator: Of `Scores` or `StepScores`, at the confidence of the verdict.
        evidence: The scores of the audit; those of all replays are taken together.
        curve: The claim's, in the relation of the game.
        replays: Bounds that are combined by their median, >= 1.
    Returns: A factor in [1, 8]; None where the scores tell too little to name one, or are none, or more than 2,097,152.
    """
    if not 0 < sum(each.score.size for each in evidence) <= MAX_ROWS:
        return None
    score = np.concatenate([each.score for each in evidence])
    truth = np.concatenate([each.truth for each in evidence])
    levels = _levels(score, truth, replays)
    if levels is None:
        return None
    rows = max(2, score.size // replays)
    if not _refuted(estimator, levels, MOST, rows, curve, replays):
        return None
    low, high = 1.0, MOST
    if _refuted(estimator, levels, low, rows, curve, replays):
        return low
    while high / low > _PRECISION:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if _refuted(estimator, levels, middle, rows, curve, replays) else (middle, high)
    return high


def planted_factor(
    estimator: Any, planted: PlantedNoise, epsilon: float, rows: int, curve: PrivacyCurve, *, replays: int = 1
) -> float:
    """The smallest factor on the noise that would be refuted with probability `POWER`, of those that were planted.

    Args:
        estimator: As in `detectable_factor`; so are `curve` and `replays`.
        planted: What a trial tells at several epsilons.
        epsilon: The claim's: at that one the noise is not too small.
        rows: Trials of a replay.
    Returns: A factor in [1, 8]; inf where none of them would be refuted.
    """
    for each in np.unique(planted.epsilon[(planted.epsilon >= epsilon) & (planted.epsilon <= MOST * epsilon)]):
        log_odds = planted.log_odds[planted.epsilon == each]
        levels = GuessLevels(np.full(log_odds.size, 1 / log_odds.size), log_odds)
        if _refuted(estimator, levels, 1.0, rows, curve, replays):
            return float(each / epsilon)
    return math.inf


def _levels(score: NDArray[np.float64], truth: NDArray[np.bool_], replays: int) -> GuessLevels | None:
    """What trials tell, level by level of their scores; None where it may be nothing.

    Replays may share a training, so their guesses count as those of one.
    """
    _, place = np.unique(score, return_inverse=True)
    if place.max() >= _LEVELS:
        place = np.argsort(np.argsort(place, kind="stable"), kind="stable") * _LEVELS // place.size
    trials, ones = np.bincount(place), np.bincount(place, weights=truth)
    fitted = optimize.isotonic_regression(ones / trials, weights=trials)
    pooled = np.repeat(np.arange(fitted.blocks.size - 1), np.diff(fitted.blocks))
    trials, ones = np.bincount(pooled, weights=trials), np.bincount(pooled, weights=ones)
    log_odds = np.log((ones + 0.5) / (trials - ones + 0.5))
    right, rows = np.where(log_odds > 0, ones, trials - ones).sum() / replays, truth.size / replays
    surely = float(special.betaincinv(right, rows - right + 1, _DOUBT))
    share = trials / truth.size
    if surely <= 0.5:
        return None

    def accuracy(scale: float) -> float:
        return float(share @ special.expit(scale * np.abs(log_odds))) - surely

    scale = 1.0 if accuracy(1.0) <= 0 else float(optimize.brentq(accuracy, 0.0, 1.0))
    return GuessLevels(share, scale * log_odds)


def _refuted(estimator: Any, levels: GuessLevels, factor: float, rows: int, curve: PrivacyCurve, replays: int) -> bool:
    typical = GuessLevels(levels.share, factor * levels.log_odds).typical(rows, z=-_EACH)
    tally = estimator.tally(estimator.evidence(typical.score, typical.truth))
    return estimator.find([tally] * min(replays, 2)).violation_point(curve) is not None
