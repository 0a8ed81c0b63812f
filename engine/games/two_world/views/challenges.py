"""Challenge points: whose membership a two-world game is about."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dpaudit.mechanisms.examples import Examples, Features


@dataclass(frozen=True, eq=False)
class Challenges:
    """k challenge points, each audited by models of its own.

    Attributes:
        examples: The points with the labels they are trained with, k rows.
        rows: The row of the pool each one is, or is made from, shape (k,); -1 = from none. Those rows are kept out of
            the base set.
        crafted: Whether they are made, and so not among the pool's own rows.
        weight: What they were chosen by, larger = more exposed, shape (k,); 0 where nothing was compared.
    """

    examples: Examples
    rows: NDArray[np.int64]
    crafted: bool
    weight: NDArray[np.float64]

    def points(self, pool: int) -> NDArray[np.int64]:
        """Where they stand in the pool of `pool` rows with the crafted ones behind it, shape (k,)."""
        return pool + np.arange(len(self.rows)) if self.crafted else self.rows


def with_crafted(pool: Examples, challenges: Challenges | None) -> Examples:
    """The pool with the crafted challenge points behind it."""
    if challenges is None or not challenges.crafted:
        return pool
    added = challenges.examples
    features: Features
    if isinstance(pool.features, pa.Table):
        features = pa.concat_tables([pool.features, added.features])
    else:
        features = np.concatenate([pool.features, added.features])
    return pool.with_(features=features, labels=np.concatenate([pool.labels, added.labels]))
