"""Independent trials in two worlds: scores with and without the member in, a bound on epsilon out.

A threshold turns the scores into an attack: "member" at or above it. Its false-alarm and miss rates are bounded by
counts, and (epsilon, delta)-DP bounds them in return: epsilon >= log((1 - delta - miss) / alarm), and the same with the
rates exchanged. What differs is the interval for the two rates, and how the threshold was chosen:

* `Fixed`: a threshold stated beforehand.
* `Split`: chosen on one part of the trials, applied to the rest.
* `Grid`: thresholds at ranks stated beforehand, of one world's scores. The k-th largest score of the non-members leaves
  a false-alarm rate that follows Beta(k, n - k + 1) whatever the distribution: its upper limit is Clopper and Pearson's
  for k - 1 alarms. Given that threshold the members' counts are binomial. Likewise with the worlds exchanged.
* `Bonferroni`: the same for all ranks of the non-members, which is every useful threshold.
* `SimultaneousBand`: all thresholds at once inside bands for both worlds (`band` alone; see `bands`).
* `AsPublished`: every threshold, uncorrected.

Assumed: the scores of the trials are independent, within each world of one law.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, ClassVar, cast

import numpy as np
from numpy.typing import NDArray
from scipy import special

from dpaudit.errors import require
from dpaudit.estimators.arguments import Floats, Ints
from dpaudit.estimators.best_candidate import BestLook, in_order
from dpaudit.estimators.bound import Bound
from dpaudit.estimators.counts import CONFUSION, RATIO, CountEstimator, Table, bound_rows, count_columns
from dpaudit.estimators.divided import EachReplay, EachThreshold, joined
from dpaudit.estimators.finding import CurveEvidence, Series, Validity
from dpaudit.estimators.proportions.binomial import katz_log
from dpaudit.estimators.scores import Scores
from dpaudit.estimators.selection import (
    AsPublished,
    Bonferroni,
    Fixed,
    Grid,
    Selection,
    SimultaneousBand,
    Split,
)
from dpaudit.estimators.two_world.bands import WEIGHTS, upper_rates_at
from dpaudit.estimators.two_world.confusion import epsilon_interval
from dpaudit.estimators.two_world.rate_region import RateRegions, epsilon_of_rates, telling_thresholds
from dpaudit.estimators.two_world.ratio import detectable_ceiling, ratio_epsilon
from dpaudit.estimators.two_world.ratio_counts import Directions, grouping, require_group
from dpaudit.registry import register


@dataclass(frozen=True, eq=False)
class TwoSampleTally:
    """The counts of one replay at the thresholds looked at.

    Attributes:
        replay: Which repetition of the game.
        members: Trials with the member in that were counted, >= 1.
        non_members: Trials without it that were counted, >= 1.
        threshold: Member at or above it, shape (looks,).
        true_positives: Members called members, shape (looks,).
        false_positives: Non-members called members, shape (looks,).
        error_shares: Among how many looks the error is shared.
    """

    replay: int
    members: int
    non_members: int
    threshold: Floats
    true_positives: Ints
    false_positives: Ints
    error_shares: int


@dataclass(frozen=True, eq=False)
class RocCorners:
    """The corners of the empirical ROC curve: no other threshold has fewer errors of both kinds.

    Attributes:
        threshold: Member at or above it, decreasing, shape (corners,).
        true_positives: Shape (corners,), increasing.
        false_positives: Shape (corners,), increasing.
    """

    threshold: Floats
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
class TwoSampleEstimator(BestLook[TwoSampleTally]):
    """What the two-sample estimators share: choosing the threshold, combining replays.

    Drawn: the `Roc` of the first replay's looks, the `ConfusionCounts` at the reported threshold, and `ReplayBounds`.
    """

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
        """The bound at each look when each may err with probability `error`, shape (looks,).

        What is found at a look depends on no other one, but for the looks of a band.
        """

    def tally(self, scores: Scores) -> TwoSampleTally:
        """Counts of one replay at the thresholds looked at; one sort of the scores.

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

    def counts_at(self, tally: TwoSampleTally, look: int) -> dict[str, int]:
        return {name: int(counts[look]) for name, counts in zip(CONFUSION, _errors(tally), strict=True)}

    def _notes(self, each: EachReplay, tally: TwoSampleTally, look: int) -> tuple[str, ...]:
        return (f"threshold {tally.threshold[look]:.6g}",) if tally.threshold.size else ()

    def series(
        self,
        tallies: Sequence[TwoSampleTally],
        *,
        lost: int = 0,
        each: EachReplay | None = None,
        first: Floats | None = None,
    ) -> dict[str, Series]:
        """The ROC curve, the counts at the reported threshold, and the replays one by one.

        Args:
            tallies: Of the replays that were played.
            lost: Replays that failed.
            each: Their `bounds_of_replays`, where they are known.
            first: `epsilon` of the first replay, where it is known.
        """
        ordered, replays = in_order(tallies), len(tallies) + lost
        each = each or self.bounds_of_replays(ordered, replays)
        if first is None:
            first = self.epsilon(ordered[0], self._error(ordered[0].error_shares, replays))
        counts = {**self.middle_counts(ordered, each), "delta": self.delta, "confidence": self.confidence}
        return {
            "trade-off": _roc(ordered[0], first),
            "posterior": counts,
            "replays": self.replay_series(each, lost),
        }

    def find_best_looks(self, ordered: Sequence[TwoSampleTally], replays: int) -> tuple[Floats, Ints]:
        found = [self.best(tally, self._error(tally.error_shares, replays)) for tally in ordered]
        return np.array([bound for _, bound in found]), np.array([look for look, _ in found], dtype=np.int64)

    def best(self, tally: TwoSampleTally, error: float) -> tuple[int, float]:
        """The look with the largest bound, and that bound; 0 where no threshold is worth a look."""
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
        require(weight in WEIGHTS, f"weight must be one of {', '.join(WEIGHTS)}", weight=weight)

    def validity(self) -> Validity:
        return Validity.FINITE_SAMPLE

    def series(
        self,
        tallies: Sequence[TwoSampleTally],
        *,
        lost: int = 0,
        each: EachReplay | None = None,
        first: Floats | None = None,
    ) -> dict[str, Series]:
        """As of every two-sample estimator, and epsilon against delta: the bands hold for every delta at once.

        The bound of several replays is their median, at each delta.
        """
        profile = {"delta": DELTAS, "epsilon": self.regions(tallies, lost=lost).profile(DELTAS)}
        return super().series(tallies, lost=lost, each=each, first=first) | {"delta": profile}

    def _against_curves(self, ordered: Sequence[TwoSampleTally], lost: int) -> tuple[CurveEvidence, ...]:
        """The bands also speak about the whole of a claim's curve."""
        return (self.regions(ordered, lost=lost),)

    def regions(self, tallies: Sequence[TwoSampleTally], *, lost: int = 0) -> RateRegions:
        """Where the attack's two rates can lie, at all thresholds together, replay by replay."""
        ordered = in_order(tallies)
        replays = len(ordered) + lost
        return RateRegions(
            tuple(self._telling(tally, self._error(tally.error_shares, replays))[1:] for tally in ordered), lost
        )

    def best(self, tally: TwoSampleTally, error: float) -> tuple[int, float]:
        places, alarm, miss = self._telling(tally, error)
        bounds = epsilon_of_rates(alarm, miss, self.delta)
        best = int(bounds.argmax())
        return int(places[best]), float(bounds[best])

    def epsilon(self, tally: TwoSampleTally, error: float) -> Floats:
        return epsilon_of_rates(*self.rates(tally, error, np.arange(tally.threshold.size)), self.delta)

    def _telling(self, tally: TwoSampleTally, error: float) -> tuple[Ints, Floats, Floats]:
        """The looks that any curve is refuted at first, and their limits of both rates."""
        return _telling(self, tally, error)

    def rates(self, tally: TwoSampleTally, error: float, looks: Ints) -> tuple[Floats, Floats]:
        """Upper limits of the false-alarm and the miss rate at these looks, right together with those at all others."""
        # The worlds' trials are independent, so that neither band fails with probability (1 - share) ** 2.
        share = -math.expm1(0.5 * math.log1p(-error))
        weight = cast(SimultaneousBand, self.selection).weight
        misses = tally.members - tally.true_positives[looks]
        alarm = upper_rates_at(tally.false_positives[looks], tally.non_members, error=share, weight=weight)
        miss = upper_rates_at(misses, tally.members, error=share, weight=weight)
        return alarm, miss


