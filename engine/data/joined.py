"""Concatenation of two data sets."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from dpaudit.errors import DataError
from dpaudit.mechanisms.examples import Examples
from dpaudit.registry import register


@register("data", "joined", source="the day before and the day itself; a training part and a test part")
@dataclass(frozen=True)
class Joined:
    """Rows of one data set, followed by those of another with the same columns and classes.

    With a split in the given order, the first one can be the reference part or the second one the test part.

    Attributes:
        first: First data set.
        second: Second data set.
    """

    first: Any = field(metadata={"kind": "data"})
    second: Any = field(metadata={"kind": "data"})

    def load(self, *, seed: int = 0) -> Examples:
        """Return the rows of both, each loaded with this seed.

        Raises: DataError if their columns or classes differ.
        """
        first, second = self.first.load(seed=seed), self.second.load(seed=seed)
        if isinstance(first.features, pa.Table) and isinstance(second.features, pa.Table):
            fit = first.features.schema.equals(second.features.schema)
        else:
            fit = isinstance(first.features, np.ndarray) and isinstance(second.features, np.ndarray)
            fit = fit and first.features.shape[1:] == second.features.shape[1:]
        if not fit or (first.classes, first.categorical) != (second.classes, second.categorical):
            raise DataError(
                f"joined data sets must have the same columns and classes, got {first.name} with {first.classes} "
                f"classes and {second.name} with {second.classes}"
            )
        if isinstance(first.features, pa.Table):
            features: Any = pa.concat_tables([first.features, second.features]).combine_chunks()
        else:
            features = np.concatenate([first.features, second.features])
        labels = np.concatenate([first.labels, second.labels])
        both: Examples = first.with_(features=features, labels=labels)
        return both
