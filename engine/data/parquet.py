"""Parquet files."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet

from dpaudit.actors.storage.bounded_parquet import min_bytes_of_rows
from dpaudit.consent import PATH
from dpaudit.engine.data.columns import Column, check_names, examples_of, is_numeric, is_text, plain, typed
from dpaudit.engine.data.files import existing_file, fault
from dpaudit.errors import DataError, require, shortened
from dpaudit.mechanisms.examples import Examples
from dpaudit.plain_files import max_read_bytes
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
        table = self._read_table(path)

        def refuse(row: int | None, column: str, problem: str, do: str) -> DataError:
            return fault(path, problem, row=None if row is None else row + 1, column=column, do=do)

        def read_column(column: pa.ChunkedArray, name: str) -> Column:
            return typed(column, name, self.categorical, refuse)

        return examples_of(table, read_column, refuse, label=self.label, drop=self.drop, name=Path(self.path).name)

    def _read_table(self, path: Path) -> pa.Table:
        try:
            with path.open("rb") as content:
                stated_bytes = min_bytes_of_rows(content, self.rows)
            with pa.parquet.ParquetFile(path) as file:
                self._check_columns(path, file.schema_arrow)
                parts, row_count, loaded_bytes, max_bytes = [], 0, 0, max_read_bytes()
                for batch in file.iter_batches() if stated_bytes <= max_bytes else ():
                    parts.append(batch)
                    row_count += len(batch)
                    loaded_bytes += batch.nbytes
                    if loaded_bytes > max_bytes:
                        break
                    if self.rows is not None and row_count >= self.rows:
                        break
        except (pa.ArrowException, OSError, MemoryError, ValueError) as err:
            why = (str(err).splitlines() or ["no memory"])[0]
            raise fault(path, f"is not a whole Parquet file ({shortened(why)})") from err
        if (loaded_bytes := max(loaded_bytes, stated_bytes)) > max_bytes:
            why = f"takes {loaded_bytes:,} bytes or more, it must fit into half of the free memory, {max_bytes:,} bytes"
            raise fault(path, why, do="ask for fewer `rows`")
        if not row_count:
            raise fault(path, "has no rows")
        table = pa.Table.from_batches(parts).slice(0, self.rows)
        return pa.table([plain(column) for column in table.columns], names=table.column_names)

    def _check_columns(self, path: Path, schema: pa.Schema) -> None:
        named = {"categorical": self.categorical, "drop": self.drop}
        check_names(schema.names, label=self.label, named=named, path=path)
        for column in schema:
            kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
            if column.name not in self.drop and not (is_text(kind) or is_numeric(kind)):
                raise fault(path, f"must be numbers or text, got {kind}", column=column.name, do="name it in `drop`")