@lru_cache(maxsize=8)
def _telling(band: Band, tally: TwoSampleTally, error: float) -> tuple[Ints, Floats, Floats]:
    """`Band._telling`, remembered: a bound, its evidence and its figures ask for the same."""
    return telling_thresholds(lambda looks: band.rates(tally, error, looks), tally.threshold.size)


@dataclass(frozen=True)
class _Confusion(TwoSampleEstimator, CountEstimator):
    """The estimators that read one confusion table a threshold, or tables of confusion counts."""

    columns: ClassVar[tuple[str, ...]] = CONFUSION
    threshold_s: ClassVar[float] = 1e-5
    """Seconds that the bound at a threshold takes."""

    def seconds(self, replays: int, rows: int) -> float:
        """About how long the bounds at every threshold of so many replays of so many rows take on one core.

        A fifth of the rows are corners where members and others overlap; other selections look at a few thresholds.
        """
        return self.threshold_s * replays * rows / 5 if isinstance(self.selection, Bonferroni | AsPublished) else 0.0

    def find(self, tallies: Sequence[TwoSampleTally], *, lost: int = 0, parts: Sequence[Any] = ()) -> Bound:
        """The bound with all there is to draw; the parts are what `bounds_at` gave for the only replay."""
        first, *others = in_order(tallies)
        replays = len(tallies) + lost
        error, single = (self._error(first.error_shares, count) for count in (replays, 1))
        every = self._joined(first, parts) if parts else self.epsilon(first, error)
        look = np.array([every.argmax()])
        alone = every[look] if replays == 1 else np.array([self.best(first, single)[1]])
        head = EachReplay(np.array([first.replay]), every[look], look, alone)
        each = joined([head, self.bounds_of_replays(others, replays)]) if others else head
        bound = self.bound(tallies, lost=lost, each=each)
        return replace(bound, series=self.series(tallies, lost=lost, each=each, first=every))

    def _joined(self, tally: TwoSampleTally, parts: Sequence[EachThreshold]) -> Floats:
        """The bounds at every threshold of the only replay: those of the parts, and the others found now."""
        every = np.full(tally.threshold.size, np.nan)
        for part in parts:
            every[part.look] = part.bound
        missing = np.flatnonzero(np.isnan(every))
        every[missing] = self.bounds_at(tally, missing).bound
        return every

    def bounds_at(self, tally: TwoSampleTally, looks: Ints) -> EachThreshold:
        """At some of the thresholds of the only replay, in nats."""
        columns = ("threshold", "true_positives", "false_positives")
        if not looks.size:
            return EachThreshold(looks, np.empty(0))
        some = replace(tally, **{name: getattr(tally, name)[looks] for name in columns})
        return EachThreshold(looks, self.epsilon(some, self._error(tally.error_shares, 1)))

    def read(self, table: Table) -> Sequence[Bound]:
        """A two-sided interval for each row of counts, whose threshold was fixed beforehand."""
        counts = count_columns(table, CONFUSION)
        interval = epsilon_interval(
            *counts.values(), delta=self.delta, confidence=self.confidence, method=self._method()
        )
        return bound_rows(
            interval.lower,
            interval.upper,
            counts,
            delta=self.delta,
            confidence=self.confidence,
            method=self._method(),
            validity=self.validity(),
        )

    def epsilon(self, tally: TwoSampleTally, error: float) -> Floats:
        interval = epsilon_interval(
            *_errors(tally), delta=self.delta, confidence=1 - error, method=self._method(), side="lower"
        )
        return np.asarray(interval.lower, dtype=np.float64)


