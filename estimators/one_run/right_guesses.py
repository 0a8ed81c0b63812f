"""Guess rules for the canaries of one training, and counts of right guesses without sorting all scores."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal, Protocol, cast, get_args, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from dpaudit.estimators.arguments import Floats, Ints

OneOrder = Literal["signed", "both-tails", "member-only", "non-member-only"]
"""Order of the canaries and rule of the guesses; no rule uses the truth.

* signed: the largest |score| first; member for a positive score, else non-member.
* both-tails: alternately the highest score (member) and the lowest (non-member), for scores not centred on 0. Equal
  scores count as extreme as their middle rank, so that a tie of half the rows does not come before the few rows at the
  other end.
* member-only: the highest score first, always member.
* non-member-only: the lowest score first, always non-member.
"""
GuessRule = Literal[OneOrder, "any-tail"]
"""One order, or "any-tail": both tails, members alone and non-members alone, which share the error.

A leak may show on one side only: some members stand out and no non-member does, or the other way round. Guesses of both
tails are then half chance. `guess_orders` says how the error is shared.
"""
GUESS_RULES = get_args(GuessRule)
FEW_LEVELS = 10
"""Number of distinct scores up to which mid-ranks already put the side that stands out first."""
EQUALLY_SURE = 1.0
"""Largest difference of the ranks of opposite levels that are equally sure, in square roots of the number of rows: two
standard deviations of the number of heads of fair coins.
"""
BULK = (0.2, 0.5, 0.8)
"""Quantiles of the scores: the ends of the bulk and its middle."""
OUTLYING, MIN_OUTLIERS = 4.0, 2
"""Distance of an outlier from the median, in half-widths of the bulk; and least number of outliers."""
MAX_SKEWNESS = 0.2
"""Largest skewness of the bulk at which distances above and below the median are comparable: the difference of its two
sides over its width.
"""
SHARES, OUTLIER_SHARES = (0.5, 0.3, 0.2), (0.94, 0.04, 0.02)
"""Shares of the error for both tails, members alone and non-members alone."""
NEAR_MIDDLE = 4.0
"""Standard deviations of the number of heads of fair coins that are near the middle rank."""
CLEAR_GAP, CLEAR_TIMES_COUNT = 0.1, 10.0
"""Smallest gap that is clear, in units of the distance between the 20 % and the 80 % quantile; and smallest product of
gap and number of scores, because few scores have large gaps by chance."""
MAX_TIED = 10_000_000
"""Largest number of rows for which ties are searched."""
FEW = 1 << 14
"""Largest number of rows for which sorting is no slower than loading compiled code."""
BITS = 20  # largest number of leading key bits that rows are counted by: a million counters, a handful of rows in each


@runtime_checkable
class Guessing(Protocol):
    """Estimator that guesses the bits of fair coins."""

    guess: GuessRule


@dataclass(frozen=True, eq=False)
class OneRunTally:
    """Counts of one replay."""

    replay: int  # number of the replay
    canaries: int  # canaries of the reported guesses (without the choosing part of a split)
    guesses: Ints  # candidate numbers of guesses, shape (candidates,)
    correct: Ints  # right guesses among them, shape (candidates,)
    sweep_guesses: Ints  # guesses at 1 %, 2 %, ..., 100 % of all canaries, for the figure, shape (100,)
    sweep_correct: Ints  # right guesses among them, shape (100,)
    all_canaries: int  # all canaries of the replay


@dataclass(frozen=True, eq=False)
class FurtherGuesses:
    """Right guesses of further orders, in addition to the main one.

    They are members alone and non-members alone for "any-tail", or those of `SharedOrders`.
    """

    guess_counts: Ints  # numbers of guesses, ascending, then 0 where an order has fewer of them; shape (orders, counts)
    right: Ints  # right guesses among them, shape (orders, counts)
    share: Floats  # shares of the error, shape (orders,); the main order has the rest


def guess_orders(score: Floats, guess: GuessRule, *, fixed_shares: bool) -> tuple[Floats, OneOrder, Floats]:
    """Return scores and rule of the main order of guesses, and the shares of the error for each side alone.

    Only scores are looked at, never the truth. For "any-tail":

    * With few distinct scores the main order is both tails, with all of the error.
    * If there is a clear gap near the middle rank, the main order is by the distance from it, and the sides alone get
      little of the error.
    * If some scores lie far out and the bulk is symmetric, the main order is by the distance from the median. A side
      that stands out then comes first by itself, so the sides alone get little of the error.
    * Otherwise the main order is both tails by rank, and the sides alone get half of the error.

    Args:
        score: Scores, shape (n,).
        guess: Rule; other rules than "any-tail" are their own main order.
        fixed_shares: True if the shares must not depend on the scores: at delta > 0, where the proof holds on average
            over the output only.
    Returns: Scores and rule for `right_guesses`, and the shares for members and for non-members alone, shape (2,); of
        shape (0,) if no side is guessed alone.
    """
    if guess != "any-tail":
        return *as_signed(score, guess), np.zeros(0)
    shares, both_tails = np.array(SHARES[1:]), as_signed(score, "both-tails")
    if score.size > MAX_TIED:
        return *both_tails, shares
    if np.unique(both_tails[0]).size <= FEW_LEVELS:
        return *both_tails, shares if fixed_shares else np.zeros(0)
    centre, is_clear = largest_gap(score)
    if is_clear:
        return score - centre, "signed", shares if fixed_shares else np.array(OUTLIER_SHARES[1:])
    low, middle, high = map(float, np.quantile(score, BULK, method="nearest"))
    if math.isfinite(high - low) and abs(high + low - 2 * middle) <= MAX_SKEWNESS * (high - low):
        outlying = np.abs(score - middle) > OUTLYING * (high - low) / 2
        if np.count_nonzero(outlying) >= MIN_OUTLIERS:
            return score - middle, "signed", shares if fixed_shares else np.array(OUTLIER_SHARES[1:])
    return *both_tails, shares


def largest_gap(score: Floats) -> tuple[float, bool]:
    """Return the middle of the largest gap between scores near the middle rank, and True if the gap is clear.

    About half of fair coins are heads, so scores that tell members apart have their gap near the middle rank. Coins are
    not looked at. Without finite scores on both sides, the result is a middle score.
    """
    ordered = np.sort(score)
    reach = math.ceil(NEAR_MIDDLE * math.sqrt(ordered.size) / 2)
    near = ordered[max(0, ordered.size // 2 - reach - 1) : ordered.size // 2 + reach + 1]
    low, high = ordered[[int(ordered.size * BULK[0]), int(ordered.size * BULK[2])]]
    if near.size < 2 or not np.isfinite([*near, low, high]).all():
        return float(ordered[ordered.size // 2]), False
    gaps = np.diff(near)
    place, clear = int(gaps.argmax()), max(CLEAR_GAP, CLEAR_TIMES_COUNT / ordered.size)
    return float(near[place] + gaps[place] / 2), bool(gaps[place] > clear * (high - low))


def guesses_at_fractions(fractions: Sequence[float] | Floats, canaries: int) -> Ints:
    """Return the numbers of guesses at fractions in (0, 1] of the canaries: rounded, >= 1, shape (fractions,)."""
    counts = np.rint(np.asarray(fractions, dtype=np.float64) * canaries)
    return np.clip(counts, 1, canaries).astype(np.int64)


def right_guesses(score: Floats, truth: NDArray[np.bool_], ranks: Ints, guess: OneOrder, guesses: Ints) -> Ints:
    """Return the right guesses among the first g, for each g of `guesses` (ascending), shape as `guesses`.

    Equal scores are guessed in the order of `ranks`, which must be independent of the truth.
    """
    right_among_first = _right_among_few if score.size <= FEW else _compiled()
    score, guess = as_signed(score, guess)
    if guess == "signed":
        return right_among_first(_descending(np.abs(score)), ranks, (score > 0) == truth, guesses)
    keys = _descending(score)
    if guess == "member-only":
        return right_among_first(keys, ranks, truth, guesses)
    if guess == "non-member-only":
        return right_among_first(~keys, score.size - 1 - ranks, ~truth, guesses)
    highest = right_among_first(keys, ranks, truth, (guesses + 1) // 2)
    return highest + right_among_first(~keys, score.size - 1 - ranks, ~truth, guesses // 2)


def guesses_of_orders(
    orders: Floats, truth: NDArray[np.bool_], ranks: Ints, looks_of: Callable[[int], Ints]
) -> tuple[Ints, Ints]:
    """Return the numbers of guesses that are looked at and the right guesses among them, shapes (orders, counts).

    A canary of value 0 is not guessed. Orders with fewer looks than others have zeros at the end.

    Args:
        orders: Signed scores, shape (n, orders).
        looks_of: Function from the number of guesses of an order to the numbers that are looked at.
    """
    rows = []
    for score in orders.T:
        guessed = np.flatnonzero(score)
        if guessed.size == 0:
            rows.append(np.zeros((2, 0), np.int64))
            continue
        counts = informative_looks(looks_of(guessed.size), score[guessed], "signed")
        dense = np.argsort(np.argsort(ranks[guessed]))
        rows.append(np.stack([counts, right_guesses(score[guessed], truth[guessed], dense, "signed", counts)]))
    most = max((row.shape[1] for row in rows), default=0)
    padded = [np.pad(row, ((0, 0), (0, most - row.shape[1]))) for row in rows]
    both = np.stack(padded, axis=1) if padded else np.zeros((2, 0, 0), np.int64)
    return both[0], both[1]


def right_in_fullest(
    score: Floats, truth: NDArray[np.bool_], ranks: Ints, trainings: Ints, guesses: Ints, most: int
) -> Ints:
    """Return the right guesses among the first g in the 1, 2, ..., `most` trainings with the most of them.

    Shape (at most `most`, guesses). `trainings` numbers the training of each row; `guesses` ascend; guesses are signed.
    """
    keys = _descending(np.abs(score))
    order = np.argsort(keys.astype(np.int64) * keys.size + ranks)
    number = np.unique(trainings, return_inverse=True)[1][order]
    right = ((score > 0) == truth)[order]
    right_by_training = np.zeros(int(number.max()) + 1, np.int64)
    most = min(most, right_by_training.size)
    fullest = np.empty((most, guesses.size), np.int64)
    first = 0
    for index, end in enumerate(guesses.tolist()):
        right_by_training += np.bincount(number[first:end][right[first:end]], minlength=right_by_training.size)
        fullest[:, index] = np.cumsum(-np.sort(-np.partition(right_by_training, right_by_training.size - most)[-most:]))
        first = end
    return fullest


def as_signed(score: Floats, guess: OneOrder) -> tuple[Floats, OneOrder]:
    """Return guesses of both tails as signed ones: ranks minus the middle rank, with the mean rank for equal scores.

    Of few distinct scores, one above and one below the middle are equally sure if their ranks hardly differ. Otherwise
    the side with fewer rows would come first. If exactly half of the rows are members, it has fewer wrong guesses by
    chance.
    """
    if guess != "both-tails" or score.size > MAX_TIED:
        return score, guess
    level, rows = np.unique(score, return_inverse=True, return_counts=True)[1:]
    # Ranks are multiples of 1/2. Adding 1/8 makes all |rank| distinct, and puts the higher of two equal ones first.
    rank = np.cumsum(rows) - (rows + score.size) / 2 + 0.125
    return (_paired(rank, EQUALLY_SURE * math.sqrt(score.size)) if rank.size <= FEW_LEVELS else rank)[level], "signed"


def _paired(rank: Floats, tolerance: float) -> Floats:
    """Return signed ranks of levels, ascending; opposite ones that differ by at most `tolerance` are of equal size."""
    rank, low, high = rank.copy(), 0, rank.size - 1
    while low < high:
        if rank[low] < 0 < rank[high] and abs(rank[low] + rank[high]) <= tolerance:
            rank[high] = max(-rank[low], rank[high])
            rank[low] = -rank[high]
            low, high = low + 1, high - 1
        elif -rank[low] > rank[high]:
            low += 1
        else:
            high -= 1
    return rank


def informative_looks(guess_counts: Ints, score: Floats, guess: OneOrder) -> Ints:
    """Return the looks without those after which the scores stay equal up to the next look.

    Randomised response then has a single look with all of the error. The looks depend on scores alone, so they are as
    valid as looks fixed beforehand. For more than `MAX_TIED` rows all looks are returned, because they cost little.
    """
    if score.size > MAX_TIED:
        return guess_counts
    score, guess = as_signed(score, guess)
    ordered = np.sort(-score if guess == "member-only" else score if guess == "non-member-only" else -np.abs(score))
    block = np.concatenate([[0], np.cumsum(ordered[1:] != ordered[:-1])])[guess_counts - 1]
    return np.asarray(guess_counts[np.append(block[1:] != block[:-1], True)])


def _descending(score: Floats) -> NDArray[np.uint32]:
    """Return keys that are smaller for larger scores and equal for equal ones, shape (n,)."""
    single = (score + 0.0).astype(np.float32)  # + 0.0 turns -0 into 0
    if bool((single == score).all()):  # as in score tables
        raw = single.view(np.uint32)
        return ~np.where(raw >> 31, ~raw, raw | np.uint32(1 << 31))  # IEEE numbers in the order of unsigned words
    dense = np.unique(score, return_inverse=True)[1].astype(np.uint32)
    return cast("NDArray[np.uint32]", ~(dense << np.uint32(32 - score.size.bit_length())))


def _right_among_few(keys: NDArray[np.uint32], ranks: Ints, right: NDArray[np.bool_], firsts: Ints) -> Ints:
    """Return the right rows among the first g in the order of (key, rank), for each g of `firsts` in 0..n."""
    order = np.argsort(keys.astype(np.int64) * keys.size + ranks)
    return np.append(0, np.cumsum(right[order]))[firsts]


@cache
def _compiled() -> Callable[..., Ints]:
    from dpaudit.compiling import compiled  # slow to import: numba

    return compiled()(_right_among_first)


def _right_among_first(keys: NDArray[np.uint32], ranks: Ints, right: NDArray[np.bool_], firsts: Ints) -> Ints:
    """Return `_right_among_few` for ascending `firsts`.

    Rows are counted by the leading bits of the key. Only rows that share these bits with a g-th row are sorted.
    """
    bits = 4
    while bits < BITS and (1 << bits) < keys.size:  # few rows need few counters
        bits += 1
    shift = np.uint32(32 - bits)
    rows = np.zeros(1 << bits, np.int64)
    rights = np.zeros(1 << bits, np.int64)
    for row in range(keys.size):
        cell = keys[row] >> shift
        rows[cell] += 1
        rights[cell] += right[row]
    cells = np.full(firsts.size, -1, np.int64)  # cell of the last of the first g rows
    before = np.zeros(firsts.size, np.int64)  # rows in the cells before it
    counts = np.zeros(firsts.size, np.int64)  # right rows among those
    place, rows_before, right_before = 0, 0, 0
    for cell in range(1 << bits):
        while place < firsts.size and firsts[place] <= rows_before + rows[cell]:
            cells[place], before[place], counts[place] = cell, rows_before, right_before
            place += 1
        if place == firsts.size:
            break
        rows_before += rows[cell]
        right_before += rights[cell]
    starts = np.full(1 << bits, -1, np.int64)
    wanted = 0
    for place in range(firsts.size):
        if starts[cells[place]] < 0:
            starts[cells[place]] = wanted
            wanted += rows[cells[place]]
    members = np.empty(wanted, np.int64)
    filled = starts.copy()
    for row in range(keys.size):
        cell = keys[row] >> shift
        if starts[cell] >= 0:
            members[filled[cell]] = row
            filled[cell] += 1
    last = -1
    for place in range(firsts.size):
        cell = cells[place]
        inside = members[starts[cell] : starts[cell] + rows[cell]]
        if cell != last:
            # One word for each row: the key's remaining bits, then the rank.
            words = np.empty(inside.size, np.int64)
            for member in range(inside.size):
                low = np.int64(keys[inside[member]] & ((np.uint32(1) << shift) - np.uint32(1)))
                words[member] = low * np.int64(keys.size) + ranks[inside[member]]
            inside[:] = inside[np.argsort(words)]
            last = cell
        for member in range(firsts[place] - before[place]):
            counts[place] += right[inside[member]]
    return counts
