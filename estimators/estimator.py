"""Protocol of estimators: evidence in, one finding out, in two steps so that the work can be divided."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Generic, TypeVar

from dpaudit.estimators.finding import Finding

E = TypeVar("E")
T = TypeVar("T")


class Estimator(ABC, Generic[E, T]):
    """Estimator of one kind of evidence (registered as "estimator").

    `tally` reduces one piece of evidence (a replay, a query, a release) to the few counts that the finding needs. It is
    pure, so pieces may be tallied in any order on any machine. `find` combines all tallies.

    Attributes:
        evidence: Type of the evidence, `E`.
        tally_type: Type of the tallies, `T`: a dataclass of numbers and arrays.
    """

    evidence: ClassVar[type[Any]]
    tally_type: ClassVar[type[Any]]

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
