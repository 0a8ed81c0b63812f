"""Named columns of numbers and text turned into examples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping
from typing import TypeAlias, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dpaudit.errors import DataError, shortened
from dpaudit.mechanisms.examples import Examples, Features

UNKNOWN = "unknown"  # a missing category

Column: TypeAlias = "NDArray[np.float64] | pa.Array"
"""Numbers (NaN where missing) or an Arrow array of strings (null where missing)."""

Refuse: TypeAlias = Callable[[int | None, str, str, str], DataError]
"""(row from 0 or None for all, column, problem, what to do) to the error that names the place in the file."""

NUMBER = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"
MOSTLY = 0.9


def numbers(column: pa.ChunkedArray | pa.Array, name: str, refuse: Refuse) -> NDArray[np.float64]:
    """Text or numbers as float64, NaN where missing."""
    try:
        values = column.cast(pa.float64())
    except pa.ArrowInvalid:
        row = _first_not_number(column)
        raise refuse(row, name, f"must be a number, got {column[row].as_py()!r}", "correct the cell") from None
    found = cast("NDArray[np.float64]", np.asarray(values, dtype=np.float64))
    too_large = np.abs(found) > np.finfo(np.float32).max
    if too_large.any():
        row = int(too_large.argmax())
        raise refuse(row, name, f"must be a finite 32-bit number, got {found[row]}", "correct the cell")
    return found


def detect(column: pa.ChunkedArray, name: str, refuse: Refuse) -> Column:
    """A text column as numbers when every cell is one, else as categories.

    Raises: the refusal of the first odd cell when at least 90 % of the cells are numbers: that is a typing mistake
        or a sign for a missing value, not a category.
    """
    try:
        column.cast(pa.float64())
    except pa.ArrowInvalid:
        numeric = pc.mean(pc.match_substring_regex(column, NUMBER)).as_py()
        if numeric < MOSTLY:
            return column.combine_chunks()
        row = _first_not_number(column)
        problem = f"must be a number as {numeric:.4%} of the column is, got {column[row].as_py()!r}"
        remedy = "correct it, name it in `missing`, or name the column in `categorical`"
        raise refuse(row, name, problem, remedy) from None
    return numbers(column, name, refuse)


def typed(column: pa.ChunkedArray, name: str, categorical: Container[str], refuse: Refuse) -> Column:
    """A column that has a type: text, booleans and those named in `categorical` are categories, others numbers."""
    if is_text(column.type) or name in categorical:
        return column.cast(pa.string()).combine_chunks()
    return numbers(column, name, refuse)


def plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A dictionary column as the values it stands for."""
    return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column


def is_text(kind: pa.DataType) -> bool:
    """Text or booleans."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_boolean(kind))


def is_numeric(kind: pa.DataType) -> bool:
    """Whole, floating or decimal numbers."""
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def labels_of(column: pa.ChunkedArray, name: str, refuse: Refuse) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Labels 0 .. K - 1 and the names of the K classes, whole numbers in their order, else text in its order."""
    if column.null_count:
        row = int(np.asarray(pc.is_null(column)).argmax())
        raise refuse(row, name, "must hold a label, is missing", "remove the row")
    try:
        values = column.cast(pa.float64()).to_numpy()
    except pa.ArrowInvalid:
        texts = np.asarray(column.to_pylist(), dtype=np.str_)
        classes, labels = np.unique(texts, return_inverse=True)
        names = tuple(str(one) for one in classes)
    else:
        whole = np.isfinite(values) & (values == np.floor(values))
        if not whole.all():
            row = int((~whole).argmax())
            raise refuse(row, name, f"must hold classes, got {values[row]}", "name a column of classes in `label`")
        numeric, labels = np.unique(values, return_inverse=True)
        names = tuple(str(int(one)) for one in numeric)
    if len(names) < 2:
        raise refuse(None, name, f"must hold at least 2 classes, got only {names[0]!r}", "check `label` and `rows`")
    return labels.astype(np.int64), names


def features_of(columns: Mapping[str, Column], *, keep_missing: bool = False) -> tuple[Features, tuple[str, ...]]:
    """Float32 of shape (n, columns) when all are numbers, else an Arrow table and the names of its text columns.

    A missing number becomes its column's mean, a missing category becomes 'unknown', unless they are kept.
    """
    categorical = tuple(name for name, column in columns.items() if not isinstance(column, np.ndarray))
    filled = {name: _kept(column) if keep_missing else _filled(column) for name, column in columns.items()}
    if categorical:
        return pa.table(filled), categorical
    return np.column_stack(cast("list[NDArray[np.float32]]", list(filled.values()))), ()


def examples_of(
    table: pa.Table,
    typed: Callable[[pa.ChunkedArray, str], Column],
    refuse: Refuse,
    *,
    label: str,
    drop: Iterable[str],
    name: str,
    keep_missing: bool = False,
) -> Examples:
    """Examples of a table: one column is the label, those of `drop` are left out, `typed` reads the others."""
    labels, class_names = labels_of(table[label], label, refuse)
    left_out = {label, *drop}
    columns: dict[str, Column] = {}
    for column in table.column_names:
        if column in left_out:
            continue
        columns[column] = typed(table[column], column)
        if _is_empty(columns[column]):
            raise refuse(None, column, "must hold a value in some row, has none", "name the column in `drop`")
    features, categorical = features_of(columns, keep_missing=keep_missing)
    return Examples(features, labels, len(class_names), name, categorical, class_names)


def check_names(have: Iterable[str], *, label: str, named: Mapping[str, tuple[str, ...]], path: object) -> None:
    """Refuses a column that is named in the options but is not there, and a table with nothing beside its label."""
    columns = list(have)
    counts = Counter(columns)
    twice = next((name for name in columns if counts[name] > 1), None)
    if twice is not None:
        raise DataError(f"{path}: column names must differ, got {shortened(repr(twice))} twice; rename one")
    shown = ", ".join(shortened(name, 60) for name in columns[:20]) + (
        f", ... ({len(columns)} columns)" if len(columns) > 20 else ""
    )
    for option, names in {"label": (label,), **named}.items():
        for name in names:
            if name not in counts:
                raise DataError(
                    f"{path}: has no column {shortened(repr(name))}, named in `{option}`; its columns are {shown}"
                )
    if not set(columns) - {label, *named.get("drop", ())}:
        raise DataError(f"{path}: must have a column beside the label, its columns are {shown}")


def _first_not_number(column: pa.ChunkedArray | pa.Array) -> int:
    """The first cell that does not turn into a number, by halving: only the cast itself knows what it takes."""
    low, high = 0, len(column)
    while high - low > 1:
        middle = (low + high) // 2
        try:
            column.slice(low, middle - low).cast(pa.float64())
            low = middle
        except pa.ArrowInvalid:
            high = middle
    return low


def _is_empty(column: Column) -> bool:
    missing = np.isnan(column) if isinstance(column, np.ndarray) else np.asarray(column.is_null())
    return bool(missing.all())


def _kept(column: Column) -> NDArray[np.float32] | pa.Array:
    return column.astype(np.float32) if isinstance(column, np.ndarray) else column


def _filled(column: Column) -> NDArray[np.float32] | pa.Array:
    if not isinstance(column, np.ndarray):
        return pc.fill_null(column, UNKNOWN)
    return np.where(np.isnan(column), np.nanmean(column), column).astype(np.float32)
