"""Conversion of frozen dataclasses of arrays and scalars to Arrow tables and back.

Each value is a row and each field a column. An array is stored as a list, with its shape unless it is a vector. A
nested dataclass is stored as columns named "outer.inner", a table as its IPC stream. Files do not name the dataclass:
the reader must. A field with `metadata={"stored": "float32"}` is stored in that type.

A dataclass with the class variable `ROWS` is stored with one row for each score or example instead: its arrays are
columns of equal length, a matrix is a column of lists, and several values are concatenated.
"""

from __future__ import annotations

import dataclasses
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
from dpaudit.field_checks import type_hints

LENGTHS = b"lengths"  # metadata of a table with `ROWS`: number of rows of each value
_ARROW_TYPES: dict[type[Any], tuple[Any, pa.DataType]] = {
    bool: (np.bool_, pa.bool_()),
    int: (np.int64, pa.int64()),
    float: (np.float64, pa.float64()),
    str: (None, pa.string()),
    bytes: (None, pa.large_binary()),
}


def encode(values: Iterable[Any], kind: type[Any]) -> pa.Table:
    if getattr(kind, "ROWS", False):
        batches, lengths = [], []
        stored = {field.name: field.metadata.get("stored") for field, _ in _fields(kind)}
        for value in values:
            parts = {name: getattr(value, name) for name in stored}
            lengths.append(max(len(part) for part in parts.values() if isinstance(part, np.ndarray)))
            batches.append(
                pa.table({name: _row_column(part, lengths[-1], stored[name]) for name, part in parts.items()})
            )
        if not batches:
            return pa.table({})
        rows = pa.concat_tables(batches, promote_options="default")
        return rows.replace_schema_metadata({LENGTHS: json.dumps(lengths)})
    return pa.table(dict(_columns(list(values), kind, "")))


def decode(table: pa.Table, kind: type[Any]) -> list[Any]:
    """Return the values of a table, with writable arrays; RunError if it does not hold values of class `kind`."""
    if not table.num_rows and not table.num_columns:
        return []
    try:
        if getattr(kind, "ROWS", False):
            return list(_decode_rows(table, kind))
        return _values(table.combine_chunks(), kind, "")
    except (KeyError, ValueError, TypeError, pa.ArrowException) as err:
        raise RunError(
            f"a stored result must hold {kind.__qualname__}, got the columns {', '.join(table.column_names)}; "
            "remove its file from units/ and run again"
        ) from err


def _fields(kind: Any) -> Iterator[tuple[dataclasses.Field[Any], Any]]:
    """Return the fields of the constructor, with their types."""
    hints = type_hints(kind)
    return ((field, hints[field.name]) for field in dataclasses.fields(kind) if field.init)


def _inner(hint: Any) -> type[Any] | None:
    """Return the dataclass in a field's type, which may be optional; None if there is none."""
    kinds = [option for option in _options(hint) if isinstance(option, type) and dataclasses.is_dataclass(option)]
    return kinds[0] if len(kinds) == 1 else None


def _options(hint: Any) -> tuple[Any, ...]:
    """Return the members of a union; other types are returned alone."""
    is_union = isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union
    return typing.get_args(hint) if is_union else (hint,)


# Conversion of arrays. `pa.array` and `to_numpy` import pandas, which takes longer than a small audit.


def arrow_array(values: Sequence[Any] | NDArray[Any]) -> pa.Array:
    """Return `pa.array(values)` for a vector, or for plain values of one type, lists of such values, and None."""
    if isinstance(values, np.ndarray):
        return _fixed_width_array(values) if values.dtype.kind in "biuf" and values.dtype.isnative else pa.array(values)
    kinds = {list if isinstance(value, tuple) else type(value) for value in values} - {type(None)}
    kind = float if kinds == {int, float} else kinds.pop() if len(kinds) == 1 else None
    is_valid = np.array([value is not None for value in values], bool)
    valid = None if is_valid.all() else is_valid
    if kind is list:
        inner = arrow_array([item for value in values for item in value or ()])
        return _variable_length_array(pa.list_(inner.type), [len(value or ()) for value in values], valid, inner)
    if kind not in _ARROW_TYPES:
        return pa.nulls(len(values)) if kind is None and not kinds else pa.array(values)
    dtype, arrow = _ARROW_TYPES[kind]
    filled = [kind() if value is None else value for value in values]
    if dtype is None:
        texts = [text.encode() for text in filled] if kind is str else filled
        return _variable_length_array(arrow, list(map(len, texts)), valid, pa.py_buffer(b"".join(texts)))
    return _fixed_width_array(np.array(filled, dtype), valid)


def _fixed_width_array(values: NDArray[Any], valid: NDArray[np.bool_] | None = None) -> pa.Array:
    data = np.packbits(values, bitorder="little") if values.dtype == bool else np.ascontiguousarray(values)
    buffers = [_validity_buffer(valid), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), buffers)


def _variable_length_array(
    kind: pa.DataType, lengths: list[int], valid: NDArray[np.bool_] | None, content: Any
) -> pa.Array:
    """Return an array of texts, bytes or lists, whose concatenated content is `content`."""
    ends = np.cumsum([0, *lengths])
    if kind != pa.large_binary():
        require(ends[-1] < 1 << 31, "texts of one column must take less than 2 GB", bytes=ends[-1])
        ends = ends.astype(np.int32)
    buffers = [_validity_buffer(valid), pa.py_buffer(ends)]
    if isinstance(content, pa.Array):
        return pa.Array.from_buffers(kind, len(lengths), buffers, children=[content])
    return pa.Array.from_buffers(kind, len(lengths), [*buffers, content])


def _validity_buffer(valid: NDArray[np.bool_] | None) -> pa.Buffer | None:
    return None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))


