"""One-run estimators: signed scores of many canaries in one training give a bound on epsilon.

The challenger flips a fair bit for each canary. The attack scores every canary, guesses the bits of the most extreme
scores and abstains on the others. At delta = 0 each bit is still hidden in turn, given everything released. The number
of guesses may then depend on the scores and on the bits of earlier canaries, so a split is valid. At delta > 0 this
holds only on average over the output, so the number of guesses is fixed beforehand: one fraction, or a few that share
the error. Replays of the game on one trained model are dependent; the median rule combines them.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol, cast, get_args, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from dpaudit.claims import PrivacyCurve
from dpaudit.errors import require
from dpaudit.estimators.arguments import Floats, Ints, require_levels, require_one_of
from dpaudit.estimators.bound import Bound, curve_comparison, format_lower
from dpaudit.estimators.counts import GUESSES, CountEstimator, Table, bound_rows, count_columns
from dpaudit.estimators.estimator import CellBounds, Estimator, Replays, in_order
from dpaudit.estimators.finding import Comparison, CurveEvidence, Series, Validity
from dpaudit.estimators.one_run.guesses import one_run_epsilon
from dpaudit.estimators.one_run.guessing_game import Family
from dpaudit.estimators.one_run.right_guesses import (
    GUESS_RULES,
    Guessing,
    GuessRule,
    OneOrder,
    OneRunTally,
    guess_orders,
    guesses_at_fractions,
    right_guesses,
)
from dpaudit.estimators.replays import replay_note
from dpaudit.estimators.scores import Scores
from dpaudit.estimators.selection import (
    PERCENTS,
    AsPublished,
    Fixed,
    Grid,
    Selection,
    SimultaneousBand,
    Split,
    parse_selection,
)
from dpaudit.registry import register

# smallest number of guesses of a grid's candidate: fewer guesses, even if all are right, show little at its error
MIN_GUESSES = 10
TRIED = 100  # numbers of guesses that the choosing part of a split compares


@runtime_checkable
class Shiftable(Guessing, Protocol):
    """Estimator whose tallies can be compared with a control of the proxy, at the same guess fractions."""

    def unshifted(self) -> OneRunEstimator:
        """Return the estimator of the same tallies at few numbers of guesses, without a shift of the proxy."""


@dataclass(frozen=True)
class OneRunEstimator(Estimator[Scores, OneRunTally], CountEstimator):
    """Base of the one-run estimators: guesses, choice of the guess fraction, combination of replays.

    The default selection, a grid of guess fractions, is valid at every delta. At delta = 0 a split is valid too. It
    costs half the canaries, and the chosen fraction may be best only by chance. It is tighter if few canaries leak
    strongly (docs/statistics/calibration.md).

    Attributes:
        delta: Delta at which the bound is stated, in [0, 1).
        confidence: Stated confidence of the final bound, in (0, 1).
        selection: How the number of guesses is chosen, as a `Selection` or in the form that a spec uses.
        guess: Order of the canaries and rule of the guesses. With "any-tail" each side alone is tried at numbers of
            guesses up to a quarter of the canaries, which share the error; a split chooses in the main order alone.
    """

    columns: ClassVar[tuple[str, ...]] = GUESSES
    tally_type: ClassVar[type[Any]] = OneRunTally
    part_type: ClassVar[type[Any] | None] = CellBounds
    candidate_s: ClassVar[float] = 4e-6  # seconds for the bound at a candidate at delta = 0
    part_s: ClassVar[float] = 1.0
    # seconds for the bound at a candidate at delta > 0, or with an allowance for a shift
    delta_s: ClassVar[float] = 7e-6
    tau = 0.0  # total variation between the shown labels and their proxy that the bound allows for

    delta: float = 0.0
    confidence: float = 0.95
    selection: Selection = field(default_factory=Grid)
    guess: GuessRule = "signed"

    def __post_init__(self) -> None:
        require_levels(self.delta, self.confidence)
        object.__setattr__(self, "selection", parse_selection(self.selection))
        require_one_of("guess", self.guess, GUESS_RULES)
        chosen = self.selection
        require(
            not isinstance(chosen, SimultaneousBand),
            "a simultaneous band needs scores of independent trials, and the scores of one run are dependent",
            do="use Split at delta = 0, or Grid",
        )
        require(
            not isinstance(chosen, Split) or self.delta == 0,
            "choosing the guess fraction on a split is valid for delta = 0 only, since with delta > 0 the number of "
            "guesses must not depend on the output",
            do="use Grid or Fixed",
            delta=self.delta,
        )
        require(
            not isinstance(chosen, Fixed) or 0 < chosen.value <= 1,
            "a fixed guess fraction must be in (0, 1]",
            value=getattr(chosen, "value", None),
        )

    @abstractmethod
    def epsilon(self, guesses: Ints, correct: Ints, canaries: int | Ints, confidence: float) -> Floats:
        """Return the bound for each pair of counts, shape as `guesses`; both broadcast."""

    @property
    def searched(self) -> Family | None:
        """Family by whose Algorithm 3 the best candidate is searched; None if each candidate is bounded by itself."""
        return None

    def best_of_each(self, guesses: Ints, correct: Ints, canaries: int, confidence: float) -> Ints:
        """Return the candidate with each replay's largest bound; counts have the shape (replays, candidates)."""
        if self.searched is None:
            return np.asarray(self.unique_epsilon(guesses, correct, canaries, confidence).argmax(axis=1))
        from dpaudit.estimators.one_run.f_dp import best_f_dp  # only needed by Algorithm 3

        return best_f_dp(
            guesses,
            correct,
            canaries=canaries,
            confidence=confidence,
            family=self.searched,
            tau=self.tau,
            delta=self.delta if self.searched == "approx-dp" else None,
        ).candidate

    def lower(self, tally: OneRunTally, error: float) -> Floats:
        return self.epsilon(tally.guesses, tally.correct, tally.canaries, 1 - error)

    def candidates_sharing(self, tally: OneRunTally) -> int:
        return tally.guesses.size

    def best(self, tallies: Sequence[OneRunTally], replays: int, *, alone: bool = False) -> tuple[Floats, Ints]:
        """Return the largest `lower` of each replay: equal counts are bounded once, and by a search where it pays."""
        best, candidate = np.empty(len(tallies)), np.empty(len(tallies), dtype=np.int64)
        for canaries in sorted({tally.canaries for tally in tallies}):
            rows = [index for index, tally in enumerate(tallies) if tally.canaries == canaries]
            guesses = np.stack([tallies[row].guesses for row in rows])
            correct = np.stack([tallies[row].correct for row in rows])
            confidence = 1 - self._error_of_each(tallies[rows[0]], 1 if alone else replays)
            candidate[rows] = self.best_of_each(guesses, correct, canaries, confidence)
            at = np.arange(len(rows)), candidate[rows]
            best[rows] = self.unique_epsilon(guesses[at], correct[at], canaries, confidence)
        return best, candidate

    def seconds(self, pieces: int, rows: int) -> float:
        """Return the approximate seconds on one core.

        Where candidates are bounded singly, a bound is computed once for equal counts, and the right guesses of replays
        take about three standard deviations of values to each side of their mean.
        """
        if not rows:
            return 0.0
        each, guesses = self.delta_s if self.delta or self.tau else self.candidate_s, self.candidates(rows)
        bounds = 0.0 if self.searched else float(np.minimum(pieces, 3 * np.sqrt(guesses)).sum())
        return 2 * each * (bounds or pieces * guesses.size)  # as part of the median, and alone

    def read(self, table: Table) -> Sequence[Bound]:
        """Return a bound for each row of counts, whose number of guesses was fixed beforehand."""
        counts = count_columns(table, GUESSES)
        guesses, correct, canaries = counts.values()
        lower = self.epsilon(guesses, correct, canaries, self.confidence)
        return bound_rows(self, lower, counts, notes=self._row_notes(guesses, correct, canaries))

    def _row_notes(self, guesses: Ints, correct: Ints, canaries: Ints) -> Sequence[tuple[str, ...]]:
        return [()] * guesses.size

    def tally(self, scores: Scores) -> OneRunTally:
        """Count the right guesses of one replay, without sorting the scores."""
        n = scores.score.size
        ranks = scores.tie_ranks()
        sweep = guesses_at_fractions(PERCENTS, n)
        score, guess, _ = guess_orders(scores.score, self.guess, fixed_shares=True)
        swept = right_guesses(score, scores.truth, ranks, guess, sweep)
        if isinstance(self.selection, Split):
            in_main_order = replace(scores, score=score)
            canaries, guesses, correct = self._split(in_main_order, guess, ranks, self.selection)
        else:
            canaries, guesses = n, self.candidates(n)
            correct = right_guesses(score, scores.truth, ranks, guess, guesses)
            guesses, correct = self.with_sides(scores, ranks, guesses, correct)
        return OneRunTally(scores.replay, canaries, guesses, correct, sweep, swept, n)

    def with_sides(self, scores: Scores, ranks: Ints, guesses: Ints, correct: Ints) -> tuple[Ints, Ints]:
        """Return the guesses and right guesses of all candidates: with "any-tail" those of each side alone follow."""
        if self.guess != "any-tail":
            return guesses, correct
        alone = guesses[guesses <= scores.score.size // 4]
        sides: tuple[OneOrder, OneOrder] = "member-only", "non-member-only"
        right = [right_guesses(scores.score, scores.truth, ranks, side, alone) for side in sides]
        return np.concatenate([guesses, alone, alone]), np.concatenate([correct, *right])

    def _split(self, scores: Scores, guess: OneOrder, ranks: Ints, split: Split) -> tuple[int, Ints, Ints]:
        """Return canaries, guesses and right guesses of the reporting part, at the choosing part's best fraction."""
        n = ranks.size
        choosing = round(split.fraction * n)
        require(0 < choosing < n, "a split needs canaries on both sides", choosing=choosing, canaries=n)
        chooses = np.zeros(n, dtype=np.bool_)
        chooses[np.random.default_rng(split.seed).permutation(n)[:choosing]] = True
        chooses = chooses[scores.places()]

        def right(part: NDArray[np.bool_], guesses: Ints) -> Ints:
            dense_ranks = np.argsort(np.argsort(ranks[part]))
            return right_guesses(scores.score[part], scores.truth[part], dense_ranks, guess, guesses)

        tried = np.unique(np.rint(np.geomspace(1, choosing, TRIED)).astype(np.int64))
        hits = right(chooses, tried)
        bounds = np.asarray(one_run_epsilon(tried, hits, canaries=choosing, delta=0.0, confidence=self.confidence))
        guesses = guesses_at_fractions((float(tried[bounds.argmax()] / choosing),), n - choosing)
        return n - choosing, guesses, right(~chooses, guesses)

    def candidates(self, canaries: int) -> Ints:
        """Return the candidate numbers of guesses, which do not depend on scores."""
        match self.selection:
            case Fixed(value):
                return guesses_at_fractions((value,), canaries)
            case Grid(points):
                counts: Ints = np.unique(guesses_at_fractions(points, canaries))
                usable: Ints = counts[counts >= min(MIN_GUESSES, counts[-1])]
                return usable
            case AsPublished(points):
                return guesses_at_fractions(points, canaries)
            case _:
                return np.unique(guesses_at_fractions(PERCENTS, canaries))

    def details(self, replays: Replays[OneRunTally]) -> dict[str, Any]:
        """Return counts, the spread of replays, and evidence against whole curves if guesses were fixed beforehand."""
        tally, candidate = replays.middle
        counts = {name: int(getattr(tally, name)[candidate]) for name in ("guesses", "correct")}
        evidence: tuple[CurveEvidence, ...] = ()
        if not isinstance(self.selection, Split | AsPublished):
            most = max(replays.tallies, key=lambda tally: tally.guesses.size)
            error = self._error_of_each(most, replays.every.size)
            evidence = (_GuessCountEvidence(tuple(replays.tallies), error, self.tau, replays.failed),)
        return {
            "counts": replays.counted({**counts, "canaries": tally.canaries}),
            "notes": replay_note(replays.alone, self.confidence, self.published),
            "evidence": evidence,
        }

    def figures(self, replays: Replays[OneRunTally]) -> dict[str, Series]:
        return {"fractions": self.sweep(replays.tallies), **super().figures(replays)}

    def unshifted(self) -> OneRunEstimator:
        return cast(OneRunEstimator, replace(cast(Any, self), tau=0.0)) if self.tau else self

    def part(self, tallies: Sequence[OneRunTally], *, pieces: int, share: int, shares: int) -> CellBounds:
        """Return the bounds of some replays, or if possible of single candidates.

        Equal counts come to one part, which computes their bound once.
        """
        if self.searched:
            return cast(CellBounds, super().part(tallies, pieces=pieces, share=share, shares=shares))
        ordered = in_order(tallies)
        sizes = [tally.guesses.size for tally in ordered]
        about = np.array([(tally.replay, tally.canaries, tally.guesses.size) for tally in ordered], np.int64)
        replay, canaries, candidates = np.repeat(about, sizes, axis=0).T
        candidate = np.concatenate([np.arange(size) for size in sizes])
        guesses, correct = (
            np.concatenate([getattr(tally, name) for tally in ordered]) for name in ("guesses", "correct")
        )
        columns = np.stack([candidates, canaries, candidate, correct])
        order = np.lexsort(columns[::-1])
        is_new = np.any(np.diff(columns[:, order], axis=1, prepend=-1) != 0, axis=0)
        number = np.cumsum(is_new) - 1  # of the distinct counts
        distinct = int(number[-1]) + 1
        first, last = (np.searchsorted(number, distinct * cut // shares) for cut in (share, share + 1))
        cells = order[first:last]
        best, alone = np.empty(cells.size), np.empty(cells.size)
        of_size = {tally.guesses.size: tally for tally in ordered}
        for size, count in np.unique(columns[:2, cells], axis=1).T.tolist():
            some = np.flatnonzero((candidates[cells] == size) & (canaries[cells] == count))
            counts = guesses[cells[some]], correct[cells[some]]
            for bounds, replays in ((best, pieces), (alone, 1)):
                confidence = 1 - self._error_of_each(of_size[size], replays)
                bounds[some] = self.unique_epsilon(*counts, count, confidence)
        return CellBounds(pieces, replay[cells], candidate[cells], candidates[cells], best, candidate[cells], alone)

    def unique_epsilon(self, guesses: Ints, correct: Ints, canaries: int, confidence: float) -> Floats:
        """Compute `epsilon` once for each distinct pair of counts and copy it to the replays that share the pair."""
        pairs, where = np.unique(np.stack([guesses.ravel(), correct.ravel()]), axis=1, return_inverse=True)
        bounds = np.asarray(self.epsilon(pairs[0], pairs[1], canaries, confidence), dtype=np.float64)
        return bounds[where.ravel()].reshape(guesses.shape)

    def sweep(self, ordered: Sequence[OneRunTally]) -> Series:
        """Return the bound at each guess fraction as if it were the only one: median replay and outer deciles."""
        canaries = ordered[0].all_canaries
        same = [tally for tally in ordered if tally.all_canaries == canaries]
        correct = np.stack([tally.sweep_correct for tally in same])
        guesses = same[0].sweep_guesses
        # The bound increases in the right guesses, so its quantiles are the bounds at their quantiles.
        quantiles = np.sort(correct, axis=0)[[(len(same) - 1) * tenths // 10 for tenths in (1, 5, 9)]]
        bounds = self.unique_epsilon(np.broadcast_to(guesses, quantiles.shape), quantiles, canaries, self.confidence)
        return {"fraction": guesses / canaries, "epsilon": bounds[1], "low": bounds[0], "high": bounds[2]}


@register("estimator", "one-run", source="Kalemaj et al., observational label auditing, Theorem 17 and Algorithm 3")
@dataclass(frozen=True)
class OneRun(OneRunEstimator):
    """One training run: exact binomial at delta = 0; else the larger of the bounds of Algorithm 3 and Theorem 16.

    Attributes:
        tau: Largest total variation distance, over the canaries, between the law of the shown labels and the proxy's,
            in [0, 1). Above 0 Algorithm 3 reads the counts at every delta (Theorem 10), because with abstention no
            other treatment of a shift holds. It is strict: a candidate shows nothing unless tau is below its share of
            the error times (2 right - guesses) / canaries.
    """

    tau: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 <= self.tau < 1, "tau must be in [0, 1)", tau=self.tau)
        require(
            not self.tau or not isinstance(self.selection, Split),
            "a split is valid for tau = 0 only, since Theorem 10 takes the number of guesses as fixed beforehand",
            do="use Grid or Fixed",
            tau=self.tau,
        )

    @property
    def method(self) -> str:
        return super().method + (f" (Theorem 10, tau {self.tau:g})" if self.tau else "")

    def epsilon(self, guesses: Ints, correct: Ints, canaries: int | Ints, confidence: float) -> Floats:
        if self.tau:
            return _by_family(self, "approx-dp", guesses, correct, canaries, confidence)
        bounds = one_run_epsilon(guesses, correct, canaries=canaries, delta=self.delta, confidence=confidence)
        return np.asarray(bounds, dtype=np.float64)

    @property
    def searched(self) -> Family | None:
        return "approx-dp" if self.delta or self.tau else None


def control_estimator(estimator: Any, distinguishers: int) -> OneRun:
    """Return the estimator of the negative control: delta = 0, same guesses, error shared by distinguishers."""
    error = (1 - estimator.confidence) / max(distinguishers, 1)
    guess: GuessRule = estimator.guess if isinstance(estimator, Shiftable) else "signed"
    return OneRun(confidence=1 - error, guess=guess)


@register("estimator", "one-run-theorem-16", source="Steinke et al. (2023); Kalemaj et al., Theorem 16")
@dataclass(frozen=True)
class OneRunTheorem16(OneRunEstimator):
    """One training run by Theorem 16: the binomial tail plus a term in delta for all canaries."""

    candidate_s: ClassVar[float] = 1.7e-4
    delta_s: ClassVar[float] = 1.7e-4

    def epsilon(self, guesses: Ints, correct: Ints, canaries: int | Ints, confidence: float) -> Floats:
        bounds = one_run_epsilon(
            guesses, correct, canaries=canaries, delta=self.delta, confidence=confidence, method="theorem-16"
        )
        return np.asarray(bounds, dtype=np.float64)


@register("estimator", "one-run-f-dp", source="Kalemaj et al., Algorithm 3, Definition 9 and Theorem 10")
@dataclass(frozen=True)
class OneRunFDP(OneRunEstimator):
    """One training run by Algorithm 3 for a family of trade-off functions: gaussian, laplace or approx-dp.

    The Gaussian and the Laplace bound hold only for mechanisms of the family, not even for all pure DP mechanisms.
    `validity` states this condition.

    Attributes:
        tau: Total variation distance between the law of the shown labels and the proxy's, in [0, 1) (Theorem 10).
        family: "gaussian", "laplace" or "approx-dp" (which holds for every mechanism).
    """

    delta_s: ClassVar[float] = 4.5e-6

    tau: float = 0.0
    family: Family = "gaussian"

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 <= self.tau < 1, "tau must be in [0, 1)", tau=self.tau)
        require_one_of("family", self.family, get_args(Family))
        require(
            self.family != "gaussian" or self.delta > 0,
            "the Gaussian family has no finite epsilon at delta = 0",
            do="state a delta > 0, or use family laplace",
            delta=self.delta,
        )

    @property
    def method(self) -> str:
        return f"one-run-f-dp ({self.family}" + (f", tau {self.tau:g})" if self.tau else ")")

    @property
    def validity(self) -> Validity:
        return Validity.FINITE_SAMPLE if self.family == "approx-dp" else Validity.CONDITIONAL_ON_FAMILY

    def epsilon(self, guesses: Ints, correct: Ints, canaries: int | Ints, confidence: float) -> Floats:
        return _by_family(self, self.family, guesses, correct, canaries, confidence)

    @property
    def searched(self) -> Family | None:
        return self.family

    def _row_notes(self, guesses: Ints, correct: Ints, canaries: Ints) -> Sequence[tuple[str, ...]]:
        if self.family == "approx-dp":  # its parameter is epsilon itself
            return super()._row_notes(guesses, correct, canaries)
        from dpaudit.estimators.one_run.f_dp import f_dp_parameter

        parameters = f_dp_parameter(
            guesses, correct, canaries=canaries, confidence=self.confidence, family=self.family, tau=self.tau
        )
        name = {"gaussian": "mu", "laplace": "epsilon of the Laplace mechanism"}[self.family]
        return [(f"{name} >= {format_lower(value, 6)}",) for value in np.asarray(parameters)]


def _by_family(
    estimator: OneRunEstimator,
    family: Family,
    guesses: Ints,
    correct: Ints,
    canaries: int | Ints,
    confidence: float,
) -> Floats:
    """Return the bounds by Algorithm 3, with Theorem 10 for a tau; tests/twins/f_dp_twin.py is the slow form."""
    from dpaudit.estimators.one_run.f_dp import f_dp_epsilon  # only needed by Algorithm 3

    delta, tau = estimator.delta, estimator.tau
    bounds = f_dp_epsilon(
        guesses, correct, canaries=canaries, delta=delta, confidence=confidence, family=family, tau=tau
    )
    return np.asarray(bounds, dtype=np.float64)


TANGENTS = 300
"""Number of lines that bound a trade-off function from below; they reject no more than the function does."""
LARGEST_EPSILON = 50.0


@dataclass(frozen=True, eq=False)
class _GuessCountEvidence:
    """Evidence against a whole curve: more right guesses than its trade-off function allows, by Algorithm 3.

    Algorithm 3 bounds the tail of the right guesses, at a number of guesses fixed beforehand, for any one trade-off
    function, so no conversion to epsilon at one delta is needed. A candidate's share of the error serves this evidence
    and the bound. At one number of guesses both limit the probability of the same event, so either is valid.
    """

    replays: tuple[OneRunTally, ...]  # tallies of the finished replays, at least one
    error: float  # error of one candidate of one replay, such that the median over replays has the stated confidence
    tau: float = 0.0  # total variation between the shown labels and their proxy, in [0, 1)
    failed_replays: int = 0  # number of failed replays, which show nothing

    def __post_init__(self) -> None:
        require(len(self.replays) > 0, "counts must be of at least one replay", replays=len(self.replays))
        require(0 < self.error < 1, "the error of a candidate must be in (0, 1)", error=self.error)

    def comparison(self, curve: PrivacyCurve, /) -> Comparison:
        """Compare the share of right guesses at the candidate of the middle replay with the strongest evidence."""
        lines = tangents(curve)
        candidates = {(replay.canaries, int(guesses)) for replay in self.replays for guesses in replay.guesses}
        allowed = {
            (canaries, guesses): most_right_guesses(lines, guesses, canaries=canaries, error=self.error, tau=self.tau)
            for canaries, guesses in sorted(candidates)
        }
        margins = sorted(
            (self._largest_margin(replay, allowed) for replay in self.replays), key=lambda margin: margin[0]
        )
        failed = [(-math.inf, margins[0][1])] * self.failed_replays
        return (failed + margins)[(len(failed) + len(margins) - 1) // 2][1]

    def _largest_margin(self, replay: OneRunTally, allowed: dict[tuple[int, int], int]) -> tuple[float, Comparison]:
        """Return the largest excess over the allowed counts of a replay, in standard deviations, and its comparison."""
        limits = np.array([allowed[replay.canaries, int(guesses)] for guesses in replay.guesses])
        margins = (replay.correct - limits) / np.sqrt(replay.guesses)
        most = int(margins.argmax())
        guesses = int(replay.guesses[most])
        where = f"{guesses:,} guesses about {replay.canaries:,} canaries"
        shares = replay.correct[most] / guesses, limits[most] / guesses
        return float(margins[most]), curve_comparison("share of right guesses", where, *map(float, shares))


def most_right_guesses(lines: Floats, guesses: int, *, canaries: int, error: float, tau: float = 0.0) -> int:
    """Return the largest number of right guesses that Algorithm 3 does not reject; `guesses` if it rejects none.

    `lines` come from `tangents`; tau is as for `dpaudit.estimators.one_run.f_dp.f_dp_parameter`.
    """
    from dpaudit.estimators.one_run._f_dp_walk import REJECTS  # compiled code is loaded when first used

    rejects = REJECTS["lines"]
    low, high = guesses // 2, guesses + 1  # no curve rejects half; there are no more than all
    while high - low > 1:
        middle = (low + high) // 2
        rejected = rejects(lines, 0.0, tau, guesses, middle, canaries, error)
        low, high = (low, middle) if rejected else (middle, high)
    return low


def tangents(curve: PrivacyCurve) -> Floats:
    """Return the smallest false positive rate at each power, as the envelope of lines below it.

    (epsilon, delta)-DP keeps the rate at power p above e^-epsilon (p - delta) and above 1 - delta - e^epsilon (1 - p).
    A curve implies this for every epsilon. Rows: power from which a line is the highest, its slope, its value at power
    0.
    """
    floors = (curve.epsilon(floor) for floor in (0.0, 1e-12, 1e-9, 1e-6, 1e-4, 1e-2, 0.1))
    last = min(next((floor for floor in floors if math.isfinite(floor)), LARGEST_EPSILON), LARGEST_EPSILON)
    # The grid is finer near 0, where tests with many guesses have power.
    epsilons = last * np.linspace(0.0, 1.0, TANGENTS) ** 1.5
    deltas = np.array([min(1.0, curve.delta(float(epsilon))) for epsilon in epsilons])
    slopes = np.concatenate([[0.0], np.exp(-epsilons[::-1]), np.exp(epsilons)])
    starts = np.concatenate([[0.0], -slopes[1 : TANGENTS + 1] * deltas[::-1], 1 - deltas - np.exp(epsilons)])
    return _envelope(slopes, starts)


def _envelope(slopes: Floats, starts: Floats) -> Floats:
    """Return the upper envelope of lines with non-decreasing slopes."""
    envelope: list[tuple[float, float, float]] = []
    for slope, start in zip(slopes.tolist(), starts.tolist(), strict=True):
        since = 0.0
        while envelope:
            before, steepness, value = envelope[-1]
            if steepness == slope:
                since = before if start >= value else math.inf
            else:
                since = (value - start) / (slope - steepness)
            if since > before:
                break
            envelope.pop()
            since = 0.0
        if since < 1:
            envelope.append((since, slope, start))
    return np.array(envelope).T.copy()
