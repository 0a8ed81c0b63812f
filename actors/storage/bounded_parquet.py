"""Parquet files of other people: how much they unpack to is told by their footer, and asked before they are read.

Equal values cost nothing in a file: a kilobyte may stand for thousands of millions of rows.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dpaudit.errors import DataError
from dpaudit.plain_files import max_read_bytes, require_fits_memory

ALWAYS_ALLOWED = 256 << 20  # files that unpack to so many bytes at most may do so whatever their size is
MAX_RATIO = 1_000  # so many times its size an honest file unpacks to at most, where it unpacks to more than that


def read_bounded(source: IO[bytes], name: str, columns: Sequence[str] | None = None) -> pa.Table:
    """The table in a Parquet file, where it unpacks to no more than it may.

    Raises: DataError when it unpacks to more; RunError when that does not fit into the memory; ValueError and
        pa.ArrowException when it is no such file.
    """
    texts = require_bounded(source, name, columns)
    size = source.seek(0, os.SEEK_END)
    if not texts:
        return pq.ParquetFile(source).read(columns)
    fields = [field for field in pq.ParquetFile(source).schema_arrow if columns is None or field.name in columns]
    # Each text is held once, however many rows have it, until it is known what they take together.
    file, parts, decoded_bytes = pq.ParquetFile(source, read_dictionary=texts), [], 0
    for group in range(file.num_row_groups):
        part = file.read_row_group(group, columns)
        for place, field in enumerate(fields):
            column = part.column(place)
            if column.type != field.type:
                decoded_bytes += sum(_decoded_bytes(text) for chunk in column.chunks for text in _text_arrays(chunk))
                require_unpacked_size(decoded_bytes, size, name)
                part = part.set_column(place, field, column.cast(field.type))
        parts.append(part)
    return pa.concat_tables(parts)


def require_bounded(source: IO[bytes], name: str, columns: Sequence[str] | None = None) -> list[str]:
    """Refuses a Parquet file whose values take more than they may.

    Returns: Columns of text, where it took too much if each row had the longest text; none in most files.
    Raises: DataError; RunError where they do not fit into the memory; ValueError when it is no such file.
    """
    chunks = [chunk for chunk in read_footer(source).columns if columns is None or chunk.path.split(".")[0] in columns]
    min_bytes = sum(chunk.values * chunk.width + chunk.unpacked for chunk in chunks)
    require_unpacked_size(min_bytes, source.seek(0, os.SEEK_END), name)
    max_text_bytes = sum(chunk.values * chunk.unpacked for chunk in chunks if chunk.text)
    if min_bytes + max_text_bytes <= min(ALWAYS_ALLOWED, max_read_bytes()):
        return []
    return sorted({chunk.path for chunk in chunks if chunk.text})


def min_bytes_of_rows(source: IO[bytes], rows: int | None) -> int:
    """What the first rows of a Parquet file take at the least; all when None."""
    footer = read_footer(source)
    min_bytes = sum(chunk.values * chunk.width for chunk in footer.columns)
    return min_bytes if rows is None or rows >= footer.rows else min_bytes * rows // footer.rows


def require_unpacked_size(unpacked: int, size: int, name: str, *, max_ratio: int = MAX_RATIO) -> None:
    """Refuses what unpacks to more than it may.

    Raises: DataError; RunError where it does not fit into the memory.
    """
    if unpacked > max(ALWAYS_ALLOWED, max_ratio * size):
        raise DataError(
            f"{name} must unpack to {max_ratio:,} times its size at most, its {size:,} bytes unpack to {unpacked:,}"
        )
    require_fits_memory(unpacked, name)


def _text_arrays(array: pa.Array) -> Iterator[pa.DictionaryArray]:
    """The texts in an array, at any depth."""
    if pa.types.is_dictionary(array.type):
        yield array
    elif pa.types.is_struct(array.type):
        for inner in array.flatten():
            yield from _text_arrays(inner)
    elif pa.types.is_nested(array.type):
        yield from _text_arrays(array.flatten())


def _decoded_bytes(array: pa.DictionaryArray) -> int:
    """Bytes of the texts of all rows."""
    if array.dictionary.type not in (pa.string(), pa.binary(), pa.large_string(), pa.large_binary()):
        return int(array.nbytes)
    return int(pc.sum(pc.binary_length(array.dictionary).cast(pa.int64()).take(array.indices)).as_py() or 0)


MAX_BYTES = 8 << 20  # of a footer

_WIDTHS = {0: 1, 1: 4, 2: 8, 3: 12, 4: 4, 5: 8, 6: 8}
"""Bytes of a value in memory by its physical type: boolean, three integers, two floats, and where a text begins."""
_TEXT, _FIXED = 6, 7
_SCHEMA, _ROWS, _GROUPS = 2, 3, 4  # numbers of the fields of a file; those of its parts are beside where they are read


@dataclass(frozen=True)
class ColumnSize:
    """One column of one row group."""

    path: str  # its name, with those of what it lies in before it
    values: int  # how many it has
    width: int  # bytes of each in memory, texts aside
    unpacked: int  # bytes of its pages, unpacked
    text: bool  # whether it holds texts


@dataclass(frozen=True)
class Footer:
    """The sizes that a Parquet file tells."""

    rows: int  # of the table
    columns: tuple[ColumnSize, ...]  # of all row groups


def read_footer(file: IO[bytes]) -> Footer:
    try:
        size = file.seek(0, 2)
        file.seek(max(0, size - 8))
        length, magic = struct.unpack("<I4s", file.read(8))
        if magic != b"PAR1" or not 0 < length <= min(MAX_BYTES, size - 8):
            raise ValueError("it has no footer, or one that is too long")
        file.seek(size - 8 - length)
        return _footer(_Thrift(file.read(length)).struct())
    except (IndexError, KeyError, TypeError, AttributeError, struct.error, RecursionError) as err:
        raise ValueError("its footer is none") from err


def _footer(metadata: dict[int, Any]) -> Footer:
    leaves = [element for element in metadata[_SCHEMA] if not element.get(5)]  # elements without children
    columns = tuple(column for group in metadata[_GROUPS] for column in _columns(group, leaves))
    return Footer(_nonnegative(metadata[_ROWS]), columns)


def _columns(group: dict[int, Any], leaves: list[dict[int, Any]]) -> Iterator[ColumnSize]:
    for chunk, leaf in zip(group[1], leaves, strict=True):
        column_metadata = chunk[3]
        kind = column_metadata[1]
        width = _nonnegative(leaf.get(2, 0)) if kind == _FIXED else _WIDTHS[kind]
        path = b".".join(column_metadata[3]).decode()
        values = max(_nonnegative(column_metadata[5]), _nonnegative(group[3]))
        yield ColumnSize(path, values, width, _nonnegative(column_metadata[6]), kind == _TEXT)


def _nonnegative(number: int) -> int:
    if number < 0:
        raise ValueError("it counts below zero")
    return number


class _Thrift:
    """Values of the compact protocol but maps, which no footer has; structs are dictionaries from a field's number."""

    def __init__(self, content: bytes) -> None:
        self._content, self._position = content, 0
        self._readers: dict[int, Callable[[], Any]] = {
            3: self._byte,
            4: self._number,
            5: self._number,
            6: self._number,
            7: lambda: self._bytes(8),
            8: lambda: self._bytes(self._varint()),
            9: self._list,
            10: self._list,
            12: self.struct,
        }

    def struct(self) -> dict[int, Any]:
        fields: dict[int, Any] = {}
        field = 0
        while head := self._byte():
            field = field + (head >> 4) if head >> 4 else self._number()
            kind = head & 15
            fields[field] = kind == 1 if kind in (1, 2) else self._readers[kind]()
        return fields

    def _byte(self) -> int:
        self._position += 1
        return self._content[self._position - 1]

    def _bytes(self, count: int) -> bytes:
        self._position += count
        if self._position > len(self._content):
            raise IndexError
        return self._content[self._position - count : self._position]

    def _varint(self) -> int:
        number = shift = 0
        while (byte := self._byte()) & 128:
            number |= (byte & 127) << shift
            shift += 7
        if shift > 63:
            raise ValueError("it holds a number of more than 64 bits")
        return number | byte << shift

    def _number(self) -> int:
        number = self._varint()
        return (number >> 1) ^ -(number & 1)

    def _list(self) -> list[Any]:
        head = self._byte()
        count = self._varint() if head >> 4 == 15 else head >> 4
        read_item = self._byte if head & 15 in (1, 2) else self._readers[head & 15]
        return [read_item() for _ in range(count)]
