"""One reader of tables: files of seven formats, plain or packed, folders of Parquet, data frames and mappings.

The first bytes tell the format, and the name only tells JSON lines and CSV apart. The unpacked size of a file is read
from its footer, messages, directory and headers, and checked before anything is unpacked. Only the used arrays of a
`.npz` are read.
"""

from __future__ import annotations

import ast
import json
import math
import os
import stat
import struct
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import IO, Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from dpaudit.actors.storage.bounded_parquet import (
    min_bytes_of_rows,
    read_bounded,
    require_bounded,
    require_unpacked_size,
    text_bytes,
)
from dpaudit.engine.data.columns import (
    SAMPLE_COLUMNS,
    NamedTable,
    Used,
    every,
    fault,
    line_of_error,
    require_distinct,
    require_width,
)
from dpaudit.engine.data.delimited import Text, layout_of, line_of, read_numbers, read_texts
from dpaudit.engine.data.files import PACKED, Piped, Source, content_of, reading, seekable, size_of
from dpaudit.engine.data.frames import column, frame
from dpaudit.errors import AuditError, DataError, shortened
from dpaudit.plain_files import require_fits_memory

STANDARD_INPUT = "-"
FORMATS = "CSV, TSV, JSON lines (plain, .gz, .xz or .bz2), Parquet, Feather, .npy or .npz"
ENDINGS = (".csv", ".tsv", ".txt", ".json", ".jsonl", ".ndjson", ".parquet", ".pq", ".npy", ".npz", ".feather")
"""Ends of the names of files of tables."""
MAX_LINE = 1 << 20  # bytes of a line of JSON
MAX_HEADER = 10_000  # bytes of the header of an array; NumPy's own limit
MAX_DIRECTORY = 4 << 20  # bytes of the directory of a `.npz`
MAX_TIMES_ZIPPED = 100
"""Largest ratio of unpacked to packed size of a large `.npz`: zeros are packed to 1/1,000, scores to a half."""
MAX_TIMES_PARSED = 30
"""Largest ratio of the size of a JSON list in memory to its size in the file."""
_RECORDS_AT_ONCE = 1 << 16  # records held as Python objects at once, unless their lines are longer in total than:
_BYTES_AT_ONCE = 8 << 20

Reader = Callable[[str, BinaryIO, Used, int | None], NamedTable]
"""Function of (name of the file in messages, open file, used columns, number of rows that suffice)."""


def read_table(source: object, used: Used = every, *, text: Text | None = None, rows: int | None = None) -> NamedTable:
    """Return a table from a file, or from a data frame, an Arrow table or a mapping of columns.

    Args:
        source: Path of a file or of a folder of Parquet, "-" for standard input; or a table in memory.
        used: Function from the names of a file's columns to those that will be read.
        text: Layout of a CSV or TSV file whose cells stay texts; None to have Arrow convert plain numbers.
        rows: Largest number of rows, from the start; None for all.

    Raises: DataError, in one sentence, for anything but a table within bounds; RunError if it does not fit into memory.
    """
    if not isinstance(source, Path):
        table = NamedTable("the table", frame(source))
    elif source.is_dir():
        table = NamedTable(str(source), _folder_of_parquet(source))
    else:
        opened, reader = _recognised(source)
        if reader is None:
            with _as_data_error(str(opened)):
                table = _text(opened, text, rows)
        else:
            with reading(opened) as file, _as_data_error(str(opened)):
                table = reader(str(opened), seekable(file, str(opened)), used, rows)
    return table if rows is None else replace(table, columns=table.columns.slice(0, rows))


def read_parquet(path: Path, rows: int | None = None) -> pa.Table:
    """Return the table in a Parquet file, or its first rows. Raises: DataError for another format, or if too large."""
    try:
        with path.open("rb") as file:
            return read_bounded(file, str(path), rows=rows)
    except (pa.ArrowException, OSError, MemoryError, ValueError) as err:
        raise fault(path, f"is not a whole Parquet file ({line_of_error(err)})") from err


