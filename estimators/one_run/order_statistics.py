"""Bounds from the guesses of one run under a family and independent leaks: tight, and wrong if either assumption fails.

Assumptions, which no data show:

1. *Family.* The mechanism's trade-off function for one canary is a member of the family (or above it). A family orders
   trade-off functions by one parameter > 0; a larger parameter is less private.
2. *Independent leaks.* Canaries leak independently: what is released is no more informative than one separate output
   for each canary, with separate noise. A run that is lucky or unlucky as a whole breaks this. Few steps, one large
   batch or noise that canaries share can make such a run.

Under both assumptions the strongest adversary has one likelihood ratio for each canary. These are independent, so order
statistics give the exact law of its errors: the r most confident of n guesses are the scores above the quantile W ~
Beta(n - r, r + 1), and given W each of them is wrong independently with the mean error rate above that quantile, g(W).
So Pr[at most u errors] = E[Pr[Bin(r, g(W)) <= u]]; for r = n, g is the mean error rate of all guesses. Any other
adversary makes at least as many errors. The bound is the smallest parameter whose probability exceeds 1 - confidence.

A test that accuses a share v of the scores in either world has alarm rate a with a + 1 - f(a) = v. Hence the mean error
rate of the share v = 1 - w of the most confident guesses is a / v.

Probabilities are rounded up, parameters and epsilons down.

Source: Xiang et al. (2025), arXiv:2509.08704. Assumption 2 is necessary: `tests/estimators/test_order_statistics.py`
    has a mechanism with dependent leaks for which the bound is wrong.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from dpaudit.claims import ComposedLaplace, GaussianDP, PrivacyCurve, SubsampledGaussian
from dpaudit.errors import require
from dpaudit.estimators.arguments import (
    Floats,
    Ints,
    as_confidence,
    as_delta,
    require_one_of,
    rowwise,
)
from dpaudit.estimators.bound import format_lower, format_upper
from dpaudit.estimators.estimator import Replays
from dpaudit.estimators.family_bound import FamilyBound, FamilyName, NamedFamily
from dpaudit.estimators.finding import Series, Validity
from dpaudit.estimators.one_run.guessing_game import checked_counts
from dpaudit.estimators.one_run.right_guesses import OneRunTally
from dpaudit.estimators.one_run.signed_scores import OneRunEstimator
from dpaudit.estimators.replays import per_replay_confidence
from dpaudit.estimators.selection import Grid, Selection
from dpaudit.registry import register

REACH = 8.0
"""Standard scores of W beyond which its mass, 1.3e-15, is added to the probability."""
NODES_A_DEVIATION = 16
"""Nodes of the trapezoid rule for each standard deviation of W."""
SAFETY = 1e-9
"""Relative amount by which probabilities are raised and parameters lowered: more than their numerical error."""
SEARCH_TOLERANCE = 1e-9  # width, relative to 1 + parameter, at which the search stops; the lower end is returned
NEWTON_STEPS = 12
LARGEST_LOG = 700.0  # stands for the logarithm of a probability that rounds to 0
SMALLEST_PARAMETER, LARGEST_PARAMETER = 1e-6, 100.0
"""Range of the search over mu, or over the epsilon of the Laplace mechanism."""
LEAST_NOISY, MOST_NOISY = 5.0, 0.05
"""Range of the search over 1 / noise multiplier of DP-SGD."""
TABLE_ERROR = 1e-4
"""Relative amount by which 1 / noise multiplier is lowered before a table, which rounds epsilon up, is read.

Tables four times finer change epsilon by at most 7e-6 relative; this lowers it by more than 1e-4.
"""
DP_SGD_TOLERANCE = 5e-4  # as `SEARCH_TOLERANCE`; each probed parameter needs a new table
FRACTIONS = (0.1, 0.7)
"""Shares of the canaries that are guessed by default; they share the error.

