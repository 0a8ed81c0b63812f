"""Estimators: evidence in, one finding out, in two steps so that the work can be divided.

An estimator says `tally` (evidence -> counts of one piece) and `lower` (counts -> a lower bound on epsilon at each
candidate: a threshold or a number of guesses). `Estimator` does the rest for all of them alike: it divides the error,
takes the best candidate of each replay, combines the replays, and joins the parts that other machines computed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Generic, TypeVar, cast

import numpy as np

from dpaudit.errors import require
from dpaudit.estimators.arguments import Floats, Ints
from dpaudit.estimators.bound import Bound
from dpaudit.estimators.finding import Finding, Series, Validity
from dpaudit.estimators.replays import median_rule, per_replay_confidence
from dpaudit.estimators.scores import Scores
from dpaudit.estimators.selection import AsPublished, Selection

E = TypeVar("E")
T = TypeVar("T")
Item = TypeVar("Item")


@dataclass(frozen=True, eq=False)
class CellBounds:
    """Bounds of some cells: of single replays, or of some candidates of single replays; arrays of shape (cells,)."""

    replays: int  # number of all replays, whose bounds are combined
    replay: Ints  # number of the replay
    share: Ints  # number of the share of the replay's candidates, from 0
    shares: Ints  # number of shares of the replay's candidates
    best: Floats  # largest bound over the candidates of the share, in nats
    candidate: Ints  # index of the candidate with that bound
    alone: Floats  # largest bound if this were the only replay, in nats

    @staticmethod
    def complete(parts: Sequence[CellBounds]) -> Iterator[tuple[int, tuple[float, float, float]]]:
        """Yield number, best bound, candidate and bound alone of each replay of which all shares are in `parts`."""
        names = ("replay", "share", "shares", "best", "candidate", "alone")
        columns = np.array([np.concatenate([np.empty(0), *(getattr(part, name) for part in parts)]) for name in names])
        columns = columns[:, np.lexsort(columns[1::-1])]
        for cells in np.split(columns, np.flatnonzero(np.diff(columns[0])) + 1, axis=1):
            replay, _, shares, best, candidate, alone = cells
            if replay.size and replay.size == shares[0]:
                # Of equal bounds the first candidate counts, as in one piece.
                yield int(replay[0]), (best.max(), candidate[best.argmax()], alone.max())


@dataclass(frozen=True)
class Cell(Generic[T]):
    """A replay, or one of several shares of its candidates."""

    tally: T  # counts at the candidates of the share
    first: int = 0  # index of the first of them
    share: int = 0
    shares: int = 1


@dataclass(frozen=True, eq=False)
class Replays(Generic[T]):
    """Bounds of the replays that finished, ascending by number; arrays of shape (replays,)."""

    tallies: Sequence[T]
    number: Ints
    best: Floats  # largest bound over the candidates, at the replay's part of the error, in nats
    candidate: Ints  # index of the candidate with that bound
    alone: Floats  # largest bound if this were the only replay, in nats
    failed: int  # number of failed replays: each counts as a bound of 0
    published: bool  # True to combine by the mean, as published, instead of the median rule

    @property
    def every(self) -> Floats:
        """Bounds of all replays, those of failed ones last; shape (replays + failed,)."""
        return np.concatenate([self.best, np.zeros(self.failed)])

    @property
    def middle(self) -> tuple[T, int]:
        """Tally whose bound is the median, and its best candidate."""
        middle = int(np.argsort(self.best, kind="stable")[(self.best.size - 1) // 2])
        return self.tallies[middle], int(self.candidate[middle])

    @property
    def lower(self) -> float:
        """Bound of all replays together."""
        return float(self.every.mean() if self.published else median_rule(self.every))

    def counted(self, counts: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
        """Return the counts of a bound, with the numbers of replays and of lost ones."""
        lost_replays = {"lost replays": self.failed} if self.failed else {}
        return tuple({**counts, "replays": self.every.size, **lost_replays}.items())

    def series(self) -> Series:
        """Return the bounds as columns: as they enter the combination, as if alone, and combined so far."""
        every = self.every
        if self.published:
            combined = np.cumsum(every) / np.arange(1, every.size + 1)
        else:
            combined = np.array([median_rule(every[:count]) for count in range(1, every.size + 1)])
        return {"replay": self.number, "epsilon": every, "alone": self.alone, "combined": combined}


class Estimator(ABC, Generic[E, T]):
    """Estimator of one kind of evidence (registered as "estimator").

    `tally` reduces one piece of evidence (a replay, a query, a release) to the few counts that the finding needs. It is
    pure, so pieces may be tallied in any order on any machine. `lower` turns the counts of a replay into bounds. An
    estimator whose finding is no bound on epsilon overrides `find` instead.

    A bound that takes long is computed in parts, on several machines, if the estimator sets `part_type` and overrides
    `seconds`. Parts divide the computation, never the error (docs/developers/architecture.md lists them).

    Attributes:
        delta: Delta at which the bound is stated, in [0, 1).
        confidence: Stated confidence of the finding, in (0, 1).
        selection: How the candidate is chosen, as a `Selection` or in words.
        validity: Sense in which the bound at one candidate holds.
        evidence: Type of the evidence, `E`.
        tally_type: Type of the tallies, `T`: a dataclass of numbers and arrays, with the number of its `replay`.
        part_type: Type of a part of the bound: a dataclass of numbers and arrays. None if there are no parts.
        part_s: Seconds that one part should take; more if a part computes once what several pieces need.
        independent_trials: True if it treats scores as independent trials, one training each.
        anytime_valid: True if it may be evaluated while trials arrive.
    """

    delta: float
    confidence: float
    selection: Selection | str = "fixed beforehand"

    evidence: ClassVar[type[Any]] = Scores
    tally_type: ClassVar[type[Any]]
    part_type: ClassVar[type[Any] | None] = None
    part_s: ClassVar[float] = 0.5
    independent_trials: ClassVar[bool] = False
    anytime_valid: ClassVar[bool] = False

    @abstractmethod
    def tally(self, evidence: E) -> T:
        """Return the counts of one piece of evidence, a function of its argument alone."""

    def lower(self, tally: T, error: float) -> Floats:
        """Return the bound on epsilon at each candidate if each may err with probability `error`; shape (candidates,).

        In nats, >= 0 and rounded down. The bounds of one replay must not depend on the other replays.
        """
        raise NotImplementedError(f"{type(self).__name__} has no bounds")

    def candidates_sharing(self, tally: T) -> int:
        """Return the number of candidates that share the error of a replay."""
        return 1

    def best(self, tallies: Sequence[T], replays: int, *, alone: bool = False) -> tuple[Floats, Ints]:
        """Return the largest `lower` of each tally, and its candidate, both of shape (tallies,).

        An estimator overrides this where it is faster for many candidates or replays.

        Args:
            tallies: Tallies of some of the replays.
            replays: Number of all replays.
            alone: True for the bound that each would have as the only replay.
        """
        bounds = [self.lower(tally, self._error_of_each(tally, 1 if alone else replays)) for tally in tallies]
        places = [int(of_replay.argmax()) for of_replay in bounds]
        best = [of_replay[place] for of_replay, place in zip(bounds, places, strict=True)]
        return np.array(best, np.float64), np.array(places, np.int64)

    def _error_of_each(self, tally: T, replays: int) -> float:
        """Return the error of one candidate of one replay: a median of several halves it, its candidates share it."""
        if self.published:
            return 1 - self.confidence
        return (1 - per_replay_confidence(self.confidence, replays)) / self.candidates_sharing(tally)

    @property
    def method(self) -> str:
        """Registered name, with the variant."""
        return str(getattr(self, "registered_name", type(self).__name__))

    @property
    def validity(self) -> Validity:
        return Validity.FINITE_SAMPLE

    @property
    def published(self) -> bool:
        """True if candidates and replays are combined without a correction, as published."""
        return isinstance(self.selection, AsPublished)

    def details(self, replays: Replays[T]) -> Mapping[str, Any]:
        """Return further fields of the bound: `counts`, `notes`, `evidence`, or `selection` in words."""
        return {"counts": replays.counted({})}

    def figures(self, replays: Replays[T]) -> dict[str, Series]:
        """Return the series to draw, by name."""
        return {"replays": replays.series()}

    def bound(self, tallies: Sequence[T], *, failed_replays: int = 0) -> Bound:
        """Return `find` without the series, which is faster; just `find` of an estimator without `lower`."""
        if type(self).lower is Estimator.lower:
            return cast(Bound, self.find(tallies, failed_replays=failed_replays))
        return self.bound_of(self.replays(tallies, failed_replays=failed_replays))

    def find(self, tallies: Sequence[T], *, failed_replays: int = 0, parts: Sequence[Any] = ()) -> Finding:
        """Return one finding from the tallies of all pieces, in any order.

        Args:
            tallies: At least one tally.
            failed_replays: Number of planned pieces (replays, queries, releases) that failed. They count as having
                shown nothing: leaving them out would bias the finding if failures depend on the outcome.
            parts: Results of `part` for some of the tallies; what is missing is computed.
        """
        replays = self.replays(tallies, failed_replays=failed_replays, parts=parts)
        return replace(self.bound_of(replays), series=self.figures(replays))

    def bound_of(self, replays: Replays[T]) -> Bound:
        """Return the bound of all replays together, without the series."""
        validity = Validity.AS_PUBLISHED if self.published else self.validity
        details = {"selection": str(self.selection), **self.details(replays)}
        return Bound(replays.lower, self.delta, self.confidence, self.method, validity, **details)

    def replays(self, tallies: Sequence[T], *, failed_replays: int = 0, parts: Sequence[Any] = ()) -> Replays[T]:
        """Return the bounds of all replays: those in `parts`, which are of as many replays, and the missing ones."""
        ordered = in_order(tallies)
        count = len(ordered) + failed_replays
        numbers: list[int] = [tally.replay for tally in ordered]
        in_parts = dict(CellBounds.complete([part for part in parts if part.replays == count]))
        missing = [place for place, number in enumerate(numbers) if number not in in_parts]
        best, candidate, alone = np.array([in_parts.get(number, (0.0, 0.0, 0.0)) for number in numbers]).T.copy()
        if missing:
            best[missing], candidate[missing], alone[missing] = self._bounds([ordered[at] for at in missing], count)
        return Replays(
            ordered,
            np.array(numbers, np.int64),
            best,
            candidate.astype(np.int64),
            alone,
            failed_replays,
            self.published,
        )

    def _bounds(self, tallies: Sequence[T], replays: int) -> tuple[Floats, Ints, Floats]:
        """Return best bound, its candidate, and best bound alone, all of shape (tallies,)."""
        best, candidate = self.best(tallies, replays)
        return best, candidate, best if replays == 1 else self.best(tallies, replays, alone=True)[0]

    def seconds(self, pieces: int, rows: int) -> float:
        """Return the approximate seconds on one core that `find` takes; 0 for about a second or less.

        A cost model with constants that `python -m benchmarks.bound_parts --costs` measures. It uses nothing but the
        estimator and its arguments, so a plan has the same units on every machine.

        Args:
            pieces: Number of pieces of evidence, >= 1.
            rows: Number of rows of one piece (canaries, trials); 0 if unknown.
        """
        return 0.0

    def part(self, tallies: Sequence[T], *, pieces: int, share: int, shares: int) -> Any:
        """Return one of `shares` parts of the finding, a `part_type`: here the bounds of some replays or candidates.

        Each part is a pure function of its arguments, and a finding from parts has the digits of one without.

        Args:
            tallies: Some of the tallies, the same for all parts from 0 to `shares` - 1.
            pieces: Number of all planned pieces of evidence, failed ones included.
            share: Number of the part, from 0.
            shares: Number of parts, >= 1.
        """
        cells = share_of(self.cells(in_order(tallies), shares), share, shares)
        best, candidate, alone = self._bounds([cell.tally for cell in cells], pieces)
        first = np.array([cell.first for cell in cells], np.int64)
        return cell_bounds(cells, pieces, best, candidate + first, alone)

    def cells(self, tallies: Sequence[T], shares: int) -> Sequence[Cell[T]]:
        """Return what `shares` parts divide among them: the replays, or shares of their candidates."""
        return [Cell(tally) for tally in tallies]


def cell_bounds(cells: Sequence[Cell[Any]], replays: int, best: Floats, candidate: Ints, alone: Floats) -> CellBounds:
    """Return the bounds of cells as columns; arrays of shape (cells,)."""
    replay = np.array([cell.tally.replay for cell in cells], np.int64)
    share, shares = (np.array([getattr(cell, name) for cell in cells], np.int64) for name in ("share", "shares"))
    return CellBounds(replays, replay, share, shares, best, candidate, alone)


def in_order(tallies: Sequence[Any]) -> list[Any]:
    """Return the tallies, ascending by replay number.

    Raises: InputError if there are none.
    """
    require(len(tallies) > 0, "a bound needs the tally of at least one replay", tallies=len(tallies))
    return sorted(tallies, key=lambda tally: tally.replay)


def share_of(items: Sequence[Item], share: int, shares: int) -> Sequence[Item]:
    """Return the items of one of `shares` parts of nearly equal length, in their order."""
    return items[len(items) * share // shares : len(items) * (share + 1) // shares]
