"""Independent trials in two worlds: scores with and without the member give a bound on epsilon.

A threshold turns the scores into an attack: "member" at or above it. Counts bound its false positive and miss rates,
and (epsilon, delta)-DP bounds them in return: epsilon >= log((1 - delta - miss) / false_positive), and the same with
the rates exchanged. The estimators differ in the interval for the two rates, and in the choice of the threshold:

* `Fixed`: a threshold stated beforehand. `Split`: chosen on one part of the trials, applied to the rest.
* `Grid`: thresholds at ranks of one world's scores, stated beforehand. At the k-th largest score of the non-members,
  the false positive rate follows Beta(k, n - k + 1) for any distribution. Its upper limit is Clopper and Pearson's
  for k - 1 false positives. Given that threshold the members' counts are binomial. The same holds with the worlds
  exchanged.
* `Bonferroni`: the same for all ranks of the non-members, which are all useful thresholds.
* `SimultaneousBand`: all thresholds at once inside bands for both worlds (`band` only; see `bands`).
* `AsPublished`: every threshold, uncorrected.

Upper limits of both rates that hold at all thresholds together bound epsilon at every delta. `RateRegions` uses them as
evidence against a claim's whole curve, without a correction for the choice of delta.

Assumptions: the scores of the trials are independent, with one law within each world.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from typing import Any, ClassVar, Self, cast

import numpy as np
from numpy.typing import NDArray

from dpaudit.claims import PrivacyCurve
from dpaudit.errors import require
from dpaudit.estimators.arguments import Floats, Ints, require_levels, require_one_of
from dpaudit.estimators.bound import curve_comparison, mu_of_rates
from dpaudit.estimators.counts import CONFUSION
from dpaudit.estimators.estimator import Cell, CellBounds, Estimator, Replays, in_order
from dpaudit.estimators.finding import Comparison, Series
from dpaudit.estimators.proportions.binomial import clopper_pearson
from dpaudit.estimators.replays import median_rule
from dpaudit.estimators.scores import Scores
from dpaudit.estimators.selection import (
    AsPublished,
    Bonferroni,
    Fixed,
    Grid,
    Selection,
    SimultaneousBand,
    Split,
    parse_selection,
)
from dpaudit.estimators.two_world.bands import WEIGHTS, upper_rates_at
from dpaudit.estimators.two_world.confusion import epsilon_of_rates
from dpaudit.registry import register


@dataclass(frozen=True, eq=False)
class TwoSampleTally:
    """Counts of one replay at its candidate thresholds; arrays of shape (candidates,)."""

    replay: int  # number of the replay
    members: int  # number of counted trials with the member, >= 1
    non_members: int  # number of counted trials without the member, >= 1
    threshold: Floats  # "member" at or above it
    true_positives: Ints  # members called members
    false_positives: Ints  # non-members called members
    error_shares: int  # number of candidates that share the error

    @property
    def errors(self) -> tuple[Ints, Ints, Ints, Ints]:
        """Confusion counts tp, fp, tn, fn at each threshold."""
        tp, fp = self.true_positives, self.false_positives
        return tp, fp, self.non_members - fp, self.members - tp

    def counts(self, candidate: int) -> dict[str, int]:
        """Return the confusion counts at a candidate, by name."""
        return {name: int(counts[candidate]) for name, counts in zip(CONFUSION, self.errors, strict=True)}

    def at(self, candidates: Ints | slice) -> Self:
        """Return the counts at some of the candidate thresholds."""
        columns = ("threshold", "true_positives", "false_positives")
        return replace(self, **{name: getattr(self, name)[candidates] for name in columns})


@dataclass(frozen=True, eq=False)
class RocCorners:
    """Corners of the empirical ROC curve: no other threshold has fewer errors of both kinds; shapes (corners,)."""

    threshold: Floats  # "member" at or above it, decreasing
    true_positives: Ints
    false_positives: Ints


def roc_corners(score: Floats, member: NDArray[np.bool_]) -> RocCorners:
    """Return the corners of the ROC curve of scores and worlds, both of shape (n,); equal scores stay together."""
    threshold = np.sort(score[member])[::-1]
    hits = np.arange(1, threshold.size + 1)
    # Searching sorted scores in sorted scores takes less than half the time of sorting both worlds together.
    alarms = np.count_nonzero(~member) - np.searchsorted(np.sort(score[~member]), threshold)
    # A further hit at no further false positive dominates the threshold before it.
    corner = np.diff(alarms, append=score.size + 1) > 0
    return RocCorners(threshold[corner], hits[corner], alarms[corner])


@dataclass(frozen=True)
class TwoSample(Estimator[Scores, TwoSampleTally]):
    """Base of the estimators of thresholds: fields, the tally at the thresholds of the selection, and figures.

    Attributes:
        delta: Delta at which the bound is stated, in [0, 1).
        confidence: Stated confidence of the final bound, in (0, 1).
        selection: How the threshold is chosen, as a `Selection` or in the form that a spec uses.
    """

    tally_type: ClassVar[type[Any]] = TwoSampleTally
    part_type: ClassVar[type[Any] | None] = CellBounds
    independent_trials: ClassVar[bool] = True
    threshold_s: ClassVar[float] = 0.0  # seconds on one core for the bound at a threshold

    delta: float = 0.0
    confidence: float = 0.95
    selection: Selection = field(default_factory=Grid)

    def __post_init__(self) -> None:
        require_levels(self.delta, self.confidence)
        object.__setattr__(self, "selection", parse_selection(self.selection))
        require(
            not isinstance(self.selection, SimultaneousBand) or isinstance(self, Band),
            "a simultaneous band needs the estimator band",
            do="use the estimator band, or another selection",
        )
        require(
            not isinstance(self.selection, Grid) or self.selection.points[0] < 1,
            "a grid of false-alarm and miss rates needs a rate below 1",
            points=getattr(self.selection, "points", ()),
        )

    def tally(self, scores: Scores) -> TwoSampleTally:
        """Return the counts of one replay at its candidate thresholds, with one sort of the scores.

        Raises: InputError if one of the worlds has no trial.
        """
        _require_both_worlds(scores.truth)
        match self.selection:
            case Fixed(value):
                return _at_threshold(scores, value)
            case Split() as split:
                return _at_threshold(*_split_at_best_threshold(scores.shuffled(), split, self.delta, self.confidence))
            case Grid(points):
                return _at_ranks(scores.shuffled(), points)
            case Bonferroni():
                return _all_corners(scores, error_shares=int(np.count_nonzero(~scores.truth)))
            case _:
                return _all_corners(scores, error_shares=1)

    def candidates_sharing(self, tally: TwoSampleTally) -> int:
        return tally.error_shares

    def details(self, replays: Replays[TwoSampleTally]) -> dict[str, Any]:
        tally, candidate = replays.middle
        return {
            "counts": replays.counted(tally.counts(candidate)),
            "notes": (f"threshold {tally.threshold[candidate]:.6g}",) if tally.threshold.size else (),
        }

    def figures(self, replays: Replays[TwoSampleTally]) -> dict[str, Series]:
        """Return the ROC curve, the counts at the reported threshold, and the bounds of single replays.

        The curve has at most `MAX_DRAWN` thresholds and the best one, each with its bound.
        """
        first = replays.tallies[0]
        places: Ints = np.arange(first.threshold.size)
        if places.size > MAX_DRAWN:  # dense among the highest ones
            evenly = np.rint(np.geomspace(1, places.size, MAX_DRAWN)).astype(np.int64) - 1
            places = np.unique(np.append(evenly, int(replays.candidate[0])))
        figure_counts = first.at(places)
        tally, candidate = replays.middle
        return {
            "trade-off": {
                "threshold": figure_counts.threshold,
                "true_positive_rate": figure_counts.true_positives / figure_counts.members,
                "false_positive_rate": figure_counts.false_positives / figure_counts.non_members,
                "epsilon": self.lower(figure_counts, self._error_of_each(first, replays.every.size)),
                "members": figure_counts.members,
                "non_members": figure_counts.non_members,
            },
            "posterior": {**tally.counts(candidate), "delta": self.delta, "confidence": self.confidence},
            **super().figures(replays),
        }

    def seconds(self, pieces: int, rows: int) -> float:
        """Return the approximate seconds on one core for all thresholds; a fifth of the rows are corners."""
        if not isinstance(self.selection, Bonferroni | AsPublished):
            return 0.0
        return (2 if pieces > 1 else 1) * self.threshold_s * pieces * rows / 5  # as part of a median, and alone

    def cells(self, tallies: Sequence[TwoSampleTally], shares: int) -> Sequence[Cell[TwoSampleTally]]:
        """Return the replays, or for fewer replays than shares of the work shares of their thresholds."""
        cells = []
        for tally in tallies:
            divided = min(-(-shares // len(tallies)), tally.threshold.size)
            cuts = [tally.threshold.size * cut // divided for cut in range(divided + 1)]
            cells += [
                Cell(tally.at(slice(first, end)), first, share, divided)
                for share, (first, end) in enumerate(itertools.pairwise(cuts))
            ]
        return cells


MAX_DRAWN = 2_000
"""Largest number of thresholds of a series; a figure shows no more, and a bound at each of a million takes seconds."""


# number of epsilons at which a claimed curve is evaluated; any of them is valid, and the best one is reported
_CURVE_POINTS = 128
_MAX_FIRST_THRESHOLDS = 2_048  # largest number of thresholds whose limits are computed in the first pass
# no further threshold is tried for a smaller gain, relative to the lesser of a rate and its complement
_RATE_TOLERANCE = 3e-4
_ROUND_UP = 1 + 1e-11  # far above the relative error of the Beta quantiles


def epsilon_of_limits(alarm: Floats, miss: Floats, delta: float) -> Floats:
    """Return the least epsilon >= 0 that allows both rates to be as small as their upper limits, in (0, 1]."""
    return epsilon_of_rates(alarm * _ROUND_UP, miss * _ROUND_UP, delta)


def _informative_thresholds(
    limits: Callable[[Ints], tuple[Floats, Floats]], thresholds: int
) -> tuple[Ints, Floats, Floats]:
    """Return the thresholds that suffice to reject any trade-off function.

    Trade-off functions are convex: a function that no vertex of the lower convex hull of the limits rejects, no
    threshold rejects. Limits are computed only where a vertex may remain. Between two thresholds no rates are smaller
    than the false positive rate of one and the miss rate of the other. With more than 2,048 thresholds the loss is at
    most 0.0006 nats.

    Args:
        limits: Maps ascending indices of thresholds to upper limits of the false positive rate, which do not decrease
            in the index, and of the miss rate, which do not increase.
        thresholds: Number of thresholds.
    Returns: Indices of the vertices, and their limits of both rates.
    """
    lower_hull = _compiled()
    places = np.unique(np.linspace(0, thresholds - 1, min(thresholds, _MAX_FIRST_THRESHOLDS)).astype(np.int64))
    alarm, miss = limits(places)
    while True:
        hull = lower_hull(alarm, miss)
        could_be = _with_tolerance(miss[1:]) < np.interp(_with_tolerance(alarm[:-1]), alarm[hull], miss[hull])
        between = could_be & (np.diff(places) > 1)
        if not between.any():
            return places[hull], alarm[hull], miss[hull]
        middle = (places[:-1] + places[1:])[between] // 2
        after = np.flatnonzero(between) + 1
        further = limits(middle)
        places = np.insert(places, after, middle)
        alarm, miss = np.insert(alarm, after, further[0]), np.insert(miss, after, further[1])


@cache
def _compiled() -> Callable[..., Ints]:
    from dpaudit.compiling import compiled  # slow to import: numba

    return compiled()(_lower_hull)


def _lower_hull(x: Floats, y: Floats) -> Ints:
    """Return the indices of the vertices of the lower convex hull of points with ascending x."""
    hull = np.empty(x.size, np.int64)
    count = 0
    for point in range(x.size):
        while count >= 2:
            first, last = hull[count - 2], hull[count - 1]
            turn = (x[last] - x[first]) * (y[point] - y[first]) - (y[last] - y[first]) * (x[point] - x[first])
            if turn > 0:
                break
            count -= 1
        hull[count] = point
        count += 1
    return hull[:count]


def _with_tolerance(rate: Floats) -> Floats:
    """Return a rate increased by the tolerance."""
    return rate + _RATE_TOLERANCE * np.minimum(rate, 1 - rate)


@dataclass(frozen=True, eq=False)
class RateRegions:
    """Evidence against a whole curve: upper limits of both rates of one attack, all valid together."""

    # limits of the false positive rate and of the miss rate for each replay, both in (0, 1], shape (thresholds,), at
    # `_informative_thresholds` only, because the others reject nothing more
    rates: tuple[tuple[Floats, Floats], ...]
    failed_replays: int = 0  # number of failed replays, which show nothing

    def __post_init__(self) -> None:
        require(len(self.rates) > 0, "regions must be of at least one replay", replays=len(self.rates))

    def epsilon(self, delta: float) -> float:
        """Return the bound at a delta in [0, 1], the median over replays; bounds at all deltas hold together."""
        bounds = [float(epsilon_of_limits(*rate, delta).max(initial=0.0)) for rate in self.rates]
        return float(median_rule(np.array(bounds + [0.0] * self.failed_replays)))

    @property
    def mu(self) -> float:
        """Limit up to which every mu of mu-Gaussian DP is rejected, the median over replays.

        All rates are valid together, so the largest limit over all thresholds has the error of the bands, spent once.
        """
        limits = [float(mu_of_rates(*rate).max(initial=0.0)) for rate in self.rates]
        return float(median_rule(np.array(limits + [0.0] * self.failed_replays)))

    def profile(self, deltas: Sequence[float] | Floats) -> Floats:
        return np.array([self.epsilon(float(delta)) for delta in deltas])

    def misses(self, alarms: Floats) -> Floats:
        """Return upper limits of the trade-off function at false positive rates in [0, 1]; all hold together.

        A test may be drawn at random from several, and the trade-off function of a claim covers both directions. So
        the limits of a replay are the lower convex hull of its rates, of the rates exchanged, and of (0, 1) and (1, 0).
        """
        gains = [np.zeros(alarms.shape)] * self.failed_replays
        for alarm, miss in self.rates:
            x, y = np.concatenate([alarm, miss, [0.0, 1.0]]), np.concatenate([miss, alarm, [1.0, 0.0]])
            order = np.lexsort((y, x))
            x, y = x[order], y[order]
            hull = _compiled()(x, y)
            limits = np.interp(alarms, x[hull], y[hull]) * _ROUND_UP
            gains.append(np.maximum(0.0, 1 - alarms - limits))
        return np.asarray(1 - alarms - median_rule(np.stack(gains), axis=0))

    def comparison(self, curve: PrivacyCurve, /) -> Comparison:
        """Compare at the point of the curve where the observed epsilon exceeds the claimed one by most."""
        claimed = np.linspace(0.0, self.epsilon(0.0), _CURVE_POINTS)
        deltas = [min(1.0, curve.delta(float(epsilon))) for epsilon in claimed]
        delta = deltas[int(np.argmax(self.profile(deltas) - claimed))]
        printed = self._at(_rounded_up(delta), curve)
        return printed if printed.exceeds else self._at(delta, curve)

    def _at(self, delta: float, curve: PrivacyCurve) -> Comparison:
        return curve_comparison("epsilon", f"delta = {delta:g}", self.epsilon(delta), curve.epsilon(delta))


def _rounded_up(delta: float) -> float:
    """Return `delta` rounded up to three digits: a violation there is one for the printed number."""
    rounded = float(f"{delta:.3g}")
    if rounded < delta:
        rounded = float(f"{delta + 10.0 ** (np.floor(np.log10(delta)) - 2):.3g}")
    return min(1.0, rounded)


DELTAS = np.geomspace(1e-7, 0.5, 60)
"""Deltas at which the trade-off between epsilon and delta is drawn."""
ALARMS = np.append(np.geomspace(1e-5, 0.5, 60), 1 - np.geomspace(0.45, 1e-3, 20))
"""False positive rates at which the limits of the trade-off function are drawn."""


@register("estimator", "band", source="Berk and Jones (1979); Moscovich and Nadler (2017)")
@dataclass(frozen=True)
class Band(TwoSample):
    """Two-sample scores: best of all thresholds inside exact simultaneous bands for both worlds; the default."""

    part_type: ClassVar[type[Any] | None] = None  # few thresholds are informative, and which ones depends on all

    selection: Selection = field(default_factory=SimultaneousBand)

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            isinstance(self.selection, SimultaneousBand),
            "the estimator band looks at all thresholds at once",
            do="use clopper-pearson for another selection",
            selection=self.selection,
        )
        require_one_of("weight", cast(SimultaneousBand, self.selection).weight, WEIGHTS)

    def lower(self, tally: TwoSampleTally, error: float) -> Floats:
        """Return the bound at each threshold; all hold together, so each may err with the whole error."""
        return epsilon_of_limits(*self.rates(tally, error, np.arange(tally.threshold.size)), self.delta)

    def best(self, tallies: Sequence[TwoSampleTally], replays: int, *, alone: bool = False) -> tuple[Floats, Ints]:
        """Return the largest bounds, at the informative thresholds alone; `lower` is the slow form."""
        best, candidates = [], []
        for tally in tallies:
            error = self._error_of_each(tally, 1 if alone else replays)
            places, alarm, miss = _informative_rates(self, tally, error)
            bounds = epsilon_of_limits(alarm, miss, self.delta)
            best.append(bounds.max())
            candidates.append(places[bounds.argmax()])
        return np.array(best, np.float64), np.array(candidates, np.int64)

    def rates(self, tally: TwoSampleTally, error: float, places: Ints) -> tuple[Floats, Floats]:
        """Return upper limits of both rates at these thresholds, valid at all thresholds together."""
        # The worlds' trials are independent, so both bands hold with probability (1 - share) ** 2.
        share = -math.expm1(0.5 * math.log1p(-error))
        weight = cast(SimultaneousBand, self.selection).weight
        misses = tally.members - tally.true_positives[places]
        alarm = upper_rates_at(tally.false_positives[places], tally.non_members, error=share, weight=weight)
        miss = upper_rates_at(misses, tally.members, error=share, weight=weight)
        return alarm, miss

    def regions(self, tallies: Sequence[TwoSampleTally], *, failed_replays: int = 0) -> RateRegions:
        """Return the regions of the attack's two rates, at all thresholds together, for each replay."""
        ordered = in_order(tallies)
        count = len(ordered) + failed_replays
        rates = [_informative_rates(self, tally, self._error_of_each(tally, count))[1:] for tally in ordered]
        return RateRegions(tuple(rates), failed_replays)

    def details(self, replays: Replays[TwoSampleTally]) -> dict[str, Any]:
        """Return counts and threshold, and the bands as evidence against whole curves."""
        regions = self.regions(replays.tallies, failed_replays=replays.failed)
        return {**super().details(replays), "evidence": (regions,)}

    def figures(self, replays: Replays[TwoSampleTally]) -> dict[str, Series]:
        """Return the series of a two-sample estimator, with what the bands show at all rates and at all deltas."""
        regions, series = self.regions(replays.tallies, failed_replays=replays.failed), super().figures(replays)
        limits = {"limit_alarm": ALARMS, "limit_hit": 1 - regions.misses(ALARMS)}
        series["trade-off"] = {**series["trade-off"], **limits}
        return {**series, "delta": {"delta": DELTAS, "epsilon": regions.profile(DELTAS)}}


