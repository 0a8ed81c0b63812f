"""Independent trials in two worlds: scores with and without the member in, a bound on epsilon out.

A threshold turns the scores into an attack: "member" at or above it. Its false-alarm and miss rates are bounded by
counts, and (epsilon, delta)-DP bounds them in return: epsilon >= log((1 - delta - miss) / alarm), and the same with the
rates exchanged. What differs is the interval for the two rates, and how the threshold was chosen:

* `Fixed`: a threshold stated beforehand. `Split`: chosen on one part of the trials, applied to the rest.
* `Grid`: thresholds at ranks stated beforehand, of one world's scores. The k-th largest score of the non-members leaves
  a false-alarm rate that follows Beta(k, n - k + 1) whatever the distribution: its upper limit is Clopper and Pearson's
  for k - 1 alarms. Given that threshold the members' counts are binomial. Likewise with the worlds exchanged.
* `Bonferroni`: the same for all ranks of the non-members, which is every useful threshold.
* `SimultaneousBand`: all thresholds at once inside bands for both worlds (`band` alone; see `bands`).
* `AsPublished`: every threshold, uncorrected.

Upper limits of both rates that hold at all thresholds together bound epsilon at every delta: `RateRegions` speak about
the whole of a claim's curve, and no choice of delta has to be paid for.

Assumed: the scores of the trials are independent, within each world of one law.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import Any, ClassVar, cast

import numpy as np
from numpy.typing import NDArray
from scipy import special

from dpaudit.claims import PrivacyCurve
from dpaudit.errors import require
from dpaudit.estimators.arguments import Floats, Ints, require_one_of
from dpaudit.estimators.best_candidate import BestCandidate, EachReplay, in_order
from dpaudit.estimators.bound import along_curve
from dpaudit.estimators.counts import CONFUSION
from dpaudit.estimators.finding import Comparison, CurveEvidence, Series, Validity
from dpaudit.estimators.replays import median_rule
from dpaudit.estimators.scores import Scores
from dpaudit.estimators.selection import Bonferroni, Fixed, Grid, Selection, SimultaneousBand, Split
from dpaudit.estimators.two_world.bands import WEIGHTS, upper_rates_at
from dpaudit.registry import register


@dataclass(frozen=True, eq=False)
class TwoSampleTally:
    """The counts of one replay at its candidate thresholds; arrays of shape (candidates,)."""

    replay: int  # which repetition of the game
    members: int  # trials with the member in that were counted, >= 1
    non_members: int  # trials without it that were counted, >= 1
    threshold: Floats  # member at or above it
    true_positives: Ints  # members called members
    false_positives: Ints  # non-members called members
    error_shares: int  # among how many candidates the error is shared

    @property
    def errors(self) -> tuple[Ints, Ints, Ints, Ints]:
        """tp, fp, tn, fn at each threshold."""
        tp, fp = self.true_positives, self.false_positives
        return tp, fp, self.non_members - fp, self.members - tp


@dataclass(frozen=True, eq=False)
class RocCorners:
    """The corners of the empirical ROC curve: no other threshold has fewer errors of both kinds; shapes (corners,)."""

    threshold: Floats  # member at or above it, decreasing
    true_positives: Ints
    false_positives: Ints


def roc_corners(score: Floats, member: NDArray[np.bool_]) -> RocCorners:
    """The corners of the ROC curve of scores, shape (n,), and their worlds, shape (n,); equal scores go together."""
    threshold = np.sort(score[member])[::-1]
    hits = np.arange(1, threshold.size + 1)
    # Sorted questions of a sorted table: less than half of what sorting both worlds together takes.
    alarms = np.count_nonzero(~member) - np.searchsorted(np.sort(score[~member]), threshold)
    corner = (
        np.diff(alarms, append=score.size + 1) > 0
    )  # a further hit that costs no further alarm leaves none before it
    return RocCorners(threshold[corner], hits[corner], alarms[corner])


@dataclass(frozen=True)
class TwoSampleEstimator(BestCandidate[TwoSampleTally]):
    """What the two-sample estimators share: choosing the threshold, combining replays."""

    independent_trials: ClassVar[bool] = True
    tally_type: ClassVar[type[Any]] = TwoSampleTally

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            not isinstance(self.selection, SimultaneousBand) or isinstance(self, Band),
            "a simultaneous band has its own limits for the rates",
            do="use the estimator band, or another selection",
        )
        require(
            not isinstance(self.selection, Grid) or self.selection.points[0] < 1,
            "a grid of false-alarm and miss rates needs a rate below 1",
            points=getattr(self.selection, "points", ()),
        )

    @abstractmethod
    def epsilon(self, tally: TwoSampleTally, error: float) -> Floats:
        """The bound at each candidate when each may err with probability `error`, shape (candidates,).

        What is found at a candidate depends on no other one, but for those of a band.
        """

    def tally(self, scores: Scores) -> TwoSampleTally:
        """Counts of one replay at its candidate thresholds; one sort of the scores.

        Raises: InputError when one of the worlds has no trial.
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

    def counts_at(self, tally: TwoSampleTally, candidate: int) -> dict[str, int]:
        return {name: int(counts[candidate]) for name, counts in zip(CONFUSION, tally.errors, strict=True)}

    def _notes(self, each: EachReplay, tally: TwoSampleTally, candidate: int) -> tuple[str, ...]:
        return (f"threshold {tally.threshold[candidate]:.6g}",) if tally.threshold.size else ()

    def series(
        self,
        tallies: Sequence[TwoSampleTally],
        *,
        failed_replays: int = 0,
        each: EachReplay | None = None,
        first: Floats | None = None,
    ) -> dict[str, Series]:
        """The ROC curve, the counts at the reported threshold, and the replays one by one.

        `first` is the first replay's `epsilon`, where it is known.
        """
        ordered, replays = in_order(tallies), len(tallies) + failed_replays
        each = each or self.bounds_of_replays(ordered, replays)
        if first is None:
            first = self.epsilon(ordered[0], self._error(ordered[0].error_shares, replays))
        counts = {**self.counts_at(*self._middle(ordered, each)), "delta": self.delta, "confidence": self.confidence}
        return {
            "trade-off": _roc(ordered[0], first),
            "posterior": counts,
            "replays": self._replay_series(each, failed_replays),
        }

    def best_candidates(self, ordered: Sequence[TwoSampleTally], replays: int) -> tuple[Floats, Ints]:
        found = [self.best(tally, self._error(tally.error_shares, replays)) for tally in ordered]
        return np.array([bound for _, bound in found]), np.array([place for place, _ in found], dtype=np.int64)

    def best(self, tally: TwoSampleTally, error: float) -> tuple[int, float]:
        """The candidate with the largest bound, and that bound; 0 where no threshold shows anything."""
        bounds = self.epsilon(tally, error)
        index = int(bounds.argmax())
        return index, float(bounds[index])


