"""The interface of generators of synthetic tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dpaudit.mechanisms.queries.row_function import CallLimits, RowFunction


@dataclass(frozen=True, eq=False)
class GeneratedTable:
    """A release of a generator.

    Attributes:
        table: The synthetic rows.
        measurements: Noisy measurements that it releases too, shape (n,), the same n in each release; empty for none.
    """

    table: pa.Table
    measurements: NDArray[np.float64]


@runtime_checkable
class TableGenerator(RowFunction, Protocol):
    """A generator of synthetic tables. As a function on rows, its outcomes are summaries of the released tables."""

    def generate(
        self, rows: pa.Table, count: int, seed: int, settings: Mapping[str, Any], limits: CallLimits
    ) -> GeneratedTable:
        """Return a release of `count` rows by a generator fitted on `rows`.

        Raises: TrainingError if the fit fails.
        """
        ...
