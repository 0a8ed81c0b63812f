"""The best of several candidates in each replay, and the combination of the replays' bounds.

Slow bounds are computed in parts, on several machines. A part is a pure function of its tallies, so the result does not
depend on how the work is divided.
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
from dpaudit.estimators.scores import ScoreEstimator, replay_series
from dpaudit.estimators.selection import AsPublished, Grid, Selection, parse_selection


class ReplayTally(Protocol):
    """Counts of one replay of a game."""

    @property
    def replay(self) -> int:
        """Number of the replay."""


T = TypeVar("T", bound=ReplayTally)


@dataclass(frozen=True, eq=False)
class ReplayBounds:
    """Bounds of single replays, to be combined; all arrays have shape (replays,)."""

    replay: Ints  # number of the replay, ascending
    best: Floats  # largest bound over the candidates at `per_replay_confidence`, in nats
    candidate: Ints  # index of the candidate with that bound
    alone: Floats  # bound if this were the only replay, in nats

    @classmethod
    def joined(cls, parts: Sequence[ReplayBounds]) -> ReplayBounds:
        """Return the replays of all parts, ascending by number."""
        columns = [np.concatenate([getattr(part, field.name) for part in parts]) for field in fields(cls)]
        order = np.argsort(columns[0], kind="stable")
        return cls(*(column[order] for column in columns))

    @classmethod
    def completed(
        cls, tallies: Sequence[T], parts: Sequence[ReplayBounds], find: Callable[[list[T]], ReplayBounds]
    ) -> ReplayBounds:
        """Return the bounds of all `tallies`: those in `parts`, and the missing ones computed by `find`."""
        computed = {int(number) for part in parts for number in part.replay}
        missing = [tally for tally in tallies if tally.replay not in computed]
        if not computed:
            return find(missing)
        return cls.joined([*parts, find(missing)] if missing else parts)


@dataclass(frozen=True, eq=False)
class ThresholdBounds:
    """Bounds at some candidate thresholds of a single replay, in nats; both arrays have shape (thresholds,)."""

    candidate: Ints  # indices of the thresholds
    bound: Floats


@dataclass(frozen=True)
class BestCandidate(ScoreEstimator[T]):
    """Estimator that reports the largest bound over several candidates (guess fractions or thresholds).

    Attributes:
        delta: Delta at which the bound is stated, in [0, 1).
        confidence: Stated confidence of the final bound, in (0, 1).
        selection: How the candidate is chosen, as a `Selection` or in the form that a spec uses.
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
        """Return the sense in which the bound at one candidate holds."""

    @abstractmethod
    def best_candidates(self, ordered: Sequence[T], replays: int) -> tuple[Floats, Ints]:
        """Return each replay's largest bound at `per_replay_confidence` and its candidate; both of shape (tallies,).

        The bound of one replay must not depend on the other replays.
        """

    @abstractmethod
    def counts_at(self, tally: T, candidate: int) -> Mapping[str, int]:
        """Return the counts behind the bound at a candidate."""

    def bounds_of_replays(self, tallies: Sequence[T], replays: int) -> ReplayBounds:
        """Return the bounds of some of `replays` replays, ascending by number."""
        ordered = in_order(tallies)
        best, candidate = self.best_candidates(ordered, replays)
        alone = best if replays == 1 else self.best_candidates(ordered, 1)[0]
        return ReplayBounds(np.array([tally.replay for tally in ordered], dtype=np.int64), best, candidate, alone)

    def find(self, tallies: Sequence[T], *, failed_replays: int = 0, parts: Sequence[Any] = ()) -> Bound:
        """Return the bound with its series; `parts` are results of `bounds_of_replays` for some of the tallies."""
        bounds = ReplayBounds.completed(
            tallies, parts, lambda missing: self.bounds_of_replays(missing, len(tallies) + failed_replays)
        )
        bound = self.bound(tallies, failed_replays=failed_replays, bounds=bounds)
        return replace(bound, series=self.series(tallies, failed_replays=failed_replays, bounds=bounds))

    def bound(self, tallies: Sequence[T], *, failed_replays: int = 0, bounds: ReplayBounds | None = None) -> Bound:
        """Return the best candidate of each replay, combined over replays; `counts` are those of the middle replay.

        A failed replay counts as a bound of 0. Pass `bounds` if the result of `bounds_of_replays` is already known.
        """
        ordered = in_order(tallies)
        bounds = bounds or self.bounds_of_replays(ordered, len(ordered) + failed_replays)
        best = np.concatenate([bounds.best, np.zeros(failed_replays)])
        tally, candidate = self._middle(ordered, bounds)
        counts = {**self.counts_at(tally, candidate), "replays": best.size}
        if failed_replays:
            counts["lost replays"] = failed_replays
        return Bound(
            lower=float(best.mean() if self._published else median_rule(best)),
            delta=self.delta,
            confidence=self.confidence,
            method=self.method(),
            validity=Validity.AS_PUBLISHED if self._published else self.validity(),
            selection=str(self.selection),
            counts=tuple(counts.items()),
            notes=self._notes(bounds, tally, candidate),
            evidence=self._curve_evidence(ordered, failed_replays),
        )

    @abstractmethod
    def series(
        self, tallies: Sequence[T], *, failed_replays: int = 0, bounds: ReplayBounds | None = None
    ) -> dict[str, Series]:
        """Return the series to draw for these tallies; `bounds` as for `bound`."""

    def _replay_series(self, bounds: ReplayBounds, failed_replays: int) -> Series:
        return replay_series(
            bounds.replay, bounds.best, bounds.alone, failed_replays=failed_replays, mean=self._published
        )

    def _middle(self, ordered: Sequence[T], bounds: ReplayBounds) -> tuple[T, int]:
        """Return the tally whose bound is the median, and its best candidate."""
        middle = int(np.argsort(bounds.best, kind="stable")[(bounds.best.size - 1) // 2])
        return ordered[middle], int(bounds.candidate[middle])

    @property
    def _published(self) -> bool:
        return isinstance(self.selection, AsPublished)

    def method(self) -> str:
        return str(getattr(self, "registered_name", type(self).__name__))

    def _notes(self, bounds: ReplayBounds, tally: T, candidate: int) -> tuple[str, ...]:
        """Return the notes of the bound, which rests on `tally` at `candidate`."""
        return ()

    def _curve_evidence(self, ordered: Sequence[T], failed_replays: int) -> tuple[CurveEvidence, ...]:
        """Return evidence against whole privacy curves."""
        return ()

    def _candidate_error(self, shares: int, replays: int) -> float:
        """Return the error of one candidate of one replay if `shares` candidates share it; a median needs half."""
        if self._published:
            return 1 - self.confidence
        return (1 - per_replay_confidence(self.confidence, replays)) / shares


def in_order(tallies: Sequence[T]) -> list[T]:
    """Return the tallies, ascending by replay number.

    Raises: InputError if there are none.
    """
    require(len(tallies) > 0, "a bound needs the tally of at least one replay", tallies=len(tallies))
    return sorted(tallies, key=lambda tally: tally.replay)