Seven tenths is within 3 % of the best share for Gaussian and Laplace families, a tenth for DP-SGD of few steps.
"""
CONDITIONS = (
    "conditional on two assumptions that no data show: each canary's trade-off function is {}, and canaries leak "
    "independently (no luck that all canaries of the run share)"
)


@dataclass(frozen=True)
class LeakFamily:
    """Symmetric trade-off functions ordered by one parameter."""

    name: str  # in words
    # (parameter, shares v in (0, 1]) -> alarm rate a with a + 1 - f(a) = v, rounded down; shape as the shares
    alarms: Callable[[float, Floats], Floats]
    epsilon: Callable[[float, float], float]  # (parameter, delta) -> epsilon of the member, rounded down
    words: Callable[[float], str]  # describes a rejected parameter
    smallest: float = SMALLEST_PARAMETER  # smallest parameter of the search
    largest: float = LARGEST_PARAMETER  # largest parameter of the search
    tolerance: float = SEARCH_TOLERANCE


def _gaussian_alarms(mu: float, share: Floats) -> Floats:
    """Return Phi(-t - mu/2) for the t >= 0 at which Phi(mu/2 - t) + Phi(-t - mu/2) is the share, by Newton's method."""
    half = mu / 2
    t = np.maximum(0.0, half - special.ndtri(share))  # never above the root, as the second term is left out
    for _ in range(NEWTON_STEPS):
        excess = special.ndtr(half - t) + special.ndtr(-half - t) - share
        slope = (np.exp(-0.5 * (t - half) ** 2) + np.exp(-0.5 * (t + half) ** 2)) / math.sqrt(2 * math.pi)
        step = np.divide(excess, slope, out=np.zeros_like(t), where=slope > 0)
        t = np.maximum(0.0, t + step)
        if np.all(np.abs(step) <= 1e-12 * (1 + t)):
            break
    return np.asarray(special.ndtr(-half - t))


def _laplace_alarms(epsilon: float, share: Floats) -> Floats:
    """Return share / (1 + e^epsilon) where the loss is epsilon, else the root of a + 1 - e^-epsilon / (4 a) = share."""
    scale = math.exp(-epsilon)
    above = share - 1
    # (above + sqrt(above^2 + scale)) / 2 without cancellation: `above` is never positive.
    root = scale / (2 * (np.sqrt(above * above + scale) - above))
    return np.asarray(np.where(share <= (1 + scale) / 2, share * special.expit(-epsilon), root))


GAUSSIAN = LeakFamily(
    "Gaussian",
    _gaussian_alarms,
    lambda mu, delta: GaussianDP(mu).epsilon(delta) * (1 - SAFETY),
    lambda mu: f"mu >= {format_lower(mu, 6)}",
)
LAPLACE = LeakFamily(
    "Laplace",
    _laplace_alarms,
    lambda epsilon, delta: max(0.0, epsilon + 2 * math.log1p(-delta)) * (1 - SAFETY),
    lambda epsilon: f"epsilon of the Laplace mechanism >= {format_lower(epsilon, 6)}",
)


@lru_cache(maxsize=64)
def dp_sgd(sample_rate: float, steps: int) -> LeakFamily:
    """Return DP-SGD with known Poisson sampling and steps and unknown noise; the parameter is 1 / noise multiplier.

    The trade-off function is that of both directions of add/remove neighbours together, so the bound also holds if it
    is unknown which of the two worlds has the record.
    """

    def member(inverse: float) -> SubsampledGaussian:
        return SubsampledGaussian(noise_multiplier=1 / inverse, sample_rate=sample_rate, steps=steps)

    def epsilon(inverse: float, delta: float) -> float:
        return member(inverse * (1 - TABLE_ERROR)).epsilon(delta) * (1 - SAFETY)

    sampled = "" if sample_rate == 1 else f"sampled at {sample_rate:g}, "
    return LeakFamily(
        f"DP-SGD ({sampled}{steps:,} steps)",
        lambda inverse, share: _table_alarms(member(inverse), share),
        epsilon,
        lambda inverse: f"noise multiplier <= {format_upper(1 / inverse, 6)}",
        MOST_NOISY,
        LEAST_NOISY,
        DP_SGD_TOLERANCE,
    )


