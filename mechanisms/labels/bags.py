"""Bags of examples whose labels are released together: drawn at random or defined by an aggregation key."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dpaudit.errors import require
from dpaudit.mechanisms.examples import Features

LEFT_OUT = -1  # Bag of an example that no release covers


@dataclass(frozen=True, eq=False)
class Bags:
    """A public assignment of examples to bags."""

    # Bag of each example, shape (n,): 0 .. B - 1 without gaps, or -1 for an example left out
    assignment: NDArray[np.int64]

    def __post_init__(self) -> None:
        bags = np.asarray(self.assignment, np.int64)
        require(bags.ndim == 1, "bags must be one column with the bag of each example", shape=bags.shape)
        require(bool((bags >= LEFT_OUT).all()), "a bag must be a number >= 0, or -1 for an example left out")
        object.__setattr__(self, "of", bags)
        require(self.sizes.size > 0, "at least one bag must hold an example", examples=len(bags))
        empty = np.flatnonzero(self.sizes == 0)
        require(not empty.size, "no bag may be empty", bags=empty[:3].tolist(), do="number the bags without gaps")

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """Number of examples in each bag, >= 1, shape (B,)."""
        return np.bincount(self.assignment[self.assignment != LEFT_OUT])

    def counts(self, labels: NDArray[np.int64], classes: int) -> NDArray[np.int64]:
        """Return the count of each label 0 .. classes - 1 in each bag, shape (n,) to (B, classes)."""
        require(labels.shape == self.assignment.shape, "there must be one label for each example", shape=labels.shape)
        in_range = bool(((labels >= 0) & (labels < classes)).all())
        require(in_range, f"labels must be in 0..{classes - 1}", given=np.unique(labels)[:5].tolist())
        inside = self.assignment != LEFT_OUT
        cells = self.assignment[inside] * classes + labels[inside]
        return np.bincount(cells, minlength=self.sizes.size * classes).reshape(-1, classes)

    @classmethod
    def random(cls, examples: int, size: int, rng: np.random.Generator, *, keep_rest: bool = False) -> Bags:
        """Draw random bags of `size` examples. The last, smaller bag is kept if `keep_rest`, else left out."""
        require(1 <= size <= examples, f"the size of a bag must be in 1..{examples}, the number of examples", size=size)
        rank = rng.permutation(examples)  # a random rank for each example
        bags = rank // size
        if not keep_rest:
            bags[rank >= examples - examples % size] = LEFT_OUT
        return cls(bags)

    @classmethod
    def keyed(cls, features: Features, key: str | int) -> Bags:
        """Build one bag for each value of the column `key` of a table or of an array of shape (n, d)."""
        if isinstance(features, pa.Table):
            names = features.column_names
            require(key in names, f"key must be one of the columns {', '.join(names)}", key=key)
            return cls(_numbered(features[key].combine_chunks()))
        flat = features.reshape(len(features), -1)
        number = isinstance(key, int) and 0 <= key < flat.shape[1]
        require(number, f"key must be the number of a column, 0..{flat.shape[1] - 1}", key=key)
        return cls(_numbered(pa.array(np.ascontiguousarray(flat[:, int(key)]))))


def _numbered(keys: pa.Array) -> NDArray[np.int64]:
    """Number the keys 0 .. B - 1 by first appearance. All missing keys share one number."""
    coded = keys.dictionary_encode(null_encoding="encode")
    return np.asarray(coded.indices.to_numpy(zero_copy_only=False), np.int64)
