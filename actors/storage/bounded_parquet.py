"""Read untrusted Parquet files after checking in the footer how large they unpack.

Repeated values compress so well that a kilobyte may unpack to billions of rows.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dpaudit.errors import DataError
from dpaudit.plain_files import max_read_bytes, require_fits_memory

ALWAYS_ALLOWED = 256 << 20  # bytes to which a file of any size may unpack
MAX_RATIO = 1_000  # maximum ratio of unpacked to packed bytes above that


def read_bounded(
    source: IO[bytes], name: str, columns: Sequence[str] | None = None, *, rows: int | None = None
) -> pa.Table:
    """Return the table in a Parquet file whose unpacked size is within limits; only its first `rows` rows if given.

    Raises: DataError if it unpacks to more. RunError if it does not fit into memory. ValueError and pa.ArrowException
        for another format.
    """
    if rows is not None and rows < read_footer(source).rows:
        return _first_rows(source, name, columns, rows)
    texts = require_bounded(source, name, columns)
    size = source.seek(0, os.SEEK_END)
    if not texts:
        return pq.ParquetFile(source).read(columns)
    fields = [field for field in pq.ParquetFile(source).schema_arrow if columns is None or field.name in columns]
    # Dictionaries hold each text once until the size of all rows is known.
    file, parts, decoded_bytes = pq.ParquetFile(source, read_dictionary=texts), [], 0
    for group in range(file.num_row_groups):
        part = file.read_row_group(group, columns)
        for place, field in enumerate(fields):
            column = part.column(place)
            if column.type != field.type:
                decoded_bytes += sum(text_bytes(text) for chunk in column.chunks for text in _text_arrays(chunk))
                require_unpacked_size(decoded_bytes, size, name)
                part = part.set_column(place, field, column.cast(field.type))
        parts.append(part)
    return pa.concat_tables(parts)


def read_groups(source: IO[bytes], name: str, groups: Sequence[int], columns: Sequence[str]) -> Iterator[pa.Table]:
    """Yield row groups of a Parquet file one at a time, each within the limits of a file; texts are dictionaries.

    Raises: as `read_bounded`.
    """
    size, chunks = source.seek(0, os.SEEK_END), read_footer(source).columns
    texts = sorted({chunk.path for chunk in chunks if chunk.text and chunk.path in columns})
    file = pq.ParquetFile(source, read_dictionary=texts)
    leaves = len(chunks) // max(1, file.num_row_groups)
    for group in groups:
        used = [chunk for chunk in chunks[group * leaves :][:leaves] if chunk.path.split(".")[0] in columns]
        unpacked = sum(chunk.values * chunk.width + chunk.unpacked for chunk in used)
        require_unpacked_size(unpacked, size, name)
        cells = file.read_row_group(group, list(columns))
        unpacked += sum(
            text_bytes(chunk) for text in texts for chunk in cells[text].chunks if pa.types.is_dictionary(chunk.type)
        )
        require_unpacked_size(unpacked, size, name)
        yield cells


def require_bounded(source: IO[bytes], name: str, columns: Sequence[str] | None = None) -> list[str]:
    """Refuse a Parquet file whose values exceed the limits.

    Returns: Columns of text, if the file would be too large with the longest text in each row; else no columns.
    Raises: DataError if the file unpacks to more. RunError if it does not fit into memory. ValueError for another
        format.
    """
    chunks = [chunk for chunk in read_footer(source).columns if columns is None or chunk.path.split(".")[0] in columns]
    min_bytes = sum(chunk.values * chunk.width + chunk.unpacked for chunk in chunks)
    require_unpacked_size(min_bytes, source.seek(0, os.SEEK_END), name)
    max_text_bytes = sum(chunk.values * chunk.unpacked for chunk in chunks if chunk.text)
    if min_bytes + max_text_bytes <= min(ALWAYS_ALLOWED, max_read_bytes()):
        return []
    return sorted({chunk.path for chunk in chunks if chunk.text})


def min_bytes_of_rows(source: IO[bytes], rows: int | None) -> int:
    """Return the minimum bytes in memory of the first `rows` rows of a Parquet file, or of all rows if None."""
    footer = read_footer(source)
    min_bytes = sum(chunk.values * chunk.width for chunk in footer.columns)
    return min_bytes if rows is None or rows >= footer.rows else min_bytes * rows // footer.rows


def require_unpacked_size(unpacked: int, size: int, name: str, *, max_ratio: int = MAX_RATIO) -> None:
    """Refuse a file of `size` bytes that unpacks to too many bytes.

    Raises: DataError if the ratio is too large; RunError if the content does not fit into memory.
    """
    if unpacked > max(ALWAYS_ALLOWED, max_ratio * size):
        raise DataError(
            f"{name} must unpack to at most {max_ratio:,} times its size, but its {size:,} bytes unpack to {unpacked:,}"
        )
    require_fits_memory(unpacked, name)


def _first_rows(source: IO[bytes], name: str, columns: Sequence[str] | None, rows: int) -> pa.Table:
    require_fits_memory(min_bytes_of_rows(source, rows), name)
    file, parts, row_count, loaded_bytes = pq.ParquetFile(source), [], 0, 0
    for batch in file.iter_batches(columns=columns):
        parts.append(batch)
        row_count, loaded_bytes = row_count + len(batch), loaded_bytes + batch.nbytes
        require_fits_memory(loaded_bytes, name)
        if row_count >= rows:
            break
    return pa.Table.from_batches(parts).slice(0, rows)


def _text_arrays(array: pa.Array) -> Iterator[pa.DictionaryArray]:
    """Yield the text arrays in an array, at any depth."""
    if pa.types.is_dictionary(array.type):
        yield array
    elif pa.types.is_struct(array.type):
        for inner in array.flatten():
            yield from _text_arrays(inner)
    elif pa.types.is_nested(array.type):
        yield from _text_arrays(array.flatten())


def text_bytes(array: pa.DictionaryArray) -> int:
    """Return the bytes of the texts of all rows."""
    if array.dictionary.type not in (pa.string(), pa.binary(), pa.large_string(), pa.large_binary()):
        return int(array.nbytes)
    return int(pc.sum(pc.binary_length(array.dictionary).cast(pa.int64()).take(array.indices)).as_py() or 0)


MAX_BYTES = 8 << 20  # maximum size of a footer

_WIDTHS = {0: 1, 1: 4, 2: 8, 3: 12, 4: 4, 5: 8, 6: 8}
"""Bytes of a value in memory by physical type: boolean, three integers, two floats, and the offset of a text."""
_TEXT, _FIXED = 6, 7
_SCHEMA, _ROWS, _GROUPS = 2, 3, 4  # field numbers of the file metadata


class ColumnSize(NamedTuple):
    """Size of one column of one row group."""

    path: str  # names of the enclosing columns and the column, joined by dots
    values: int  # number of values
    width: int  # bytes of each value in memory, without text
    unpacked: int  # bytes of its unpacked pages
    text: bool  # True if it holds text


class Footer(NamedTuple):
    """Sizes in the footer of a Parquet file."""

    rows: int
    columns: list[ColumnSize]  # of all row groups


def read_footer(file: IO[bytes]) -> Footer:
    """Return the sizes in a footer without pyarrow, which some damaged footers crash. Raises: ValueError."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - 8))
    end = file.read(8)
    length = int.from_bytes(end[:4], "little")
    if end[4:] != b"PAR1" or not 0 < length <= min(MAX_BYTES, size - 8):
        raise ValueError("it has no footer, or its footer is too long")
    file.seek(size - 8 - length)
    try:
        metadata = _Thrift(file.read(length)).struct()
        leaves = [element for element in metadata[_SCHEMA] if not element.get(5)]  # elements without children
        columns = [
            _column_size(chunk[3], leaf, rows=group[3])
            for group in metadata[_GROUPS]
            for chunk, leaf in zip(group[1], leaves, strict=True)
        ]
        return Footer(_nonnegative(metadata[_ROWS]), columns)
    except (IndexError, KeyError, TypeError, AttributeError, RecursionError) as err:
        raise ValueError("its footer is invalid") from err


def _column_size(chunk: dict[int, Any], leaf: dict[int, Any], *, rows: int) -> ColumnSize:
    kind, path = chunk[1], b".".join(chunk[3]).decode()
    width = _nonnegative(leaf.get(2, 0)) if kind == _FIXED else _WIDTHS[kind]
    values = max(_nonnegative(chunk[5]), _nonnegative(rows))
    return ColumnSize(path, values, width, _nonnegative(chunk[6]), kind == _TEXT)


def _nonnegative(number: int) -> int:
    if number < 0:
        raise ValueError("it has a negative count")
    return number


class _Thrift:
    """Reader of Thrift's compact protocol without maps, which footers do not use; structs become dictionaries."""

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
