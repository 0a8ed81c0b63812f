"""Rows of a table with a schema, for functions on rows and generators: from files, or from frames in memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dpaudit.consent import PATH
from dpaudit.engine.data.cells import MISSING_WORDS, read_as_line
from dpaudit.engine.data.columns import as_texts, is_text, plain, spelled_numbers
from dpaudit.engine.data.delimited import Text
from dpaudit.engine.data.files import existing_file
from dpaudit.engine.data.table_files import read_table
from dpaudit.errors import DataError, require, shortened
from dpaudit.field_checks import check_fields
from dpaudit.mechanisms.examples import Examples
from dpaudit.mechanisms.queries.row_function import TableRows
from dpaudit.mechanisms.queries.schema import Category, Number, Schema
from dpaudit.registry import register

MAX_INFERRED_WORDS = 10_000
"""Largest number of different words of a column whose schema is inferred."""
LEADING_ZERO = r"^\s*[+-]?0\d"
"""Texts such as 01234, which are codes in a column whose schema is inferred."""
INFERRED = "schema inferred from these rows"


@register("data", "rows", source="RFC 4180; Apache Parquet")
@dataclass(frozen=True)
class RowsFile:
    """A file of rows with a schema, for functions on rows and generators of tables.

    Attributes:
        path: The file: CSV, TSV, JSON lines (plain, .gz, .xz or .bz2), Parquet, or .npz.
        schema: For each column a range of numbers `[0, 100]` or words `[f, m]`; other columns are ignored. None infers
            it from the rows. That is an assumption: a schema is public, part of the claim, and not a function of the
            rows.
        rows: Largest number of rows, from the start; None for all.
        drop: Columns to ignore.
        delimiter: Separator of the cells of a text; another usual one if the first line does not hold it.
        missing: Cells of a text that stand for a missing value in every column. In columns of numbers `NA`, `null`, `-`
            and their like are missing as well.
    """

    path: str = field(metadata=PATH)
    schema: Mapping[str, Any] | None = None
    rows: int | None = None
    drop: tuple[str, ...] = ()
    delimiter: str = ","
    missing: tuple[str, ...] = ("", "?")

    def __post_init__(self) -> None:
        check_fields(self)
        require(self.rows is None or self.rows >= 1, "rows must be >= 1", rows=self.rows)
        require(len(self.delimiter) == 1, "delimiter must be one character", delimiter=self.delimiter)
        if self.schema is not None:
            Schema.of(self.schema)

    def load(self, *, seed: int = 0) -> TableRows:
        """Return the rows in the order of the file; `seed` is not used.

        Raises: DataError that names the file and the column.
        """
        path = existing_file(self.path)
        table = read_table(path, text=Text(self.delimiter, missing=self.missing), rows=self.rows).columns
        table = table.drop_columns([name for name in self.drop if name in table.column_names])
        return rows_of(table, self.schema, name=path.name)


@register("data", "example-rows", source="Ours")
@dataclass(frozen=True)
class ExampleRows:
    """The examples of another data set as rows with a schema: its features, and the class of each in the last column.

    Attributes:
        data: The data set of examples. Columns of an array of features are x1, x2, ...
        schema: As for `rows`.
        label: Name of the column of classes.
    """

    data: Any = field(metadata={"kind": "data"})
    schema: Mapping[str, Any] | None = None
    label: str = "label"

    def __post_init__(self) -> None:
        check_fields(self)
        if self.schema is not None:
            Schema.of(self.schema)

    def load(self, *, seed: int = 0) -> TableRows:
        """Return the rows in the order of the data set, which is loaded with this seed.

        Raises: DataError that names the column if cells do not fit the schema.
        """
        examples = self.data.load(seed=seed)
        if not isinstance(examples, Examples):
            raise DataError(f"example-rows must be made of examples with classes, got {type(examples).__name__}")
        features = examples.features
        if not isinstance(features, pa.Table):
            flat = np.asarray(features, np.float64).reshape(len(examples), -1)
            features = pa.table({f"x{place + 1}": flat[:, place] for place in range(flat.shape[1])})
        names = examples.class_names or tuple(map(str, range(examples.classes)))
        classes = pa.array([names[label] for label in examples.labels])
        return rows_of(features.append_column(self.label, classes), self.schema, name=examples.name)


def rows_of(table: pa.Table, schema: Mapping[str, Any] | Schema | None, *, name: str) -> TableRows:
    """Return a table as rows of a schema, which is inferred from its cells if there is none.

    Numbers in texts become numbers, and numbers and booleans become words, as the schema says.
    Raises: DataError that names the column if cells do not fit the schema.
    """
    if not len(table):
        raise DataError(f"{name}: must have rows, has none")
    columns = {column: plain(table[column]) for column in table.column_names}
    places = {column: f"{name}, column {column!r}" for column in columns}

    @cache
    def spelled(column: str) -> tuple[NDArray[np.float64] | None, str]:
        return spelled_numbers(columns[column], places[column])

    def inferred(column: str) -> Number | Category:
        return _inferred(columns[column], None if _is_code(table[column]) else spelled(column)[0], places[column])

    described = Schema({column: inferred(column) for column in columns}) if schema is None else Schema.of(schema)
    lacking = [column for column in described.columns if column not in columns]
    if lacking:
        have = ", ".join(shortened(column, 60) for column in table.column_names[:20])
        raise DataError(f"{name}: must have the column {lacking[0]!r} of the schema; its columns are {have}")
    typed = {
        column: _as_category(columns[column], kind)
        if isinstance(kind, Category)
        else _as_number(spelled(column)[0], kind, places[column])
        for column, kind in described.columns.items()
    }
    cells = pa.table(typed, schema=described.arrow())
    outside = described.outside(cells)
    if outside:
        column = outside[0]
        value = next(cell for cell in cells[column].to_pylist() if not described.columns[column].allows(cell))
        kind = described.columns[column]
        stated = f"{kind.low:g} to {kind.high:g}" if isinstance(kind, Number) else f"{len(kind.values)} words"
        raise DataError(
            f"{places[column]}: all cells must fit the schema, {stated}{' or' if kind.nullable else ', none'} missing; "
            f"got {shortened(value)}. Correct the cell or widen the schema"
        )
    hows = {column: spelled(column)[1] for column, kind in described.columns.items() if isinstance(kind, Number)}
    read_as = read_as_line([f"{column}: {how}" for column, how in hows.items() if how])
    words = ", ".join([f"{len(cells):,} rows of {name}", *([INFERRED] if schema is None else []), *read_as])
    return TableRows(cells.combine_chunks(), described, words, inferred=schema is None)


def _is_code(cells: pa.ChunkedArray) -> bool:
    """Return True for a pandas category and for texts such as 01234, which are words if the schema is inferred."""
    if not is_text(cells.type):
        return bool(pa.types.is_dictionary(cells.type))
    return bool(pc.any(pc.match_substring_regex(cells.cast(pa.string()), LEADING_ZERO)).as_py())


def _inferred(cells: pa.ChunkedArray, numbers: NDArray[np.float64] | None, place: str) -> Number | Category:
    """Return the narrowest description of a column, whose numbers are None if it holds words."""
    missing = bool(np.asarray(pc.is_null(cells, nan_is_null=True) if numbers is None else np.isnan(numbers)).any())
    if numbers is not None and not np.isnan(numbers).all():
        present = numbers[~np.isnan(numbers)]
        if not np.isfinite(present).all():
            raise DataError(f"{place}: numbers must be finite. Correct the cell or drop the column")
        whole = bool((present == np.floor(present)).all() and np.abs(present).max() < 2**53)
        return Number(float(present.min()), float(present.max()), whole=whole, nullable=missing)
    words = sorted(word for word in _as_words(cells).unique().to_pylist() if word is not None)
    if not words:
        raise DataError(f"{place}: must hold a value in some row, has none. Name it in `drop`")
    if len(words) > MAX_INFERRED_WORDS:
        raise DataError(
            f"{place}: has {len(words):,} different words, at most {MAX_INFERRED_WORDS:,} can be "
            "inferred as a category. Drop the column, or give a schema"
        )
    return Category(tuple(words), nullable=missing)


def _as_category(cells: pa.ChunkedArray, kind: Category) -> pa.ChunkedArray:
    """Return the words of a column; words such as NA are missing if the schema allows that and does not list them."""
    words = _as_words(cells)
    unlisted = [word for word in words.unique().to_pylist() if word and word not in kind.values]
    missing = [word for word in unlisted if word.lower() in MISSING_WORDS and kind.nullable and not kind.any]
    is_missing = pc.is_in(words, value_set=pa.array(missing, pa.string()))
    return pc.if_else(is_missing, pa.scalar(None, pa.string()), words)


def _as_number(numbers: NDArray[np.float64] | None, kind: Number, place: str) -> pa.ChunkedArray:
    if numbers is None:
        raise DataError(f"{place}: must hold numbers, as the schema says; list its words instead")
    if kind.whole and not _is_whole(numbers):
        raise DataError(
            f"{place}: must hold whole numbers, as the schema says. Write its range as real numbers, "
            f"[{kind.low:.1f}, {kind.high:.1f}]"
        )
    return _column(numbers, whole=kind.whole)


def _as_words(cells: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return texts, null where missing; whole numbers without a point."""
    if pa.types.is_floating(cells.type):
        numbers = np.asarray(cells, np.float64)
        cells = _column(numbers, whole=_is_whole(numbers))
    return pc.utf8_trim_whitespace(as_texts(cells))