_MARK = b"\xef\xbb\xbf"  # of UTF-8
_UNPACK = "unpack it first"
_SAVE = "write the scores as CSV, Parquet or .npz"
_PICKLED = "a pickle, which runs code when it is read"
_FOREIGN: Mapping[bytes, tuple[str, str]] = {
    b"\x28\xb5\x2f\xfd": ("a zstd file", _UNPACK),
    b"\x04\x22\x4d\x18": ("an lz4 file", _UNPACK),
    b"7z\xbc\xaf\x27\x1c": ("a 7-Zip archive", _UNPACK),
    **{b"\x80" + bytes([version]): (_PICKLED, _SAVE) for version in range(2, 6)},
    b"\x89HDF\r\n": ("an HDF5 file", _SAVE),
    b"%PDF": ("a PDF", _SAVE),
    b"FEA1": ("a Feather file of version 1", "write it again with pandas or pyarrow, which write version 2"),
    b"ORC": ("an ORC file", _SAVE),
    b"SQLite format 3": ("an SQLite database", _SAVE),
    b"MATLAB 5.0": ("a MATLAB file", _SAVE),
    b"\xd0\xcf\x11\xe0": ("a file of Microsoft Office", _SAVE),
}
"""Kinds of files that are no tables, and what to do, by their first bytes."""
_FOREIGN_ENDINGS = {
    **dict.fromkeys((".pkl", ".pickle", ".joblib", ".dill"), _PICKLED),
    **dict.fromkeys((".pt", ".pth", ".ckpt"), f"a file of torch, which may hold {_PICKLED}"),
    **dict.fromkeys((".xlsx", ".xlsm", ".ods"), "a spreadsheet"),
    ".safetensors": "a file of tensors",
    ".rds": "a file of R",
    ".rdata": "a file of R",
}
"""Kinds of files by their endings, for files whose first bytes do not tell."""


def _recognised(path: Path) -> tuple[Source, Reader | None]:
    """Return a file, or the content of a pipe, and the reader of its format; None for a text.

    The first bytes tell the format, and the ending tells CSV and a list in JSON apart.

    Raises: DataError if it is no table by its first bytes or its name.
    """
    if str(path) == STANDARD_INPUT:
        source: Source = Piped("standard input", content_of(sys.stdin.buffer, "standard input"))
    elif not path.exists():
        raise DataError(f"{path} must be a table ({FORMATS}), but it does not exist")
    else:
        with path.open("rb") as file:
            regular = stat.S_ISREG(os.fstat(file.fileno()).st_mode)
            source = path if regular else Piped(str(path), content_of(file, str(path)))
    with reading(source) as plain:
        first = plain.read(4096)
    for mark, (kind, remedy) in _FOREIGN.items():
        if first.startswith(mark):
            raise DataError(f"{source} must be a table ({FORMATS}), its first bytes are those of {kind}; {remedy}")
    foreign = _FOREIGN_ENDINGS.get(path.suffix.lower(), "")
    if foreign:
        raise DataError(f"{source} must be a table ({FORMATS}), its ending is that of {foreign}; {_SAVE}")
    for mark, reader in READERS.items():
        if first.startswith(mark):
            return source, reader
    if b"\0" in first:
        raise DataError(
            f"{source} must be text in UTF-8, it has bytes that are zero: it is probably UTF-16 or binary; save it as "
            "UTF-8"
        )
    suffixes = [suffix.lower() for suffix in path.suffixes if suffix.lower() not in PACKED]
    is_json = first.removeprefix(_MARK).lstrip()[:1] == b"{"
    return source, _json_lines if is_json or suffixes[-1:] in ([".json"], [".jsonl"], [".ndjson"]) else None


@contextmanager
def _as_data_error(name: str) -> Iterator[None]:
    """Turn the exceptions of a format's reader into a DataError of one sentence."""
    try:
        yield
    except AuditError:
        raise
    except Exception as err:  # NumPy's reader alone raises a dozen types
        raise DataError(f"{name} must be a table with named columns ({FORMATS}): {line_of_error(err)}") from err


