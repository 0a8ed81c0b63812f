"""Values as Arrow tables and back: a frozen dataclass of arrays and scalars, or a sequence of such.

One value is one row: each field is a column. An array is a list, with its shape where it is no vector; a dataclass
inside becomes columns called "outer.inner"; a table is its IPC stream. The arrays of a dataclass with the class
variable `ROWS` are columns of equal length, a matrix a column of lists: many values one below the other, a row for each
score or example. A field with `metadata={"stored": "float32"}` is kept so. The reader names the dataclass, a file never
does.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dpaudit.errors import RunError, require

LENGTHS = b"lengths"  # metadata of a table with `ROWS`: how many rows each value has
_STORED: dict[type[Any], tuple[Any, pa.DataType]] = {
    bool: (np.bool_, pa.bool_()),
    int: (np.int64, pa.int64()),
    float: (np.float64, pa.float64()),
    str: (None, pa.string()),
    bytes: (None, pa.large_binary()),
}


def encode(values: Iterable[Any], kind: type[Any]) -> pa.Table:
    if getattr(kind, "ROWS", False):
        return _rows_of(values, kind)
    return pa.table(dict(_columns(list(values), kind, "")))


def decode(table: pa.Table, kind: type[Any]) -> list[Any]:
    """The values of a table, arrays as copies that may be written to; RunError when it holds something else."""
    if not table.num_rows and not table.num_columns:
        return []
    try:
        if getattr(kind, "ROWS", False):
            return list(_values_in_rows(table, kind))
        return _values(table.combine_chunks(), kind, "")
    except (KeyError, ValueError, TypeError, pa.ArrowException) as err:
        raise RunError(
            f"a stored result must be of {kind.__qualname__}, this one has the columns "
            f"{', '.join(table.column_names)}; remove its file from units/ and run again"
        ) from err


def _fields(kind: Any) -> Iterator[tuple[dataclasses.Field[Any], Any]]:
    """The fields that make an instance, with their types."""
    hints = _hints(kind)
    return ((field, hints[field.name]) for field in dataclasses.fields(kind) if field.init)


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _inner(hint: Any) -> type[Any] | None:
    """The dataclass that a field holds, if it holds one or may hold one."""
    options = typing.get_args(hint) if _is_union(hint) else (hint,)
    found = [option for option in options if isinstance(option, type) and dataclasses.is_dataclass(option)]
    return found[0] if len(found) == 1 else None


def _is_union(hint: Any) -> bool:
    return isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union


# Arrays: `pa.array` and `to_numpy` import pandas, which takes longer than a small audit


def arrow_array(values: Sequence[Any] | NDArray[Any]) -> pa.Array:
    """What `pa.array` makes of a vector, or of plain values of one type, lists of them, and None."""
    if isinstance(values, np.ndarray):
        return _of_buffers(values) if values.dtype.kind in "biuf" and values.dtype.isnative else pa.array(values)
    kinds = {list if isinstance(value, tuple) else type(value) for value in values} - {type(None)}
    kind = float if kinds == {int, float} else kinds.pop() if len(kinds) == 1 else None
    there = None
    if any(value is None for value in values):
        there = np.array([value is not None for value in values])
    if kind is list:
        inner = arrow_array([each for value in values for each in value or ()])
        return _of_lengths(pa.list_(inner.type), [len(value or ()) for value in values], there, inner)
    if kind not in _STORED:
        return pa.nulls(len(values)) if kind is None and not kinds else pa.array(values)
    dtype, arrow = _STORED[kind]
    filled = [kind() if value is None else value for value in values]
    if dtype is None:
        texts = [text.encode() for text in filled] if kind is str else filled
        return _of_lengths(arrow, list(map(len, texts)), there, pa.py_buffer(b"".join(texts)))
    return _of_buffers(np.array(filled, dtype), there)


def _of_buffers(values: NDArray[Any], there: NDArray[np.bool_] | None = None) -> pa.Array:
    kept = np.packbits(values, bitorder="little") if values.dtype == bool else np.ascontiguousarray(values)
    buffers = [_bits(there), pa.py_buffer(kept)]
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), buffers)


def _of_lengths(kind: pa.DataType, lengths: list[int], there: NDArray[np.bool_] | None, inner: Any) -> pa.Array:
    """Texts or lists, whose letters or values are `inner`, one after the other."""
    ends = np.cumsum([0, *lengths])
    if kind != pa.large_binary():
        require(ends[-1] < 1 << 31, "texts of one column must take less than 2 GB", given=ends[-1])
        ends = ends.astype(np.int32)
    buffers = [_bits(there), pa.py_buffer(ends)]
    if isinstance(inner, pa.Array):
        return pa.Array.from_buffers(kind, len(lengths), buffers, children=[inner])
    return pa.Array.from_buffers(kind, len(lengths), [*buffers, inner])


def _bits(there: NDArray[np.bool_] | None) -> pa.Buffer | None:
    return None if there is None else pa.py_buffer(np.packbits(there, bitorder="little"))


def numpy_array(column: pa.Array) -> NDArray[Any]:
    """What `to_numpy` makes of an array; it may not be written to."""
    if column.null_count or not (pa.types.is_primitive(column.type) and not pa.types.is_temporal(column.type)):
        return np.asarray(column.to_numpy(zero_copy_only=False))
    if pa.types.is_boolean(column.type):
        return np.from_dlpack(column.cast(pa.uint8())).view(np.bool_)
    return np.from_dlpack(column)


# One row a value


def _columns(values: Sequence[Any], kind: type[Any], prefix: str) -> Iterator[tuple[str, pa.Array]]:
    for field, hint in _fields(kind):
        name = prefix + field.name
        parts = [None if value is None else getattr(value, field.name) for value in values]
        inner = _inner(hint)
        if inner is None:
            yield name, _column(parts, field.metadata.get("stored"))
        else:
            yield name, arrow_array([part is not None for part in parts])
            yield from _columns(parts, inner, f"{name}.")


def _column(parts: Sequence[Any], stored: str | None) -> pa.Array:
    first = next((part for part in parts if part is not None), None)
    if isinstance(first, np.ndarray):
        return _arrays(parts, stored)
    if isinstance(first, pa.Table):
        return arrow_array([None if part is None else _bytes_of(part) for part in parts])
    if isinstance(first, Mapping):
        return arrow_array([None if part is None else json.dumps(dict(part)) for part in parts])
    if isinstance(first, tuple | list):
        return arrow_array([None if part is None else [_plain(each) for each in part] for part in parts])
    column = arrow_array([_plain(part) for part in parts])
    return column if stored is None else column.cast(pa.from_numpy_dtype(stored))


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    return value.item() if isinstance(value, np.generic) else value


def _arrays(parts: Sequence[NDArray[Any] | None], stored: str | None) -> pa.Array:
    """Arrays as lists, with their shapes where one of them is no vector."""
    known = [np.asarray(part if part is not None else [], None if part is not None else "f8") for part in parts]
    dtype = stored or next(part.dtype for part in parts if part is not None)
    flat = [np.ascontiguousarray(array).ravel().astype(dtype, copy=False) for array in known]
    ends = np.cumsum([0, *(array.size for array in flat)])
    lists = pa.LargeListArray.from_arrays(
        arrow_array(ends.astype(np.int64)),
        arrow_array(np.concatenate(flat) if len(flat) > 1 else flat[0]),
        mask=arrow_array([part is None for part in parts]) if any(part is None for part in parts) else None,
    )
    if all(array.ndim == 1 for array in known):
        return lists
    shapes = arrow_array([list(array.shape) for array in known])
    return pa.StructArray.from_arrays([lists, shapes], ["values", "shape"])


def _bytes_of(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def _values(table: pa.Table, kind: type[Any], prefix: str) -> list[Any]:
    columns: dict[str, Iterable[Any]] = {}
    for field, hint in _fields(kind):
        name = prefix + field.name
        inner = _inner(hint)
        if inner is None:
            columns[field.name] = [_as_typed(part, hint) for part in _parts(table.column(name).combine_chunks())]
        else:
            here = numpy_array(table.column(name).combine_chunks())
            made = iter(_values(table.filter(arrow_array(here)), inner, f"{name}.") if here.any() else [])
            columns[field.name] = [next(made) if there else None for there in here]
    return [kind(**dict(zip(columns, row, strict=True))) for row in zip(*columns.values(), strict=True)]


def _parts(column: pa.Array) -> Iterable[Any]:
    """The values of a column, lists as arrays."""
    if pa.types.is_struct(column.type):
        shapes = column.field("shape").to_pylist()
        flat = _parts(column.field("values"))
        return [None if part is None else part.reshape(shape) for part, shape in zip(flat, shapes, strict=True)]
    if pa.types.is_large_list(column.type):
        values, ends = numpy_array(column.values), numpy_array(column.offsets)
        known = numpy_array(column.is_valid())
        cuts = zip(itertools.pairwise(ends), known, strict=True)
        parts = [values[first:last] if there else None for (first, last), there in cuts]
        return [part if part is None else part.astype(str) if part.dtype == object else part.copy() for part in parts]
    return column.to_pylist()  # type: ignore[no-any-return]


def _as_typed(part: Any, hint: Any) -> Any:
    """A plain value as its field has it: tables, mappings, tuples and enumerations are stored as something plainer."""
    if part is None or isinstance(part, np.ndarray):
        return part
    if isinstance(part, bytes):
        return pa.ipc.open_stream(part).read_all()
    options = typing.get_args(hint) if _is_union(hint) else (hint,)
    for option in options:
        origin = typing.get_origin(option) or option
        if origin is tuple:
            inner = (typing.get_args(option) or (Any,))[0]
            array = typing.get_origin(inner) is np.ndarray
            return tuple(np.array(each, _dtype(inner)) if array else _as_typed(each, inner) for each in part)
        if isinstance(part, str) and isinstance(origin, type) and issubclass(origin, Mapping):
            return json.loads(part)
        if isinstance(origin, type) and issubclass(origin, Enum):
            return origin(part)
    return part


def _dtype(hint: Any) -> Any:
    """The type of the numbers of `NDArray[np.int64]`."""
    return typing.get_args(typing.get_args(hint)[1])[0]


# One row a score or example


def _rows_of(values: Iterable[Any], kind: type[Any]) -> pa.Table:
    batches, lengths = [], []
    stored = {field.name: field.metadata.get("stored") for field, _ in _fields(kind)}
    for value in values:
        parts = {name: getattr(value, name) for name in stored}
        lengths.append(max(len(part) for part in parts.values() if isinstance(part, np.ndarray)))
        batches.append(pa.table({name: _row_column(part, lengths[-1], stored[name]) for name, part in parts.items()}))
    if not batches:
        return pa.table({})
    whole = pa.concat_tables(batches, promote_options="default")
    return whole.replace_schema_metadata({LENGTHS: json.dumps(lengths)})


def _row_column(part: Any, length: int, stored: str | None) -> pa.Array:
    if part is None:
        return pa.nulls(length, None if stored is None else pa.from_numpy_dtype(stored))
    if isinstance(part, np.ndarray):
        kept = part if stored is None else part.astype(stored, copy=False)
        flat = arrow_array(kept.ravel())
        return flat if kept.ndim == 1 else pa.FixedSizeListArray.from_arrays(flat, kept.shape[1])
    return arrow_array(np.full(length, part, stored))


def _values_in_rows(table: pa.Table, kind: type[Any]) -> Iterator[Any]:
    lengths = json.loads(table.schema.metadata[LENGTHS])
    arrays = {field.name: hint not in (int, float, bool, str) for field, hint in _fields(kind)}
    for first, last in itertools.pairwise(itertools.accumulate(lengths, initial=0)):
        part = table.slice(first, last - first)
        columns = {name: part.column(name) for name in arrays}
        yield kind(
            **{
                name: None if column.null_count else _array(column) if arrays[name] else column[0].as_py()
                for name, column in columns.items()
            }
        )


def _array(column: pa.ChunkedArray) -> NDArray[Any]:
    if pa.types.is_fixed_size_list(column.type):
        flat = numpy_array(column.combine_chunks().flatten()).copy()
        return flat.reshape(-1, column.type.list_size)
    return numpy_array(column.combine_chunks()).copy()
