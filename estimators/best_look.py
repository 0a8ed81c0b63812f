"""The best of several looks at each replay, and the bounds of the replays combined."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from dpaudit.errors import require
from dpaudit.estimators.bound import Bound
from dpaudit.estimators.finding import CurveEvidence, Series, Validity
from dpaudit.estimators.remembered import ReplayBounds as BoundsOfReplays
from dpaudit.estimators.remembered import found_of
from dpaudit.estimators.replays import median_rule, per_replay_confidence
from dpaudit.estimators.scores import ScoreEstimator, replay_bounds
from dpaudit.estimators.selection import AsPublished, Grid, Selection, parse_selection

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class ReplayTally(Protocol):
    """Counts of one replay of a game."""

    @property
    def replay(self) -> int:
        """Which repetition of the game."""
        ...


T = TypeVar("T", bound=ReplayTally)


@dataclass(frozen=True)
class BestLook(ScoreEstimator[T]):
    """An estimator that bounds epsilon at several looks, guess fractions or thresholds, and reports the best one.

    Attributes:
        delta: The delta the bound is stated at, in [0, 1).
        confidence: Stated confidence of the final bound, in (0, 1).
        selection: How the look is chosen, or what a spec writes for it.
    """

    delta: float = 0.0
    confidence: float = 0.95
    selection: Selection = field(default_factory=Grid)

    def __post_init__(self) -> None:
        require(0 <= self.delta < 1, "delta must be in [0, 1)", delta=self.delta)
        require(0 < self.confidence < 1, "confidence must be in (0, 1)", confidence=self.confidence)
        object.__setattr__(self, "selection", parse_selection(self.selection))

    @abstractmethod
    def validity(self) -> Validity:
        """In what sense the bound at one look holds."""

    @abstractmethod
    def find_best_looks(self, ordered: Sequence[T], replays: int) -> tuple[Floats, Ints]:
        """Each replay's best bound, as sure as combining so many needs it, and its look; both shape (tallies,).

        What is found of a replay depends on no other one.
        """

    def best_looks(self, ordered: Sequence[T], replays: int) -> tuple[Floats, Ints]:
        """`find_best_looks`, of each replay once."""
        what = self, replays == 1  # any other number asks for the same confidence
        new = [tally for tally in ordered if what not in found_of(tally)]
        if new:
            for tally, *found in zip(new, *self.find_best_looks(new, replays), strict=True):
                found_of(tally)[what] = tuple(found)
        best, look = zip(*(found_of(tally)[what] for tally in ordered), strict=True)
        return np.array(best, dtype=np.float64), np.array(look, dtype=np.int64)

    def bounds_of_replays(self, tallies: Sequence[T], replays: int) -> BoundsOfReplays:
        """Of some of so many replays, in the order of their numbers."""
        ordered = in_order(tallies)
        return BoundsOfReplays(*self.best_looks(ordered, replays), self.alone(ordered))

    def remember_replays(self, tallies: Sequence[T], replays: int, bounds: BoundsOfReplays) -> None:
        """Takes over what `bounds_of_replays` gave for these tallies, wherever that was."""
        columns = bounds.best, bounds.look, bounds.alone
        for tally, best, look, alone in zip(in_order(tallies), *columns, strict=True):
            found = found_of(tally)
            if replays > 1:  # the best look of a replay that stands alone is not asked for
                found[self, True] = alone, 0
            found[self, replays == 1] = best, look

    @abstractmethod
    def counts_at(self, tally: T, look: int) -> Mapping[str, int]:
        """What the bound at a look rests on."""

    def bound(self, tallies: Sequence[T], *, lost: int = 0) -> Bound:
        """The best look of each replay, combined over the replays; `counts` are those of the replay in the middle.

        Args:
            tallies: Of the replays that were played, at least one.
            lost: Replays that were planned and failed: they count as having shown nothing, a bound of 0, since leaving
                them out would leave out those that some outcomes make fail.
        """
        ordered = in_order(tallies)
        best, look = self.best_looks(ordered, len(ordered) + lost)
        shown = np.concatenate([best, np.zeros(lost)])
        tally, index = _middle(ordered, best, look)
        counts = {**self.counts_at(tally, index), "replays": shown.size}
        if lost:
            counts["lost replays"] = lost
        return Bound(
            lower=float(shown.mean() if self._published else median_rule(shown)),
            delta=self.delta,
            confidence=self.confidence,
            method=self._method(),
            validity=Validity.AS_PUBLISHED if self._published else self.validity(),
            selection=str(self.selection),
            counts=tuple(counts.items()),
            notes=self._notes(ordered, tally, index),
            evidence=self._against_curves(ordered, lost),
        )

    def replay_series(self, ordered: Sequence[T], lost: int) -> Series:
        """The replays one by one."""
        best, _ = self.best_looks(ordered, len(ordered) + lost)
        # Of a single replay, what it reports is what it would report alone.
        alone = best if len(ordered) + lost == 1 else self.alone(ordered)
        numbers = [tally.replay for tally in ordered]
        return replay_bounds(numbers, best, alone, lost=lost, mean=self._published)

    def middle_counts(self, ordered: Sequence[T], lost: int) -> Mapping[str, int]:
        """What the bound of the replay in the middle rests on."""
        return self.counts_at(*_middle(ordered, *self.best_looks(ordered, len(ordered) + lost)))

    def alone(self, ordered: Sequence[T]) -> Floats:
        """What each replay would report if it were the only one: the numbers papers take the mean of."""
        return self.best_looks(ordered, 1)[0]

    @property
    def _published(self) -> bool:
        return isinstance(self.selection, AsPublished)

    def _method(self) -> str:
        return str(getattr(self, "registered_name", type(self).__name__))

    def _notes(self, ordered: Sequence[T], tally: T, look: int) -> tuple[str, ...]:
        """What is said beside the bound, which rests on the tally at the look."""
        return ()

    def _against_curves(self, ordered: Sequence[T], lost: int) -> tuple[CurveEvidence, ...]:
        """What speaks about a claim's whole curve."""
        return ()

    def _error(self, shares: int, replays: int) -> float:
        """What one look of one replay may err when so many share: a median of bounds needs half."""
        if self._published:
            return 1 - self.confidence
        return (1 - per_replay_confidence(self.confidence, replays)) / shares


def in_order(tallies: Sequence[T]) -> list[T]:
    """The tallies by the numbers of their replays.

    Raises: InputError when there is none.
    """
    require(len(tallies) > 0, "a bound needs the tally of at least one replay", tallies=len(tallies))
    return sorted(tallies, key=lambda tally: tally.replay)


def _middle(ordered: Sequence[T], best: Floats, look: Ints) -> tuple[T, int]:
    """The replay whose bound is in the middle, and its best look."""
    middle = int(np.argsort(best, kind="stable")[(best.size - 1) // 2])
    return ordered[middle], int(look[middle])