def _folder_of_parquet(path: Path) -> pa.Table:
    import pyarrow.dataset as pads  # slow to import, because it loads pandas

    texts, unpacked = set(), 0
    try:
        parts = pads.dataset(path, format="parquet").files
        for part in parts:
            with open(part, "rb") as file:
                texts.update(require_bounded(file, part))
                unpacked += min_bytes_of_rows(file, None)
                require_fits_memory(unpacked, path)
        if parts:
            return pq.read_table(path, read_dictionary=sorted(texts))
    except (pa.ArrowException, OSError, ValueError) as err:
        must = f"{path} must be a folder of Parquet files alone: {line_of_error(err)}"
        raise DataError(f"{must}; name one file of scores") from err
    raise DataError(f"{path} must be a folder of Parquet files, it holds none; name one file of scores")


def _text(source: Source, text: Text | None, rows: int | None) -> NamedTable:
    if text is not None:
        return read_texts(source, layout_of(source, text), rows=rows)
    layout = layout_of(source, blanks=True)
    require_width(str(source), len(layout.columns))
    return NamedTable(str(source), read_numbers(source, layout), line=partial(line_of, source, layout))


def _parquet(name: str, file: BinaryIO, used: Used, rows: int | None) -> NamedTable:
    return NamedTable(name, read_bounded(file, name, rows=rows))


def _feather(name: str, file: BinaryIO, used: Used, rows: int | None) -> NamedTable:
    """Return the used columns of a Feather file of version 2, an Arrow file: a stream of messages and a footer.

    The stream is read, and not the footer, which may list other messages than those whose sizes are checked.
    """
    size = size_of(file)
    require_fits_memory(size, name)
    content = file.read()
    if not content.endswith(b"ARROW1"):
        raise ValueError("the file is incomplete")
    stream, unpacked = pa.py_buffer(content).slice(8), 0
    for message in pa.ipc.MessageReader.open_stream(stream):
        unpacked += 0 if message.type == "schema" else _unpacked_bytes(message)
        require_unpacked_size(unpacked, size, name)
    reader = pa.ipc.open_stream(stream)
    names = reader.schema.names
    require_width(name, len(names))
    require_distinct(name, names)
    wanted = set(used(names))
    for field in reader.schema:
        if field.name in wanted and not _is_plain(field.type):
            must = f"{name}: column {shortened(repr(field.name), 60)} must hold numbers, texts or dates"
            raise DataError(f"{must}, got {shortened(field.type, 60)}; write the file as Parquet")
    table = reader.read_all().select([title for title in names if title in wanted])
    table.validate(full=True)
    columns = {}
    for title, cells in zip(table.column_names, table.columns, strict=True):
        unpacked += sum(map(_repeated_bytes, cells.chunks))
        require_unpacked_size(unpacked, size, name)
        columns[title] = cells.cast(pa.large_string()) if pa.types.is_string_view(cells.type) else cells
    return NamedTable(name, pa.table(columns), tuple(title for title in names if title not in wanted))


