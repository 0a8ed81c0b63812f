"""Data sets that each hold one record more than some data, or have it in another's place."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpaudit.errors import require
from dpaudit.mechanisms.examples import Examples

Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Added:
    """Several records, each in a data set of its own.

    Attributes:
        data: What all of these data sets hold besides.
        records: The records, p rows.
        places: Which of the voters each falls to, where they are told apart: 0 where it is the only record that is
            added, 0 to m - 1 where m are; shape (p,).
    """

    data: Examples
    records: Examples
    places: Ints

    def __post_init__(self) -> None:
        shape = (len(self.records),)
        require(self.places.shape == shape, "each record must have a place", places=self.places.shape)

    @classmethod
    def alone(cls, data: Examples, records: Examples) -> Added:
        """Each record is the only one that is added."""
        return cls(data, records, np.zeros(len(records), np.int64))