def _errors(tally: TwoSampleTally) -> tuple[Ints, Ints, Ints, Ints]:
    """tp, fp, tn, fn at each look."""
    tp, fp = tally.true_positives, tally.false_positives
    return tp, fp, tally.non_members - fp, tally.members - tp


@register("estimator", "clopper-pearson", source="Jagielski et al. (2020); Nasr et al. (2021)")
@dataclass(frozen=True)
class ClopperPearson(_Confusion):
    """Two-sample scores, exact one-sided limits for both error rates, error split over the two."""

    def validity(self) -> Validity:
        return Validity.FINITE_SAMPLE


@register("estimator", "jeffreys", source="Brown, Cai and DasGupta (2001)")
@dataclass(frozen=True)
class Jeffreys(_Confusion):
    """Two-sample scores, Jeffreys limits for both error rates: closer on average, without a guarantee."""

    def validity(self) -> Validity:
        return Validity.ASYMPTOTIC


@register("estimator", "bayesian", source="Zanella-Beguelin et al. (2023)")
@dataclass(frozen=True)
class Bayesian(_Confusion):
    """Two-sample scores, posterior quantile of epsilon under Jeffreys priors: credible, not a confidence bound."""

    threshold_s: ClassVar[float] = 4e-5

    def validity(self) -> Validity:
        return Validity.CREDIBLE


