"""The best of several candidates at each replay, and the bounds of the replays combined.

Bounds that take long are found in parts, on several machines. A part is a pure function of its tallies, so it gives the
digits that are found without it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Protocol, TypeVar

import numpy as np

from dpaudit.errors import require
from dpaudit.estimators.arguments import Floats, Ints
from dpaudit.estimators.bound import Bound
from dpaudit.estimators.finding import CurveEvidence, Series, Validity
from dpaudit.estimators.replays import median_rule, per_replay_confidence
from dpaudit.estimators.scores import ScoreEstimator, replay_bounds
from dpaudit.estimators.selection import AsPublished, Grid, Selection, parse_selection


class ReplayTally(Protocol):
    """Counts of one replay of a game."""

    @property
    def replay(self) -> int:
        """Which repetition of the game."""


T = TypeVar("T", bound=ReplayTally)


@dataclass(frozen=True, eq=False)
class EachReplay:
    """What combining replays needs of each of them; all of shape (replays,)."""

    replay: Ints  # its number, ascending
    best: Floats  # its bound, as sure as combining so many needs it, in nats
    candidate: Ints  # which candidate gives it
    alone: Floats  # what it would report if it were the only one, in nats

    @classmethod
    def joined(cls, parts: Sequence[EachReplay]) -> EachReplay:
        """The replays of all parts, in the order of their numbers."""
        columns = [np.concatenate([getattr(part, field.name) for part in parts]) for field in fields(cls)]
        order = np.argsort(columns[0], kind="stable")
        return cls(*(column[order] for column in columns))

    @classmethod
    def complete(
        cls, tallies: Sequence[T], parts: Sequence[EachReplay], find: Callable[[list[T]], EachReplay]
    ) -> EachReplay:
        """Of all these tallies, in the order of their numbers: those of the parts, and the others found now."""
        found = {int(number) for part in parts for number in part.replay}
        missing = [tally for tally in tallies if tally.replay not in found]
        if not found:
            return find(missing)
        return cls.joined([*parts, find(missing)] if missing else parts)


@dataclass(frozen=True, eq=False)
class EachThreshold:
    """Bounds at some candidate thresholds of the only replay, in nats; both of shape (thresholds,)."""

    candidate: Ints  # which thresholds
    bound: Floats


@dataclass(frozen=True)
class BestCandidate(ScoreEstimator[T]):
    """An estimator that bounds epsilon at several candidates, guess fractions or thresholds, and reports the best one.

    Attributes:
        delta: The delta the bound is stated at, in [0, 1).
        confidence: Stated confidence of the final bound, in (0, 1).
        selection: How the candidate is chosen, or what a spec writes for it.
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
        """In what sense the bound at one candidate holds."""

    @abstractmethod
    def best_candidates(self, ordered: Sequence[T], replays: int) -> tuple[Floats, Ints]:
        """Each replay's best bound, as sure as combining so many needs it, and its candidate; both shape (tallies,).

        What is found of a replay depends on no other one.
        """

    @abstractmethod
    def counts_at(self, tally: T, candidate: int) -> Mapping[str, int]:
        """What the bound at a candidate rests on."""

    def bounds_of_replays(self, tallies: Sequence[T], replays: int) -> EachReplay:
        """Of some of so many replays, in the order of their numbers."""
        ordered = in_order(tallies)
        best, candidate = self.best_candidates(ordered, replays)
        alone = best if replays == 1 else self.best_candidates(ordered, 1)[0]
        return EachReplay(np.array([tally.replay for tally in ordered], dtype=np.int64), best, candidate, alone)

    def find(self, tallies: Sequence[T], *, failed_replays: int = 0, parts: Sequence[Any] = ()) -> Bound:
        """The bound with all there is to draw; the parts are what `bounds_of_replays` gave for some of the tallies."""
        each = EachReplay.complete(
            tallies, parts, lambda missing: self.bounds_of_replays(missing, len(tallies) + failed_replays)
        )
        bound = self.bound(tallies, failed_replays=failed_replays, each=each)
        return replace(bound, series=self.series(tallies, failed_replays=failed_replays, each=each))

    def bound(self, tallies: Sequence[T], *, failed_replays: int = 0, each: EachReplay | None = None) -> Bound:
        """The best candidate of each replay, combined over the replays; `counts` are those of the replay in the middle.

        A lost replay counts as a bound of 0; `each` holds the `bounds_of_replays`, where they are known.
        """
        ordered = in_order(tallies)
        each = each or self.bounds_of_replays(ordered, len(ordered) + failed_replays)
        shown = np.concatenate([each.best, np.zeros(failed_replays)])
        tally, candidate = self._middle(ordered, each)
        counts = {**self.counts_at(tally, candidate), "replays": shown.size}
        if failed_replays:
            counts["lost replays"] = failed_replays
        return Bound(
            lower=float(shown.mean() if self._published else median_rule(shown)),
            delta=self.delta,
            confidence=self.confidence,
            method=self.method(),
            validity=Validity.AS_PUBLISHED if self._published else self.validity(),
            selection=str(self.selection),
            counts=tuple(counts.items()),
            notes=self._notes(each, tally, candidate),
            evidence=self._against_curves(ordered, failed_replays),
        )

    @abstractmethod
    def series(
        self, tallies: Sequence[T], *, failed_replays: int = 0, each: EachReplay | None = None
    ) -> dict[str, Series]:
        """What there is to draw of the same tallies; `each` as in `bound`."""

    def _replay_series(self, each: EachReplay, failed_replays: int) -> Series:
        return replay_bounds(each.replay, each.best, each.alone, failed_replays=failed_replays, mean=self._published)

    def _middle(self, ordered: Sequence[T], each: EachReplay) -> tuple[T, int]:
        """The replay whose bound is in the middle, and its best candidate."""
        middle = int(np.argsort(each.best, kind="stable")[(each.best.size - 1) // 2])
        return ordered[middle], int(each.candidate[middle])

    @property
    def _published(self) -> bool:
        return isinstance(self.selection, AsPublished)

    def method(self) -> str:
        return str(getattr(self, "registered_name", type(self).__name__))

    def _notes(self, each: EachReplay, tally: T, candidate: int) -> tuple[str, ...]:
        """What is said beside the bound, which rests on the tally at the candidate."""
        return ()

    def _against_curves(self, ordered: Sequence[T], failed_replays: int) -> tuple[CurveEvidence, ...]:
        """What speaks about a claim's whole curve."""
        return ()

    def _error(self, shares: int, replays: int) -> float:
        """What one candidate of one replay may err when so many share: a median of bounds needs half."""
        if self._published:
            return 1 - self.confidence
        return (1 - per_replay_confidence(self.confidence, replays)) / shares


def in_order(tallies: Sequence[T]) -> list[T]:
    """The tallies by the numbers of their replays.

    Raises: InputError when there is none.
    """
    require(len(tallies) > 0, "a bound needs the tally of at least one replay", tallies=len(tallies))
    return sorted(tallies, key=lambda tally: tally.replay)
