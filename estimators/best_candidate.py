"""The best of several candidates in each replay, and the combination of the replays' bounds.

Slow bounds are computed in parts, on several machines. A part consists of cells: a replay, or some of its candidates.
The bounds of a cell depend on its tally alone, so the result does not depend on how the work is divided.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import numpy as np

from dpaudit.errors import require
from dpaudit.estimators.arguments import Floats, Ints
from dpaudit.estimators.bound import Bound
from dpaudit.estimators.estimator import share_of
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
    def joined(cls, several: Sequence[ReplayBounds]) -> ReplayBounds:
        """Return the replays of all, ascending by number."""
        columns = [np.concatenate([getattr(bounds, field.name) for bounds in several]) for field in fields(cls)]
        order = np.argsort(columns[0], kind="stable")
        return cls(*(column[order] for column in columns))

    @classmethod
    def completed(
        cls,
        tallies: Sequence[T],
        parts: Sequence[CellBounds],
        replays: int,
        find: Callable[[list[T], int], ReplayBounds],
    ) -> ReplayBounds:
        """Return the bounds of `tallies`, of `replays` in all: those in `parts`, and the missing ones by `find`."""
        computed = CellBounds.by_replay([part for part in parts if part.replays == replays])
        missing = [tally for tally in tallies if tally.replay not in computed.replay]
        if len(missing) == len(tallies):
            return find(missing, replays)
        return cls.joined([computed, find(missing, replays)]) if missing else computed


@dataclass(frozen=True, eq=False)
class CellBounds:
    """Bounds of some cells: of single replays, or of some candidates of single replays; arrays of shape (cells,)."""

    replays: int  # number of all replays, whose bounds are combined
    replay: Ints  # number of the replay
    share: Ints  # number of the share of the replay's candidates, from 0
    shares: Ints  # number of shares of the replay's candidates
    best: Floats  # as for `ReplayBounds`, like the next two, over the candidates of the share
    candidate: Ints
    alone: Floats

    @staticmethod
    def by_replay(parts: Sequence[CellBounds]) -> ReplayBounds:
        """Return the bounds of the replays of which all shares are in `parts`, ascending by number."""
        names = ("replay", "share", "shares", "best", "candidate", "alone")
        joined = [np.concatenate([np.empty(0), *(getattr(part, name) for part in parts)]) for name in names]
        order = np.lexsort((joined[1], joined[0]))
        replay, _, shares, best, candidate, alone = (column[order] for column in joined)
        first = np.flatnonzero(np.diff(replay, prepend=-1))
        sizes = np.diff(first, append=replay.size)
        if not first.size:
            return ReplayBounds(np.empty(0, np.int64), np.empty(0), np.empty(0, np.int64), np.empty(0))
        largest, of_replay = np.maximum.reduceat(best, first), np.repeat(np.arange(first.size), sizes)
        winners = np.flatnonzero(best == largest[of_replay])
        # Of equal bounds the first candidate counts, as in one piece.
        winner = winners[np.unique(of_replay[winners], return_index=True)[1]]
        complete = sizes == shares[first]
        numbers = (column[complete].astype(np.int64) for column in (replay[first], candidate[winner]))
        bounds = (column[complete] for column in (largest, np.maximum.reduceat(alone, first)))
        (replay, candidate), (best, alone) = numbers, bounds
        return ReplayBounds(replay, best, candidate, alone)


@dataclass(frozen=True)
class Cell(Generic[T]):
    """A replay, or one of several shares of its candidates."""

    tally: T
    share: int = 0
    shares: int = 1


@dataclass(frozen=True)
class BestCandidate(ScoreEstimator[T]):
    """Estimator that reports the largest bound over several candidates (guess fractions or thresholds).

    Attributes:
        delta: Delta at which the bound is stated, in [0, 1).
        confidence: Stated confidence of the final bound, in (0, 1).
        selection: How the candidate is chosen, as a `Selection` or in the form that a spec uses.
    """

    part_type: ClassVar[type[Any]] = CellBounds

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

    def divisible(self, tally: T) -> int:
        """Return the number of shares into which the candidates of a replay can be divided."""
        return 1

    def some_candidates(self, tally: T, share: int, shares: int) -> tuple[T, int]:
        """Return the tally at a share of its candidates, and the index of the first one."""
        return tally, 0

    def part(self, tallies: Sequence[T], *, pieces: int, share: int, shares: int) -> CellBounds:
        return self.bounds_of_cells(share_of(self.cells(tallies, shares), share, shares), pieces)

    def cells(self, tallies: Sequence[T], shares: int) -> Sequence[Cell[T]]:
        """Return the cells: whole replays, or for fewer replays than shares of the work shares of their candidates."""
        each = -(-shares // len(tallies))
        cells = []
        for tally in in_order(tallies):
            divided = min(each, self.divisible(tally))
            cells += [Cell(tally, share, divided) for share in range(divided)]
        return cells

    def bounds_of_cells(self, cells: Sequence[Cell[T]], replays: int) -> CellBounds:
        """Return the bounds of some cells of a game with `replays` replays."""
        some = [self.some_candidates(cell.tally, cell.share, cell.shares) for cell in cells]
        if cells:
            best, candidate = self.best_candidates([tally for tally, _ in some], replays)
            alone = best if replays == 1 else self.best_candidates([tally for tally, _ in some], 1)[0]
            candidate = candidate + np.array([first for _, first in some])
            return cell_bounds(cells, replays, best, candidate, alone)
        return cell_bounds(cells, replays, np.empty(0), np.empty(0, np.int64), np.empty(0))

    def find(self, tallies: Sequence[T], *, failed_replays: int = 0, parts: Sequence[CellBounds] = ()) -> Bound:
        """Return the bound with its series; `parts` are results of `part` for some of the tallies."""
        bounds = ReplayBounds.completed(tallies, parts, len(tallies) + failed_replays, self.bounds_of_replays)
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


def cell_bounds(cells: Sequence[Cell[Any]], replays: int, best: Floats, candidate: Ints, alone: Floats) -> CellBounds:
    """Return the bounds of cells as columns; arrays of shape (cells,)."""
    replay = np.array([cell.tally.replay for cell in cells], np.int64)
    share, shares = (np.array([getattr(cell, name) for cell in cells], np.int64) for name in ("share", "shares"))
    return CellBounds(replays, replay, share, shares, best, candidate, alone)


def in_order(tallies: Sequence[T]) -> list[T]:
    """Return the tallies, ascending by replay number.

    Raises: InputError if there are none.
    """
    require(len(tallies) > 0, "a bound needs the tally of at least one replay", tallies=len(tallies))
    return sorted(tallies, key=lambda tally: tally.replay)
