"""Parquet files of other people: how much they unpack to is told by their footer, and asked before they are read.

Equal values cost nothing in a file: a kilobyte may stand for thousands of millions of rows.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import IO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dpaudit.actors.storage.parquet_footer import read_footer
from dpaudit.errors import DataError
from dpaudit.plain_files import readable_bytes, require_fits

UNSUSPECTED = 256 << 20
"""Files that unpack to so many bytes at most may do so whatever their size is."""
MOST_TIMES = 1_000
"""So many times its size an honest file unpacks to at most, where it unpacks to more than that."""


def read_bounded(source: IO[bytes], name: str, columns: Sequence[str] | None = None) -> pa.Table:
    """The table in a Parquet file, where it unpacks to no more than it may.

    Args:
        source: The file, open.
        name: What messages call it.
        columns: Names of the columns that are wanted; all when None.
    Raises: DataError when it unpacks to more; RunError when that does not fit into the memory; ValueError and
        pa.ArrowException when it is no such file.
    """
    texts = require_unpacks(source, name, columns)
    size = source.seek(0, os.SEEK_END)
    if not texts:
        return pq.ParquetFile(source).read(columns)
    fields = [field for field in pq.ParquetFile(source).schema_arrow if columns is None or field.name in columns]
    # Each text is held once, however many rows have it, until it is known what they take together.
    file, parts, written_out = pq.ParquetFile(source, read_dictionary=texts), [], 0
    for group in range(file.num_row_groups):
        part = file.read_row_group(group, columns)
        for place, field in enumerate(fields):
            column = part.column(place)
            if column.type != field.type:
                written_out += sum(_written_out(text) for chunk in column.chunks for text in _texts(chunk))
                _require(written_out, size, name)
                part = part.set_column(place, field, column.cast(field.type))
        parts.append(part)
    return pa.concat_tables(parts)


def require_unpacks(source: IO[bytes], name: str, columns: Sequence[str] | None = None) -> list[str]:
    """Refuses a Parquet file whose values take more than they may.

    Args:
        source: The file, open.
        name: What messages call it.
        columns: Names of the columns that are going to be read; all when None.
    Returns: Columns of text, where it took too much if each row had the longest text; none in most files.
    Raises: DataError; RunError where they do not fit into the memory; ValueError when it is no such file.
    """
    chunks = [chunk for chunk in read_footer(source).columns if columns is None or chunk.path.split(".")[0] in columns]
    sure = sum(chunk.values * chunk.width + chunk.unpacked for chunk in chunks)
    _require(sure, source.seek(0, os.SEEK_END), name)
    worst = sum(chunk.values * chunk.unpacked for chunk in chunks if chunk.text)
    if sure + worst <= min(UNSUSPECTED, readable_bytes()):
        return []
    return sorted({chunk.path for chunk in chunks if chunk.text})


def bytes_of_rows(source: IO[bytes], rows: int | None) -> int:
    """What the first rows of a Parquet file take at the least; all when None.

    Raises: ValueError when it is no such file.
    """
    footer = read_footer(source)
    sure = sum(chunk.values * chunk.width for chunk in footer.columns)
    return sure if rows is None or rows >= footer.rows else sure * rows // footer.rows


def _require(unpacked: int, size: int, name: str) -> None:
    if unpacked > max(UNSUSPECTED, MOST_TIMES * size):
        raise DataError(
            f"{name} must unpack to {MOST_TIMES:,} times its size at most, its {size:,} bytes unpack to {unpacked:,}"
        )
    require_fits(unpacked, name)


def _texts(array: pa.Array) -> Iterator[pa.DictionaryArray]:
    """The texts in an array, at any depth."""
    if pa.types.is_dictionary(array.type):
        yield array
    elif pa.types.is_struct(array.type):
        for inner in array.flatten():
            yield from _texts(inner)
    elif pa.types.is_nested(array.type):
        yield from _texts(array.flatten())


def _written_out(array: pa.DictionaryArray) -> int:
    """Bytes of the texts of all rows."""
    if array.dictionary.type not in (pa.string(), pa.binary(), pa.large_string(), pa.large_binary()):
        return int(array.nbytes)
    return int(pc.sum(pc.binary_length(array.dictionary).cast(pa.int64()).take(array.indices)).as_py() or 0)
