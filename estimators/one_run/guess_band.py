"""The guess band: one valid test for all numbers of guesses at once, without a split and without a grid correction.

Bits are fair and independent. The order of the canaries and the guesses may depend on everything released and on the
bits guessed before. Under pure epsilon each guess is right with conditional probability at most p = e^eps / (1 +
e^eps). The numbers of right guesses S_1, S_2, ... are therefore jointly dominated by a Bernoulli(p) walk W_1, W_2, ....
A stated epsilon has the p-value

    Pr[some look k: Pr[Bin(k, p) >= W_k] <= a w_k],    a = min over looks of Pr[Bin(k, p) >= S_k] / w_k,

which the recursion of `_guess_band_kernel` computes. A look is a number of guesses at which the right guesses are
counted. The looks are fixed beforehand: every k up to 10, then 10 % more each time, because looking at every k spends
more error probability than the extra looks are worth. The weights w_k = 1 / sqrt(k) allot more of the error to few
guesses, which reveal a leak of few canaries (`docs/data/selection-one-run.csv` compares other selections).

The p-value need not be monotone in epsilon, so the bound is searched from below, in steps [e, e + s] in which *every*
epsilon is rejected. For the whole step, the search uses the rejection thresholds of its lower end e (the smallest) and
the walk of its upper end e + s (the fastest). It ends when no small step is rejected. Step lengths are powers of 2, and
step ends are their multiples, so replays can reuse results.

At delta > 0 the right guesses exceed the walk by a count whose law is bounded (`delta_allowances`).

The estimator counts right guesses from signed scores of one training, or of many; no guess fraction is chosen.

Source: the one-run proof of Steinke et al. (2023) for one number of guesses; simultaneous looks as in Berk-Jones bands.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, Protocol

import numpy as np
from scipy.special import expit

from dpaudit.errors import require
from dpaudit.estimators.arguments import Floats, Ints, require_levels, require_one_of
from dpaudit.estimators.estimator import Cell, CellBounds, Estimator, Replays, cell_bounds, in_order, share_of
from dpaudit.estimators.finding import Series
from dpaudit.estimators.one_run.bernoulli_walk import crossing_in_arrays, upper_tails, walk_limits
from dpaudit.estimators.one_run.delta_allowances import (
    DeltaAllowance,
    OneTraining,
    SeveralTrainings,
    covering_allowances,
)
from dpaudit.estimators.one_run.right_guesses import (
    GUESS_RULES,
    FurtherGuesses,
    GuessRule,
    OneRunTally,
    guess_orders,
    guesses_at_fractions,
    guesses_of_orders,
    informative_looks,
    right_guesses,
    right_in_fullest,
)
from dpaudit.estimators.one_run.signed_scores import OneRun
from dpaudit.estimators.replays import per_replay_confidence, replay_note
from dpaudit.estimators.scores import Scores
from dpaudit.estimators.selection import PERCENTS
from dpaudit.registry import register

LARGEST_EPSILON = 60.0  # no number of guesses that fits into memory rejects more
FIRST_STEP, SMALLEST_STEP = 0.5, 2e-4
"""Steps of the search from below, in nats. The smallest is relative to 1 + epsilon and limits the loss of the search.
"""
NEGLIGIBLE = 1e-5
"""Share of the error given up for not following improbable counts, which makes the recursion faster."""
SMALLEST = 1e-16
"""Negligible mass if the probability itself is needed."""
CLEARLY = 0.999
"""Share of the error below which a walk is known to stay within it, in spite of the mass moved up."""
FEW_LOOKS = 1_000
"""Looks over all replays up to which the recursion takes less time in NumPy than compiled code takes to load."""
REPLAY_S, ROW_S = 2.5e-3, 1e-7  # seconds that the bound of a replay takes, and seconds that each canary adds
FURTHER_SHARE = 0.5  # share of the error of all further orders of `SharedOrders`
MAX_DELTA = 0.1  # largest canaries times delta at which an order learned from coins, or a stated one, is followed
FULLEST = 8  # number of trainings with the most right guesses whose counts are tallied


class Guesses(Protocol):
    """Right guesses of one replay at ascending numbers of guesses (`looks`), the last one all; shapes (looks,)."""

    @property
    def looks(self) -> Ints: ...

    @property
    def right(self) -> Ints: ...

    @property
    def further(self) -> FurtherGuesses | None:
        """Guesses of further orders, which share the error with these; None if there are none."""


def guess_looks(canaries: int) -> Ints:
    """Return the numbers of guesses to look at: 1, 2, ..., 10, then 10 % more each time, and all canaries."""
    require(canaries >= 1, "canaries must be >= 1", canaries=canaries)
    looks = [1]
    while looks[-1] < canaries:
        looks.append(min(canaries, max(looks[-1] + 1, math.ceil(1.1 * looks[-1]))))
    return np.array(looks, dtype=np.int64)


def look_weights(guess_counts: Ints) -> Floats:
    """Return the weight of the local level at each look, 1 / sqrt(k), shape as `guess_counts`."""
    weights: Floats = 1 / np.sqrt(guess_counts.astype(np.float64))
    return weights


def guess_band_p_value(epsilon: float, right: Ints, guess_counts: Ints) -> float:
    """Return the p-value in [0, 1] of pure epsilon >= 0 against the numbers of right guesses, at delta = 0; rounded up.

    If guesses without any leak are right with other log-odds than 0, add these to epsilon.

    At the true epsilon it is at most u with probability <= u. Arguments as for `guess_band_epsilon`.

    Slow twin: `p_value` of tests/twins/guess_band_twin.py.
    """
    _check_counts(right, guess_counts)
    weights = look_weights(guess_counts)
    return _largest_p_value(
        epsilon, epsilon, _level(epsilon, right, guess_counts, weights), guess_counts, weights, sufficient=0.0
    )


def guess_band_epsilon(
    right: Ints,
    guess_counts: Ints,
    *,
    significance: float,
    delta_allowance: DeltaAllowance | None = None,
    in_numpy: bool = False,
    prior_log_odds: float = 0.0,
) -> float:
    """Return a lower bound on epsilon from the numbers of right guesses; results are cached, because replays repeat
    counts.

    Args:
        right: Right guesses among the first k, for each k of `guess_counts`, shape (looks,).
        guess_counts: Looks: numbers of guesses, ascending and fixed beforehand (`guess_looks`), shape (looks,).
        significance: Probability that the bound exceeds the true epsilon, in (0, 1).
        delta_allowance: Right guesses that delta may add; None at delta = 0.
        in_numpy: True to run in NumPy, for a few bounds only, because compiled code takes longer to load.
        prior_log_odds: Log-odds of a right guess without any leak; the walk's log-odds exceed them by epsilon. 0 for
            fair coins, negative for guesses among many candidates.
    Returns: Epsilon in nats, >= 0, rounded down; every smaller epsilon is rejected.
    Slow twin: `epsilon` of tests/twins/guess_band_twin.py.
    """
    _check_counts(right, guess_counts)
    require(0 < significance < 1, "significance must be in (0, 1)", significance=significance)
    return cached_epsilon(
        tuple(right.tolist()), tuple(guess_counts.tolist()), delta_allowance, significance, in_numpy, prior_log_odds
    )


@lru_cache(maxsize=4096)
def cached_epsilon(
    right: tuple[int, ...],
    guess_counts: tuple[int, ...],
    delta_allowance: DeltaAllowance | None,
    significance: float,
    in_numpy: bool,
    prior_log_odds: float = 0.0,
) -> float:
    """Return `guess_band_epsilon` of hashable arguments."""
    counts, look_counts = np.array(right), np.array(guess_counts)
    weights = look_weights(look_counts)
    low, step = 0.0, FIRST_STEP
    doubled, rejected, wanted = False, 0, 1  # `wanted`: rejected steps before the step is doubled
    while low < LARGEST_EPSILON:
        slow, fast = low + prior_log_odds, low + step + prior_log_odds
        if all(
            _step_levels(guess_counts, slow, fast, significance - cost, in_numpy).rejects(
                np.maximum(counts - allowed, 0), look_counts, weights
            )
            for allowed, cost in covering_allowances(delta_allowance, low, low + step, significance)
        ):
            low, rejected, doubled = low + step, rejected + 1, False
            tried = rejected >= wanted or step < SMALLEST_STEP * (1 + low)
            if tried and low % (2 * step) == 0:  # steps lie on one grid, so that replays share results
                step, rejected, doubled = 2 * step, 0, True
        else:
            wanted = 2 * wanted if doubled else wanted  # a failed doubling is slow
            step, rejected, doubled = step / 2, 0, False
            if step < SMALLEST_STEP * (1 + low):
                break
    return low


def _orders(tally: Guesses) -> list[tuple[Ints, Ints, float]]:
    """Return right guesses, looks and share of the error of each order of guesses."""
    if (further := tally.further) is None:
        return [(tally.right, tally.looks, 1.0)]
    orders = zip(further.right, further.guess_counts, further.share.tolist(), strict=True)
    return [
        (tally.right, tally.looks, 1 - float(further.share.sum())),
        *((right[counts > 0], counts[counts > 0], share) for right, counts, share in orders if counts.any()),
    ]


def guess_bounds(
    tally: Guesses,
    delta_allowance: DeltaAllowance,
    significance: float,
    *,
    replays: int = 1,
    prior_log_odds: Sequence[float] = (),
    orders: Sequence[int] | None = None,
) -> Floats:
    """Return a replay's `guess_band_epsilon` by each order of guesses, at its share of the error; shape (orders,).

    Args:
        tally: Right guesses of the replay.
        delta_allowance: Right guesses that delta may add.
        significance: Probability that any of the bounds exceeds the true epsilon, in (0, 1).
        replays: Number of all replays, for which compiled code may be worth loading.
        prior_log_odds: Log-odds of a right guess without any leak, for each order of guesses; () for fair coins.
        orders: Places of the orders wanted, the main one first; None for all.
    """
    all_orders = _orders(tally)
    in_numpy = replays * sum(guess_counts.size for _, guess_counts, _ in all_orders) <= FEW_LOOKS
    return np.array(
        [
            guess_band_epsilon(
                right,
                guess_counts,
                significance=share * significance,
                delta_allowance=delta_allowance,
                in_numpy=in_numpy,
                prior_log_odds=prior_log_odds[order] if prior_log_odds else 0.0,
            )
            for order, (right, guess_counts, share) in enumerate(all_orders)
            if orders is None or order in orders
        ],
        np.float64,
    )


def _strength(tally: Guesses, order: int) -> float:
    """Return a number that grows with the bound of one order of guesses, to sort replays by."""
    right, guess_counts, _ = _orders(tally)[order]
    rate = right / guess_counts
    return float(np.max(rate - 3 * np.sqrt(np.maximum(rate * (1 - rate), 0.5 / guess_counts) / guess_counts)))


def selection_in_words(guess: GuessRule, further: FurtherGuesses | None = None) -> str:
    """Return what is looked at simultaneously, by the rule of guesses and the further orders."""
    orders = ", for both tails and for each side alone" if guess == "any-tail" else ""
    if guess == "signed" and further is not None:
        orders = f", for {1 + len(further.share)} orders that share the error"
    return f"all numbers of guesses at once{orders}"


def deciding_counts(replays: Replays[Any], *, of: str) -> tuple[tuple[str, int], ...]:
    """Return the counts to print with the median of the bounds: those of the middle replay at its deciding look.

    At the deciding look, over all orders of guesses, the right guesses have the smallest weighted tail under the walk
    of the bound. `of` names the guesses: "canaries" or "trials".
    """
    tally, _ = replays.middle
    guesses, right = deciding_look(tally, float(np.sort(replays.best)[(replays.best.size - 1) // 2]))
    return replays.counted(
        {"guesses": guesses, "correct": right, of: max(int(counts[-1]) for _, counts, _ in _orders(tally))}
    )


def deciding_look(tally: Guesses, epsilon: float) -> tuple[int, int]:
    """Return guesses and right guesses at the look that decides about a bound `epsilon`."""
    orders = _orders(tally)
    right, guesses = np.concatenate([order[0] for order in orders]), np.concatenate([order[1] for order in orders])
    weights = np.concatenate([look_weights(guess_counts) * share for _, guess_counts, share in orders])
    index = int(np.argmin(upper_tails(right, guesses, float(expit(epsilon))) / weights))
    return int(guesses[index]), int(right[index])


@dataclass
class _StepLevels:
    """Known results for one step of log-odds; a smaller weighted tail (level) is rejected more easily."""

    low: float
    high: float
    error: float  # significance of the test
    in_numpy: bool  # True to avoid loading compiled code
    rejected: float = -1.0  # largest level known to be rejected
    accepted: float = math.inf  # smallest level known not to be rejected

    def rejects(self, right: Ints, guess_counts: Ints, weights: Floats) -> bool:
        """Return True if every epsilon of the step is rejected."""
        level = _level(self.high, right, guess_counts, weights)
        if self.rejected < level < self.accepted:
            p_value = _largest_p_value(
                self.low, self.high, level, guess_counts, weights, self.error, in_numpy=self.in_numpy
            )
            if p_value <= self.error:
                self.rejected = level
            else:
                self.accepted = level
        return level <= self.rejected


@lru_cache(maxsize=1 << 14)
def _step_levels(guess_counts: tuple[int, ...], low: float, high: float, error: float, in_numpy: bool) -> _StepLevels:
    return _StepLevels(low, high, error, in_numpy)


def _level(epsilon: float, right: Ints, guess_counts: Ints, weights: Floats) -> float:
    """Return the smallest weighted tail of the right guesses at this epsilon."""
    return float(np.min(upper_tails(right, guess_counts, float(expit(epsilon))) / weights))


def _largest_p_value(
    low: float,
    high: float,
    level: float,
    guess_counts: Ints,
    weights: Floats,
    sufficient: float,
    *,
    in_numpy: bool = False,
) -> float:
    """Return an upper bound on the p-values of all epsilons in [low, high].

    `level` is that of `high`. Any result <= `sufficient` is as good as another.
    """
    slow, fast = float(expit(low)), float(expit(high))
    if level * float(weights.max()) >= 1:
        return 1.0
    limits = walk_limits(guess_counts, slow, level * weights)
    tails = upper_tails(limits, guess_counts, fast)
    union, largest = float(tails.sum()), float(tails.max())
    if union <= 0.9 * sufficient:
        return union
    if largest > sufficient > 0:  # the crossing probability is at least that
        return 1.0
    negligible = max(NEGLIGIBLE * sufficient / guess_counts.size, SMALLEST)
    later = np.append(np.cumsum(tails[:0:-1])[::-1], 0.0)
    # Near the threshold, mass moved up could change the decision, so the walk is followed to its end.
    decided = (CLEARLY * sufficient, sufficient) if sufficient > 0 else (0.0, 2.0)
    if in_numpy:
        return crossing_in_arrays(guess_counts, limits, fast, negligible, later, *decided)
    from dpaudit.estimators.one_run._guess_band_kernel import crossing_compared  # slow to load

    return float(crossing_compared(guess_counts, limits, fast, negligible, later, *decided))


def side_guesses(scores: Scores, ranks: Ints, shares: Floats) -> FurtherGuesses | None:
    """Return the right guesses of each side alone for the shares of `guess_orders`; None if there are none."""
    if not shares.size:
        return None
    guess_counts = guess_looks(max(1, scores.score.size // 2))
    right = [
        right_guesses(scores.score, scores.truth, ranks, side, guess_counts)
        for side in ("member-only", "non-member-only")
    ]
    return FurtherGuesses(np.stack([guess_counts] * len(right)), np.stack(right), shares)


def further_guesses(scores: Scores, ranks: Ints) -> FurtherGuesses | None:
    """Return the right guesses of the further orders of `SharedOrders`; None if there are none."""
    further = getattr(scores, "further", None)
    if further is None or not further.shape[1]:
        return None
    guess_counts, right = guesses_of_orders(further, scores.truth, ranks, guess_looks)
    return FurtherGuesses(guess_counts, right, np.full(len(right), FURTHER_SHARE / len(right)))


def _check_counts(right: Ints, guess_counts: Ints) -> None:
    require(
        right.shape == guess_counts.shape and guess_counts.ndim == 1 and guess_counts.size > 0,
        "right must have one count a look",
        right=right.shape,
        looks=guess_counts.shape,
    )
    require(
        bool((np.diff(guess_counts, prepend=0) > 0).all()),
        "looks must ascend from 1 or more",
        looks=guess_counts[:5].tolist(),
    )
    more = np.diff(right, prepend=0)
    require(
        bool(((more >= 0) & (more <= np.diff(guess_counts, prepend=0))).all()),
        "right guesses must grow by at most the guesses made between two looks",
        right=right[:5].tolist(),
    )


@dataclass(frozen=True, eq=False)
class GuessTally(OneRunTally):
    """Counts of one replay at all looks, and at the few numbers of guesses that `one-run` uses."""

    looks: Ints  # numbers of guesses, ascending, the last one all that the main order makes, shape (all looks,)
    right: Ints  # right guesses among them, shape (all looks,)
    # right guesses in the 1, 2, ... trainings with the most of them, shape (trainings, all looks); (0, 0) if unknown
    fullest: Ints
    further: FurtherGuesses | None = None  # guesses of further orders, which share the error; None if there are none


@register("estimator", "simultaneous-guess-count", source="Ours, after Steinke et al. (2023) and Berk and Jones (1979)")
@dataclass(frozen=True)
class SimultaneousGuessCount(Estimator[Scores, GuessTally]):
    """Signed scores of one training or of independent trials: all numbers of guesses at once, exact at delta = 0.

    Attributes:
        delta: Delta at which the bound is stated, in [0, 1). Above 0 it costs up to four fifths of the error.
        confidence: Stated confidence of the bound, in (0, 1).
        guess: Order of the canaries and rule of the guesses.
        sharing: Largest number of canaries in one training, if there are several trainings without shared randomness
            and each canary is scored by its own training alone. None if all share one training. Setting it lowers the
            charge for delta. Canaries belong to one training if their numbers are equal when divided by `sharing` and
            rounded down.
        member_log_odds: Log-odds of members to non-members if their number need not be that of fair coins. Guesses of
            one side alone must be right more often by as much. For fair coins, this makes the bound smaller at most;
            coins of another probability, given the number of members, make a random subset of that size.
    """

    tally_type: ClassVar[type[Any]] = GuessTally
    part_type: ClassVar[type[Any] | None] = CellBounds
    part_s: ClassVar[float] = 3.0

    delta: float = 0.0
    confidence: float = 0.95
    guess: GuessRule = "signed"
    sharing: int | None = None
    member_log_odds: float = 0.0

    def __post_init__(self) -> None:
        require_levels(self.delta, self.confidence)
        require_one_of("guess", self.guess, GUESS_RULES)
        require(math.isfinite(self.member_log_odds), "member_log_odds must be finite", got=self.member_log_odds)
        require(self.sharing is None or self.sharing >= 1, "sharing must be >= 1", sharing=self.sharing)

    def unshifted(self) -> OneRun:
        """Return `one-run`: single numbers of guesses can allow for a shift of the proxy, the walk cannot."""
        return OneRun(self.delta, self.confidence, guess=self.guess)

    def tally(self, scores: Scores) -> GuessTally:
        """Count the right guesses of one replay at looks that depend only on its size and its ties."""
        count, ranks = scores.score.size, scores.tie_ranks()
        score, guess, side_shares = guess_orders(scores.score, self.guess, fixed_shares=self.delta > 0)
        further = further_guesses(scores, ranks) if self.guess == "signed" else None
        # Among orders that share the error, a canary of value 0 is not guessed.
        guessed = count if further is None else max(1, int(np.count_nonzero(score)))
        look_counts = informative_looks(guess_looks(guessed), score, guess)
        count_lists = look_counts, self.unshifted().candidates(count), guesses_at_fractions(PERCENTS, count)
        all_counts = np.unique(np.concatenate(count_lists))  # one pass over the scores for all of them
        right_counts = right_guesses(score, scores.truth, ranks, guess, all_counts)
        right, correct, swept = (
            right_counts[np.searchsorted(all_counts, guess_counts)] for guess_counts in count_lists
        )
        fullest = np.zeros((0, 0), np.int64)
        if self.sharing is not None and self.delta > 0 and self.guess == "signed" and further is None:
            fullest = right_in_fullest(
                scores.score, scores.truth, ranks, scores.canary // self.sharing, look_counts, FULLEST
            )
        candidates, correct = self.unshifted().with_sides(scores, ranks, count_lists[1], correct)
        return GuessTally(
            scores.replay,
            count,
            candidates,
            correct,
            count_lists[2],
            swept,
            count,
            look_counts,
            right,
            fullest,
            further or side_guesses(scores, ranks, side_shares),
        )

    def lower(self, tally: GuessTally, error: float) -> Floats:
        """Return the bound by each order of guesses; tests/twins/guess_band_twin.py is the slow form."""
        return self._by_orders(tally, error, replays=1)

    def best(self, tallies: Sequence[GuessTally], replays: int, *, alone: bool = False) -> tuple[Floats, Ints]:
        """Return the largest `lower` of each replay; compiled code computes many replays."""
        error = 1 - (self.confidence if alone else per_replay_confidence(self.confidence, replays))
        best = [self._by_orders(tally, error, replays=replays).max() for tally in tallies]
        return np.array(best, np.float64), np.zeros(len(tallies), np.int64)

    def _by_orders(
        self, tally: GuessTally, error: float, *, replays: int, orders: Sequence[int] | None = None
    ) -> Floats:
        # Log-odds of a right guess without any leak, by order; equal numbers of both guesses are as fair coins.
        members, others = max(0.0, self.member_log_odds), max(0.0, -self.member_log_odds)
        alone = {"signed": members + others, "member-only": members, "non-member-only": others}
        prior: tuple[float, ...] = (alone.get(self.guess, 0.0), members, others)
        if self.guess == "signed":
            prior = prior[:1] * len(_orders(tally))
        allowance = self._delta_allowance(tally)
        return guess_bounds(tally, allowance, error, replays=replays, prior_log_odds=prior, orders=orders)

    def _delta_allowance(self, tally: GuessTally) -> DeltaAllowance:
        if self.sharing is None:
            return OneTraining(tally.canaries, self.delta)
        fullest = tuple(map(tuple, tally.fullest.tolist()))
        return SeveralTrainings(tally.canaries, self.sharing, self.delta, fullest)

    def details(self, replays: Replays[GuessTally]) -> dict[str, Any]:
        """Return the counts of the middle replay at its deciding look, and the spread of the replays."""
        return {
            "selection": selection_in_words(self.guess, replays.middle[0].further),
            "counts": deciding_counts(replays, of="canaries"),
            "notes": replay_note(replays.alone, self.confidence),
        }

    def figures(self, replays: Replays[GuessTally]) -> dict[str, Series]:
        """Return the bounds of the guess fractions by `one-run`, and of single replays."""
        return {"fractions": self.unshifted().sweep(replays.tallies), **super().figures(replays)}

    def seconds(self, pieces: int, rows: int) -> float:
        orders = 3 if self.guess == "any-tail" else 1
        return orders * pieces * (REPLAY_S + rows * ROW_S)

    def part(self, tallies: Sequence[GuessTally], *, pieces: int, share: int, shares: int) -> CellBounds:
        """Return the bounds of some replays and orders of guesses.

        Replays with bounds close to each other share most of their walks, so they come to one part.
        """
        cells = [
            Cell(tally, share=order, shares=len(_orders(tally)))
            for tally in in_order(tallies)
            for order in range(len(_orders(tally)))
        ]
        cells.sort(key=lambda cell: (cell.share, _strength(cell.tally, cell.share)))
        some = share_of(cells, share, shares)
        best, alone = (
            np.array(
                [self._by_orders(cell.tally, 1 - confidence, replays=pieces, orders=(cell.share,))[0] for cell in some],
                np.float64,
            )
            for confidence in (per_replay_confidence(self.confidence, pieces), self.confidence)
        )
        return cell_bounds(some, pieces, best, np.zeros(len(some), dtype=np.int64), alone)
