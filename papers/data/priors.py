"""Labels drawn from one probability for all, or from a column of priors (Busa-Fekete et al., 2024)."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dpaudit.consent import PATH
from dpaudit.engine.data.columns import fault
from dpaudit.engine.data.files import existing_file
from dpaudit.engine.data.generated import PriorData, require_size
from dpaudit.engine.data.table_files import read_table
from dpaudit.errors import require


@dataclass(frozen=True)
class OnePrior(PriorData):
    """Generated: labels independent of the features, each 1 with the same probability.

    Attributes:
        positives: P[label = 1], in [0, 1].
        rows: Number of examples, >= 1.
    """

    positives: float = 0.03
    rows: int = 100_000

    def __post_init__(self) -> None:
        require(0 <= self.positives <= 1, "positives must be in [0, 1]", positives=self.positives)
        require(self.rows >= 1, "rows must be >= 1", rows=self.rows)
        require_size(self.rows, 1)

    def priors(self, rng: np.random.Generator) -> NDArray[np.float64]:
        """Return one prior for all rows."""
        return np.full(self.rows, self.positives)

    def __str__(self) -> str:
        return f"labels that are 1 with probability {self.positives:g}"


@dataclass(frozen=True)
class OwnPriors(PriorData):
    """P[label = 1] from a column of your table; labels are drawn from it.

    Attributes:
        path: The file.
        column: The column of priors, each in [0, 1].
    """

    path: str = field(metadata=PATH)
    column: str = "prior"

    def priors(self, rng: np.random.Generator) -> NDArray[np.float64]:
        """Return the priors in the order of the file."""
        path = existing_file(self.path)
        try:
            table = read_table(path, lambda names: {self.column}).columns
            priors = np.asarray(table[self.column].cast(pa.float64()).to_numpy(), np.float64)
        except (KeyError, pa.ArrowInvalid, pa.ArrowNotImplementedError) as err:
            raise fault(
                path, "must hold a column of numbers", column=self.column, do="set the option `column`"
            ) from err
        if not ((priors >= 0) & (priors <= 1)).all():  # rejects missing values too
            raise fault(path, "must hold probabilities in [0, 1]", column=self.column)
        return priors

    def __str__(self) -> str:
        return "own priors"