def _roc(tally: TwoSampleTally, epsilon: Floats) -> Series:
    return {
        "threshold": tally.threshold,
        "true_positive_rate": tally.true_positives / tally.members,
        "false_positive_rate": tally.false_positives / tally.non_members,
        "epsilon": epsilon,
        "members": tally.members,
        "non_members": tally.non_members,
    }


_EPSILONS = 128  # at how many epsilons a claimed curve is looked at: any of them is valid, the best one is shown
_FIRST = 2_048  # thresholds whose limits are computed at once: all of them where there are no more
_GIVEN_AWAY = 3e-4  # relative to a rate or its complement, which is less: no further threshold is tried for less
_ROUND_UP = 1 + 1e-11  # far above the relative error of the Beta quantiles


def epsilon_of_rates(alarm: Floats, miss: Floats, delta: float) -> Floats:
    """The least epsilon >= 0 that allows both rates, in (0, 1], to be as small as their upper limits."""
    alarm, miss = alarm * _ROUND_UP, miss * _ROUND_UP
    # Where the rates could lie on or beyond the line of guessing, the larger logarithm is not positive: 0.
    best = np.maximum((1 - delta - miss) / alarm, (1 - delta - alarm) / miss)
    return np.log(np.maximum(best, 1.0))


def _telling_thresholds(
    limits: Callable[[Ints], tuple[Floats, Floats]], thresholds: int
) -> tuple[Ints, Floats, Floats]:
    """The thresholds at which some (epsilon, delta), or any other trade-off function, could be refuted first.

    Trade-off functions are convex: what no vertex of the lower hull of the limits refutes, no threshold does.
    Limits are computed where a vertex can still be: no threshold between two others has smaller rates than the one's
    false alarms and the other's misses. Above 2,048 thresholds 0.0006 nats may be left.

    `limits` gives, at ascending places of thresholds, upper limits of the false-alarm rate, which do not fall with the
    place, and of the miss rate, which do not rise. Returned are the places of the vertices and their limits.
    """
    lower_hull = _compiled()
    places = np.unique(np.linspace(0, thresholds - 1, min(thresholds, _FIRST)).astype(np.int64))
    alarm, miss = limits(places)
    while True:
        hull = lower_hull(alarm, miss)
        could_be = _nearer(miss[1:]) < np.interp(_nearer(alarm[:-1]), alarm[hull], miss[hull])
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
    import numba  # slow to import

    compiled: Callable[..., Ints] = numba.njit(cache=True, nogil=True)(_lower_hull)
    return compiled


