"""Columns, arrays and tables of a caller as Arrow columns and tables: lists, NumPy, pandas, Arrow, tensors."""

from __future__ import annotations

import sys
from array import array as machine_array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import attrgetter
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dpaudit.actors.values import arrow_array  # `pa.array` loads pandas
from dpaudit.engine.data.columns import require_distinct
from dpaudit.errors import DataError, shortened
from dpaudit.field_checks import is_number
from dpaudit.tensors import numpy_of


def column(name: str, values: object) -> pa.ChunkedArray:
    """Return one column of plain values, null where a value is missing or masked.

    Args:
        values: An array of shape (n,), a list, a pandas Series, an Arrow array, a tensor.
    """
    with refusing(f"{name} must be one column of plain values of one type"):
        arrow_column = _column(values)
    if arrow_column is None:
        must = "one column of values, an array, a list, a pandas Series or an Arrow array"
        raise DataError(f"{name} must be {must}, got {_kind(values)}")
    if isinstance(arrow_column, pa.ExtensionArray) or pa.types.is_nested(arrow_column.type):
        raise DataError(f"{name} must be one column of values, one a row, got {shortened(arrow_column.type, 60)}")
    return arrow_column if isinstance(arrow_column, pa.ChunkedArray) else pa.chunked_array([arrow_column])


def matrix(name: str, values: object) -> NDArray[np.float64]:
    """Return an array of numbers, NaN where a number is missing or masked."""
    if callable(getattr(type(values), "toarray", None)):
        raise DataError(f"{name} must be a dense array, got a sparse matrix; write {name}.toarray()")
    must = f"{name} must be numbers, one row of the same length for each example"
    with refusing(must, "for columns of text use dpaudit.table(frame, label=...)"):
        if not (isinstance(values, list | tuple) or _is_array(values)):
            raise DataError(f"got {_kind(values)}")
        array = numpy_of(values)
        for value in array.flat if array.dtype.kind == "O" else ():
            if not (value is None or value is np.ma.masked or is_number(value) or isinstance(value, bool)):
                raise DataError(f"got {shortened(value) if isinstance(value, str) else _kind(value)}")
        if array.dtype.kind not in "biufO":
            raise DataError(f"got {array.dtype}")
        numbers = array.astype(np.float64)
        return np.ma.filled(numbers, np.nan) if isinstance(numbers, np.ma.MaskedArray) else np.asarray(numbers)


def frame(rows: object) -> pa.Table:
    """Return a data frame, an Arrow table or a mapping of columns as an Arrow table, without its index."""
    if isinstance(rows, Mapping):
        with refusing("a table must be a mapping from names to columns"):
            columns = [(name, [value] if is_number(value) else value) for name, value in rows.items()]
        require_one_index({text_of_name(name): value for name, value in columns})
        return _from_columns(columns)
    if not is_frame(rows):
        kinds = "a pandas DataFrame, an Arrow table, a frame with the Arrow interface or a mapping of columns"
        raise DataError(f"a table must be {kinds}, got {_kind(rows)}")
    table: Any = rows
    if _is_pandas(table, "DataFrame"):
        return _from_columns([(name, table.iloc[:, place]) for place, name in enumerate(table.columns)])
    with refusing("the table must have columns of one type each"):
        table = pa.Table.from_batches([table]) if isinstance(table, pa.RecordBatch) else pa.table(table)
    with refusing("the table must name its columns in UTF-8"):
        names = list(table.column_names)
    require_distinct("the table", names)
    return table.replace_schema_metadata(None)


def is_frame(value: object) -> bool:
    """True for a table of named columns of pandas, Arrow, or another library with the Arrow interface."""
    if _is_pandas(value, "DataFrame", "Series"):
        return _is_pandas(value, "DataFrame")
    return hasattr(type(value), "__arrow_c_stream__") and not isinstance(value, pa.ChunkedArray)


def require_one_index(columns: Mapping[str, object]) -> None:
    """Raise DataError for pandas Series and frames with different indices, whose rows cannot be matched."""
    indexed: list[tuple[str, Any]] = [each for each in columns.items() if _is_pandas(each[1], "Series", "DataFrame")]
    for name, value in indexed[1:]:
        first, other = indexed[0]
        if len(value) == len(other) and not value.index.equals(other.index):
            raise DataError(
                f"{first} and {name} must have one pandas index, got two that differ; align them, or write "
                ".reset_index(drop=True) for both if their rows are in the same order"
            )