def _unpacked_bytes(message: pa.ipc.Message) -> int:
    """Return the unpacked size of the arrays in a message as its metadata states it, with a byte for each value.

    Source: https://github.com/apache/arrow/blob/main/format/Message.fbs, and the binary format of FlatBuffers.
    """
    metadata, body = memoryview(message.metadata), memoryview(message.body)

    def field(table: int, number: int) -> int:
        """Return the position of a field of a table; 0 if it is absent."""
        at = table - struct.unpack_from("<i", metadata, table)[0]
        if 4 + 2 * number >= struct.unpack_from("<H", metadata, at)[0]:
            return 0
        offset: int = struct.unpack_from("<H", metadata, at + 4 + 2 * number)[0]
        return table + offset if offset else 0

    def target(at: int) -> int:
        return at + int(struct.unpack_from("<I", metadata, at)[0])

    def pairs(at: int) -> list[list[int]]:
        start = target(at)
        (count,) = struct.unpack_from("<I", metadata, start)
        return np.frombuffer(metadata, "<i8", 2 * count, start + 4).reshape(-1, 2).tolist()

    root = target(0)
    if field(root, 4) and struct.unpack_from("<h", metadata, field(root, 0))[0] < 4:  # hides how buffers are packed
        raise ValueError("the version of the Arrow format is too old")
    batch = target(field(root, 2))
    batch = target(field(batch, 1)) if message.type == "dictionary" else batch
    sizes = [count for count, _ in pairs(field(batch, 1))]
    for offset, length in pairs(field(batch, 2)):
        unpacked = struct.unpack_from("<q", body, offset)[0] if field(batch, 3) and length else -1
        sizes.append(length if unpacked < 0 else unpacked)
    if min(sizes, default=0) < 0:
        raise ValueError("a size is negative")
    return sum(sizes)


def _is_plain(kind: pa.DataType) -> bool:
    """Return True for numbers, texts, dates and dictionaries of them."""
    if kind == pa.string_view():
        return True
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    texts = (pa.string(), pa.large_string(), pa.binary(), pa.large_binary(), pa.null())
    return bool(pa.types.is_primitive(kind) or pa.types.is_decimal(kind) or kind in texts)


def _repeated_bytes(cells: pa.Array) -> int:
    """Return the bytes of cells that refer to values which are stored once; 0 for columns that store each value."""
    if pa.types.is_string_view(cells.type) and len(cells):
        lengths = np.frombuffer(cells.buffers()[1], "<i4")[4 * cells.offset :: 4]
        return int(np.maximum(lengths, 0).sum(dtype=np.int64))
    return text_bytes(cells) if pa.types.is_dictionary(cells.type) else 0


def _json_lines(name: str, file: BinaryIO, used: Used, rows: int | None) -> NamedTable:
    """Return the used columns of a text with one mapping on each line.

    Python's reader refuses a nesting depth that would crash Arrow's, and keeps columns that only few lines have.
    """
    names: dict[str, None] = {}
    parts: list[pa.Table] = []
    for records in _records(name, file):
        for record in records:
            if not names.keys() >= record.keys():
                names |= dict.fromkeys(record)
                require_width(name, len(names))
        wanted = set(used(list(names)))
        parts.append(pa.table({column: _column(records, column) for column in names if column in wanted}))
        require_fits_memory(sum(part.nbytes for part in parts), name)
    table = pa.concat_tables(parts, promote_options="permissive")
    unread = tuple(column for column in names if column not in set(table.column_names))
    return NamedTable(name, table, unread, line=lambda row: row + 1)


def _records(name: str, file: BinaryIO) -> Iterator[list[dict[str, Any]]]:
    """Yield the mappings in the lines of a text, some thousands at a time, or those in a list of JSON at once."""
    is_list = file.read(4096).removeprefix(_MARK).lstrip()[:1] == b"["
    file.seek(0)
    if is_list:
        require_fits_memory(MAX_TIMES_PARSED * size_of(file), name)
        must = f'{name} must hold one record a line, or a list of records such as {{"score": 0.5, "member": 1}}'
        records = _parsed(file.read(), must)
        other = next((record for record in records if not isinstance(record, dict)), None)
        if other is not None or not records:
            raise DataError(f"{must}, got {'nothing' if not records else shortened(other)}")
        yield records
        return
    lines: list[tuple[int, bytes]] = []  # numbered lines, without blank ones
    size = 0
    for number, line in enumerate(iter(lambda: file.readline(MAX_LINE + 1), b""), 1):
        if len(line) > MAX_LINE:
            raise DataError(f"{name}: line {number} must have at most {MAX_LINE:,} bytes, it has more")
        if line.strip():
            lines.append((number, line.removeprefix(_MARK)))
            size += len(line)
        if len(lines) == _RECORDS_AT_ONCE or size > _BYTES_AT_ONCE:
            yield _mappings(name, lines)
            lines, size = [], 0
    yield _mappings(name, lines)


