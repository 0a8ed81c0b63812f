"""Evidence from attack scores."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dpaudit.errors import require


@dataclass(frozen=True, eq=False)
class Scores:
    """Scores and truth of one replay of a game.

    Attributes:
        score: Score of the attack, shape (n,), n >= 1; larger means more likely True. No NaN.
        truth: Challenger's bits, shape (n,): True for a member, or if the canary shown is the one used in training.
        replay: Number of the replay.
        canary: Distinct identity of each row, shape (n,), int64; 0, 1, ..., n-1 by default. A shuffle, seeded by all
            scores and truths, breaks ties between equal scores.
    """

    words: ClassVar[str] = "scores"
    ROWS: ClassVar[bool] = True

    score: NDArray[np.float64] = field(metadata={"stored": "float32"})
    truth: NDArray[np.bool_]
    replay: int = field(default=0, metadata={"stored": "int32"})
    canary: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, dtype=np.int64), metadata={"stored": "int32"})

    def __post_init__(self) -> None:
        score = np.asarray(self.score, dtype=np.float64)
        require(score.ndim == 1 and score.size > 0, "scores must be a column of at least one row", shape=score.shape)
        missing = int(np.count_nonzero(np.isnan(score)))
        require(missing == 0, "scores must not be NaN", do="drop or repair these rows first", rows=missing)
        truth = np.asarray(self.truth)
        require(truth.shape == score.shape, "truth must have one bit a score", truth=truth.shape, score=score.shape)
        require(
            truth.dtype == np.bool_ or bool(np.isin(truth, (0, 1)).all()), "truth must be 0 or 1", truth=truth.dtype
        )
        canary = np.asarray(self.canary, dtype=np.int64)
        if canary.size == 0:
            canary = np.arange(score.size, dtype=np.int64)
        else:
            require(
                canary.shape == score.shape, "canary must have one id a score", canary=canary.shape, score=score.shape
            )
            require(
                _is_ascending(canary) or np.unique(canary).size == canary.size,
                "each canary must have one score in a replay",
                do="give each repetition of the game its own number in a column `replay`",
            )
        object.__setattr__(self, "score", score)
        object.__setattr__(self, "truth", truth.astype(np.bool_, copy=False))
        object.__setattr__(self, "canary", canary)

    def places(self) -> NDArray[np.int64]:
        """Return the rank of each row by canary number, shape (n,)."""
        return _inverse(self._by_canary())

    @staticmethod
    def content_seed(*replays: tuple[NDArray[np.float64], NDArray[np.bool_]]) -> int:
        """Return a seed derived from all scores and truths, so that no row order can be tuned to it."""
        content = hashlib.blake2b(digest_size=8)
        for score, truth in replays:
            content.update(np.ascontiguousarray(score).data)
            content.update(np.packbits(truth).data)
        return int.from_bytes(content.digest(), "little")

    def tie_ranks(self) -> NDArray[np.int64]:
        """Return the position of each row in `shuffled`, shape (n,)."""
        if _is_ascending(self.canary):  # avoids copies of up to 10^8 rows
            return np.random.default_rng(self.content_seed((self.score, self.truth))).permutation(self.canary.size)
        by_canary = self._by_canary()
        seed = self.content_seed((self.score[by_canary], self.truth[by_canary]))
        ranks = np.empty(by_canary.size, dtype=np.int64)
        ranks[by_canary] = np.random.default_rng(seed).permutation(by_canary.size)
        return ranks

    def shuffled(self) -> Scores:
        """Return the rows in an order that depends only on their content, not on the order of arrival.

        This order breaks ties between equal scores. The order of arrival, or of the canary numbers, may reveal the
        truth: in a table with the members first it reveals everything. A fixed shuffle for each size would favour the
        same tables every time, such as constant scores with the members first at an unlucky size.
        """
        order = _inverse(self.tie_ranks())
        rows = object.__new__(Scores)  # the rows were checked on creation
        values = self.score[order], self.truth[order], self.replay, self.canary[order]
        for name, value in zip(("score", "truth", "replay", "canary"), values, strict=True):
            object.__setattr__(rows, name, value)
        return rows

    def _by_canary(self) -> NDArray[np.int64]:
        """Return the row indices, ascending by canary number."""
        if _is_ascending(self.canary):
            return np.arange(self.canary.size, dtype=np.int64)
        return np.argsort(self.canary, kind="stable")


def scored(
    replay: int, truth: NDArray[np.bool_], score: NDArray[np.floating], canary: NDArray[np.int64] | None = None
) -> Scores:
    """Return the scores of a replay in single precision, as they are stored, so that stored and fresh scores agree."""
    numbers = np.arange(len(truth)) if canary is None else canary
    return Scores(np.asarray(score).astype(np.float32), truth, replay, numbers)


@dataclass(frozen=True, eq=False)
class SharedOrders(Scores):
    """Scores that order the guesses of one replay, and further orders of the same canaries, which share the error.

    The scores have half of the error, and the further orders an equal part each of the other half. All orders are
    signed: a value > 0 guesses True, larger sizes come first, and a canary of value 0 is not guessed in this order.

    Attributes:
        further: Scores of the further orders, shape (n, orders); None for scores that have all of the error.
    """

    further: NDArray[np.float64] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.further is not None:
            further = np.asarray(self.further, dtype=np.float64)
            require(
                further.ndim == 2 and further.shape[0] == self.score.size and not np.isnan(further).any(),
                "further orders must be numbers, one row for each score",
                further=further.shape,
                scores=self.score.shape,
            )
            object.__setattr__(self, "further", further)


@dataclass(frozen=True, eq=False)
class StepScores(Scores):
    """Scores of the steps of trainings; the canary numbers give the order of the steps.

    The score of a step may use the coins of earlier steps, so no other order of guesses is valid.

    Attributes:
        coins: Number of coins of each step, >= 1: the canaries 0, 1, ... are those of the first step, and so on.
    """

    words: ClassVar[str] = "scores of steps in their order"

    coins: int = field(default=1, metadata={"stored": "int32"})

    def __post_init__(self) -> None:
        super().__post_init__()
        fits = self.coins >= 1 and self.score.size % self.coins == 0
        require(fits, "each step must have the same number of coins", scores=self.score.size, coins=self.coins)

    @classmethod
    def in_single_precision(cls, truth: NDArray[np.bool_], score: NDArray[np.floating], coins: int = 1) -> StepScores:
        """Return the scores in single precision, as they are stored."""
        return cls(np.asarray(score).astype(np.float32), truth, coins=coins)


def _is_ascending(values: NDArray[np.int64]) -> bool:
    return bool((values[1:] > values[:-1]).all())


def _inverse(order: NDArray[np.int64]) -> NDArray[np.int64]:
    inverse = np.empty_like(order)
    inverse[order] = np.arange(order.size)
    return inverse