def _is_pandas(value: object, *names: str) -> bool:
    """True for an object of one of these classes of pandas; does not import pandas."""
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(value, tuple(attrgetter(name)(pandas) for name in names))


def _column(values: Any) -> pa.Array | pa.ChunkedArray | None:
    """Return the values as an Arrow array, None if they are no column. Exceptions of NumPy, pandas and Arrow pass."""
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return values
    pandas = _is_pandas(values, "Series", "Index", "api.extensions.ExtensionArray")
    if pandas and _is_pandas(values.dtype, "SparseDtype"):
        values = np.asarray(values)  # with the values that are not stored
    elif hasattr(type(values), "__arrow_c_stream__") and not pandas and not is_frame(values):
        return pa.chunked_array(values)
    elif isinstance(values, range | machine_array | memoryview) or (_is_array(values) and not pandas):
        values = numpy_of(values)
    if isinstance(values, list | tuple):
        return _listed(values)
    if not (pandas or isinstance(values, np.ndarray)):
        return None
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim != 1:
        raise DataError(f"got an array of shape {values.shape}; choose a column, as in values[:, 0]")
    return _listed(values.tolist()) if values.dtype == object else _native(values)


def _native(values: Any) -> pa.Array:
    """Convert an array of NumPy or pandas to Arrow, with masked values as null."""
    if isinstance(values.dtype, np.dtype) and not values.dtype.isnative:
        values = values.astype(values.dtype.newbyteorder("="))
    if values.dtype == np.longdouble:  # Arrow has no longer floats
        values = values.astype(np.float64)
    if isinstance(values.dtype, np.dtype) and values.dtype.kind == "c":
        raise DataError(f"got {values.dtype}; give real numbers, such as abs(values)")
    if isinstance(values, np.ma.MaskedArray):
        return pa.array(values)
    return arrow_array(values) if isinstance(values, np.ndarray) else pa.array(values, from_pandas=True)


def _listed(values: Sequence[Any]) -> pa.Array:
    inside = set(map(type, values)) & {list, tuple, dict, set}
    if inside:  # Arrow would descend into them, which takes minutes if they are deeply nested
        raise DataError(f"got a {inside.pop().__name__} in it; give one value for each row")
    try:
        return pa.array(values, from_pandas=True)
    except (pa.ArrowException, ValueError, TypeError):  # scalars of NumPy and torch of several kinds
        return pa.array([_unboxed(value) for value in values], from_pandas=True)


def _unboxed(value: Any) -> Any:
    """Return a scalar of NumPy or torch as a Python value; other values unchanged."""
    if value is np.ma.masked or type(value).__name__ == "NAType":  # pandas.NA
        return None
    array = numpy_of(value) if isinstance(value, np.generic) or _is_array(value) else None
    return array.item() if array is not None and array.ndim == 0 and array.dtype.kind in "biufU" else value


def _is_array(values: object) -> bool:
    """True for an array of NumPy or another library, such as a tensor."""
    return hasattr(type(values), "__array__") and not isinstance(values, type)


def _from_columns(columns: Sequence[tuple[object, object]]) -> pa.Table:
    names = [text_of_name(name) for name, _ in columns]
    require_distinct("the table", names)
    arrow_columns = [
        column(f"column {shortened(repr(name), 60)}", values) for name, (_, values) in zip(names, columns, strict=True)
    ]
    lengths = {len(values) for values in arrow_columns}
    if len(lengths) > 1:
        listed = ", ".join(f"{len(values)} {name}" for name, values in zip(names, arrow_columns, strict=True))
        raise DataError(f"the table must have columns of one length, got {shortened(listed)}")
    return pa.Table.from_arrays(arrow_columns, names=names)


def text_of_name(name: object) -> str:
    """Return the name of a column, which may be any value in pandas, as text."""
    with refusing("the table must have columns named by text"):
        text = str(name)
        text.encode()
        return text


@contextmanager
def refusing(must: str, do: str = "") -> Iterator[None]:
    """Turn any exception that values of the caller raise into a DataError in one sentence."""
    try:
        yield
    except Exception as err:
        comma = ", " if isinstance(err, DataError) else ": "  # "got ...", of this file
        raise DataError(f"{must}{comma}{_line(err)}" + (f"; {do}" if do else "")) from err


def _line(err: Exception) -> str:
    try:
        lines = str(err).splitlines()
    except Exception:
        lines = []
    return shortened(lines[0] if lines and lines[0] else type(err).__name__, 300)


def _kind(value: object) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__