def _table_alarms(curve: SubsampledGaussian, share: Floats) -> Floats:
    """Return the alarm rates of a tabulated curve; its trade-off function is the envelope of one line for each epsilon.

    Between the corners of the envelope both the alarm rate and the share are linear.
    """
    epsilons, deltas = curve.table.epsilons, curve.table.deltas
    usable = epsilons <= 700  # e^epsilon is finite; the rest only adds corners at alarm rates below 1e-300
    powers, deltas = np.exp(epsilons[usable]), deltas[usable]
    corner = -np.diff(deltas) / np.diff(powers)
    value = 1 - deltas[:-1] - powers[:-1] * corner
    corner, value = np.minimum.accumulate(corner)[::-1], value[::-1]  # both ends of flat parts, from few alarms to many
    alarm = np.concatenate([[0.0], corner, [(1 - deltas[0]) / 2]])
    shares = np.concatenate([[deltas[-1]], corner + 1 - value, [1.0]])
    return np.asarray(np.interp(share, np.maximum.accumulate(shares), alarm, left=0.0))


def family_of(curve: PrivacyCurve) -> LeakFamily:
    """Return the family of a claimed curve: DP-SGD, one Laplace release, else the Gaussian family."""
    match curve:
        case SubsampledGaussian():
            return dp_sgd(curve.sample_rate, curve.steps)
        case ComposedLaplace(releases=1):
            return LAPLACE
        case _:
            return GAUSSIAN


def family_named(named: NamedFamily) -> LeakFamily:
    """Return the trade-off functions of a named family."""
    if named.name == "dp-sgd":
        return dp_sgd(named.sample_rate, named.steps)
    return GAUSSIAN if named.name == "gaussian" else LAPLACE


@lru_cache(maxsize=64)
def _nodes(canaries: int, guesses: int) -> tuple[Floats, Floats]:
    """Return shares 1 - W of the most confident guesses, and their weights, which sum to 1 less the mass left out."""
    if guesses == canaries:
        return np.ones(1), np.ones(1)
    z = np.linspace(-REACH, REACH, 2 * int(REACH) * NODES_A_DEVIATION + 1)
    weights = np.exp(-0.5 * z * z) / (math.sqrt(2 * math.pi) * NODES_A_DEVIATION)
    low = special.betaincinv(guesses + 1, canaries - guesses, special.ndtr(z[z <= 0]))
    high = special.betainccinv(guesses + 1, canaries - guesses, special.ndtr(-z[z > 0]))
    return np.concatenate([low, high]), weights


def _probability(family: LeakFamily, parameter: float, canaries: int, guesses: int, errors: int) -> float:
    """Return Pr[at most `errors` of the guesses are wrong] for the strongest adversary, rounded up."""
    if errors >= guesses:
        return 1.0
    share, weights = _nodes(canaries, guesses)
    error_rate = np.clip(family.alarms(parameter, share) / share, 0.0, 0.5)
    few = special.betaincc(errors + 1.0, float(guesses - errors), error_rate)  # Pr[Bin(guesses, rate) <= errors]
    left_out = 0.0 if guesses == canaries else 2 * float(special.ndtr(-REACH))
    return min(1.0, float(weights @ few) * (1 + SAFETY) + left_out)


