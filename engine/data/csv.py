"""Delimited text files (CSV, TSV)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa

from dpaudit.consent import PATH
from dpaudit.engine.data import delimited
from dpaudit.engine.data.columns import Column, check_names, detect, examples_of
from dpaudit.engine.data.delimited import Layout, first_record
from dpaudit.engine.data.files import existing_file
from dpaudit.errors import require
from dpaudit.mechanisms.examples import Examples
from dpaudit.registry import register


@register("data", "csv", source="RFC 4180, any delimiter")
@dataclass(frozen=True)
class Csv:
    """A CSV file with a column of class labels, plain, .gz or .xz.

    A column is numeric if all its cells in the whole file are numbers, otherwise categorical. A missing number becomes
    its column's mean, a missing category 'unknown'. This imputation uses the features of all rows that are read. If all
    features are numeric, they are a float32 array, unscaled; otherwise an Arrow table. Labels become 0 .. K - 1 in
    numeric or alphabetic order.

    Attributes:
        path: The file.
        label: Name of the label column.
        rows: Largest number of rows, from the start; None for all.
        categorical: Numeric columns that hold codes.
        drop: Columns to ignore, such as row numbers.
        delimiter: One character.
        header: True if the first line names the columns; otherwise they are column-1, column-2, ...
        missing: Cells that stand for a missing value.
    """

    path: str = field(metadata=PATH)
    label: str
    rows: int | None = None
    categorical: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    delimiter: str = ","
    header: bool = True
    missing: tuple[str, ...] = ("", "?", "NA", "N/A", "NaN", "nan", "NULL", "null")

    def __post_init__(self) -> None:
        require(self.rows is None or self.rows >= 1, "rows must be >= 1", rows=self.rows)
        require(len(self.delimiter) == 1, "delimiter must be one character", delimiter=self.delimiter)

    def load(self, *, seed: int = 0) -> Examples:
        """Return the rows in the order of the file; `seed` is not used.

        Raises: DataError that names the file and, if known, the line and column.
        """
        path = existing_file(self.path)
        layout = self._layout(path)
        named = {"categorical": self.categorical, "drop": self.drop}
        check_names(layout.columns, label=self.label, named=named, path=path)
        table = delimited.read_table(path, layout, rows=self.rows)
        refuse = delimited.refusal(path, layout)

        def typed(column: pa.ChunkedArray, name: str) -> Column:
            return column.combine_chunks() if name in self.categorical else detect(column, name, refuse)

        return examples_of(table, typed, refuse, label=self.label, drop=self.drop, name=Path(self.path).name)

    def _layout(self, path: Path) -> Layout:
        cells, end = first_record(path, delimiter=self.delimiter, quoted=True)
        numbered = tuple(f"column-{position}" for position in range(1, len(cells) + 1))
        layout = Layout(numbered, self.delimiter, missing=self.missing)
        return replace(layout, columns=tuple(cells), skip=end) if self.header else layout