def _lower_hull(x: Floats, y: Floats) -> Ints:
    """Places of the vertices of the lower convex hull of points whose x ascend."""
    kept = np.empty(x.size, np.int64)
    count = 0
    for point in range(x.size):
        while count >= 2:
            first, last = kept[count - 2], kept[count - 1]
            turn = (x[last] - x[first]) * (y[point] - y[first]) - (y[last] - y[first]) * (x[point] - x[first])
            if turn > 0:
                break
            count -= 1
        kept[count] = point
        count += 1
    return kept[:count]


def _nearer(rate: Floats) -> Floats:
    """A rate a little more, by as much as is given away."""
    return rate + _GIVEN_AWAY * np.minimum(rate, 1 - rate)


@dataclass(frozen=True, eq=False)
class RateRegions:
    """Evidence against a whole curve: upper limits of both rates of one attack, all of them right together."""

    # Of each replay, limits of the false-alarm and of the miss rate, both in (0, 1], shape (thresholds,); of
    # `_telling_thresholds` alone, as the others refute nothing that those do not.
    rates: tuple[tuple[Floats, Floats], ...]
    failed_replays: int = 0  # replays that failed; they show nothing

    def __post_init__(self) -> None:
        require(len(self.rates) > 0, "regions must be of at least one replay", replays=len(self.rates))

    def epsilon(self, delta: float) -> float:
        """The bound at a delta in [0, 1], the median over replays; at all deltas together right as often as stated."""
        bounds = [float(epsilon_of_rates(*rate, delta).max(initial=0.0)) for rate in self.rates]
        return float(median_rule(np.array(bounds + [0.0] * self.failed_replays)))

    def profile(self, deltas: Sequence[float] | Floats) -> Floats:
        return np.array([self.epsilon(float(delta)) for delta in deltas])

    def comparison(self, curve: PrivacyCurve, /) -> Comparison:
        """Where on the curve the observed epsilon exceeds the claimed one by most."""
        claimed = np.linspace(0.0, self.epsilon(0.0), _EPSILONS)
        deltas = [min(1.0, curve.delta(float(epsilon))) for epsilon in claimed]
        delta = deltas[int(np.argmax(self.profile(deltas) - claimed))]
        printed = self._at(_rounded_up(delta), curve)
        return printed if printed.exceeds else self._at(delta, curve)

    def _at(self, delta: float, curve: PrivacyCurve) -> Comparison:
        return along_curve("epsilon", f"delta = {delta:g}", self.epsilon(delta), curve.epsilon(delta))


def _rounded_up(delta: float) -> float:
    """`delta` with three digits, never below it: a breach there is one for the number that is printed."""
    shown = float(f"{delta:.3g}")
    if shown < delta:
        shown = float(f"{delta + 10.0 ** (np.floor(np.log10(delta)) - 2):.3g}")
    return min(1.0, shown)


DELTAS = np.geomspace(1e-7, 0.5, 60)
"""Where the trade-off between epsilon and delta is drawn."""


