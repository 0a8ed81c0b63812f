"""Scores as evidence: what an attack hands over, and what an estimator of scores offers in return."""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from dpaudit.errors import require
from dpaudit.estimators.bound import Bound
from dpaudit.estimators.estimator import Estimator
from dpaudit.estimators.finding import Series
from dpaudit.estimators.replays import median_rule


@dataclass(frozen=True, eq=False)
class Scores:
    """The scores of one replay of a game, with the truth beside them.

    Attributes:
        score: What the attack says, shape (n,), n >= 1; larger means more likely True. No NaN.
        truth: The challenger's bits, shape (n,): True = member, or the shown canary is the training one.
        replay: Which repetition of the game this is.
        canary: Identity of each row, shape (n,), int64; 0, 1, ..., n-1 when left out.
            Distinct. A shuffle, seeded by all scores and truths, breaks ties between equal scores.
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
                _rises(canary) or np.unique(canary).size == canary.size,
                "each canary must have one score in a replay, some have several",
                do="give each repetition of the game its own number in a column `replay`",
            )
        object.__setattr__(self, "score", score)
        object.__setattr__(self, "truth", truth.astype(np.bool_, copy=False))
        object.__setattr__(self, "canary", canary)

    def places(self) -> NDArray[np.int64]:
        """The place of each row in the order of the canaries' numbers, shape (n,)."""
        return _inverse(self._by_canary())

    @staticmethod
    def content_seed(*replays: tuple[NDArray[np.float64], NDArray[np.bool_]]) -> int:
        """A seed that all scores and truths decide together: no order of the rows can have been made to suit it."""
        content = hashlib.blake2b(digest_size=8)
        for score, truth in replays:
            content.update(np.ascontiguousarray(score).data)
            content.update(np.packbits(truth).data)
        return int.from_bytes(content.digest(), "little")

    def tie_ranks(self) -> NDArray[np.int64]:
        """The place of each row in `shuffled`, shape (n,)."""
        if _rises(self.canary):  # no copies: there may be a hundred million rows
            return np.random.default_rng(self.content_seed((self.score, self.truth))).permutation(self.canary.size)
        by_canary = self._by_canary()
        seed = self.content_seed((self.score[by_canary], self.truth[by_canary]))
        ranks = np.empty(by_canary.size, dtype=np.int64)
        ranks[by_canary] = np.random.default_rng(seed).permutation(by_canary.size)
        return ranks

    def shuffled(self) -> Scores:
        """The same rows in an order that all their content decides, whatever order they come in.

        Ties between equal scores go by this order. The order of arrival, or of the ids, would do only if it told
        nothing about the truth; in a table with the members first it tells everything. One order for all tables of a
        size would favour the same tables for ever: constant scores, the members first, at an unlucky size.
        """
        order = _inverse(self.tie_ranks())
        rows = object.__new__(Scores)  # the same rows: what was checked on creation holds
        values = self.score[order], self.truth[order], self.replay, self.canary[order]
        for name, value in zip(("score", "truth", "replay", "canary"), values, strict=True):
            object.__setattr__(rows, name, value)
        return rows

    def _by_canary(self) -> NDArray[np.int64]:
        """The rows in the order of the canaries' numbers."""
        if _rises(self.canary):
            return np.arange(self.canary.size, dtype=np.int64)
        return np.argsort(self.canary, kind="stable")


def scored(
    replay: int, truth: NDArray[np.bool_], score: NDArray[np.floating], canary: NDArray[np.int64] | None = None
) -> Scores:
    """The scores of a replay in single precision, as they are kept: kept or not, they count the same."""
    numbers = np.arange(len(truth)) if canary is None else canary
    return Scores(np.asarray(score).astype(np.float32), truth, replay, numbers)


class StepScores(Scores):
    """The scores of the steps of trainings: their numbers say in which order they were made.

    The score of a step may use the coins of earlier ones, so that no other order of guesses is valid.
    """

    words: ClassVar[str] = "scores of steps in their order"

    @classmethod
    def kept(cls, truth: NDArray[np.bool_], score: NDArray[np.floating]) -> StepScores:
        """In single precision, as they are kept."""
        return cls(np.asarray(score).astype(np.float32), truth)


def _rises(values: NDArray[np.int64]) -> bool:
    return bool((values[1:] > values[:-1]).all())


def _inverse(order: NDArray[np.int64]) -> NDArray[np.int64]:
    inverse = np.empty_like(order)
    inverse[order] = np.arange(order.size)
    return inverse


def replay_bounds(
    replays: Sequence[int] | NDArray[np.int64],
    epsilon: NDArray[np.float64],
    alone: NDArray[np.float64],
    *,
    failed_replays: int,
    mean: bool,
) -> Series:
    """The bounds of replays as columns: as they enter the combination, and if each were the only replay.

    Lost replays come last with a bound of 0. They are combined by the median rule, or by their `mean`, as published.
    """
    every = np.concatenate([epsilon, np.zeros(failed_replays)])
    combined: NDArray[np.float64]
    if mean:
        combined = np.cumsum(every) / np.arange(1, every.size + 1)
    else:
        combined = np.array([median_rule(every[:count]) for count in range(1, every.size + 1)])
    number = np.array(replays, dtype=np.int64)
    return {"replay": number, "epsilon": every, "alone": alone, "combined": combined}


T = TypeVar("T")


class ScoreEstimator(Estimator[Scores, T]):
    """From scores to a bound on epsilon.

    Attributes:
        independent_trials: Whether it takes scores for independent trials, one training each.
        anytime_valid: Whether it may be looked at while trials come in.
        delta: Where the bound is stated, in [0, 1).
        confidence: Stated confidence of the bound, in (0, 1).
    """

    delta: float
    confidence: float

    evidence: ClassVar[type[Any]] = Scores
    independent_trials: ClassVar[bool] = False
    anytime_valid: ClassVar[bool] = False

    @abstractmethod
    def bound(self, tallies: Sequence[T], *, failed_replays: int = 0) -> Bound:
        """The number alone; a lost replay counts as a bound of 0."""

    @abstractmethod
    def series(self, tallies: Sequence[T], *, failed_replays: int = 0) -> dict[str, Series]:
        """What there is to draw of the same tallies, by name."""

    def find(self, tallies: Sequence[T], *, failed_replays: int = 0) -> Bound:
        """The bound with all there is to draw; `bound` alone costs less."""
        return replace(
            self.bound(tallies, failed_replays=failed_replays),
            series=self.series(tallies, failed_replays=failed_replays),
        )
