"""The guess band: all numbers of guesses at once, one valid test, nothing split and no grid paid for.

Bits are fair and independent; canaries are guessed in an order, and with guesses, that may depend on all that was
released and on the bits guessed before. Under pure epsilon each guess is right with conditional probability at most
p = e^eps / (1 + e^eps), so the numbers of right guesses S_1, S_2, ... are dominated, all together, by a Bernoulli(p)
walk W_1, W_2, .... A stated epsilon has the p-value

    Pr[some look k: Pr[Bin(k, p) >= W_k] <= a w_k],    a = min over looks of Pr[Bin(k, p) >= S_k] / w_k,

which the recursion of `_guess_band_kernel` computes. The looks are fixed beforehand: every k up to 10, then a tenth
more each time (looking at every k costs more of the error than it finds). The weights w_k = 1 / sqrt(k) give more of
the error to few guesses, where a leak of few canaries shows; `benchmarks/compare_selection.py` has what others give.

The p-value need not be monotone in epsilon, so the bound is searched from below: steps [e, e + s] of which *every*
epsilon is rejected, on the limits of e (the lowest) and the walk of e + s (the fastest), until no small step is. Steps
lie on a grid of halves: what is known of one serves all replays.

delta > 0: right guesses exceed the walk by a count E whose law is bounded (`BadGuesses`).

The estimator counts signed scores of one training, or of many: no fraction has to be chosen.

Source: the one-run proof of Steinke et al. (2023) for one number of guesses; simultaneous looks as Berk-Jones bands.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar, Protocol, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray
from scipy.special import betainc, expit, ndtri

from dpaudit.errors import require
from dpaudit.estimators.arguments import Floats, Ints, require_one_of
from dpaudit.estimators.best_candidate import EachReplay, in_order
from dpaudit.estimators.bound import Bound
from dpaudit.estimators.finding import Series, Validity
from dpaudit.estimators.one_run.right_guesses import (
    GuessRule,
    OneRunTally,
    as_signed,
    guesses_at_fractions,
    right_guesses,
    right_in_fullest,
    telling_looks,
)
from dpaudit.estimators.one_run.signed_scores import OneRun
from dpaudit.estimators.replays import median_rule, per_replay_confidence, replay_note
from dpaudit.estimators.scores import ScoreEstimator, Scores, replay_bounds
from dpaudit.estimators.selection import PERCENTS
from dpaudit.registry import register

LARGEST_EPSILON = 60.0  # no number of guesses that fits into memory rejects more
FIRST_STEP, SMALLEST_STEP = 0.5, 2e-4
"""Of the search from below, in nats; the smallest is relative to 1 + epsilon, and that much at most is given away."""
NEGLIGIBLE = 1e-5
"""The part of the error that is given away for not following what hardly happens: a walk's bound is found sooner."""
SHARE_FOR_DELTA = 0.2  # the part of the error that the delta of one training may cost at most
SMALLEST = 1e-16
"""Mass that does not matter where a probability itself is asked for."""
CLEARLY = 0.999
"""The part of the error below which a walk is known to keep within it, whatever was lifted on the way."""
TRANSFORMED_FROM = 300_000
"""Products of a convolution from which on transforms are faster."""
FEW_LOOKS = 1_000
"""Of all replays: at so many, walks are followed in less time than compiled code takes to load."""
LEAST_S, ROW_S = 5e-3, 3e-7  # seconds that the bound of a replay takes, and what each canary adds
FULLEST = 8  # trainings with most right guesses, of which it is known how many
MAX_DELTA = 0.1
"""Canaries times delta up to which the guess band is the tighter one: measured, docs/statistics/calibration.md."""


class Guesses(Protocol):
    """Right ones of one replay at ascending numbers of guesses, the last one all there are; both of shape (looks,)."""

    @property
    def looks(self) -> Ints: ...

    @property
    def right(self) -> Ints: ...


_T = TypeVar("_T", bound=Guesses)