@register("estimator", "katz-log", source="Katz et al. (1978)")
@dataclass(frozen=True)
class KatzLog(TwoSampleEstimator, CountEstimator):
    """Two-sample scores or hits n1, n0: normal limits for the logarithm of the rates' ratio.

    Attributes:
        group: Records in which the data sets of the two worlds differ, >= 1; epsilon is for one record.
        directions: For counts: "best" of both ratios of the set and of its complement, or "one": world 1 over world 0.
            Scores are read one way only, members above: a failed trial is scored as the attack's worst guess, which the
            other way would count as its best.
    """

    columns: ClassVar[tuple[str, ...]] = RATIO

    group: int = 1
    directions: Directions = "best"

    def __post_init__(self) -> None:
        super().__post_init__()
        require_group(self.group, self.directions)

    def _method(self) -> str:
        return super()._method() + grouping(self.group, self.directions)

    def validity(self) -> Validity:
        return Validity.ASYMPTOTIC

    def epsilon(self, tally: TwoSampleTally, error: float) -> Floats:
        hits, alarms = tally.true_positives, tally.false_positives
        members, others = np.asarray(tally.members), np.asarray(tally.non_members)
        above = self._epsilon(hits, alarms, members, others, error / 2, "one")
        below = self._epsilon(others - alarms, members - hits, others, members, error / 2, "one")
        return np.maximum(above, below)

    def read(self, table: Table) -> Sequence[Bound]:
        """One bound a row, with the interval of ln(p1 / p0) beside it and what so many runs can show at most."""
        counts = count_columns(table, RATIO)
        n1, n0, trials1, trials0 = counts.values()
        bounds = self._epsilon(n1, n0, trials1, trials0, 1 - self.confidence, self.directions)
        ratio = katz_log(n1, trials1, n0, trials0, confidence=self.confidence)
        lower, upper = np.asarray(ratio.lower), np.asarray(ratio.upper)
        notes = [
            (f"ln(p1/p0) in [{lower[row]:.6f}, {upper[row]:.6f}]", *self._ceiling(int(trials1[row]), int(trials0[row])))
            for row in range(n1.size)
        ]
        return bound_rows(
            bounds,
            None,
            counts,
            delta=self.delta,
            confidence=self.confidence,
            method=self._method(),
            validity=self.validity(),
            notes=notes,
        )

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
    """Clopper and Pearson's upper limit."""
    inside = np.minimum(counts, trials - 1)
    limits = special.betainccinv(inside + 1.0, (trials - inside).astype(np.float64), error)
    return np.where(counts < trials, limits, 1.0)


def _at_ranks(rows: Scores, rates: Sequence[float]) -> TwoSampleTally:
    """The thresholds at given ranks of each world; ties go by the rows' shuffled order, as if scores were distinct.

    The count of the world that sets the threshold is given by the rank, before anything is seen.
    """
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
