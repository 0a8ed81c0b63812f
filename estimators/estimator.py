"""What an estimator is: evidence in, one finding out, in two steps so that the work can be split."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Generic, TypeVar

from dpaudit.estimators.finding import Finding

E = TypeVar("E")
T = TypeVar("T")


class Estimator(ABC, Generic[E, T]):
    """Reads one kind of evidence (registered as "estimator").

    `tally` reads one piece of it (a replay, a query, a release) and keeps the few counts its finding needs: pure, any
    order, any machine. `find` reads all the tallies.

    Attributes:
        evidence: The kind of evidence it reads, `E`.
        tally_type: The kind of its tallies, `T`: a dataclass of numbers and arrays.
    """

    evidence: ClassVar[type[Any]]
    tally_type: ClassVar[type[Any]]

    @abstractmethod
    def tally(self, evidence: E) -> T:
        """The counts of one piece of evidence. Decided by its argument alone."""

    @abstractmethod
    def find(self, tallies: Sequence[T], *, failed_replays: int = 0) -> Finding:
        """One finding from the tallies of all pieces, in any order.

        Args:
            tallies: At least one.
            lost: Pieces that were planned and failed: they count as having shown nothing, since leaving them out would
                leave out those that some outcomes make fail.
        """