@lru_cache(maxsize=8)
def _informative_rates(band: Band, tally: TwoSampleTally, error: float) -> tuple[Ints, Floats, Floats]:
    """Return the informative thresholds and their limits of both rates; cached for a bound, evidence and figures."""
    return _informative_thresholds(lambda places: band.rates(tally, error, places), tally.threshold.size)


def _at_threshold(rows: Scores, threshold: float) -> TwoSampleTally:
    called = rows.score >= threshold
    hits, alarms = np.count_nonzero(called & rows.truth), np.count_nonzero(called & ~rows.truth)
    return _tally(rows, np.array([threshold]), np.array([hits]), np.array([alarms]), error_shares=1)


def _split_at_best_threshold(rows: Scores, split: Split, delta: float, confidence: float) -> tuple[Scores, float]:
    """Return the reporting part of the trials, and the best threshold of the other part."""
    n = rows.score.size
    chooses = np.zeros(n, dtype=np.bool_)
    chooses[np.random.default_rng(split.seed).permutation(n)[: round(split.fraction * n)]] = True
    reporting = Scores(rows.score[~chooses], rows.truth[~chooses], rows.replay, rows.canary[~chooses])
    _require_both_worlds(rows.truth[chooses])
    _require_both_worlds(reporting.truth)
    roc = roc_corners(rows.score[chooses], rows.truth[chooses])
    members = int(np.count_nonzero(rows.truth[chooses]))
    non_members = int(np.count_nonzero(chooses)) - members
    # Any choice is valid, and two thousand corners are as good as all.
    some = np.unique(np.linspace(0, roc.threshold.size - 1, _MAX_SPLIT_CANDIDATES).astype(np.int64))
    alarms, misses = roc.false_positives[some], members - roc.true_positives[some]
    share = (1 - confidence) / 2
    alarm, miss = (
        np.asarray(clopper_pearson(counts, trials, confidence=1 - share, side="upper").upper)
        for counts, trials in ((alarms, non_members), (misses, members))
    )
    best = epsilon_of_limits(alarm, miss, delta)
    return reporting, float(roc.threshold[some[best.argmax()]])