def check_fields(delta: float, confidence: float, guess: str) -> None:
    """Refuses fields of an estimator that reads guesses which are out of range."""
    require(0 <= delta < 1, "delta must be in [0, 1)", delta=delta)
    require(0 < confidence < 1, "confidence must be in (0, 1)", confidence=confidence)
    require_one_of("guess", guess, get_args(GuessRule))


def guess_looks(canaries: int) -> Ints:
    """Numbers of guesses that are looked at: 1, 2, ..., 10, then a tenth more each time, and all canaries."""
    require(canaries >= 1, "canaries must be >= 1", canaries=canaries)
    looks = [1]
    while looks[-1] < canaries:
        looks.append(min(canaries, max(looks[-1] + 1, math.ceil(1.1 * looks[-1]))))
    return np.array(looks, dtype=np.int64)


def look_weights(looks: Ints) -> Floats:
    """The weight of each look's local level, 1 / sqrt(k), shape as `looks`."""
    weights: Floats = 1 / np.sqrt(looks.astype(np.float64))
    return weights


class BadGuesses(Hashable, Protocol):
    """How many right guesses delta may add to the walk's, and with which probability it adds more."""

    def allowance(self, epsilon: float, significance: float) -> tuple[int | Ints, float]:
        """A count B, the same or one for each look, and a limit of the probability that more are added at this epsilon.

        Both fall as it grows.
        """


@dataclass(frozen=True)
class IndependentTrials:
    """Every guess is about a trial of its own, one training each.

    (eps, delta)-close worlds are eps-close ones but for an event of probability delta a trial, so at most a
    Binomial(trials, delta) number of guesses owes nothing to the walk.
    """

    trials: int
    delta: float = 0.0

    def allowance(self, epsilon: float, significance: float) -> tuple[int, float]:
        """The smallest B that is exceeded with probability <= a fifth of the error."""
        if self.delta == 0:
            return 0, 0.0
        from scipy.stats import binom  # takes long to load, and pure epsilon never needs it

        allowed = int(binom.isf(SHARE_FOR_DELTA * significance, self.trials, self.delta))
        return allowed, float(binom.sf(allowed, self.trials, self.delta))


@dataclass(frozen=True)
class OneTraining:
    """All canaries share one training, and the number of guesses may depend on its output.

    For canary j, "its turn comes with a conditional chance q > p and guess g" is a set of outputs once the other bits
    are fixed; (eps, delta) bounds E[(q - p) 1] by delta / (2 (1 + e^eps)) for each g. Summed over canaries, the right
    guesses beyond the walk number at most canaries delta / (1 + e^eps) on average; Markov's inequality bounds the tail.
    """

    canaries: int  # all of them, guessed or not
    delta: float = 0.0

    def allowance(self, epsilon: float, significance: float) -> tuple[int, float]:
        """The smallest B of 0, 1, 2, 4, ... that costs at most a fifth of the error, and what it costs at most.

        Where B > 0 that is the whole fifth: a larger epsilon has a smaller B, which may cost more.
        """
        expected, share = self.canaries * self.delta * float(expit(-epsilon)), SHARE_FOR_DELTA * significance
        if expected <= share:
            return 0, expected
        allowed = 1
        while expected / (allowed + 1) > share:
            allowed *= 2
        return allowed, share


