"""Rows that a caller in Python hands over, as columns of Arrow or an array of numbers: nothing is dropped in silence.

What is masked is missing; complex numbers, dates and objects are no numbers; sparse columns are what they stand for;
rows of two pandas indices that differ belong together in no stated way. All of it is said in one sentence, or taken
whole.
"""

from __future__ import annotations

import sys
from array import array as machine_array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dpaudit.errors import DataError, shortened
from dpaudit.given import is_number

COLUMN = "an array, a list, a pandas Series or an Arrow array"
FRAME = "a pandas DataFrame, an Arrow table, a frame that speaks Arrow or a mapping of columns"


def column(name: str, values: object) -> pa.ChunkedArray:
    """One column of plain values, null where one is missing or masked.

    Args:
        values: An array of shape (n,), a list, a pandas Series, an Arrow array, a tensor.
    """
    with refusing(f"{name} must be one column of plain values of one type"):
        made = _column(values)
    if made is None:
        raise DataError(f"{name} must be one column of values, {COLUMN}, got {_kind(values)}")
    if isinstance(made, pa.ExtensionArray) or pa.types.is_nested(made.type):
        raise DataError(f"{name} must be one column of values, one a row, got {shortened(made.type, 60)}")
    return made if isinstance(made, pa.ChunkedArray) else pa.chunked_array([made])


def matrix(name: str, values: object) -> NDArray[np.float64]:
    """An array of numbers, NaN where one is missing or masked."""
    advice = "for columns of text use dpaudit.table(frame, label=...)"
    if callable(getattr(type(values), "toarray", None)):
        raise DataError(f"{name} must be a dense array, got a sparse matrix; write {name}.toarray()")
    must = f"{name} must be numbers, one row of the same length for each example"
    if not (isinstance(values, list | tuple | np.ndarray) or _is_array(values)):
        raise DataError(f"{must}, got {_kind(values)}; {advice}")
    with refusing(must, advice):
        found = np.asanyarray(values)
        if found.dtype.kind == "O":
            _require_real(found.flat)
        elif found.dtype.kind not in "biuf":
            raise DataError(f"{must}, got {found.dtype}; {advice}")
        numbers = found.astype(np.float64)
        return np.ma.filled(numbers, np.nan) if isinstance(numbers, np.ma.MaskedArray) else np.asarray(numbers)


def frame(rows: object) -> pa.Table:
    """A data frame, an Arrow table or a mapping of columns as an Arrow table, without its index."""
    if isinstance(rows, pa.RecordBatch):
        return _named(pa.Table.from_batches([rows]))
    if isinstance(rows, pa.Table):
        return _named(rows)
    pandas = sys.modules.get("pandas")
    if pandas is not None and isinstance(rows, pandas.DataFrame):
        return _from_columns([(name, rows.iloc[:, place]) for place, name in enumerate(rows.columns)])
    if isinstance(rows, Mapping):
        with refusing("a table must be a mapping from names to columns"):
            columns = [(name, [value] if is_number(value) else value) for name, value in rows.items()]
        require_one_index({_text(name): value for name, value in columns})
        return _from_columns(columns)
    if is_frame(rows):
        with refusing("the table must have columns of one type each"):
            return _named(pa.table(rows))
    raise DataError(f"a table must be {FRAME}, got {_kind(rows)}")


def is_frame(value: object) -> bool:
    """Whether it is a table of named columns: of pandas, of Arrow, or of another maker that speaks Arrow."""
    pandas = sys.modules.get("pandas")
    if pandas is not None and isinstance(value, pandas.DataFrame | pandas.Series):
        return isinstance(value, pandas.DataFrame)
    other = hasattr(type(value), "__arrow_c_stream__") and not isinstance(value, pa.ChunkedArray)
    return isinstance(value, pa.Table | pa.RecordBatch) or other


def require_one_index(given: Mapping[str, object]) -> None:
    """Refuses Series and frames of pandas whose rows have two indices: which of them belong together is not said."""
    pandas = sys.modules.get("pandas")
    if pandas is None:
        return
    indexed = [(name, value) for name, value in given.items() if isinstance(value, pandas.Series | pandas.DataFrame)]
    for name, value in indexed[1:]:
        first, other = indexed[0]
        if len(value) == len(other) and not value.index.equals(other.index):
            raise DataError(
                f"{first} and {name} must have one pandas index, got two that differ; align them, or write "
                ".reset_index(drop=True) for both where their rows are in the same order"
            )