_MAX_SPLIT_CANDIDATES = 2_000


def _at_ranks(rows: Scores, rates: Sequence[float]) -> TwoSampleTally:
    """Return the counts at thresholds of given ranks in each world; the rows' shuffled order breaks ties."""
    order = np.argsort(-rows.score, kind="stable")
    ranked, world = rows.score[order], rows.truth[order]
    members, others = np.flatnonzero(world), np.flatnonzero(~world)
    by_alarms = _ranks(rates, others.size)
    by_misses = _ranks(rates, members.size)
    first = others[by_alarms - 1]
    second = members[members.size - by_misses]
    hits = np.concatenate([first - (by_alarms - 1), members.size - (by_misses - 1)])
    alarms = np.concatenate([by_alarms - 1, second - (members.size - by_misses)])
    return _tally(rows, ranked[np.concatenate([first, second])], hits, alarms, error_shares=max(1, hits.size))


def _ranks(rates: Sequence[float], trials: int) -> Ints:
    ranks = np.rint(np.array([rate for rate in rates if rate < 1]) * trials).astype(np.int64)
    return np.unique(np.clip(ranks, 1, trials))


def _all_corners(rows: Scores, *, error_shares: int) -> TwoSampleTally:
    roc = roc_corners(rows.score, rows.truth)
    return _tally(rows, roc.threshold, roc.true_positives, roc.false_positives, error_shares=error_shares)


def _tally(rows: Scores, threshold: Floats, hits: Ints, alarms: Ints, *, error_shares: int) -> TwoSampleTally:
    members = int(np.count_nonzero(rows.truth))
    return TwoSampleTally(
        rows.replay,
        members,
        rows.truth.size - members,
        threshold,
        hits.astype(np.int64),
        alarms.astype(np.int64),
        error_shares,
    )


def _require_both_worlds(truth: NDArray[np.bool_]) -> None:
    members = int(np.count_nonzero(truth))
    require(
        0 < members < truth.size,
        "scores must hold trials with and without the member",
        do="check the truth column",
        members=members,
        non_members=truth.size - members,
    )
