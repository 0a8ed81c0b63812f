"""Criteo's click logs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dpaudit.consent import PATH
from dpaudit.engine.data.columns import UNKNOWN, numbers
from dpaudit.engine.data.delimited import Layout, line_of, tables
from dpaudit.engine.data.files import existing, fault, in_order
from dpaudit.errors import DataError, require
from dpaudit.mechanisms.examples import Examples
from dpaudit.registry import register

NUMERIC = tuple(f"I{column}" for column in range(1, 14))
CATEGORICAL = tuple(f"C{column}" for column in range(1, 27))
CLASS_NAMES = ("no click", "click")
LAYOUT = Layout(("label", *NUMERIC, *CATEGORICAL), delimiter="\t", quoted=False)


@register("data", "criteo", source="Criteo 1TB and Kaggle click logs; preparation of Wu et al. (2023)")
@dataclass(frozen=True)
class Criteo:
    """Click logs as tab-separated text: label, 13 numbers, 26 hashed categories; plain, .gz or .xz, file or folder.

    A missing number becomes the mean over the rows with the same C7, where they have one, else the column's mean; a
    missing category becomes 'unknown'. Only features are looked at for that, over all rows kept. The features are an
    Arrow table of float32 columns I1 .. I13 and string columns C1 .. C26.

    Attributes:
        path: The file, or a folder whose files are read one after another (day_2 before day_10).
        rows: At most this many rows are kept, from the start; all when None.
        keep: Each row is kept with this probability, in (0, 1]; the paper's data are 1M rows of a day kept with 0.05.
    """

    path: str = field(metadata=PATH)
    rows: int | None = None
    keep: float = 1.0

    def __post_init__(self) -> None:
        require(self.rows is None or self.rows >= 1, "rows must be >= 1", rows=self.rows)
        require(0 < self.keep <= 1, "keep must be in (0, 1]", keep=self.keep)

    def load(self, *, seed: int = 0) -> Examples:
        """The rows in the order of the log; `seed` decides which are kept when `keep` < 1.

        Raises: DataError naming the file, line and column.
        """
        rng = np.random.default_rng(np.random.SeedSequence(seed))
        parts: list[pa.Table] = []
        left = self.rows
        for part in self._kept(existing(self.path), rng):
            parts.append(part.slice(0, left))
            left = None if left is None else left - len(parts[-1])
            if left == 0:
                break
        if not sum(map(len, parts)):
            raise fault(existing(self.path), "has no rows", do="check `path` and `keep`")
        table = pa.concat_tables(parts).combine_chunks()
        labels = table["label"].to_numpy().astype(np.int64)
        return Examples(imputed(table), labels, 2, "criteo", CATEGORICAL, CLASS_NAMES)

    def _kept(self, path: Path, rng: np.random.Generator) -> Iterator[pa.Table]:
        for file in in_order(path):
            start = 0
            for cells in tables(file, LAYOUT):
                rows = start + np.flatnonzero(rng.random(len(cells)) < self.keep)
                kept = cells.take(pa.array(rows - start)) if self.keep < 1 else cells
                yield _typed(kept, file, rows)
                start += len(cells)


def imputed(table: pa.Table) -> pa.Table:
    """The features without gaps: numbers by the mean of their C7 group, else of their column; categories 'unknown'.

    Args:
        table: Columns `NUMERIC` (NaN where missing) and `CATEGORICAL` (null where missing).
    Returns: Float32 and string columns, in this order.
    """
    categories = {name: pc.fill_null(table[name], UNKNOWN) for name in CATEGORICAL}
    groups = categories["C7"].combine_chunks().dictionary_encode().indices.to_numpy()
    filled = {name: _filled(np.asarray(table[name], np.float64), groups) for name in NUMERIC}
    return pa.table({**filled, **categories})


def _filled(values: NDArray[np.float64], groups: NDArray[np.int32]) -> NDArray[np.float32]:
    known = ~np.isnan(values)
    totals = np.bincount(groups[known], weights=values[known], minlength=int(groups.max()) + 1)
    counts = np.bincount(groups[known], minlength=len(totals))
    overall = values[known].mean() if known.any() else 0.0
    means = np.divide(totals, counts, out=np.full(len(totals), overall), where=counts > 0)
    return np.where(known, values, means[groups]).astype(np.float32)


def _typed(cells: pa.Table, path: Path, rows: NDArray[np.int64]) -> pa.Table:
    """Labels and numbers as numbers; `rows` are the positions of the cells in the file."""

    def refuse(row: int | None, column: str, problem: str, do: str) -> DataError:
        line = None if row is None else line_of(path, LAYOUT, int(rows[row]))
        return fault(path, problem, line=line, column=column, do=do)

    odd = pc.index(pc.is_in(cells["label"], value_set=pa.array(["0", "1"])), False).as_py()
    if odd >= 0:
        raise refuse(odd, "label", f"must be 0 or 1, got {cells['label'][odd].as_py() or ''!r}", "correct the cell")
    typed: Mapping[str, object] = {
        "label": cells["label"].cast(pa.int8()),
        **{name: numbers(cells[name], name, refuse) for name in NUMERIC},
        **{name: cells[name] for name in CATEGORICAL},
    }
    return pa.table(typed)
