"""Sensitivity of an audit: what it can show before it runs, and its p-value and detectable noise from its scores.

Before a run, the estimator reads scores of a typical game against a mechanism that spends exactly a given epsilon
(`dpaudit.engine.games.reference`). The number of correct guesses is set to its median or its lower decile. A bound
grows with that number, so the result is approximately the median bound, or the bound that nine in ten games exceed.

After a run, the detectable scaling of the noise is estimated from the law of the audit's scores (`score_laws`). The
law is uncertain, so its noise is raised until nine in ten new audits at the printed factor would reject the claim: the
average over honest runs, of which each states another factor. It never reveals more than the claim allows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

from dpaudit.claims import PrivacyCurve
from dpaudit.engine.answer.answer_words import MOST_SCALED, POWER, factor_in_words, number_in_words
from dpaudit.engine.answer.score_laws import ScoreLaw, isotonic, places_of, right_guesses, score_law
from dpaudit.engine.games.reference import GuessLevels, Reference
from dpaudit.errors import require
from dpaudit.estimators.bisection import last_true
from dpaudit.estimators.bound import Bound, format_lower
from dpaudit.estimators.estimator import Estimator
from dpaudit.estimators.finding import Finding
from dpaudit.estimators.scores import Scores, SharedOrders

if TYPE_CHECKING:
    from dpaudit.engine.games.protocol import PlantedNoise
    from dpaudit.engine.planning.plan import PlannedAudit

# Before a run

MOST_FOR_FACTOR = 40_000  # rows up to which the detectable factor is computed: a second or two
MORE = 4  # factor on the number of trials for which the sensitivity is printed too
MOST_TRIED = 1 << 20  # largest number of canaries or trials that is tried


@dataclass(frozen=True)
class Outlook:
    """Sensitivity of a planned audit."""

    reference: Reference  # reference game from which it was computed
    ceiling: float  # the bound that a mechanism with no privacy would get, in nats
    claimed: float  # claimed epsilon at the estimator's delta, in nats; inf if nothing is claimed
    at_claim: float | None  # median bound for a mechanism that spends the claim; None if nothing is claimed
    # Factor by which the noise would have to be too small to be detected with probability `POWER`; inf if not even
    # `MOST_SCALED` is enough, None if nothing is claimed or there are more than `MOST_FOR_FACTOR` rows
    factor: float | None
    factor_of_more: float | None  # the same with `MORE` times the rows
    # canaries or trials with which twice the claim is rejected with probability `POWER`; None if nothing is claimed, or
    # `MOST_TRIED` are too few
    needed: int | None

    @property
    def lines(self) -> tuple[str, ...]:
        """Sentences on the sensitivity of the audit."""
        rows, unit, assumes = self.reference.rows, self.reference.unit, self.reference.response.assumes
        maximum = f"maximum detectable epsilon {number_in_words(self.ceiling)} ({assumes or f'{rows:,} {unit}'})"
        if self.at_claim is None:
            return (f"sensitivity: {maximum}",)
        needed = f"more than {MOST_TRIED:,}" if self.needed is None else f"{self.needed:,}"
        factors = [None if factor is None else factor_in_words(factor) for factor in (self.factor, self.factor_of_more)]
        return (
            f"sensitivity: {'; '.join(filter(None, [factors[0], maximum]))}",
            *([f"with {MORE} times as many {unit}: {factors[1]}"] if factors[1] else []),
            f"noise scaled down 2 times needs {needed} {unit}; {rows:,} are planned",
            f"expected lower bound if the claim holds exactly: {format_lower(self.at_claim)} "
            "(best attack on randomised response)",
        )

    @property
    def line(self) -> str:
        """One line on what the audit can show at its claim."""
        most = f"can show at most {number_in_words(self.ceiling)}"
        if self.at_claim is None:
            return most
        if self.ceiling <= self.claimed:
            return f"claims {self.claimed:.4g}; {most}: it cannot reject its claim"
        detects = "" if self.factor is None else f"; {factor_in_words(self.factor)}"
        return (
            f"claims {self.claimed:.4g}; {most}, and about {format_lower(self.at_claim)} if the claim holds exactly"
            f"{detects}"
        )


def planned_outlook(entry: PlannedAudit) -> Outlook | None:
    """Return the outlook of a planned audit; None for a game without a reference."""
    audit, reference = entry.audit, entry.game.reference
    if reference is None:
        return None
    curve = audit.game.traits.compared(entry.effective_claim).claim.curve
    return outlook(audit.estimator, reference, curve.epsilon(audit.estimator.delta))


def outlook(estimator: Estimator[Any, Any], reference: Reference, claimed: float) -> Outlook:
    """Return the outlook of an audit of a claimed epsilon, in nats, at the delta of the estimator."""
    require(claimed >= 0, "a claimed epsilon must be >= 0", claimed=claimed)
    ceiling = ceiling_bound(estimator, reference).lower
    if math.isinf(claimed) or claimed == 0:
        return Outlook(reference, ceiling, claimed, None, None, None, None)
    return Outlook(
        reference,
        ceiling,
        claimed,
        at_claim=expected_bound(estimator, reference, claimed),
        factor=detectable_scaling(estimator, reference, claimed, reference.rows),
        factor_of_more=detectable_scaling(estimator, reference, claimed, MORE * reference.rows),
        needed=rows_to_reject(estimator, reference, claimed, spent=2 * claimed),
    )


def ceiling_bound(estimator: Estimator[Any, Any], reference: Reference) -> Bound:
    """Return the bound of a mechanism with no privacy."""
    return _planned_bound(estimator, reference, math.inf, reference.rows)


def expected_bound(
    estimator: Estimator[Any, Any],
    reference: Reference,
    spent: float,
    *,
    rows: int | None = None,
    quantile: float = 0.5,
) -> float:
    """Return a quantile of the bounds on a mechanism that spends epsilon `spent`, in nats, >= 0.

    Args:
        estimator: The estimator of the audit.
        reference: The reference of its game.
        spent: Epsilon of the mechanism, >= 0; may be inf.
        rows: Canaries or trials; by default as many as planned.
        quantile: Share of games with a smaller bound, in (0, 1).
    """
    rows, z = reference.rows if rows is None else rows, float(special.ndtri(quantile))
    orders = max(1, min(_ORDERS, _ROWS_OF_ORDERS // rows))
    bounds = [_planned_bound(estimator, reference, spent, rows, z=z, order=order).lower for order in range(orders)]
    return float(np.median(bounds))


def detectable_scaling(estimator: Estimator[Any, Any], reference: Reference, claimed: float, rows: int) -> float | None:
    """Return the smallest factor on the noise, to 5 %, at which the claim is rejected with probability `POWER`.

    Noise that is c times too small spends c times the claim. Returns inf if `MOST_SCALED` times is not enough, None for
    more than `MOST_FOR_FACTOR` rows.
    """
    if rows > MOST_FOR_FACTOR:
        return None
    z = float(special.ndtri(1 - POWER))

    def missed(factor: float) -> bool:
        return _planned_bound(estimator, reference, factor * claimed, rows, z=z).lower <= claimed

    if missed(MOST_SCALED):
        return math.inf
    width = 0.05
    below = last_true(missed, 1.0, MOST_SCALED, relative=width) if missed(1.0) else 1.0
    return min(MOST_SCALED, below / (1 - width))


def rows_to_reject(estimator: Estimator[Any, Any], reference: Reference, claimed: float, *, spent: float) -> int | None:
    """Return the smallest number of canaries or trials that rejects the claim with probability `POWER`, to 2 %.

    Returns: None if `MOST_TRIED` are too few.
    """

    def rejects(rows: int) -> bool:
        return expected_bound(estimator, reference, spent, rows=rows, quantile=1 - POWER) > claimed

    enough = _FEWEST
    while not rejects(enough):
        if enough >= MOST_TRIED:
            return None
        enough *= 4
    too_few = enough // 4
    while enough - too_few > max(1, 0.02 * too_few):
        # The bound is not monotone at the scale of single guesses; a tolerance of 2 % hides that.
        middle = round(math.sqrt(too_few * enough))
        too_few, enough = (too_few, middle) if rejects(middle) else (middle, enough)
    return enough


_FEWEST = 4  # both worlds must have a trial
_ORDERS, _ROWS_OF_ORDERS = 5, 100_000  # with many rows, their order matters little and is slow to vary


def _planned_bound(
    estimator: Estimator[Any, Any], reference: Reference, spent: float, rows: int, *, z: float = 0.0, order: int = 0
) -> Bound:
    tally = estimator.tally(reference.response.levels(spent).typical(rows, z=z, order=order))
    # All replays have the same bound here, and the median of two equal bounds is that of any number of them.
    return estimator.bound([tally] * min(reference.replays, 2))


# After a run

MAX_ROWS = 1 << 21  # score rows up to which the detectable factor is computed
_PRECISION = 1.02
_ERROR = 0.01  # probability that scores which tell nothing are taken for scores that do
_STEP = 1.05  # relative step of a slope
_QUANTILE = float(special.ndtri(POWER))

P_VALUES = (1e-6, 1e-5, 1e-4, 1e-3, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2)
"""Values of a p-value that are tried."""


def p_value_of(
    estimator: Any, tallies: Sequence[Any], finding: Finding, curve: PrivacyCurve, *, failed_replays: int = 0
) -> float:
    """Return the smallest of `P_VALUES` at which the bound exceeds the claim, an upper limit of its p-value; 1 if none.

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


