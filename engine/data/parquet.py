"""Parquet files."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from dpaudit.consent import PATH
from dpaudit.engine.data.columns import examples_of, typed
from dpaudit.engine.data.files import existing_file, fault
from dpaudit.engine.data.table_files import NamedTable, read_parquet
from dpaudit.errors import DataError, RunError, require
from dpaudit.mechanisms.examples import Examples
from dpaudit.registry import register


@register("data", "parquet", source="Apache Parquet")
@dataclass(frozen=True)
class Parquet:
    """A Parquet file with a column of class labels.

    Number columns are numeric; text, dictionary and boolean columns are categorical. Missing values, the type of the
    features and the order of classes are as for `csv`.

    Attributes:
        path: The file.
        label: Name of the label column.
        rows: Largest number of rows, from the start; None for all.
        categorical: Numeric columns that hold codes.
        drop: Columns to ignore, such as row numbers.
    """

    path: str = field(metadata=PATH)
    label: str
    rows: int | None = None
    categorical: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require(self.rows is None or self.rows >= 1, "rows must be >= 1", rows=self.rows)

    def load(self, *, seed: int = 0) -> Examples:
        """Return the rows in the order of the file; `seed` is not used.

        Raises: DataError that names the file and, if known, the row and column.
        """
        path = existing_file(self.path)
        try:
            table = NamedTable(str(path), read_parquet(path, self.rows))
        except RunError as err:
            raise DataError(f"{err}; ask for fewer `rows`") from err
        if not len(table.columns):
            raise fault(path, "has no rows")
        return examples_of(
            table.columns,
            typed,
            table.refuse,
            place=path,
            label=self.label,
            categorical=self.categorical,
            drop=self.drop,
            name=Path(self.path).name,
        )
