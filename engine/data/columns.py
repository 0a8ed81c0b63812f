"""Named columns of numbers and text turned into examples."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dpaudit.engine.data.cells import UnclearNumbers, missing_note, spelling
from dpaudit.errors import DataError, shortened

if TYPE_CHECKING:
    from dpaudit.mechanisms.examples import Examples, Features

SAMPLE_COLUMNS = {"in_scores", "out_scores"}
"""Arrays of a `.npz` with the scores of members and of non-members, of any two lengths."""
MAX_COLUMNS = 10_000
Used = Callable[[Sequence[str]], Collection[str]]
"""Function from the names of all columns of a file to those that will be read."""
UNKNOWN = "unknown"  # a missing category

Column: TypeAlias = "NDArray[np.float64] | pa.Array"
"""Numbers (NaN where missing) or an Arrow array of strings (null where missing)."""

Refuse: TypeAlias = Callable[[int | None, str, str, str], DataError]
"""Function of (row from 0 or None for all, column, problem, remedy) that returns an error naming the place."""

Convert: TypeAlias = Callable[[pa.ChunkedArray, str, Refuse], Column]
"""Function of (cells, column, refuse) that returns numbers or categories."""

NUMBER = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"
MIN_NUMERIC_SHARE = 0.9
SAMPLE = 200
"""Number of different words of a column that are read first."""


def numbers(column: pa.ChunkedArray | pa.Array, name: str, refuse: Refuse) -> NDArray[np.float64]:
    """Return text or numbers as float64, NaN where missing."""
    try:
        values = column.cast(pa.float64())
    except pa.ArrowInvalid:
        row = _first_not_number(column)
        raise refuse(row, name, f"must be a number, got {column[row].as_py()!r}", "correct the cell") from None
    array = cast("NDArray[np.float64]", np.asarray(values, dtype=np.float64))
    too_large = np.abs(array) > np.finfo(np.float32).max
    if too_large.any():
        row = int(too_large.argmax())
        raise refuse(row, name, f"must be a finite 32-bit number, got {array[row]}", "correct the cell")
    return array


def detect(column: pa.ChunkedArray, name: str, refuse: Refuse) -> Column:
    """Return a text column as numbers if all cells are numbers, otherwise as categories.

    Raises: DataError for the first cell that is no number if at least 90 % of the cells are numbers. It is probably a
        typo or a sign for a missing value.
    """
    values, _ = spelled_numbers(column, f"column {name!r}")
    if values is not None:
        return numbers(pa.chunked_array([pa.array(values, from_pandas=True)]), name, refuse)
    column = as_texts(column)
    numeric = pc.mean(pc.match_substring_regex(column, NUMBER)).as_py() or 0.0
    if numeric < MIN_NUMERIC_SHARE:
        return column.combine_chunks()
    row = _first_not_number(column)
    problem = f"must be a number as {numeric:.4%} of the column is, got {column[row].as_py()!r}"
    raise refuse(row, name, problem, "correct it, name it in `missing`, or name the column in `categorical`")


def spelled_numbers(column: pa.ChunkedArray, place: str) -> tuple[NDArray[np.float64] | None, str]:
    """Return numbers, or texts that all spell numbers, as float64 with NaN where missing, and how they are spelled.

    The first is None for any other column, and the second "" for the usual spelling. Raises: UnclearNumbers.
    """
    if not is_text(column.type) or pa.types.is_boolean(column.type):
        return (np.asarray(column.cast(pa.float64()), np.float64), "") if is_numeric(column.type) else (None, "")
    with contextlib.suppress(pa.ArrowInvalid):
        return np.asarray(column.cast(pa.float64()), np.float64), ""
    encoded = pa.chunked_array([as_texts(column).combine_chunks()]).dictionary_encode().combine_chunks()
    words = [word.strip() for word in encoded.dictionary.to_pylist()]
    counts = np.bincount(encoded.indices.drop_null(), minlength=len(words))
    for sample in (SAMPLE, len(words)):  # a column of words is told by its first ones
        spelled = spelling(words[:sample], counts[:sample])
        if spelled.odd.any() and not spelled.unclear:
            return None, ""
    if "," in spelled.unclear:
        raise UnclearNumbers(place, spelled.unclear)
    if spelled.kind != "numbers":
        return None, ""
    places = np.asarray(encoded.indices.fill_null(len(words)))
    return np.append(spelled.values, np.nan)[places], ", ".join([spelled.how] * bool(spelled.how) + missing_note(words))


def typed(column: pa.ChunkedArray, name: str, refuse: Refuse) -> Column:
    """Return a column by its type: text and booleans as categories, numbers as numbers."""
    if is_text(column.type):
        return column.cast(pa.string()).combine_chunks()
    if not is_numeric(column.type):
        raise refuse(None, name, f"must be numbers or text, got {column.type}", "name it in `drop`")
    return numbers(column, name, refuse)


def as_texts(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return cells of any plain type as texts. Raises: DataError for lists, mappings and bytes that are not UTF-8."""
    try:
        return column.cast(pa.string())
    except pa.ArrowException as err:
        must = "a column must hold one number or text in UTF-8 in each row"
        raise DataError(f"{must}, got {shortened(column.type, 60)}; name it in `drop`") from err


def plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a dictionary column with its values decoded."""
    return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column


def is_text(kind: pa.DataType) -> bool:
    """Return True for text and booleans."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_boolean(kind))


def is_numeric(kind: pa.DataType) -> bool:
    """Return True for integers, floats and decimals."""
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def labels_of(column: pa.ChunkedArray, name: str, refuse: Refuse) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Return labels 0 .. K - 1 and the names of the K classes, sorted as integers, or else as text."""
    coded = column.cast(pa.uint8()) if pa.types.is_boolean(column.type) else column
    values, _ = spelled_numbers(coded, f"column {name!r}")
    missing = np.asarray(pc.is_null(column)) if values is None else np.isnan(values)
    if missing.any():
        raise refuse(int(missing.argmax()), name, "must hold a label, is missing", "remove the row")
    if values is None:
        texts = np.asarray(column.to_pylist(), dtype=np.str_)
        classes, labels = np.unique(texts, return_inverse=True)
        names = tuple(str(label) for label in classes)
    else:
        whole = np.isfinite(values) & (values == np.floor(values))
        if not whole.all():
            row = int((~whole).argmax())
            raise refuse(row, name, f"must hold classes, got {values[row]}", "name a column of classes in `label`")
        numeric, labels = np.unique(values, return_inverse=True)
        names = tuple(str(int(value)) for value in numeric)
    if len(names) < 2:
        raise refuse(None, name, f"must hold at least 2 classes, got only {names[0]!r}", "check `label` and `rows`")
    return labels.astype(np.int64), names


def examples_of(
    table: pa.Table,
    convert: Convert,
    refuse: Refuse,
    *,
    place: object,
    label: str,
    categorical: Collection[str] = (),
    drop: Collection[str] = (),
    name: str,
    keep_missing: bool = False,
) -> Examples:
    """Return the examples of a table: float32 of shape (n, columns) if all are numbers, else an Arrow table.

    A missing number becomes its column's mean and a missing category 'unknown', unless `keep_missing` is True.

    Args:
        convert: Function that converts a column: `typed`, `detect` or `numbers`.
        place: The file, or the table, in messages.
        label: Name of the column of labels.
        categorical: Columns of any type that hold categories.
        drop: Columns to ignore.
    """
    check_names(table.column_names, label=label, named={"categorical": categorical, "drop": drop}, place=place)
    labels, class_names = labels_of(plain(table[label]), label, refuse)
    columns: dict[str, NDArray[np.float32] | pa.Array] = {}
    for column in table.column_names:
        if column == label or column in drop:
            continue
        cells = plain(table[column])
        values = as_texts(cells).combine_chunks() if column in categorical else convert(cells, column, refuse)
        missing = np.isnan(values) if isinstance(values, np.ndarray) else np.asarray(values.is_null())
        if missing.all():
            raise refuse(None, column, "must hold a value in some row, has none", "name the column in `drop`")
        if isinstance(values, np.ndarray):
            filled = values if keep_missing else np.where(missing, np.nanmean(values), values)
            columns[column] = filled.astype(np.float32)
        else:
            columns[column] = values if keep_missing else pc.fill_null(values, UNKNOWN)
    texts = tuple(name for name, values in columns.items() if not isinstance(values, np.ndarray))
    from dpaudit.mechanisms.examples import Examples  # tables of scores make none

    features: Features = pa.table(columns) if texts else np.column_stack(list(columns.values()))
    return Examples(features, labels, len(class_names), name, texts, class_names)


def check_names(have: Sequence[str], *, label: str, named: Mapping[str, Iterable[str]], place: object) -> None:
    """Raise DataError if column names repeat, if an option names a missing column, or if there is no feature column."""
    require_distinct(str(place), have)
    listed = ", ".join(shortened(name, 60) for name in have[:20]) + (
        f", ... ({len(have)} columns)" if len(have) > 20 else ""
    )
    for option, names in {"label": (label,), **named}.items():
        for name in names:
            if name not in have:
                raise DataError(
                    f"{place}: has no column {shortened(repr(name))}, named in `{option}`; its columns are {listed}"
                )
    if not set(have) - {label, *named.get("drop", ())}:
        raise DataError(f"{place}: must have a column besides the label, its columns are {listed}")


def every(names: Sequence[str]) -> Collection[str]:
    """Return all columns."""
    return names


def fault(
    path: object, problem: str, *, line: int | None = None, row: int | None = None, column: str = "", do: str = ""
) -> DataError:
    """Return the error for a place in a file: "file, line 3, column 'I5': must be a number, got 'x'; correct the cell".

    Args:
        line: Physical line of a text file, counted from 1.
        row: Row or record of any other file, counted from 1.
    """
    place = str(path)
    place += f", line {line:,}" if line is not None else ""
    place += f", row {row:,}" if row is not None else ""
    place += f", column {column!r}" if column else ""
    return DataError(f"{place}: {problem}" + (f"; {do}" if do else ""))


@dataclass(frozen=True, eq=False)
class NamedTable:
    """Table with the name of its source.

    Attributes:
        name: Name in messages: the file's name, "standard input", "the table".
        columns: Used columns.
        unread: Names of the other columns of the file.
        line: Function from a row of a text to its line, counted from 1; None if rows are only counted.
        two_samples: True if the columns are the scores of members and of non-members; null below the shorter one.
    """

    name: str
    columns: pa.Table
    unread: tuple[str, ...] = ()
    line: Callable[[int], int] | None = None
    two_samples: bool = False

    def row(self, index: int) -> str:
        """Return the line of a row, counted from 0, or the number of the row."""
        return f"row {index + 1}" if self.line is None else f"line {self.line(index)}"

    def refuse(self, row: int | None, column: str, problem: str, do: str) -> DataError:
        """Return the error for a cell, or for a column if `row` is None."""
        place = {} if row is None else {"row": row + 1} if self.line is None else {"line": self.line(row)}
        return fault(self.name, problem, column=column, do=do, **place)


def require_width(name: str, columns: int) -> None:
    """Raise DataError for too many columns."""
    if columns > MAX_COLUMNS:
        raise DataError(f"{name} must have at most {MAX_COLUMNS:,} columns, it has {columns:,} or more")


def line_of_error(err: Exception) -> str:
    """Return the first line of an error's text, or its type."""
    lines = str(err).splitlines()
    return shortened(lines[0], 300) if lines else type(err).__name__


def require_distinct(place: str, names: Sequence[str]) -> None:
    """Raise DataError if two columns have one name."""
    name, times = Counter(names).most_common(1)[0] if names else ("", 0)
    if times > 1:
        raise DataError(f"{place} must name each column once, got {shortened(repr(name))} {times} times; rename one")


def _first_not_number(column: pa.ChunkedArray | pa.Array) -> int:
    """Return the first cell that cannot be cast to a number, by bisection."""
    low, high = 0, len(column)
    while high - low > 1:
        middle = (low + high) // 2
        try:
            column.slice(low, middle - low).cast(pa.float64())
            low = middle
        except pa.ArrowInvalid:
            high = middle
    return low