def tells_apart(evidence: Sequence[Scores], *, replays: int = 1) -> bool:
    """True if the scores of fair coins tell the worlds apart, at level 1 %: else they say nothing about smaller noise.

    Replays may share a training, so the guesses of all replays count as those of one.
    """
    score, truth = (np.concatenate([getattr(table, name) for table in evidence]) for name in ("score", "truth"))
    right, rows = right_guesses(places_of(score)[0], truth) / replays, truth.size / replays
    return float(special.betaincinv(right, rows - right + 1, _ERROR)) > 0.5 if 0 < right <= rows else False


def factor_of_scores(
    estimator: Any, evidence: Sequence[Scores], curve: PrivacyCurve, *, replays: int = 1
) -> dict[str, Any]:
    """Return the fields `factor` and `no_difference` of a `Sensitivity`; arguments as in `detectable_factor`."""
    factor = detectable_factor(estimator, evidence, curve, replays=replays)
    few = sum(table.score.size for table in evidence) <= MAX_ROWS
    by_coins = factor is None and few and getattr(estimator, "fair_coins", True)
    return {"factor": factor, "no_difference": by_coins and not tells_apart(evidence, replays=replays)}


def detectable_factor(
    estimator: Any, evidence: Sequence[Scores], curve: PrivacyCurve, *, replays: int = 1
) -> float | None:
    """Return the smallest scaling of the noise, to 2 %, at which the claim is rejected with probability `POWER`.

    The first pass is taken at the confidence of the verdict too, so the confirmatory run alone decides.

    Args:
        estimator: An estimator of `Scores` or `StepScores`, at the confidence of the verdict.
        evidence: The scores of the audit; those of all replays are combined. Of `SharedOrders`, the main order counts,
            with its share of the error.
        curve: Curve of the claim in the relation of the game.
        replays: Number of bounds that are combined by their median, >= 1.
    Returns: A factor in [1, 8], inf if 8 is not enough; None if scores do not tell the worlds apart, if members were
        not drawn by coins of a known probability, for several replays of rare coins, or for more than 2,097,152 scores.
    """
    if not 0 < sum(table.score.size for table in evidence) <= MAX_ROWS:
        return None
    score = np.concatenate([table.score for table in evidence])
    truth = np.concatenate([table.truth for table in evidence])
    if not getattr(estimator, "fair_coins", True):
        if replays > 1:
            return None
        return _detectable_factor_of_rare(estimator, score, truth, curve)
    if not tells_apart(evidence, replays=replays):
        return None
    rows, law = max(2, score.size // replays), score_law(score, truth)
    shares_error = any(getattr(table, "further", None) is not None for table in evidence)

    def is_rejected(factor: float) -> bool:
        """True if a new audit would reject: with `law` as uncertain as `rows` trials leave it."""
        of_law, of_audit = (_uncertainty(scaled, rows) for scaled in (law, law.scaled(factor)))
        margin = _QUANTILE * (math.hypot(of_law, of_audit) - of_audit)
        weaker = law.scaled(max(0.0, 1 - margin)).within(curve).scaled(factor)
        return _is_rejected(estimator, weaker.levels, rows, curve, replays, shares_error=shares_error)

    return smallest_factor(is_rejected)


def _uncertainty(law: ScoreLaw, rows: int) -> float:
    """Return the relative standard deviation of the scale of a law, by the right guesses of `rows` trials."""
    slope = (law.scaled(_STEP).accuracy - law.scaled(1 / _STEP).accuracy) / (2 * math.log(_STEP))
    deviation = math.sqrt(law.accuracy * (1 - law.accuracy) / rows)
    return deviation / slope if slope > 0 else 1.0


def smallest_factor(is_rejected: Callable[[float], bool]) -> float:
    """Return the smallest factor in [1, 8], to 2 %, at which the claim is rejected; inf if it is not at 8."""
    if not is_rejected(MOST_SCALED):
        return math.inf
    low, high = 1.0, MOST_SCALED
    if is_rejected(low):
        return low
    while high / low > _PRECISION:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if is_rejected(middle) else (middle, high)
    return high


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
        if _is_rejected(estimator, levels, rows, curve, replays):
            return float(spent / epsilon)
    return math.inf


def _is_rejected(
    estimator: Any, levels: GuessLevels, rows: int, curve: PrivacyCurve, replays: int, *, shares_error: bool = False
) -> bool:
    typical = levels.unlucky(rows, z=_QUANTILE)
    evidence = estimator.evidence(typical.score, typical.truth)
    if shares_error:
        evidence = SharedOrders(typical.score, typical.truth, further=np.zeros((rows, 1)))  # without further guesses
    tally = estimator.tally(evidence)
    return estimator.find([tally] * min(replays, 2)).violation_point(curve) is not None


# Rare coins

FIRST_LEVEL = 10
"""Canaries in the highest level of scores."""


def _detectable_factor_of_rare(
    estimator: Any, score: NDArray[np.float64], truth: NDArray[np.bool_], curve: PrivacyCurve
) -> float | None:
    """Return the factor for rare coins, at laws of the scores as weak as the lower limit of what was found.

    None if that may be chance, or if the members are a random subset.
    """
    from dpaudit.estimators.extraction.rare_canaries import RareCanaries  # few audits have rare coins

    planted = int(truth.sum())
    if not isinstance(estimator, RareCanaries) or not 0 < planted < truth.size:
        return None
    highest_first = truth[np.lexsort((truth, -score))]  # ties count against the attack
    right = int(highest_first[:planted].sum())
    surely = float(special.betaincinv(right, planted - right + 1, _ERROR)) if right else 0.0
    if surely <= planted / truth.size:
        return None
    # From the highest score on, each level has twice as many canaries as the one before.
    place = np.log2(1 + np.arange(truth.size) / FIRST_LEVEL).astype(np.int64)
    counts = np.bincount(place)[::-1], np.bincount(place, weights=highest_first)[::-1]
    levels = RareLevels.of(*isotonic(*counts)).weakened(surely)

    def is_rejected(factor: float) -> bool:
        tally = estimator.tally(levels.scaled(factor).typical(-_QUANTILE))
        return estimator.bound([tally]).violation_point(curve) is not None

    return smallest_factor(is_rejected)


@dataclass(frozen=True, eq=False)
class RareLevels:
    """Levels of scores with rare coins, lowest first: laws of planted and of other canaries, and those for less noise.

    Noise that is c times too small multiplies the log-likelihood ratio of a canary by c, as for fair coins. The levels
    keep their shares of an equal mixture of both worlds.

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