def _is_whole(numbers: NDArray[np.float64]) -> bool:
    return bool(((numbers == np.floor(numbers)) | np.isnan(numbers)).all())


def _column(numbers: NDArray[np.float64], *, whole: bool) -> pa.ChunkedArray:
    """Return numbers as an Arrow column, null where missing."""
    kind = pa.int64() if whole else pa.float64()
    return pa.chunked_array([pa.array(numbers, kind, from_pandas=True, safe=False)])


MAX_ROWS = 1_000_000


@register("data", "schema-rows", source="Ours")
@dataclass(frozen=True)
class SchemaRows:
    """Generated rows of a schema, each cell uniform on the range or the categories of its column.

    Attributes:
        schema: For each column a range of numbers `[0, 100]` (integers if both ends are) or categories `[f, m]`.
        rows: Number of rows, in 1 .. 1,000,000.
    """

    schema: Mapping[str, Any]
    rows: int = 50

    def __post_init__(self) -> None:
        check_fields(self)
        require(1 <= self.rows <= MAX_ROWS, f"rows must be in 1 .. {MAX_ROWS:,}", rows=self.rows)
        Schema.of(self.schema)

    def load(self, *, seed: int = 0) -> TableRows:
        """Return the rows that `seed` determines."""
        schema = Schema.of(self.schema)
        rng = np.random.default_rng(np.random.SeedSequence(seed))
        return TableRows(schema.draw(self.rows, rng), schema, f"{self.rows} rows of {', '.join(schema.columns)}")