def _column(values: Any) -> pa.Array | pa.ChunkedArray | None:
    """As Arrow has it; None for what is no column. Raises whatever NumPy, pandas and Arrow do."""
    pandas = sys.modules.get("pandas")
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return values
    if pandas is not None and isinstance(values, pandas.Series | pandas.Index | pandas.api.extensions.ExtensionArray):
        if isinstance(values.dtype, pandas.SparseDtype):
            values = np.asarray(values)  # with the values that are not stored
        return _listed(list(values)) if values.dtype == object else _native(values)
    if isinstance(values, list | tuple):
        return _listed(values)
    if hasattr(type(values), "__arrow_c_stream__") and not is_frame(values):
        return pa.chunked_array(values)
    if isinstance(values, range | machine_array | memoryview) or _is_array(values):
        values = np.asanyarray(values)
    if not isinstance(values, np.ndarray):
        return None
    if values.ndim != 1:
        raise DataError(f"got an array of shape {values.shape}")
    return _listed(values.tolist()) if values.dtype.kind == "O" else _native(values)


def _native(values: Any) -> pa.Array:
    """Arrow's array of one of NumPy or pandas, its masked values null."""
    if isinstance(values, np.ndarray):
        return pa.array(values if values.dtype.isnative else values.astype(values.dtype.newbyteorder("=")))
    return pa.array(values, from_pandas=True)


def _listed(values: Sequence[Any]) -> pa.Array:
    inside = set(map(type, values)) & {list, tuple, dict, set}
    if inside:  # Arrow would go down into them, for minutes where they are deep
        raise DataError(f"got a {inside.pop().__name__} in it")
    try:
        return pa.array(values, from_pandas=True)
    except (pa.ArrowException, ValueError, TypeError):  # scalars of NumPy and torch of several kinds
        return pa.array([_unboxed(value) for value in values], from_pandas=True)


def _unboxed(value: Any) -> Any:
    """A scalar of NumPy or torch as Python's; other values as they are."""
    pandas = sys.modules.get("pandas")
    if value is np.ma.masked or (pandas is not None and value is pandas.NA):
        return None
    if not (isinstance(value, np.generic | np.ndarray) or _is_array(value)):
        return value
    array = np.asarray(value)
    return array.item() if array.ndim == 0 and array.dtype.kind in "biufU" else value


def _is_array(values: object) -> bool:
    """Whether it is an array of another maker, such as a tensor."""
    return hasattr(type(values), "__array__") and not isinstance(values, type)


def _require_real(values: Iterable[Any]) -> None:
    for value in values:
        if not (value is None or value is np.ma.masked or is_number(value) or isinstance(value, bool)):
            raise DataError(f"got {shortened(value) if isinstance(value, str) else _kind(value)}")


def _from_columns(columns: Sequence[tuple[object, object]]) -> pa.Table:
    names = [_text(name) for name, _ in columns]
    _require_names(names)
    made = [
        column(f"column {shortened(repr(name), 60)}", values) for name, (_, values) in zip(names, columns, strict=True)
    ]
    lengths = {len(one) for one in made}
    if len(lengths) > 1:
        listed = ", ".join(f"{len(one)} {name}" for name, one in zip(names, made, strict=True))
        raise DataError(f"the table must have columns of one length, got {shortened(listed)}")
    return pa.Table.from_arrays(made, names=names)


def _named(table: pa.Table) -> pa.Table:
    with refusing("the table must name its columns in UTF-8"):
        names = list(table.column_names)
    _require_names(names)
    return table.replace_schema_metadata(None)


def _require_names(names: Sequence[str]) -> None:
    seen = set()
    for name in names:
        if name in seen:
            twice = f"{shortened(repr(name))} {names.count(name)} times"
            raise DataError(f"the table must name each column once, got {twice}; rename one")
        seen.add(name)


def _text(name: object) -> str:
    """The name of a column; pandas takes any value for one."""
    with refusing("the table must have columns named by text"):
        text = str(name)
        text.encode()
        return text


@contextmanager
def refusing(must: str, do: str = "") -> Iterator[None]:
    """Turns what others raise while they look at values into one sentence: the caller's objects may raise anything."""
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