@lru_cache(maxsize=4096)
def _largest_rejected(family: LeakFamily, row: tuple[int, int, int, float]) -> float:
    """Return the largest rejected parameter of (canaries, guesses, correct, error), rounded down; 0 if there is none.

    The probability of so few errors increases in the parameter. Its logarithm is nearly linear near the root, so the
    search uses secants.
    """
    canaries, guesses, correct, error = row

    def excess(parameter: float) -> float:
        """Return log(probability / error), <= 0 if the parameter is rejected."""
        probability = _probability(family, parameter, canaries, guesses, guesses - correct)
        return math.log(probability / error) if probability > 0 else -LARGEST_LOG

    low, high = family.smallest, min(1.0, family.largest)
    below = excess(low)
    if not guesses or below > 0:
        return 0.0
    while (above := excess(high)) <= 0:
        if high == family.largest:
            return high
        low, below, high = high, above, min(2 * high, family.largest)
    halved = True  # a secant that does not halve the bracket is followed by a bisection
    while high - low > (width := family.tolerance * (1 + high)):
        wide = high - low
        point = low - below * wide / (above - below) if halved else (low + high) / 2
        point = min(max(point, low + width / 2), high - width / 2)
        if (value := excess(point)) <= 0:
            low, below = point, value
        else:
            high, above = point, value
        halved = high - low <= wide / 2
    return low * (1 - SAFETY)


def _chosen(family: LeakFamily | str) -> LeakFamily:
    if isinstance(family, LeakFamily):
        return family
    require_one_of("family", family, ("gaussian", "laplace"))
    return GAUSSIAN if family == "gaussian" else LAPLACE


def order_statistics_parameter(
    guesses: ArrayLike,
    correct: ArrayLike,
    *,
    canaries: ArrayLike,
    confidence: ArrayLike,
    family: LeakFamily | Literal["gaussian", "laplace"] = "gaussian",
) -> float | Floats:
    """Return the smallest parameter of the family that the counts do not reject; all arguments but `family` broadcast.

    Args:
        guesses, correct, canaries, confidence: As in `guessing_game`; the guesses are the most confident ones.
        family: "gaussian" (parameter mu), "laplace" (epsilon of the Laplace mechanism), or a family such as
            `dp_sgd(0.1, steps=100)` (parameter 1 / noise multiplier).
    Returns: The parameter, rounded down; 0 if the counts reject nothing.
    Raises: InputError for arguments out of range.
    """
    n, k, m = checked_counts(guesses, correct, canaries)
    level, members = as_confidence(confidence), _chosen(family)
    return rowwise(lambda *row: _largest_rejected(members, row), m, n, k, 1 - level)


def order_statistics_epsilon(
    guesses: ArrayLike,
    correct: ArrayLike,
    *,
    canaries: ArrayLike,
    delta: ArrayLike,
    confidence: ArrayLike,
    family: LeakFamily | Literal["gaussian", "laplace"] = "gaussian",
) -> float | Floats:
    """Return the epsilon at `delta` of `order_statistics_parameter`, in nats, >= 0 and rounded down.

    It is inf at delta = 0 for a family without pure DP, such as the Gaussian, if any member is rejected.
    """
    at, members = as_delta(delta), _chosen(family)
    parameter = order_statistics_parameter(guesses, correct, canaries=canaries, confidence=confidence, family=members)
    return rowwise(lambda value, d: members.epsilon(value, d) if value > 0 else 0.0, np.asarray(parameter), at)


