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

Assumed: the scores of the trials are independent, within each world of one law.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, ClassVar, cast

import numpy as np
from numpy.typing import NDArray
from scipy import special

from dpaudit.errors import require
from dpaudit.estimators.arguments import Floats, Ints
from dpaudit.estimators.best_candidate import BestCandidate, EachReplay, in_order
from dpaudit.estimators.counts import CONFUSION
from dpaudit.estimators.finding import CurveEvidence, Series, Validity
from dpaudit.estimators.scores import Scores
from dpaudit.estimators.selection import Bonferroni, Fixed, Grid, Selection, SimultaneousBand, Split
from dpaudit.estimators.two_world.bands import WEIGHTS, upper_rates_at
from dpaudit.estimators.two_world.rate_region import RateRegions, epsilon_of_rates, telling_thresholds
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
        lost: int = 0,
        each: EachReplay | None = None,
        first: Floats | None = None,
    ) -> dict[str, Series]:
        """The ROC curve, the counts at the reported threshold, and the replays one by one.

        `first` is the first replay's `epsilon`, where it is known.
        """
        ordered, replays = in_order(tallies), len(tallies) + lost
        each = each or self.bounds_of_replays(ordered, replays)
        if first is None:
            first = self.epsilon(ordered[0], self._error(ordered[0].error_shares, replays))
        counts = {**self.counts_at(*self._middle(ordered, each)), "delta": self.delta, "confidence": self.confidence}
        return {"trade-off": _roc(ordered[0], first), "posterior": counts, "replays": self._replay_series(each, lost)}

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
    return telling_thresholds(lambda places: band.rates(tally, error, places), tally.threshold.size)


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
