"""Which bits of one training are guessed, and how many guesses are right: scores are counted, not sorted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal, Protocol, cast, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from dpaudit.estimators.arguments import Floats, Ints

GuessRule = Literal["signed", "both-tails", "member-only"]
"""Which canaries are guessed first, and what is guessed; no rule looks at the truth.

* signed: the largest |score| first; member for a positive score, else non-member.
* both-tails: in turn the highest score (member) and the lowest (non-member), for scores not centred on 0; equal scores
  count as far out as the middle of them: a tie of half of the rows does not come before the few at the other end.
* member-only: the highest score first, always member.
"""
MAX_TIED = 10_000_000
"""Rows up to which ties are looked for."""
FEW = 1 << 14
"""Rows up to which sorting is no slower than loading what is compiled for more."""
BITS = 20  # leading bits of a key that rows are counted by at most: a million counters, a handful of rows in each


@runtime_checkable
class Guessing(Protocol):
    """An estimator that guesses the bits of fair coins."""

    guess: GuessRule


@dataclass(frozen=True, eq=False)
class OneRunTally:
    """What one replay showed."""

    replay: int  # which repetition of the game
    canaries: int  # that the reported guesses were made on (those that chose are not counted)
    guesses: Ints  # candidate numbers of guesses, shape (candidates,)
    correct: Ints  # how many of them were right, shape (candidates,)
    sweep_guesses: Ints  # for the figure, guesses at 1 %, 2 %, ..., 100 % of all canaries, shape (100,)
    sweep_correct: Ints  # how many of them were right, shape (100,)
    all_canaries: int  # canaries of the replay


def guesses_at_fractions(fractions: Sequence[float] | Floats, canaries: int) -> Ints:
    """Numbers of guesses for fractions in (0, 1] of the canaries: rounded, at least 1, shape (fractions,)."""
    counts = np.rint(np.asarray(fractions, dtype=np.float64) * canaries)
    return np.clip(counts, 1, canaries).astype(np.int64)


def right_guesses(score: Floats, truth: NDArray[np.bool_], ranks: Ints, guess: GuessRule, guesses: Ints) -> Ints:
    """How many of the first g guesses are right, for each g of `guesses` (ascending), shape as `guesses`.

    Equal scores are guessed in the order of `ranks`, which must tell nothing about the truth.
    """
    right_among_first = _right_among_few if score.size <= FEW else _compiled()
    score, guess = as_signed(score, guess)
    if guess == "signed":
        return right_among_first(_descending(np.abs(score)), ranks, (score > 0) == truth, guesses)
    keys = _descending(score)
    if guess == "member-only":
        return right_among_first(keys, ranks, truth, guesses)
    highest = right_among_first(keys, ranks, truth, (guesses + 1) // 2)
    return highest + right_among_first(~keys, score.size - 1 - ranks, ~truth, guesses // 2)


def right_in_fullest(
    score: Floats, truth: NDArray[np.bool_], ranks: Ints, trainings: Ints, guesses: Ints, most: int
) -> Ints:
    """Of the first g signed guesses, how many are right in the 1, 2, ..., `most` trainings that have most of these.

    Shape (at most `most`, guesses); `trainings` says of which one each row is, `guesses` ascend.
    """
    keys = _descending(np.abs(score))
    order = np.argsort(keys.astype(np.int64) * keys.size + ranks)
    number = np.unique(trainings, return_inverse=True)[1][order]
    right = ((score > 0) == truth)[order]
    found = np.zeros(int(number.max()) + 1, np.int64)
    most = min(most, found.size)
    fullest = np.empty((most, guesses.size), np.int64)
    first = 0
    for look, end in enumerate(guesses.tolist()):
        found += np.bincount(number[first:end][right[first:end]], minlength=found.size)
        fullest[:, look] = np.cumsum(-np.sort(-np.partition(found, found.size - most)[-most:]))
        first = end
    return fullest


def as_signed(score: Floats, guess: GuessRule) -> tuple[Floats, GuessRule]:
    """Guesses of both tails as signed ones: by ranks less the middle one, equal scores with the mean of theirs."""
    if guess != "both-tails" or score.size > MAX_TIED:
        return score, guess
    level, rows = np.unique(score, return_inverse=True, return_counts=True)[1:]
    # ranks are halves: with an eighth more the higher of two as far out comes first, and no two levels are as far out
    return (np.cumsum(rows) - (rows + score.size) / 2 + 0.125)[level], "signed"


def telling_looks(looks: Ints, score: Floats, guess: GuessRule) -> Ints:
    """The looks without those after which the scores stay the same up to the next look: ties tell nothing.

    Randomised response is then looked at once, with all of the error. Scores alone decide, so the looks are as good as
    fixed beforehand. Of many rows all looks are kept: they cost little there.
    """
    if score.size > MAX_TIED:
        return looks
    score, guess = as_signed(score, guess)
    ordered = np.sort(-score if guess == "member-only" else -np.abs(score))
    block = np.concatenate([[0], np.cumsum(ordered[1:] != ordered[:-1])])[looks - 1]
    return np.asarray(looks[np.append(block[1:] != block[:-1], True)])


def _descending(score: Floats) -> NDArray[np.uint32]:
    """Keys that are smaller for larger scores and equal for equal ones, shape (n,)."""
    single = (score + 0.0).astype(np.float32)  # + 0.0 turns -0 into 0
    if bool((single == score).all()):  # as score tables hold them
        raw = single.view(np.uint32)
        return ~np.where(raw >> 31, ~raw, raw | np.uint32(1 << 31))  # IEEE numbers in the order of unsigned words
    dense = np.unique(score, return_inverse=True)[1].astype(np.uint32)
    return cast("NDArray[np.uint32]", ~(dense << np.uint32(32 - score.size.bit_length())))


def _right_among_few(keys: NDArray[np.uint32], ranks: Ints, right: NDArray[np.bool_], firsts: Ints) -> Ints:
    """Right rows among the first g in the order of (key, rank), for each g of `firsts`, all in 0..n."""
    order = np.argsort(keys.astype(np.int64) * keys.size + ranks)
    return np.append(0, np.cumsum(right[order]))[firsts]


@cache
def _compiled() -> Callable[..., Ints]:
    import numba  # slow to import

    compiled: Callable[..., Ints] = numba.njit(cache=True, nogil=True)(_right_among_first)
    return compiled


def _right_among_first(keys: NDArray[np.uint32], ranks: Ints, right: NDArray[np.bool_], firsts: Ints) -> Ints:
    """The same where `firsts` ascend.

    Rows are counted by the leading bits of the key; only those that share them with a g-th row are sorted.
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
    cells = np.full(firsts.size, -1, np.int64)  # the cell that holds the last of the first g rows
    before = np.zeros(firsts.size, np.int64)  # rows in the cells before it
    counts = np.zeros(firsts.size, np.int64)  # right ones among those
    place, seen, good = 0, 0, 0
    for cell in range(1 << bits):
        while place < firsts.size and firsts[place] <= seen + rows[cell]:
            cells[place], before[place], counts[place] = cell, seen, good
            place += 1
        if place == firsts.size:
            break
        seen += rows[cell]
        good += rights[cell]
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
