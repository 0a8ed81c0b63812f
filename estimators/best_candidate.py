"""The best of several looks at each replay, and the bounds of the replays combined."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

import numpy as np

from dpaudit.errors import require
from dpaudit.estimators.arguments import Floats, Ints
from dpaudit.estimators.bound import Bound
from dpaudit.estimators.divided import EachReplay, complete
from dpaudit.estimators.finding import CurveEvidence, Series, Validity
from dpaudit.estimators.replays import median_rule, per_replay_confidence
from dpaudit.estimators.scores import ScoreEstimator, replay_bounds
from dpaudit.estimators.selection import AsPublished, Grid, Selection, parse_selection


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

    def bounds_of_replays(self, tallies: Sequence[T], replays: int) -> EachReplay:
        """Of some of so many replays, in the order of their numbers."""
        ordered = in_order(tallies)
        best, look = self.find_best_looks(ordered, replays)
        alone = best if replays == 1 else self.find_best_looks(ordered, 1)[0]
        return EachReplay(np.array([tally.replay for tally in ordered], dtype=np.int64), best, look, alone)

    def find(self, tallies: Sequence[T], *, lost: int = 0, parts: Sequence[Any] = ()) -> Bound:
        """The bound with all there is to draw; the parts are what `bounds_of_replays` gave for some of the tallies."""
        each = complete(tallies, parts, lambda missing: self.bounds_of_replays(missing, len(tallies) + lost))
        bound = self.bound(tallies, lost=lost, each=each)
        return replace(bound, series=self.series(tallies, lost=lost, each=each))

    @abstractmethod
    def counts_at(self, tally: T, look: int) -> Mapping[str, int]:
        """What the bound at a look rests on."""

    def bound(self, tallies: Sequence[T], *, lost: int = 0, each: EachReplay | None = None) -> Bound:
        """The best look of each replay, combined over the replays; `counts` are those of the replay in the middle.

        Args:
            tallies: Of the replays that were played, at least one.
            lost: Replays that were planned and failed: they count as having shown nothing, a bound of 0, since leaving
                them out would leave out those that some outcomes make fail.
            each: Their `bounds_of_replays`, where they are known.
        """
        ordered = in_order(tallies)
        each = each or self.bounds_of_replays(ordered, len(ordered) + lost)
        shown = np.concatenate([each.best, np.zeros(lost)])
        tally, index = _middle(ordered, each)
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
            notes=self._notes(each, tally, index),
            evidence=self._against_curves(ordered, lost),
        )

    @abstractmethod
    def series(self, tallies: Sequence[T], *, lost: int = 0, each: EachReplay | None = None) -> dict[str, Series]:
        """What there is to draw of the same tallies; `each` as in `bound`."""

    def replay_series(self, each: EachReplay, lost: int) -> Series:
        """The replays one by one."""
        return replay_bounds(each.replay, each.best, each.alone, lost=lost, mean=self._published)

    def middle_counts(self, ordered: Sequence[T], each: EachReplay) -> Mapping[str, int]:
        """What the bound of the replay in the middle rests on."""
        return self.counts_at(*_middle(ordered, each))

    @property
    def _published(self) -> bool:
        return isinstance(self.selection, AsPublished)

    def _method(self) -> str:
        return str(getattr(self, "registered_name", type(self).__name__))

    def _notes(self, each: EachReplay, tally: T, look: int) -> tuple[str, ...]:
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


def _middle(ordered: Sequence[T], each: EachReplay) -> tuple[T, int]:
    """The replay whose bound is in the middle, and its best look."""
    middle = int(np.argsort(each.best, kind="stable")[(each.best.size - 1) // 2])
    return ordered[middle], int(each.look[middle])