def _mappings(name: str, lines: Sequence[tuple[int, bytes]]) -> list[dict[str, Any]]:
    """Return the mapping of each line; parsed together, and one by one only to locate an error."""
    with suppress(DataError):
        records = _parsed(b"[" + b",".join(line for _, line in lines) + b"]", name)
        if len(records) == len(lines) and all(isinstance(record, dict) for record in records):
            return list(records)
    records = []
    for number, line in lines:
        records.append(record := _parsed(line, f"{name}: line {number} must be one record in JSON and UTF-8"))
        if not isinstance(record, dict):
            must = f"{name}: line {number} must hold a mapping from columns to values"
            raise DataError(f"{must}, got {shortened(record)}")
    return records


def _parsed(text: bytes, must: str) -> Any:
    try:
        return json.loads(text.decode("utf-8-sig"))
    except RecursionError as err:
        raise DataError(f"{must}, it is nested too deep") from err
    except ValueError as err:
        raise DataError(f"{must}: {line_of_error(err)}") from err


def _column(records: Sequence[Mapping[str, Any]], name: str) -> pa.Array:
    """Return the values of a field; integers of more than 64 bits make it a column of floats."""
    values = [record.get(name) for record in records]
    try:
        return pa.array(values)
    except (OverflowError, pa.ArrowInvalid):
        if not all(value is None or type(value) in (int, float) for value in values):
            raise
        return pa.array([None if value is None else float(value) for value in values])


def _array(name: str, file: BinaryIO, used: Used, rows: int | None) -> NamedTable:
    """Return the columns of a `.npy`: score and member, or the fields of a structured array."""
    kind, shape = _array_type(name, file, size_of(file))
    file.seek(0)
    if kind.names:
        require_width(name, len(kind.names))
        wanted = [field for field in kind.names if field in set(used(kind.names))]
        for field in wanted:
            _require_column(f"{name}: column {field}", kind[field], shape)
        records = np.lib.format.read_array(file, allow_pickle=False)
        return _of_arrays(name, {field: np.ascontiguousarray(records[field]) for field in wanted}, kind.names)
    if len(shape) != 2 or shape[1] != 2:
        raise DataError(
            f"{name} must hold two columns, score and member, or be a structured array with named fields, got an array "
            f"of shape {shortened(shape)}"
        )
    _require_column(name, kind, shape[:1])
    array = np.lib.format.read_array(file, allow_pickle=False)
    return _of_arrays(name, {"score": array[:, 0], "member": array[:, 1]}, ("score", "member"))


def _archive(name: str, file: BinaryIO, used: Used, rows: int | None) -> NamedTable:
    """Return the used arrays of a `.npz`."""
    size = size_of(file)
    _require_directory(name, file, size)
    with zipfile.ZipFile(file) as archive:
        members = archive.infolist()
        names = [member.filename.removesuffix(".npy") for member in members]
        require_width(name, len(names))
        if not all(member.filename.endswith(".npy") for member in members):
            raise DataError(f"{name} must be a table ({FORMATS}), it is a zip archive of other files; {_UNPACK}")
        require_distinct(name, names)
        wanted = set(used(names))
        chosen = {column: member for column, member in zip(names, members, strict=True) if column in wanted}
        # The size in the directory also limits the bytes read of a member.
        require_unpacked_size(
            sum(member.file_size for member in chosen.values()), size, name, max_ratio=MAX_TIMES_ZIPPED
        )
        for column, member in chosen.items():
            place = f"{name}: array {shortened(column)}"
            if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise DataError(f"{place} must be packed as NumPy packs it")
            with archive.open(member) as unpacked:
                _require_column(place, *_array_type(place, unpacked, member.file_size))
        columns = {}
        for column, member in chosen.items():
            with archive.open(member) as unpacked:
                columns[column] = np.lib.format.read_array(unpacked, allow_pickle=False)
    return _of_arrays(name, columns, names)


