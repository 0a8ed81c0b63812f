"""Protocol of estimators: evidence in, one finding out, in two steps so that the work can be divided."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Generic, TypeVar

from dpaudit.estimators.finding import Finding

E = TypeVar("E")
T = TypeVar("T")
Item = TypeVar("Item")


class Estimator(ABC, Generic[E, T]):
    """Estimator of one kind of evidence (registered as "estimator").

    `tally` reduces one piece of evidence (a replay, a query, a release) to the few counts that the finding needs. It is
    pure, so pieces may be tallied in any order on any machine. `find` combines all tallies.

    A bound that takes long is computed in parts, on several machines, if the estimator overrides `part_type`, `seconds`
    and `part`, and if its `find` takes `parts`. The defaults are for estimators that always take about a second or less
    (docs/developers/architecture.md names them).

    Attributes:
        evidence: Type of the evidence, `E`.
        tally_type: Type of the tallies, `T`: a dataclass of numbers and arrays.
        part_type: Type of a part of the bound: a dataclass of numbers and arrays. None if there are no parts.
        part_s: Seconds that one part should take; more if a part computes once what several pieces need.
    """

    evidence: ClassVar[type[Any]]
    tally_type: ClassVar[type[Any]]
    part_type: ClassVar[type[Any] | None] = None
    part_s: ClassVar[float] = 0.5

    @abstractmethod
    def tally(self, evidence: E) -> T:
        """Return the counts of one piece of evidence, a function of its argument alone."""

    @abstractmethod
    def find(self, tallies: Sequence[T], *, failed_replays: int = 0) -> Finding:
        """Return one finding from the tallies of all pieces, in any order.

        Args:
            tallies: At least one tally.
            failed_replays: Number of planned pieces (replays, queries, releases) that failed. They count as having
                shown nothing: leaving them out would bias the finding if failures depend on the outcome.
        """

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
        """Return one of `shares` parts of the bound, a `part_type`.

        The parts divide the computation, never the error: each is a pure function of its arguments, and a finding from
        parts has the digits of one without.

        Args:
            tallies: Some of the tallies, the same for all parts from 0 to `shares` - 1.
            pieces: Number of all planned pieces of evidence, failed ones included.
            share: Number of the part, from 0.
            shares: Number of parts, >= 1.
        """
        raise NotImplementedError(f"{type(self).__name__} has no parts")


def share_of(items: Sequence[Item], share: int, shares: int) -> Sequence[Item]:
    """Return the items of one of `shares` parts of nearly equal length, in their order."""
    return items[len(items) * share // shares : len(items) * (share + 1) // shares]