@dataclass(frozen=True)
class SeveralTrainings:
    """Canaries come in independent trainings, a few in each, and each is guessed from its own training alone.

    What `OneTraining` says holds of each training, and what is added in one does not depend on the others. Two limits
    hold, each with half of what delta may cost:

    * Numbers in 0 .. m are added with mean m delta / (1 + e^eps) at most, m the canaries of a training. Their sum is
      largest, in the increasing convex order, where each is 0 or m: its tail is at most E(m N - m k)_+ / (x - m k) at
      any x > m k, where N is Bin(trainings, delta / (1 + e^eps)).
    * More than b trainings add any no oftener than Bin(canaries, delta / (1 + e^eps)) > b (Hoeffding 1956, b >= its
      mean). Among the first k guesses b of them add no more than are right in the b that have most of these.
    """

    canaries: int  # all of them, guessed or not
    sharing: int  # how many share one training at most
    delta: float = 0.0
    fullest: tuple[tuple[int, ...], ...] = ()  # by b - 1 and look: right guesses in the b trainings that have most

    def allowance(self, epsilon: float, significance: float) -> tuple[int | Ints, float]:
        """The smaller of both, and what it costs at most."""
        chance, share = self.delta * float(expit(-epsilon)), SHARE_FOR_DELTA * significance
        expected = self.canaries * chance
        if expected <= share:
            return 0, expected
        from scipy.stats import binom

        each = share / 2 if self.fullest else share
        most = min(self.sharing, self.canaries)
        trainings = -(-self.canaries // most)
        tails = binom.sf(np.arange(trainings + 1), trainings, chance)  # of more than 0, 1, ... bad trainings
        beyond = most * np.cumsum(tails[::-1])[::-1]
        beyond[0] = expected
        counts = most * np.arange(trainings + 1) + np.maximum(np.ceil(beyond / each), 1) - 1
        allowed = int(min(counts.min(), self.canaries))
        bad = max(int(binom.isf(each, self.canaries, chance)), math.ceil(expected))
        if bad > len(self.fullest):
            return allowed, share
        return np.minimum(allowed, self.fullest[bad - 1]), share


def guess_band_p_value(epsilon: float, right: Ints, looks: Ints) -> float:
    """p-value of pure epsilon >= 0 against the numbers of right guesses (as in `guess_band_epsilon`), at delta = 0.

    In [0, 1]; at the true epsilon at most u with probability <= u. Rounded up.
    """
    _check_counts(right, looks)
    weights = look_weights(looks)
    return _largest_p_value(epsilon, epsilon, _level(epsilon, right, looks, weights), looks, weights, enough=0.0)


def guess_band_epsilon(
    right: Ints, looks: Ints, *, significance: float, bad: BadGuesses | None = None, few: bool = False
) -> float:
    """Lower bound on epsilon from the numbers of right guesses; replays of one game often show the same counts.

    Args:
        right: Right ones among the first k guesses, for each k of `looks`, shape (looks,).
        looks: Numbers of guesses looked at, ascending and fixed beforehand (`guess_looks`), shape (looks,).
        significance: Probability that the bound exceeds the true epsilon, in (0, 1).
        bad: What delta adds; None at delta = 0.
        few: Whether so few bounds are wanted that loading compiled code takes longer than they do.
    Returns: In nats, >= 0; every smaller epsilon is rejected. Rounded down.
    """
    _check_counts(right, looks)
    require(0 < significance < 1, "significance must be in (0, 1)", significance=significance)
    return remembered_epsilon(tuple(right.tolist()), tuple(looks.tolist()), bad, significance, few)


@lru_cache(maxsize=4096)
def remembered_epsilon(
    right: tuple[int, ...], looked_at: tuple[int, ...], bad: BadGuesses | None, significance: float, few: bool
) -> float:
    """`guess_band_epsilon` of counts as values that can be remembered."""
    counts, looks = np.array(right), np.array(looked_at)
    weights = look_weights(looks)
    low, step = 0.0, FIRST_STEP
    doubled, rejected, wanted = False, 0, 1  # steps of this size that are rejected before a step of twice the size
    while low < LARGEST_EPSILON:
        allowed, cost = bad.allowance(low, significance) if bad else (0, 0.0)
        walked = np.maximum(counts - allowed, 0)
        if _step_levels(looked_at, low, low + step, significance - cost, few).rejects(walked, looks, weights):
            low, rejected, doubled = low + step, rejected + 1, False
            tried = rejected >= wanted or step < SMALLEST_STEP * (1 + low)
            if tried and low % (2 * step) == 0:  # steps lie on one grid, so that replays of a game ask about the same
                step, rejected, doubled = 2 * step, 0, True
        else:
            wanted = 2 * wanted if doubled else wanted  # in vain: the longer ones take longest to follow
            step, rejected, doubled = step / 2, 0, False
            if step < SMALLEST_STEP * (1 + low):
                break
    return low


def bounds_of_guesses(
    tallies: Sequence[_T], bad: Callable[[_T], BadGuesses], significance: float, *, replays: int | None = None
) -> Floats:
    """Each replay's `guess_band_epsilon`; `bad` says what delta may add to its guesses.

    There are as many `replays` in all, where these are a part of them.
    """
    require(len(tallies) > 0, "a bound needs the tally of at least one replay", tallies=len(tallies))
    found = []
    for tally in tallies:
        few = (replays or len(tallies)) * tally.looks.size <= FEW_LOOKS
        found.append(guess_band_epsilon(tally.right, tally.looks, significance=significance, bad=bad(tally), few=few))
    return np.array(found)


def deciding_counts(
    tallies: Sequence[Guesses], bounds: Floats, failed_replays: int, *, of: str
) -> tuple[tuple[str, int], ...]:
    """What is printed beside the median of the replays' bounds: the middle replay at the look that decides.

    There a walk of so large an epsilon explains the right guesses least, weighted as the band is. `of` says what all
    guesses are: "canaries", "trials" or "steps".
    """
    middle = int(np.argsort(bounds[: len(tallies)], kind="stable")[(len(tallies) - 1) // 2])
    tally = tallies[middle]
    tails = _at_least(tally.right, tally.looks, float(expit(float(bounds[middle]))))
    look = int(np.argmin(tails / look_weights(tally.looks)))
    counts = {
        "guesses": int(tally.looks[look]),
        "correct": int(tally.right[look]),
        of: int(tally.looks[-1]),
        "replays": len(tallies) + failed_replays,
    }
    return tuple((counts | ({"lost replays": failed_replays} if failed_replays else {})).items())


@dataclass
class _StepLevels:
    """What is known of a step of epsilons: the smaller the smallest weighted tail, the sooner it is rejected."""

    low: float
    high: float
    error: float  # what the walk may err
    few: bool  # whether compiled code is not worth loading
    rejected: float = -1.0  # the largest level known to be rejected
    kept: float = math.inf  # the smallest level known not to be

    def rejects(self, right: Ints, looks: Ints, weights: Floats) -> bool:
        """Whether every epsilon of the step is rejected."""
        level = _level(self.high, right, looks, weights)
        if self.rejected < level < self.kept:
            p_value = _largest_p_value(self.low, self.high, level, looks, weights, self.error, few=self.few)
            if p_value <= self.error:
                self.rejected = level
            else:
                self.kept = level
        return level <= self.rejected


@lru_cache(maxsize=1 << 14)
def _step_levels(looks: tuple[int, ...], low: float, high: float, error: float, few: bool) -> _StepLevels:
    return _StepLevels(low, high, error, few)


def _level(epsilon: float, right: Ints, looks: Ints, weights: Floats) -> float:
    """The smallest tail of the right guesses over its weight, at this epsilon."""
    return float(np.min(_at_least(right, looks, float(expit(epsilon))) / weights))


def _largest_p_value(
    low: float, high: float, level: float, looks: Ints, weights: Floats, enough: float, *, few: bool = False
) -> float:
    """A number that no p-value of an epsilon in [low, high] exceeds; `level` is of `high`; one <= `enough` will do."""
    slow, fast = float(expit(low)), float(expit(high))
    if level * float(weights.max()) >= 1:
        return 1.0
    limits = _limits(looks, slow, level * weights)
    tails = _at_least(limits, looks, fast)
    union, largest = float(tails.sum()), float(tails.max())
    if union <= 0.9 * enough:
        return union
    if largest > enough > 0:  # the walk is no less probable to cross somewhere
        return 1.0
    negligible = max(NEGLIGIBLE * enough / looks.size, SMALLEST)
    later = np.append(np.cumsum(tails[:0:-1])[::-1], 0.0)
    # Where the walk itself would be decided otherwise by what it lifts, it is followed to its end.
    decided = (CLEARLY * enough, enough) if enough > 0 else (0.0, 2.0)
    if few:
        return crossing_in_arrays(looks, limits, fast, negligible, later, *decided)
    from dpaudit.estimators.one_run._guess_band_kernel import crossing_compared  # slow to load

    return float(crossing_compared(looks, limits, fast, negligible, later, *decided))


def crossing_in_arrays(
    looks: Ints, limits: Ints, p: float, negligible: float, later: Floats, enough: float, too_much: float
) -> float:
    """`_guess_band_kernel.crossing_compared` in operations on whole arrays: without compiled code.

    Long walks are followed by products of Fourier transforms, in n log n operations a look; rounding adds less than
    1e-14 a look.
    """
    lowest, staying, crossed = 0, np.ones(1), 0.0
    for trials, limit, beyond in zip(np.diff(looks, prepend=0).tolist(), limits.tolist(), later.tolist(), strict=True):
        first, terms = _binomial_terms(trials, p, 0.01 * negligible)
        lowest += first
        moved = _convolved(staying, terms)[: max(0, limit - lowest)]
        crossed += max(0.0, float(staying.sum() - moved.sum()))
        if not moved.size:
            return 1.0
        if crossed > too_much:
            return min(1.0, crossed + 1e-12)
        if crossed + beyond + 1e-12 <= enough:
            return float(crossed + beyond + 1e-12)
        lifted = np.cumsum(moved)
        cut = int(np.searchsorted(lifted[:-1], negligible))
        moved[cut] = lifted[cut]
        staying = moved[cut:]
        lowest += cut
    return min(1.0, crossed + 1e-12)


def _convolved(first: Floats, second: Floats) -> Floats:
    """`np.convolve` of probabilities."""
    if first.size * second.size < TRANSFORMED_FROM:
        return np.convolve(first, second)
    size = first.size + second.size - 1
    length = 1 << (size - 1).bit_length()
    product = np.fft.irfft(np.fft.rfft(first, length) * np.fft.rfft(second, length), length)[:size]
    return np.maximum(product, 0.0, out=product)


@lru_cache(maxsize=256)
def _binomial_terms(trials: int, p: float, smallest: float) -> tuple[int, Floats]:
    """The first count whose term of Binomial(trials, p) is not below `smallest`, and the terms from there on."""
    mode = min(trials, int((trials + 1) * p))
    ways = math.lgamma(trials + 1.0) - math.lgamma(mode + 1.0) - math.lgamma(trials - mode + 1.0)
    top = math.exp(ways + mode * math.log(p) + (trials - mode) * math.log1p(-p))
    rare = -math.log(smallest)
    reach = int(rare + math.sqrt(2 * rare * trials * p * (1 - p))) + 2  # Bernstein's inequality: less lies beyond
    down, up = np.arange(mode, max(mode - reach, 0), -1.0), np.arange(mode, min(mode + reach, trials))
    odds = p / (1 - p)
    below = top * np.cumprod(down / ((trials - down + 1) * odds))
    above = top * np.cumprod((trials - up) / (up + 1) * odds)
    below, above = below[below >= smallest], above[above >= smallest]
    return mode - below.size, np.concatenate([below[::-1], [top], above])


def _at_least(counts: Ints, looks: Ints, p: float) -> Floats:
    """Pr[Bin(k, p) >= count], shape as both; far from the overhead of scipy's distributions."""
    inside = np.clip(counts, 1, looks)
    tail = betainc(inside, looks - inside + 1.0, p)
    return np.where(counts <= 0, 1.0, np.where(counts > looks, 0.0, tail))


def _limits(looks: Ints, p: float, levels: Floats) -> Ints:
    """The smallest count c at each look with Pr[Bin(k, p) >= c] <= level; in doubt one too low, which is safe."""

    def within(counts: Ints) -> NDArray[np.bool_]:
        return _at_least(counts, looks, p) <= levels * (1 + 1e-9)

    spread = np.sqrt(looks * (p * (1 - p)))
    guess = np.rint(looks * p - ndtri(np.clip(levels, 1e-300, 0.5)) * spread).astype(np.int64)
    low, high = np.clip(guess - 1, 0, looks), np.clip(guess + 1, 0, looks + 1)
    wider = np.int64(2)
    while (missed := within(low) & (low > 0)).any():  # no count below `low` may be in the limit
        low, wider = np.where(missed, np.maximum(low - wider, 0), low), 2 * wider
    wider = np.int64(2)
    while (missed := ~within(high)).any():  # `high` always is
        high, wider = np.where(missed, np.minimum(high + wider, looks + 1), high), 2 * wider
    while (low < high).any():
        middle = (low + high) // 2
        enough = within(middle)
        low, high = np.where(enough, low, middle + 1), np.where(enough, middle, high)
    return np.asarray(low)


def _check_counts(right: Ints, looks: Ints) -> None:
    require(
        right.shape == looks.shape and looks.ndim == 1 and looks.size > 0,
        "right must have one count a look",
        right=right.shape,
        looks=looks.shape,
    )
    require(bool((np.diff(looks, prepend=0) > 0).all()), "looks must ascend from 1 or more", looks=looks[:5].tolist())
    more = np.diff(right, prepend=0)
    require(
        bool(((more >= 0) & (more <= np.diff(looks, prepend=0))).all()),
        "right guesses must grow by at most the guesses made between two looks",
        right=right[:5].tolist(),
    )


@dataclass(frozen=True, eq=False)
class GuessTally(OneRunTally):
    """What one replay showed, at all numbers of guesses that are looked at and at the few of `one-run`."""

    looks: Ints  # numbers of guesses looked at, ascending, the last one all canaries, shape (all looks,)
    right: Ints  # right ones among them, shape (all looks,)
    fullest: Ints  # of these, in the 1, 2, ... trainings that have most, shape (trainings, all looks); (0, 0): not told


@register("estimator", "simultaneous-guess-count", source="Ours, after Steinke et al. (2023) and Berk and Jones (1979)")
@dataclass(frozen=True)
class SimultaneousGuessCount(ScoreEstimator[GuessTally]):
    """Signed scores of one training: all numbers of guesses at once, exact at delta = 0; holds for trials as well.

    Where all share one training and more than `MAX_DELTA` canaries are expected to be given away by delta, what is
    charged for it costs more than looking everywhere finds: then `one-run` reads the counts. That is decided by the
    numbers alone.

    Attributes:
        delta: The delta the bound is stated at, in [0, 1). Above 0 it costs a fifth of the error.
        confidence: Stated confidence of the bound, in (0, 1).
        guess: Which canaries are guessed first, and what is guessed.
        sharing: How many canaries share one training at most, where there are several that share no randomness and each
            canary is scored by its own training alone; None where all share one. Above delta 0 less is charged then. Of
            one training are canaries whose numbers are equal when divided by `sharing` and rounded down.
    """

    tally_type: ClassVar[type[Any]] = GuessTally

    delta: float = 0.0
    confidence: float = 0.95
    guess: GuessRule = "signed"
    sharing: int | None = None

    def __post_init__(self) -> None:
        check_fields(self.delta, self.confidence, self.guess)
        require(self.sharing is None or self.sharing >= 1, "sharing must be >= 1", sharing=self.sharing)

    def unshifted(self) -> OneRun:
        """`one-run`: the walk of the guess band knows no shift, single numbers of guesses do."""
        return OneRun(self.delta, self.confidence, guess=self.guess)

    def tally(self, scores: Scores) -> GuessTally:
        """Right guesses of one replay at numbers of guesses that its size and its ties decide."""
        count = scores.score.size
        (score, guess), ranks = as_signed(scores.score, self.guess), scores.tie_ranks()
        looks = telling_looks(guess_looks(count), score, guess)
        places = looks, self.unshifted().candidates(count), guesses_at_fractions(PERCENTS, count)
        counted = np.unique(np.concatenate(places))  # one pass over the scores for all of them
        found = right_guesses(score, scores.truth, ranks, guess, counted)
        right, correct, swept = (found[np.searchsorted(counted, place)] for place in places)
        fullest = np.zeros((0, 0), np.int64)
        if self.sharing is not None and self.delta > 0 and self.guess == "signed":
            fullest = right_in_fullest(scores.score, scores.truth, ranks, scores.canary // self.sharing, looks, FULLEST)
        return GuessTally(scores.replay, count, places[1], correct, places[2], swept, count, looks, right, fullest)

    def find(self, tallies: Sequence[GuessTally], *, failed_replays: int = 0, parts: Sequence[Any] = ()) -> Bound:
        """The bound with all there is to draw; the parts are what `bounds_of_replays` gave for some of the tallies."""
        each = EachReplay.complete(
            tallies, parts, lambda missing: self.bounds_of_replays(missing, len(tallies) + failed_replays)
        )
        bound = self.bound(tallies, failed_replays=failed_replays, each=each)
        return replace(bound, series=self.series(tallies, failed_replays=failed_replays, each=each))

    def bound(self, tallies: Sequence[GuessTally], *, failed_replays: int = 0, each: EachReplay | None = None) -> Bound:
        """The median of the replays' bounds; `counts` are those of the middle replay, at the look that decides."""
        if self._leaves_it(tallies):
            return self.unshifted().bound(tallies, failed_replays=failed_replays, each=each)
        ordered = in_order(tallies)
        each = each or self.bounds_of_replays(ordered, len(ordered) + failed_replays)
        best = np.concatenate([each.best, np.zeros(failed_replays)])
        return Bound(
            lower=float(median_rule(best)),
            delta=self.delta,
            confidence=self.confidence,
            method="simultaneous-guess-count",
            selection="all numbers of guesses at once",
            validity=Validity.FINITE_SAMPLE,
            counts=deciding_counts(ordered, best, failed_replays, of="canaries"),
            notes=replay_note(each.alone, self.confidence),
        )

    def series(
        self, tallies: Sequence[GuessTally], *, failed_replays: int = 0, each: EachReplay | None = None
    ) -> dict[str, Series]:
        """The sweep over guess fractions, as `one-run` bounds them, and the replays one by one."""
        if self._leaves_it(tallies):
            return self.unshifted().series(tallies, failed_replays=failed_replays, each=each)
        ordered = in_order(tallies)
        each = each or self.bounds_of_replays(ordered, len(ordered) + failed_replays)
        replays = replay_bounds(each.replay, each.best, each.alone, failed_replays=failed_replays, mean=False)
        return {"fractions": self.unshifted().sweep(ordered), "replays": replays}

    def seconds(self, replays: int, rows: int) -> float:
        if self.sharing is None and rows * self.delta > MAX_DELTA:
            return self.unshifted().seconds(replays, rows)
        return 2 * replays * (LEAST_S + rows * ROW_S)  # in the median, and alone

    def bounds_of_replays(self, tallies: Sequence[GuessTally], replays: int) -> EachReplay:
        """Of some of so many replays, in the order of their numbers; the candidate is `one-run`'s where it reads."""
        if self._leaves_it(tallies):
            return self.unshifted().bounds_of_replays(tallies, replays)
        ordered = in_order(tallies)
        numbers = np.array([tally.replay for tally in ordered], dtype=np.int64)
        best = self._bounds(ordered, per_replay_confidence(self.confidence, replays), replays)
        alone = self._bounds(ordered, self.confidence, replays)
        return EachReplay(numbers, best, np.zeros(len(ordered), dtype=np.int64), alone)

    def _leaves_it(self, tallies: Sequence[GuessTally]) -> bool:
        """Whether `one-run` reads the counts."""
        most = max((tally.canaries for tally in tallies), default=0)
        return self.sharing is None and most * self.delta > MAX_DELTA

    def _bounds(self, tallies: Sequence[GuessTally], confidence: float, replays: int) -> Floats:
        return bounds_of_guesses(tallies, self._added, 1 - confidence, replays=replays)

    def _added(self, tally: GuessTally) -> BadGuesses:
        if self.sharing is None:
            return OneTraining(tally.canaries, self.delta)
        fullest = tuple(map(tuple, tally.fullest.tolist()))
        return SeveralTrainings(tally.canaries, self.sharing, self.delta, fullest)
