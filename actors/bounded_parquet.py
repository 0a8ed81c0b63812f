"""Parquet files of other people: how much they unpack to is told by their footer, and asked before they are read.

Equal values cost nothing in a file: a kilobyte may stand for thousands of millions of rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dpaudit.errors import DataError
from dpaudit.memory import readable_bytes
from dpaudit.plain_files import require_fits

UNSUSPECTED = 256 << 20
"""Files that unpack to so many bytes at most may do so whatever their size is."""
MOST_TIMES = 1_000
"""So many times its size an honest file unpacks to at most, where it unpacks to more than that."""

_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "FLOAT": 4, "INT64": 8, "DOUBLE": 8, "INT96": 12, "BYTE_ARRAY": 8}


def read_bounded(source: pa.NativeFile, name: str, columns: Sequence[str] | None = None) -> pa.Table:
    """The table in a Parquet file, where it unpacks to no more than it may.

    Args:
        source: The file, open.
        name: What messages call it.
        columns: Names of the columns that are wanted; all when None.
    Raises: DataError when it unpacks to more; RunError when that does not fit into the memory; pa.ArrowException when
        it is no such file.
    """
    with pq.ParquetFile(source) as file:
        texts = require_unpacks(file.metadata, source.size(), name, columns)
        if not texts:
            return file.read(columns)
        wanted = [field for field in file.schema_arrow if columns is None or field.name in columns]
    with pq.ParquetFile(source, read_dictionary=texts) as file:  # each text is held once, however many rows have it
        table = file.read(columns)
    for place, field in enumerate(wanted):
        column = table.column(place)
        if column.type != field.type:
            written_out = sum(_written_out(text) for chunk in column.chunks for text in _texts(chunk))
            _require(written_out, source.size(), name)
            table = table.set_column(place, field, column.cast(field.type))
    return table


def require_unpacks(footer: pq.FileMetaData, size: int, name: str, columns: Sequence[str] | None = None) -> list[str]:
    """Refuses a Parquet file whose values take more than they may.

    Args:
        footer: Of the file.
        size: Of the file, bytes.
        name: What messages call it.
        columns: Names of the columns that are going to be read; all when None.
    Returns: Columns of text, where it took too much if each row had the longest text; none in most files.
    Raises: DataError; RunError where they do not fit into the memory.
    """
    sure, worst, texts = 0, 0, set()
    for group in (footer.row_group(number) for number in range(footer.num_row_groups)):
        for number in range(group.num_columns):
            chunk = group.column(number)
            path = chunk.path_in_schema
            if columns is not None and not any(path == name or path.startswith(f"{name}.") for name in columns):
                continue
            values = max(chunk.num_values, group.num_rows)
            width = _WIDTHS.get(chunk.physical_type) or max(1, footer.schema.column(number).length)
            sure += values * width + chunk.total_uncompressed_size
            if chunk.physical_type == "BYTE_ARRAY":
                worst += values * chunk.total_uncompressed_size
                texts.add(path)
    _require(sure, size, name)
    return sorted(texts) if sure + worst > min(UNSUSPECTED, readable_bytes()) else []


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
