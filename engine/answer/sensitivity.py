"""p-values and sensitivity of a bound, from its counts or scores alone.

The detectable scaling of the noise is estimated from the scores of the audit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

from dpaudit.claims import PrivacyCurve
from dpaudit.engine.answer.rare_levels import RareLevels, level_of_rank
from dpaudit.engine.games.reference import GuessLevels
from dpaudit.engine.planning.sensitivity_words import MOST_SCALED, POWER
from dpaudit.estimators.bisection import last_true
from dpaudit.estimators.extraction.rare_canaries import HighestScores, RareCanaries
from dpaudit.estimators.finding import Finding
from dpaudit.estimators.scores import Scores

if TYPE_CHECKING:
    from dpaudit.engine.games.protocol import PlantedNoise

MAX_ROWS = 1 << 21  # score rows up to which the detectable factor is computed
_LEVELS = 16  # groups of scores with equal numbers of trials
_PRECISION = 1.02
_ERROR = 0.01  # probability that the accuracy of guesses is overestimated
_QUANTILE = special.ndtri(1 - (1 - POWER) / 2)  # both passes exceed this quantile with probability >= `POWER`

P_VALUES = (1e-6, 1e-5, 1e-4, 1e-3, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2)
"""Values of a p-value that are tried."""


def p_value_of(
    estimator: Any, tallies: Sequence[Any], finding: Finding, curve: PrivacyCurve, *, failed_replays: int = 0
) -> float:
    """Return the smallest of `ERRORS` at which the bound exceeds the claim, an upper limit of its p-value; 1 if none.

    A bound at confidence 1 - p that exceeds the claim is a test of level p.

    Args:
        finding: The finding at the confidence of the estimator.
        curve: Curve of the claim.
        failed_replays: Number of planned replays without a tally.
    """

    def exceeds(error: float) -> bool:
        if math.isclose(error, 1 - estimator.confidence):
            return finding.violation_point(curve) is not None
        bound = replace(estimator, confidence=1 - error).bound(tallies, failed_replays=failed_replays)
        return bound.violation_point(curve) is not None

    low, high = 0, len(P_VALUES)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if exceeds(P_VALUES[middle]) else (middle + 1, high)
    return P_VALUES[low] if low < len(P_VALUES) else 1.0


def detectable_factor(
    estimator: Any, evidence: Sequence[Scores], curve: PrivacyCurve, *, replays: int = 1
) -> float | None:
    """Return the smallest scaling of the noise, to 2 %, at which the claim is rejected with probability `POWER`.

    Noise that is c times too small multiplies the log-odds of a trial by c: exactly for randomised response and the
    tails of Laplace noise, at least for Gaussian noise. The log-odds are estimated from the scores, at the lower
    confidence limit of the number of correct guesses.

    Args:
        estimator: An estimator of `Scores` or `StepScores`, at the confidence of the verdict.
        evidence: The scores of the audit; those of all replays are combined.
        curve: Curve of the claim in the relation of the game.
        replays: Number of bounds that are combined by their median, >= 1.
    Returns: A factor in [1, 8]; None if it exceeds 8 or cannot be estimated, if members were not drawn by coins of a
        known probability, for several replays of rare coins, or for more than 2,097,152 scores.
    """
    if not 0 < sum(table.score.size for table in evidence) <= MAX_ROWS:
        return None
    score = np.concatenate([table.score for table in evidence])
    truth = np.concatenate([table.truth for table in evidence])
    if isinstance(estimator, HighestScores):
        if not isinstance(estimator, RareCanaries) or replays > 1:
            return None
        rare = _rare_levels(score, truth)
        return None if rare is None else _smallest_factor(partial(_is_rejected_by_rare, estimator, rare, curve))
    levels = _levels(score, truth, replays)
    if levels is None:
        return None
    rows = max(2, score.size // replays)
    return _smallest_factor(lambda factor: _is_rejected(estimator, levels, factor, rows, curve, replays))


def _smallest_factor(is_rejected: Callable[[float], bool]) -> float | None:
    """Return the smallest factor in [1, 8], to 2 %, at which the claim is rejected; None if it is not at 8."""
    if not is_rejected(MOST_SCALED):
        return None
    low, high = 1.0, MOST_SCALED
    if is_rejected(low):
        return low
    while high / low > _PRECISION:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if is_rejected(middle) else (middle, high)
    return high


def _rare_levels(score: NDArray[np.float64], truth: NDArray[np.bool_]) -> RareLevels | None:
    """Return the laws of the scores, as weak as the lower limit of what was found; None if it may be chance."""
    planted = int(truth.sum())
    if not 0 < planted < truth.size:
        return None
    highest_first = truth[np.lexsort((truth, -score))]  # ties count against the attack
    right = int(highest_first[:planted].sum())
    surely = float(special.betaincinv(right, planted - right + 1, _ERROR)) if right else 0.0
    if surely <= planted / truth.size:
        return None
    place = level_of_rank(truth.size)
    counts = np.bincount(place)[::-1], np.bincount(place, weights=highest_first)[::-1]
    return RareLevels.of(*_isotonic(*counts)).weakened(surely)


def _is_rejected_by_rare(estimator: RareCanaries, levels: RareLevels, curve: PrivacyCurve, factor: float) -> bool:
    tally = estimator.tally(levels.scaled(factor).typical(-_QUANTILE))
    return estimator.bound([tally]).violation_point(curve) is not None


def planted_factor(
    estimator: Any, planted: PlantedNoise, epsilon: float, rows: int, curve: PrivacyCurve, *, replays: int = 1
) -> float:
    """Return the smallest planted scaling of the noise at which the claim is rejected with probability `POWER`.

    Args:
        estimator: As in `detectable_factor`, like `curve` and `replays`.
        planted: Log-odds of trials at several epsilons.
        epsilon: Epsilon of the claim, at which the noise has the claimed scale.
        rows: Number of trials in a replay.
    Returns: A factor in [1, 8]; inf if no planted scaling is rejected.
    """
    in_range = (planted.epsilon >= epsilon) & (planted.epsilon <= MOST_SCALED * epsilon)
    for spent in np.unique(planted.epsilon[in_range]):
        log_odds = planted.log_odds[planted.epsilon == spent]
        levels = GuessLevels(np.full(log_odds.size, 1 / log_odds.size), log_odds)
        if _is_rejected(estimator, levels, 1.0, rows, curve, replays):
            return float(spent / epsilon)
    return math.inf


def _levels(score: NDArray[np.float64], truth: NDArray[np.bool_], replays: int) -> GuessLevels | None:
    """Return the log-odds of trials by level of their score; None if guesses may be no better than chance.

    Replays may share a training, so the guesses of all replays count as those of one.
    """
    _, place = np.unique(score, return_inverse=True)
    if place.max() >= _LEVELS:
        place = np.argsort(np.argsort(place, kind="stable"), kind="stable") * _LEVELS // place.size
    trials, ones = _isotonic(np.bincount(place), np.bincount(place, weights=truth))
    log_odds = np.log((ones + 0.5) / (trials - ones + 0.5))
    right, rows = np.where(log_odds > 0, ones, trials - ones).sum() / replays, truth.size / replays
    surely = float(special.betaincinv(right, rows - right + 1, _ERROR))
    share = trials / truth.size
    if surely <= 0.5:
        return None

    def accuracy(scale: float) -> float:
        return float(share @ special.expit(scale * np.abs(log_odds))) - surely

    scale = 1.0 if accuracy(1.0) <= 0 else last_true(lambda scale: accuracy(scale) <= 0, 0.0, 1.0)
    return GuessLevels(share, scale * log_odds)


def _isotonic(trials: NDArray[Any], ones: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return trials and ones of levels, merged until the share of ones rises (isotonic regression)."""
    points: list[tuple[float, float]] = []
    for block in zip(trials.tolist(), ones.tolist(), strict=True):
        while points and points[-1][1] * block[0] >= block[1] * points[-1][0]:
            before = points.pop()
            block = before[0] + block[0], before[1] + block[1]
        points.append(block)
    pooled = np.array(points, np.float64)
    return pooled[:, 0], pooled[:, 1]


def _is_rejected(
    estimator: Any, levels: GuessLevels, factor: float, rows: int, curve: PrivacyCurve, replays: int
) -> bool:
    typical = GuessLevels(levels.share, factor * levels.log_odds).typical(rows, z=-_QUANTILE)
    tally = estimator.tally(estimator.evidence(typical.score, typical.truth))
    return estimator.find([tally] * min(replays, 2)).violation_point(curve) is not None
