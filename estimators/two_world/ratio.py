"""Epsilon from the numbers of hits of an output set on two neighbouring data sets.

World 1 ran `trials1` times and hit the set `n1` times, world 0 `n0` of `trials0`. The set was fixed beforehand, on
other runs. Any (epsilon, delta)-private learner satisfies p1 <= e^eps p0 + delta, the same with the worlds exchanged,
and the same for the complement. For data sets that differ in `group` records, group privacy's factor is divided out.

- `clopper-pearson` holds for every sample size: the error is split over the limits it uses.
- `katz-log` holds in the limit of many trials; at delta = 0 its error was never observed to exceed the stated one.

Source: Lu et al. (2022), "A General Framework for Auditing Differentially Private Machine Learning".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple, cast, get_args

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from dpaudit.errors import require
from dpaudit.estimators.arguments import (
    Floats,
    Ints,
    as_confidence,
    as_counts,
    as_delta,
    common_shape,
    require_levels,
    require_one_of,
    successes_of_trials,
    unboxed,
)
from dpaudit.estimators.bisection import last_true_of_each
from dpaudit.estimators.bound import Bound
from dpaudit.estimators.counts import RATIO, CountEstimator, Table, bound_rows, count_columns
from dpaudit.estimators.finding import Validity
from dpaudit.estimators.proportions.binomial import clopper_pearson, katz_log
from dpaudit.estimators.two_world.two_sample import TwoSample, TwoSampleTally
from dpaudit.registry import register

METHODS = ("clopper-pearson", "katz-log")
Directions = Literal["best", "one"]


def ratio_epsilon(
    n1: ArrayLike,
    n0: ArrayLike,
    trials1: ArrayLike,
    trials0: ArrayLike,
    *,
    delta: ArrayLike,
    confidence: ArrayLike,
    group: ArrayLike = 1,
    method: str = "clopper-pearson",
    directions: str = "best",
) -> float | Floats:
    """Return a lower bound on epsilon, in nats per record, from hits of one output set in two worlds.

    Args:
        n1, n0: Hits, 0 <= n <= trials.
        trials1, trials0: Runs, >= 1.
        delta: Delta of the claim, in [0, 1).
        confidence: In (0, 1); alpha = 1 - confidence.
        group: Number of records in which the data sets differ, >= 1.
        method: "clopper-pearson" (exact limits) or "katz-log" (normal limits of the log ratio; for delta > 0 the same
            linearisation of the epsilon that solves the equation below; 0 if an event has no hit).
        directions: "one": p1 over p0, alpha / 2 for each limit. "best": the largest over both ratios of the set and
            both of its complement, alpha / 4 for each of the four limits. Choose it beforehand.
    Returns: The bound >= 0, of the broadcast shape, rounded down (by less than 1e-9).
    Raises: InputError for arguments out of range.
    Source: Lu et al. (2022), Eq. 1, Lemma 3.4 and A.3. Epsilon solves p1 = e^{k eps} p0 + delta (e^{k eps} - 1) /
        (e^eps - 1); dividing by k is right only at delta = 0.
    Slow twin: `clopper_pearson_epsilon` and `katz_epsilon` of tests/twins/ratio_twin.py.
    """
    sample = _Sample.of(n1, n0, trials1, trials0, delta, confidence, group)
    require_one_of("method", method, METHODS)
    require_one_of("directions", directions, ("one", "best"))
    bound = _exact if method == "clopper-pearson" else _katz
    return unboxed(np.asarray(bound(sample, directions)))


def detectable_ceiling(trials: ArrayLike, *, confidence: ArrayLike) -> float | Floats:
    """Return the largest bound of the published Katz-log audit with `trials` >= 1 runs in each world, in nats, >= 0.

    All runs of world 1 hit, and `n0` of world 0. The paper's ln N - z sqrt(1 - 1/N) takes n0 = 1, which is the largest
    only while z < ln 2 / (1 - 1/sqrt 2) = 2.366: at 99 % and N = 10^4, n0 = 2 gives 6.696 instead of 6.635.

    Source: Lu et al. (2022), Corollary 4.0.1, corrected.
    Slow twin: `katz_ceiling` of tests/twins/ratio_twin.py.
    """
    runs, level = as_counts("trials", trials), as_confidence(confidence)
    require(bool(np.all(runs >= 1)), "trials must be >= 1", trials=runs)
    common_shape(runs, level, names=("trials", "confidence"))
    z = special.ndtri((1 + level) / 2)
    size = runs.astype(np.float64)
    # ln(N / n) - z sqrt(1/n - 1/N) rises up to the smaller root of n (1 - n/N) = z^2 / 4 and falls beyond.
    stationary = (size - np.sqrt(np.maximum(size * (size - z**2), 0.0))) / 2
    best = np.zeros(np.broadcast_shapes(runs.shape, level.shape))
    for near in (np.floor(stationary), np.ceil(stationary)):
        hits = np.clip(near, 1, size)
        best = np.maximum(best, np.log(size / hits) - z * np.sqrt(np.maximum(1 / hits - 1 / size, 0.0)))
    return unboxed(np.asarray(best))


class _Sample(NamedTuple):
    n1: Ints
    n0: Ints
    trials1: Ints
    trials0: Ints
    delta: Floats
    alpha: Floats
    group: Ints

    @classmethod
    def of(cls, n1: ArrayLike, n0: ArrayLike, trials1: ArrayLike, trials0: ArrayLike, *rest: ArrayLike) -> _Sample:
        """Return the checked sample; `rest` is delta, confidence and group."""
        hits1, runs1 = successes_of_trials(n1, trials1, names=("n1", "trials1"))
        hits0, runs0 = successes_of_trials(n0, trials0, names=("n0", "trials0"))
        deltas, level, records = as_delta(rest[0]), as_confidence(rest[1]), as_counts("group", rest[2])
        require(bool(np.all(records >= 1)), "group must be >= 1", group=records)
        names = ("n1", "n0", "trials1", "trials0", "delta", "confidence", "group")
        common_shape(hits1, hits0, runs1, runs0, deltas, level, records, names=names)
        return cls(hits1, hits0, runs1, runs0, deltas, 1 - level, records)

    def complement(self) -> _Sample:
        return self._replace(n1=self.trials1 - self.n1, n0=self.trials0 - self.n0)

    def worlds_swapped(self) -> _Sample:
        return self._replace(n1=self.n0, n0=self.n1, trials1=self.trials0, trials0=self.trials1)


def _exact(sample: _Sample, directions: str) -> Floats:
    each = 1 - sample.alpha / (2 if directions == "one" else 4)
    low1 = np.asarray(clopper_pearson(sample.n1, sample.trials1, confidence=each, side="lower").lower)
    high0 = np.asarray(clopper_pearson(sample.n0, sample.trials0, confidence=each, side="upper").upper)
    bound = _epsilon_between(low1, high0, sample.delta, sample.group)
    if directions == "one":
        return bound
    high1 = np.asarray(clopper_pearson(sample.n1, sample.trials1, confidence=each, side="upper").upper)
    low0 = np.asarray(clopper_pearson(sample.n0, sample.trials0, confidence=each, side="lower").lower)
    # Four limits in total: a set's upper limit is its complement's lower one.
    for likely, unlikely in ((low0, high1), (1 - high0, 1 - low1), (1 - high1, 1 - low0)):
        bound = np.maximum(bound, _epsilon_between(likely, unlikely, sample.delta, sample.group))
    return bound


def _katz(sample: _Sample, directions: str) -> Floats:
    z = special.ndtri(1 - sample.alpha / (2 if directions == "one" else 4))
    if directions == "one":
        return _katz_one(sample, z)
    set_and_complement = (sample, sample.complement())
    candidates = [_katz_one(direction, z) for hits in set_and_complement for direction in (hits, hits.worlds_swapped())]
    return cast(Floats, np.maximum.reduce(np.broadcast_arrays(*candidates)))


_ROUNDING = 1e-14  # above the arithmetic error of one limit, relative to its numbers


def _katz_one(sample: _Sample, z: Floats) -> Floats:
    """Return the estimate minus z standard errors.

    The linearisation is d eps = (dp1 - E^k dp0) / (k E^k p0 + delta E S'(E)) with E = e^eps.
    """
    p1, p0 = sample.n1 / sample.trials1, sample.n0 / sample.trials0
    defined = (sample.n1 > 0) & (sample.n0 > 0)
    safe1, safe0 = np.where(defined, p1, 0.5), np.where(defined, p0, 0.5)
    estimate = _epsilon_between(safe1, safe0, sample.delta, sample.group)
    growth = np.exp(sample.group * estimate)
    steepness = sample.group * growth * safe0 + sample.delta * _group_sum(estimate, sample.group)[1]
    variance = safe1 * (1 - safe1) / sample.trials1 + growth**2 * safe0 * (1 - safe0) / sample.trials0
    lower = estimate - z * np.sqrt(variance) / steepness - _ROUNDING * (1 + estimate)
    return cast(Floats, np.where(defined & (estimate > 0), np.maximum(lower, 0.0), 0.0))


def _epsilon_between(p1: Floats, p0: Floats, delta: Floats, group: Ints) -> Floats:
    """Return the epsilon with p1 = e^{k eps} p0 + delta (e^{k eps} - 1) / (e^eps - 1), rounded down."""
    p1, p0, delta, records = np.broadcast_arrays(p1, p0, delta, group)
    with np.errstate(divide="ignore", invalid="ignore"):
        single = np.where(p1 - delta > p0, np.log((p1 - delta) / p0), 0.0)
        pure = single / records
    if not np.any((records > 1) & (delta > 0)):
        return cast(Floats, pure)
    # The root without delta is too large: delta adds to the right side.
    with np.errstate(divide="ignore", invalid="ignore"):
        low, high = np.zeros(p1.shape), np.where(p1 > p0, np.log(p1 / p0) / records, 0.0)
    root = last_true_of_each(
        lambda epsilon: np.exp(records * epsilon) * p0 + delta * _group_sum(epsilon, records)[0] <= p1, low, high
    )
    return cast(Floats, np.where((records > 1) & (delta > 0), root, pure))


def _group_sum(epsilon: Floats, group: Ints) -> tuple[Floats, Floats]:
    """Return S = (e^{k eps} - 1) / (e^eps - 1) = 1 + e^eps + ... + e^{(k-1) eps}, and its derivative by epsilon."""
    total = slope = np.zeros(np.broadcast_shapes(epsilon.shape, group.shape))
    for power in range(int(group.max())):
        term = np.where(power < group, np.exp(power * epsilon), 0.0)
        total, slope = total + term, slope + power * term
    return total, slope


@register("estimator", "ratio", source="Lu et al. (2022), Eq. 1 with exact limits")
@dataclass(frozen=True)
class Ratio(CountEstimator):
    """Hits n1, n0 of one fixed output set in two worlds: exact limits of both rates, with group privacy.

    Attributes:
        delta: Delta at which the bound is stated, in [0, 1).
        confidence: Confidence of each row by itself, in (0, 1).
        group: Number of records in which the data sets differ, >= 1; epsilon is for one record.
        directions: "best" of both ratios of the set and of its complement, or "one": world 1 over world 0.
    """

    columns: ClassVar[tuple[str, ...]] = RATIO
    validity = Validity.FINITE_SAMPLE

    delta: float = 0.0
    confidence: float = 0.95
    group: int = 1
    directions: Directions = "best"

    def __post_init__(self) -> None:
        require_levels(self.delta, self.confidence)
        _require_group(self.group, self.directions)

    def read(self, table: Table) -> Sequence[Bound]:
        counts = count_columns(table, RATIO)
        lower = ratio_epsilon(
            *counts.values(), delta=self.delta, confidence=self.confidence, group=self.group, directions=self.directions
        )
        return bound_rows(self, lower, counts)

    @property
    def method(self) -> str:
        return "ratio" + _grouping(self.group, self.directions)


@register("estimator", "katz-log", source="Katz et al. (1978)")
@dataclass(frozen=True)
class KatzLog(TwoSample, CountEstimator):
    """Two-sample scores or hits n1, n0: normal limits for the logarithm of the rates' ratio.

    Attributes:
        group: Number of records in which the data sets of the two worlds differ, >= 1; epsilon is for one record.
        directions: For counts: "best" of both ratios of the set and of its complement, or "one": world 1 over world 0.
            Scores are used in one direction only, with members above: a failed trial is scored as the attack's worst
            guess, which would be its best in the other direction.
    """

    columns: ClassVar[tuple[str, ...]] = RATIO
    threshold_s: ClassVar[float] = 1e-7
    validity = Validity.ASYMPTOTIC

    group: int = 1
    directions: Directions = "best"

    def __post_init__(self) -> None:
        super().__post_init__()
        _require_group(self.group, self.directions)

    @property
    def method(self) -> str:
        return super().method + _grouping(self.group, self.directions)

    def seconds(self, pieces: int, rows: int) -> float:
        return super().seconds(pieces, rows) * (30 if self.group > 1 and self.delta > 0 else 1)

    def lower(self, tally: TwoSampleTally, error: float) -> Floats:
        hits, alarms = tally.true_positives, tally.false_positives
        members, others = np.asarray(tally.members), np.asarray(tally.non_members)
        above = self._epsilon(hits, alarms, members, others, error / 2, "one")
        below = self._epsilon(others - alarms, members - hits, others, members, error / 2, "one")
        return np.maximum(above, below)

    def read(self, table: Table) -> Sequence[Bound]:
        """Return one bound for each row; notes give the interval of ln(p1 / p0) and the maximum detectable epsilon."""
        counts = count_columns(table, RATIO)
        n1, n0, trials1, trials0 = counts.values()
        bounds = self._epsilon(n1, n0, trials1, trials0, 1 - self.confidence, self.directions)
        ratio = katz_log(n1, trials1, n0, trials0, confidence=self.confidence)
        lower, upper = np.asarray(ratio.lower), np.asarray(ratio.upper)
        notes = [
            (f"ln(p1/p0) in [{lower[row]:.6f}, {upper[row]:.6f}]", *self._ceiling(int(trials1[row]), int(trials0[row])))
            for row in range(n1.size)
        ]
        return bound_rows(self, bounds, counts, notes=notes)

    def _epsilon(
        self, n1: Ints, n0: Ints, trials1: Ints, trials0: Ints, error: float, directions: Directions
    ) -> Floats:
        bounds = ratio_epsilon(
            n1,
            n0,
            trials1,
            trials0,
            delta=self.delta,
            confidence=1 - error,
            group=self.group,
            method="katz-log",
            directions=directions,
        )
        return np.asarray(bounds, dtype=np.float64)

    def _ceiling(self, trials1: int, trials0: int) -> tuple[str, ...]:
        if self.delta or trials1 != trials0:
            return ()
        error = (1 - self.confidence) / (1 if self.directions == "one" else 2)
        most = detectable_ceiling(trials1, confidence=1 - error)
        return (f"{trials1} runs a world can show at most {float(most) / self.group:.6f}",)


def _require_group(group: int, directions: str) -> None:
    """Raise InputError for fewer than one record, and for unknown directions."""
    require(group >= 1, "group must be >= 1", group=group)
    require_one_of("directions", directions, get_args(Directions))


def _grouping(group: int, directions: str) -> str:
    """Return the words for `group` and `directions` in a bound's method, if they are not the defaults."""
    words = [f"groups of {group}"] * (group > 1) + ["one direction"] * (directions == "one")
    return f" ({', '.join(words)})" if words else ""