def order_statistics_bound(
    tallies: Sequence[OneRunTally],
    family: LeakFamily,
    *,
    delta: float,
    confidence: float,
    failed_replays: int = 0,
) -> FamilyBound | None:
    """Return the bound under a family from the counts of one-run replays, at the shares `FRACTIONS` of all canaries.

    None if the family has no finite epsilon at `delta`. `confidence` is that of the bound, combined over replays by
    their median; a failed replay shows nothing.
    """
    if delta == 0 and family is not LAPLACE:
        return None
    columns = [round(100 * fraction) - 1 for fraction in FRACTIONS]
    replays = len(tallies) + failed_replays
    error = (1 - per_replay_confidence(confidence, replays)) / len(columns)
    rows = [
        (tally.all_canaries, int(tally.sweep_guesses[column]), int(tally.sweep_correct[column]), error)
        for tally in tallies
        for column in columns
    ]
    parameters = {row: _largest_rejected(family, row) for row in set(rows)}
    by_replay = np.array([parameters[row] for row in rows]).reshape(len(tallies), -1).max(axis=1)
    # The lower median, as epsilon is not linear in the parameter.
    combined = float(np.sort(np.concatenate([by_replay, np.zeros(failed_replays)]))[(replays - 1) // 2])
    if combined == 0:
        return FamilyBound(0.0, delta, "", family.name, independent_leaks=True)
    return FamilyBound(
        family.epsilon(combined, delta), delta, family.words(combined), family.name, independent_leaks=True
    )


@register("estimator", "one-run-order-statistics", source="Xiang et al. (2025), arXiv:2509.08704")
@dataclass(frozen=True)
class OneRunOrderStatistics(OneRunEstimator):
    """One training run under a family whose canaries leak independently: tight if both hold, never a verdict.

    Attributes:
        delta: Delta at which the bound is stated; > 0 but for the Laplace family.
        selection: Shares of the canaries that are guessed.
        family: "gaussian", "laplace", or "dp-sgd" with the two numbers below.
        sample_rate: Sampling rate of DP-SGD, in (0, 1].
        steps: Number of steps of DP-SGD, >= 1.
    """

    candidate_s: ClassVar[float] = 0.01
    delta_s: ClassVar[float] = 0.01
    validity = Validity.CONDITIONAL_ON_FAMILY

    delta: float = 1e-5
    selection: Selection = field(default_factory=lambda: Grid(FRACTIONS))
    family: FamilyName = "gaussian"
    sample_rate: float = 1.0
    steps: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        NamedFamily(self.family, self.sample_rate, self.steps)  # checks all three
        require(
            self.family == "laplace" or self.delta > 0,
            f"the family {self.family} has no finite epsilon at delta = 0",
            do="state a delta > 0, or use family laplace",
            delta=self.delta,
        )

    @property
    def members(self) -> LeakFamily:
        """The family with its numbers."""
        return family_named(NamedFamily(self.family, self.sample_rate, self.steps))

    @property
    def method(self) -> str:
        return f"one-run-order-statistics ({self.members.name})"

    def epsilon(self, guesses: Ints, correct: Ints, canaries: int | Ints, confidence: float) -> Floats:
        bounds = order_statistics_epsilon(
            guesses, correct, canaries=canaries, delta=self.delta, confidence=confidence, family=self.members
        )
        return np.asarray(bounds, dtype=np.float64)

    def _row_notes(self, guesses: Ints, correct: Ints, canaries: Ints) -> Sequence[tuple[str, ...]]:
        parameters = order_statistics_parameter(
            guesses, correct, canaries=canaries, confidence=self.confidence, family=self.members
        )
        return [self._assumptions(value) for value in np.atleast_1d(np.asarray(parameters)).tolist()]

    def details(self, replays: Replays[OneRunTally]) -> dict[str, Any]:
        """Return counts and assumptions, and no evidence: this bound rejects no claim."""
        tally, candidate = replays.middle
        counts = tally.canaries, int(tally.guesses[candidate]), int(tally.correct[candidate])
        parameter = _largest_rejected(self.members, (*counts, self._error_of_each(tally, replays.every.size)))
        details = super().details(replays)
        return {**details, "notes": (*self._assumptions(parameter), *details["notes"]), "evidence": ()}

    def _assumptions(self, parameter: float) -> tuple[str, ...]:
        """Return the rejected member and the assumptions in words."""
        member = (self.members.words(parameter),) if parameter else ()
        return *member, CONDITIONS.format(self.members.name)

    def sweep(self, ordered: Sequence[OneRunTally]) -> Series:
        """Return the bound at each candidate as if it were the only one: median replay and outer deciles."""
        at_candidates = [
            replace(tally, sweep_guesses=tally.guesses, sweep_correct=tally.correct, all_canaries=tally.canaries)
            for tally in ordered
        ]
        return super().sweep(at_candidates)