def numpy_array(column: pa.Array) -> NDArray[Any]:
    """Return `column.to_numpy()`, read-only."""
    if column.null_count or not (pa.types.is_primitive(column.type) and not pa.types.is_temporal(column.type)):
        return np.asarray(column.to_numpy(zero_copy_only=False))
    if pa.types.is_boolean(column.type):
        return np.from_dlpack(column.cast(pa.uint8())).view(np.bool_)
    return np.from_dlpack(column)


# Tables with one row for each value


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
        return arrow_array([None if part is None else _ipc_bytes(part) for part in parts])
    if isinstance(first, Mapping):
        return arrow_array([None if part is None else json.dumps(dict(part)) for part in parts])
    if isinstance(first, tuple | list):
        return arrow_array([None if part is None else [_plain(item) for item in part] for part in parts])
    column = arrow_array([_plain(part) for part in parts])
    return column if stored is None else column.cast(pa.from_numpy_dtype(stored))


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    return value.item() if isinstance(value, np.generic) else value


def _arrays(parts: Sequence[NDArray[Any] | None], stored: str | None) -> pa.Array:
    """Return arrays as lists, with their shapes unless all are vectors."""
    arrays = [np.asarray(part if part is not None else [], None if part is not None else "f8") for part in parts]
    # the longest string of all parts: a shorter dtype would cut the others
    dtype = stored or np.result_type(*(part.dtype for part in parts if part is not None))
    flat = [np.ascontiguousarray(array).ravel().astype(dtype, copy=False) for array in arrays]
    ends = np.cumsum([0, *(array.size for array in flat)])
    lists = pa.LargeListArray.from_arrays(
        arrow_array(ends.astype(np.int64)),
        arrow_array(np.concatenate(flat) if len(flat) > 1 else flat[0]),
        mask=arrow_array([part is None for part in parts]) if any(part is None for part in parts) else None,
    )
    if all(array.ndim == 1 for array in arrays):
        return lists
    shapes = arrow_array([list(array.shape) for array in arrays])
    return pa.StructArray.from_arrays([lists, shapes], ["values", "shape"])


def _ipc_bytes(table: pa.Table) -> bytes:
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
            present = numpy_array(table.column(name).combine_chunks())
            instances = iter(_values(table.filter(arrow_array(present)), inner, f"{name}.") if present.any() else [])
            columns[field.name] = [next(instances) if is_present else None for is_present in present]
    return [kind(**dict(zip(columns, row, strict=True))) for row in zip(*columns.values(), strict=True)]


def _parts(column: pa.Array) -> Iterable[Any]:
    """Return the values of a column, with lists as NumPy arrays."""
    if pa.types.is_struct(column.type):
        shapes = column.field("shape").to_pylist()
        flat = _parts(column.field("values"))
        return [None if part is None else part.reshape(shape) for part, shape in zip(flat, shapes, strict=True)]
    if pa.types.is_large_list(column.type):
        values, ends = numpy_array(column.values), numpy_array(column.offsets)
        valid = numpy_array(column.is_valid())
        cuts = zip(itertools.pairwise(ends), valid, strict=True)
        parts = [values[first:last] if is_valid else None for (first, last), is_valid in cuts]
        return [part if part is None else part.astype(str) if part.dtype == object else part.copy() for part in parts]
    return column.to_pylist()  # type: ignore[no-any-return]


def _as_typed(part: Any, hint: Any) -> Any:
    """Return a stored value as the type of its field: a table, mapping, tuple or enumeration."""
    if part is None or isinstance(part, np.ndarray):
        return part
    if isinstance(part, bytes):
        return pa.ipc.open_stream(part).read_all()
    for option in _options(hint):
        origin = typing.get_origin(option) or option
        if origin is tuple:
            inner = (typing.get_args(option) or (Any,))[0]
            array = typing.get_origin(inner) is np.ndarray
            return tuple(np.array(item, _dtype(inner)) if array else _as_typed(item, inner) for item in part)
        if isinstance(part, str) and isinstance(origin, type) and issubclass(origin, Mapping):
            return json.loads(part)
        if isinstance(origin, type) and issubclass(origin, Enum):
            return origin(part)
    return part


def _dtype(hint: Any) -> Any:
    """Return the dtype in `NDArray[dtype]`."""
    return typing.get_args(typing.get_args(hint)[1])[0]


# Tables with one row for each score or example


def _row_column(part: Any, length: int, stored: str | None) -> pa.Array:
    if part is None:
        return pa.nulls(length, None if stored is None else pa.from_numpy_dtype(stored))
    if isinstance(part, np.ndarray):
        array = part if stored is None else part.astype(stored, copy=False)
        flat = arrow_array(array.ravel())
        return flat if array.ndim == 1 else pa.FixedSizeListArray.from_arrays(flat, array.shape[1])
    return arrow_array(np.full(length, part, stored))


def _decode_rows(table: pa.Table, kind: type[Any]) -> Iterator[Any]:
    lengths = json.loads(table.schema.metadata[LENGTHS])
    is_array = {field.name: hint not in (int, float, bool, str) for field, hint in _fields(kind)}
    for first, last in itertools.pairwise(itertools.accumulate(lengths, initial=0)):
        part = table.slice(first, last - first)
        columns = {name: part.column(name) for name in is_array}
        yield kind(
            **{
                name: None if column.null_count else _array(column) if is_array[name] else column[0].as_py()
                for name, column in columns.items()
            }
        )


def _array(column: pa.ChunkedArray) -> NDArray[Any]:
    if pa.types.is_fixed_size_list(column.type):
        flat = numpy_array(column.combine_chunks().flatten()).copy()
        return flat.reshape(-1, column.type.list_size)
    return numpy_array(column.combine_chunks()).copy()