@register("estimator", "band", source="Berk and Jones (1979); Moscovich and Nadler (2017)")
@dataclass(frozen=True)
class Band(TwoSampleEstimator):
    """Two-sample scores, best of all thresholds inside exact simultaneous bands for both worlds: the default."""

    selection: Selection = field(default_factory=SimultaneousBand)

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            isinstance(self.selection, SimultaneousBand),
            "the estimator band looks at all thresholds at once",
            do="use clopper-pearson for another selection",
            selection=self.selection,
        )
        weight = cast(SimultaneousBand, self.selection).weight
        require_one_of("weight", weight, WEIGHTS)

    def validity(self) -> Validity:
        return Validity.FINITE_SAMPLE

    def series(
        self,
        tallies: Sequence[TwoSampleTally],
        *,
        failed_replays: int = 0,
        each: EachReplay | None = None,
        first: Floats | None = None,
    ) -> dict[str, Series]:
        """As of every two-sample estimator, and epsilon against delta: the bands hold for every delta at once."""
        profile = {"delta": DELTAS, "epsilon": self.regions(tallies, failed_replays=failed_replays).profile(DELTAS)}
        return super().series(tallies, failed_replays=failed_replays, each=each, first=first) | {"delta": profile}

    def _against_curves(self, ordered: Sequence[TwoSampleTally], failed_replays: int) -> tuple[CurveEvidence, ...]:
        """The bands also speak about the whole of a claim's curve."""
        return (self.regions(ordered, failed_replays=failed_replays),)

    def regions(self, tallies: Sequence[TwoSampleTally], *, failed_replays: int = 0) -> RateRegions:
        """Where the attack's two rates can lie, at all thresholds together, replay by replay."""
        ordered = in_order(tallies)
        replays = len(ordered) + failed_replays
        return RateRegions(
            tuple(self._telling(tally, self._error(tally.error_shares, replays))[1:] for tally in ordered),
            failed_replays,
        )

    def best(self, tally: TwoSampleTally, error: float) -> tuple[int, float]:
        places, alarm, miss = self._telling(tally, error)
        bounds = epsilon_of_rates(alarm, miss, self.delta)
        best = int(bounds.argmax())
        return int(places[best]), float(bounds[best])

    def epsilon(self, tally: TwoSampleTally, error: float) -> Floats:
        return epsilon_of_rates(*self.rates(tally, error, np.arange(tally.threshold.size)), self.delta)

    def _telling(self, tally: TwoSampleTally, error: float) -> tuple[Ints, Floats, Floats]:
        """The thresholds that any curve is refuted at first, and their limits of both rates."""
        return _telling(self, tally, error)

    def rates(self, tally: TwoSampleTally, error: float, places: Ints) -> tuple[Floats, Floats]:
        """Upper limits of the false-alarm and the miss rate at these thresholds, right together with all others."""
        # The worlds' trials are independent, so that neither band fails with probability (1 - share) ** 2.
        share = -math.expm1(0.5 * math.log1p(-error))
        weight = cast(SimultaneousBand, self.selection).weight
        misses = tally.members - tally.true_positives[places]
        alarm = upper_rates_at(tally.false_positives[places], tally.non_members, error=share, weight=weight)
        miss = upper_rates_at(misses, tally.members, error=share, weight=weight)
        return alarm, miss


@lru_cache(maxsize=8)
def _telling(band: Band, tally: TwoSampleTally, error: float) -> tuple[Ints, Floats, Floats]:
    """`Band._telling`, remembered: a bound, its evidence and its figures ask for the same."""
    return _telling_thresholds(lambda places: band.rates(tally, error, places), tally.threshold.size)


def _at_threshold(rows: Scores, threshold: float) -> TwoSampleTally:
    called = rows.score >= threshold
    hits, alarms = np.count_nonzero(called & rows.truth), np.count_nonzero(called & ~rows.truth)
    return _tally(rows, np.array([threshold]), np.array([hits]), np.array([alarms]), error_shares=1)


def _split_at_best_threshold(rows: Scores, split: Split, delta: float, confidence: float) -> tuple[Scores, float]:
    """The reporting part of the trials, and the threshold that is best on the other part."""
    n = rows.score.size
    chooses = np.zeros(n, dtype=np.bool_)
    chooses[np.random.default_rng(split.seed).permutation(n)[: round(split.fraction * n)]] = True
    reporting = Scores(rows.score[~chooses], rows.truth[~chooses], rows.replay, rows.canary[~chooses])
    _require_both_worlds(rows.truth[chooses])
    _require_both_worlds(reporting.truth)
    roc = roc_corners(rows.score[chooses], rows.truth[chooses])
    members = int(np.count_nonzero(rows.truth[chooses]))
    non_members = int(np.count_nonzero(chooses)) - members
    # Any way to choose is valid; two thousand corners are as good as all.
    some = np.unique(np.linspace(0, roc.threshold.size - 1, _TRIED).astype(np.int64))
    alarms, misses = roc.false_positives[some], members - roc.true_positives[some]
    share = (1 - confidence) / 2
    best = epsilon_of_rates(_limit(alarms, non_members, share), _limit(misses, members, share), delta)
    return reporting, float(roc.threshold[some[best.argmax()]])


_TRIED = 2_000


def _limit(counts: Ints, trials: int, error: float) -> Floats:
    inside = np.minimum(counts, trials - 1)
    limits = special.betainccinv(inside + 1.0, (trials - inside).astype(np.float64), error)
    return np.where(counts < trials, limits, 1.0)


def _at_ranks(rows: Scores, rates: Sequence[float]) -> TwoSampleTally:
    """The thresholds at given ranks of each world, which fix its counts; ties go by the rows' shuffled order."""
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