def _of_arrays(name: str, arrays: Mapping[str, NDArray[Any]], names: Sequence[str]) -> NamedTable:
    """Return the table of the read arrays of a file that holds `names`; two samples may differ in length."""
    lengths, two_samples = {len(values) for values in arrays.values()}, arrays.keys() == SAMPLE_COLUMNS == set(names)
    if len(lengths) > 1 and not two_samples:
        listed = ", ".join(f"{len(values):,} {each}" for each, values in arrays.items())
        raise DataError(f"{name} must hold arrays of one length, got {shortened(listed, 400)}")
    columns = {each: column(f"{name}: {each}", values) for each, values in arrays.items()}
    for each, values in columns.items() if len(lengths) > 1 else ():
        columns[each] = pa.chunked_array([*values.chunks, pa.nulls(max(lengths) - len(values), values.type)])
    unread = tuple(each for each in names if each not in columns)
    return NamedTable(name, pa.table(columns), unread, two_samples=two_samples)


def _require_directory(name: str, file: BinaryIO, size: int) -> None:
    """Raise DataError if the directory of an archive is longer than that of `MAX_COLUMNS` columns.

    Its size is stored at the end of the file, in one of two forms. Reading a directory takes a hundred times its size.
    """
    file.seek(max(0, size - (1 << 16) - 22))
    end = file.read()
    at = end.rfind(b"PK\x05\x06")
    if at < 0 or len(end) - at < 22:
        raise ValueError("the zip archive is incomplete")
    (length,) = struct.unpack_from("<I", end, at + 12)
    large = end.rfind(b"PK\x06\x06", 0, at)
    if large >= 0 and at - large >= 56:
        length = max(length if length < 0xFFFFFFFF else 0, struct.unpack_from("<Q", end, large + 40)[0])
    if length > MAX_DIRECTORY:
        raise DataError(f"{name} must have a directory of at most {MAX_DIRECTORY:,} bytes, it has {length:,}")
    file.seek(0)


def _array_type(name: str, file: IO[bytes], size: int) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """Return the type and the shape that the header of an array file of `size` bytes states.

    Raises: DataError if the file cannot hold so many values; ValueError for another header.
    """
    version = np.lib.format.read_magic(file)
    width = 2 if version == (1, 0) else 4
    length = int.from_bytes(file.read(width), "little")
    if length > MAX_HEADER:
        raise ValueError(f"the header of an array must have at most {MAX_HEADER:,} bytes")
    header = ast.literal_eval(file.read(length).decode("utf-8" if version >= (3, 0) else "latin-1"))
    kind, shape = np.lib.format.descr_to_dtype(header["descr"]), header["shape"]
    if not isinstance(shape, tuple) or not all(type(end) is int and end >= 0 for end in shape):
        raise ValueError("the shape of an array must be whole numbers >= 0")
    unpacked, available = math.prod(shape) * kind.itemsize, size - length - width - 8
    if unpacked > available:
        states = f"{unpacked:,} bytes of shape {shortened(shape)}"
        raise DataError(f"{name} must hold what its header says, {states}, it has {available:,}")
    require_fits_memory(unpacked, name)
    return kind, shape


def _require_column(name: str, kind: np.dtype[Any], shape: tuple[int, ...]) -> None:
    """Raise DataError for anything but one column of numbers or texts."""
    if len(shape) != 1 or kind.kind not in "biufUS" or not kind.itemsize or kind.shape:
        must = f"{name} must be one column of numbers or texts"
        save = "it with .astype('float64')" if len(shape) == 1 else "one column, as in values[:, 0]"
        raise DataError(f"{must}, got {shortened(kind, 60)} of shape {shortened(shape)}; save {save}")


READERS: dict[bytes, Reader] = {b"PAR1": _parquet, b"ARROW1": _feather, b"\x93NUMPY": _array, b"PK\x03\x04": _archive}
"""Readers of formats by the first bytes of a file."""
