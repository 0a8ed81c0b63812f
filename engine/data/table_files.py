"""Readers of untrusted files of tables: six formats, plain or packed, each within bounds.

The first bytes tell the format, and the name only tells CSV, TSV and JSON lines apart. The unpacked size of a file is
read from its footer, directory and headers, and checked before anything is unpacked. Only the used arrays of a `.npz`
are read.
"""

from __future__ import annotations

import ast
import io
import json
import math
import os
import re
import stat
import struct
import sys
import zipfile
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
from numpy.typing import NDArray

from dpaudit.actors.storage.bounded_parquet import (
    min_bytes_of_rows,
    read_bounded,
    require_bounded,
    require_unpacked_size,
)
from dpaudit.engine.data import delimited
from dpaudit.engine.data.columns import Refuse
from dpaudit.engine.data.delimited import Layout, first_record
from dpaudit.engine.data.files import PACKED, as_plain, fault, reading
from dpaudit.errors import AuditError, DataError, shortened
from dpaudit.plain_files import SMALL_FILE_BYTES, require_fits_memory

STANDARD_INPUT = "-"
DELIMITERS = (",", ";", "\t", "|")
FORMATS = "CSV, TSV, JSON lines (plain, .gz, .xz or .bz2), Parquet, .npy or .npz"
ENDINGS = (".csv", ".tsv", ".txt", ".json", ".jsonl", ".ndjson", ".parquet", ".pq", ".npy", ".npz", ".feather")
"""Ends of the names of files of tables, and of those that are refused with the remedy."""
MAX_COLUMNS = 10_000
MAX_LINE = 1 << 20  # bytes of a line of JSON
MAX_HEADER = 10_000  # bytes of the header of an array; NumPy's own limit
MAX_DIRECTORY = 4 << 20  # bytes of the directory of a `.npz`
MAX_TIMES_ZIPPED = 100
"""Largest ratio of unpacked to packed size of a large `.npz`: zeros are packed to 1/1,000, scores to a half."""
MAX_TIMES_PARSED = 30
"""Largest ratio of the size of a JSON list in memory to its size in the file."""
_RECORDS_AT_ONCE = 1 << 16  # records held as Python objects at once, unless their lines are longer in total than:
_BYTES_AT_ONCE = 8 << 20
_CELL = 8  # bytes of a number in memory

Used = Callable[[Sequence[str]], Collection[str]]
"""Function from the names of all columns of a file to those that will be read."""


def every(names: Sequence[str]) -> Collection[str]:
    """Return all columns."""
    return names


@dataclass(frozen=True, eq=False)
class FileContent:
    """Content of a file.

    Attributes:
        name: Name of the file in messages.
        columns: Used columns; arrays of any lengths from a `.npz`.
        unread: Names of the other columns.
        header_lines: Lines above the first row if rows are lines of a text; None if rows are only counted.
    """

    name: str
    columns: pa.Table | Mapping[str, NDArray[Any]]
    unread: tuple[str, ...] = ()
    header_lines: int | None = None


def read_file(path: Path, used: Used = every) -> FileContent:
    """Read a file by the suffix of its name, a folder of Parquet, or for "-" standard input by its first bytes.

    Raises: DataError, in one sentence, for anything but a table within bounds; RunError if it does not fit into memory.
    """
    if str(path) == STANDARD_INPUT:
        return _read_open(io.BytesIO(_read_all(sys.stdin.buffer, "standard input")), "standard input", used)
    if not path.exists():
        raise DataError(f"{path} must be a table ({FORMATS}), but it does not exist")
    with _as_data_error(str(path)):
        if path.is_dir():
            try:
                return FileContent(str(path), _folder_of_parquet(path))
            except pa.ArrowInvalid as err:
                must = f"{path} must be a folder of Parquet files alone: {line_of(err)}"
                raise DataError(f"{must}; name one file of scores") from err
        with path.open("rb") as file:
            regular = stat.S_ISREG(os.fstat(file.fileno()).st_mode)
            return _read_open(file if regular else io.BytesIO(_read_all(file, str(path))), str(path), used)
    raise AssertionError("unreachable")


def read_cells(
    path: Path, *, delimiter: str = ",", header: bool = True, missing: Sequence[str] = ("",), rows: int | None = None
) -> tuple[pa.Table, Refuse]:
    """Return the first rows of a file of any format, and a function that returns an error with the place of a cell.

    Cells of CSV and TSV are texts.

    Args:
        delimiter: Separator of cells; another usual one if the first line does not hold it.
        header: False if the first line is a row.
        missing: Texts that stand for a missing value in every column.
    """
    with reading(path) as file:
        first = file.read(_FIRST)
    _require_kind(str(path), first, format_name := _detected_format(str(path), first))
    if format_name in ("csv", "tsv"):
        layout = layout_of(path, delimiter, header, missing)
        return delimited.read_table(path, layout, rows=rows), delimited.refusal(path, layout)
    columns = read_file(path).columns

    def refuse(row: int | None, column: str, problem: str, do: str) -> DataError:
        return fault(path, problem, row=None if row is None else row + 1, column=column, do=do)

    table = columns if isinstance(columns, pa.Table) else pa.table(dict(columns))
    if not len(table):
        raise fault(path, "has no rows")
    return table.slice(0, rows), refuse


def layout_of(path: Path, delimiter: str = ",", header: bool = True, missing: Sequence[str] = ("",)) -> Layout:
    """Return the layout of a text by its first line."""
    line = " ".join(first_record(path, delimiter="\n", quoted=False)[0])
    unquoted = re.sub('"[^"]*"', "", line)
    mark = delimiter if delimiter in unquoted else max((delimiter, *DELIMITERS), key=unquoted.count)
    cells, end = first_record(path, delimiter=mark, quoted=True)
    names = cells if header else [f"column-{position}" for position in range(1, len(cells) + 1)]
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise fault(path, f"column names must differ, got {shortened(twice[0])!r} twice", do="rename one")
    return Layout(tuple(names), mark, skip=end if header else 0, missing=tuple(missing))


def require_width(name: str, columns: int) -> None:
    """Raise DataError for too many columns."""
    if columns > MAX_COLUMNS:
        raise DataError(f"{name} must have at most {MAX_COLUMNS:,} columns, it has {columns:,} or more")


def line_of(err: Exception) -> str:
    """Return the first line of an error's text, or its type."""
    lines = str(err).splitlines()
    return shortened(lines[0], 300) if lines else type(err).__name__


_FIRST = 1 << 20  # bytes that tell format and layout
_UNPACK = "unpack it first"
_SAVE = "write the scores as CSV, Parquet or .npz"
_KINDS: tuple[tuple[bytes, str, str, str], ...] = (  # first bytes, kind, format, remedy
    (b"PAR1", "a Parquet file", "parquet", ""),
    (b"\x93NUMPY", "an array of NumPy", "npy", ""),
    (b"PK\x03\x04", "a zip archive", "npz", _UNPACK),
    (b"\x28\xb5\x2f\xfd", "a zstd file", "", _UNPACK),
    (b"\x04\x22\x4d\x18", "an lz4 file", "", _UNPACK),
    (b"7z\xbc\xaf\x27\x1c", "a 7-Zip archive", "", _UNPACK),
    *((b"\x80" + bytes([version]), "a pickle, which runs code when it is read", "", _SAVE) for version in range(2, 6)),
    (b"\x89HDF\r\n", "an HDF5 file", "", _SAVE),
    (b"%PDF", "a PDF", "", _SAVE),
    (b"ARROW1", "an Arrow file (Feather)", "", _SAVE),
    (b"FEA1", "a Feather file", "", _SAVE),
    (b"ORC", "an ORC file", "", _SAVE),
    (b"SQLite format 3", "an SQLite database", "", _SAVE),
    (b"MATLAB 5.0", "a MATLAB file", "", _SAVE),
    (b"\xd0\xcf\x11\xe0", "a file of Microsoft Office", "", _SAVE),
)
_PICKLED = "a pickle, which runs code when it is read"
_FOREIGN_ENDINGS = {
    **dict.fromkeys((".pkl", ".pickle", ".joblib", ".dill"), _PICKLED),
    **dict.fromkeys((".pt", ".pth", ".ckpt"), f"a file of torch, which may hold {_PICKLED}"),
    **dict.fromkeys((".xlsx", ".xlsm", ".ods"), "a spreadsheet"),
    ".safetensors": "a file of tensors",
    ".rds": "a file of R",
    ".rdata": "a file of R",
}
"""Kinds of files by their endings, for files whose first bytes do not tell."""


def _detected_format(name: str, first: bytes) -> str:
    """Return the format of a file by its first bytes; of a text without a mark also by its name."""
    detected = next((format_name for magic, _, format_name, _ in _KINDS if format_name and first.startswith(magic)), "")
    suffixes = [suffix.lower() for suffix in Path(name).suffixes if suffix.lower() not in PACKED]
    is_json = first[:4096].removeprefix(b"\xef\xbb\xbf").lstrip()[:1] == b"{"
    if detected or is_json or suffixes[-1:] in ([".json"], [".jsonl"], [".ndjson"]):
        return detected or "jsonl"
    line = first.partition(b"\n")[0]
    return "tsv" if b"\t" in line and b"," not in line else "csv"


def _read_open(file: BinaryIO, name: str, used: Used) -> FileContent:
    with _as_data_error(name):
        plain = as_plain(file, name)
        source = plain if plain is file or isinstance(plain, io.BytesIO) else io.BytesIO(_read_all(plain, name))
        first = source.read(_FIRST)
        source.seek(0)
        _require_kind(name, first, format_name := _detected_format(name, first))
        match format_name:
            case "parquet":
                return FileContent(name, read_bounded(source, name))
            case "jsonl":
                columns, unread = _json_lines(name, source, used)
                return FileContent(name, columns, unread, header_lines=0)
            case "npy":
                return _array(name, source, used)
            case "npz":
                return _archive(name, source, used)
            case _:
                return _text(name, source, b"\t" if format_name == "tsv" else b",")
    raise AssertionError("unreachable")


def _require_kind(name: str, first: bytes, format_name: str) -> None:
    """Raise DataError if a file is no table by its first bytes or its name."""
    foreign = _FOREIGN_ENDINGS.get(Path(name).suffix.lower(), "")
    for magic, kind, of, remedy in _KINDS:
        if first.startswith(magic) and not of:
            raise DataError(f"{name} must be a table ({FORMATS}), its first bytes are those of {kind}; {remedy}")
    if foreign:
        raise DataError(f"{name} must be a table ({FORMATS}), its ending is that of {foreign}; {_SAVE}")
    if format_name in ("csv", "tsv", "jsonl") and b"\0" in first[:4096]:
        raise DataError(
            f"{name} must be text in UTF-8, it has bytes that are zero: it is probably UTF-16 or binary; save it as "
            "UTF-8"
        )


def _read_all(file: IO[bytes], name: str) -> bytes:
    """Return all bytes of a pipe or device, as far as they fit into memory."""
    parts, size = [], 0
    while part := file.read(SMALL_FILE_BYTES):
        size += len(part)
        require_fits_memory(size, name)
        parts.append(part)
    return b"".join(parts)


@contextmanager
def _as_data_error(name: str) -> Iterator[None]:
    """Turn the exceptions of a format's reader into a DataError of one sentence."""
    try:
        yield
    except AuditError:
        raise
    except Exception as err:  # NumPy's reader alone raises a dozen types
        raise DataError(f"{name} must be a table with named columns ({FORMATS}): {line_of(err)}") from err


def _size_of(file: IO[bytes]) -> int:
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    return size


def _folder_of_parquet(path: Path) -> pa.Table:
    import pyarrow.dataset as pads  # slow to import, because it loads pandas

    texts, unpacked, parts = set(), 0, pads.dataset(path, format="parquet").files
    for part in parts:
        with open(part, "rb") as file:
            texts.update(require_bounded(file, part))
            unpacked += min_bytes_of_rows(file, None)
            require_fits_memory(unpacked, path)
    if not parts:
        raise DataError(f"{path} must be a folder of Parquet files, it holds none; name one file of scores")
    return pq.read_table(path, read_dictionary=sorted(texts))


_NUMBER = re.compile(rb"\s*[-+]?(\d+\.?\d*|\.\d+|\d*,\d+)([eE][-+]?\d+)?\s*")
_DECIMAL_COMMA = re.compile(
    rb'(?:^|[;\t|])[ "]*[-+]?(?:0,\d+|\d*,(?:\d{1,2}|\d{4,}))(?:[eE][-+]?\d+)?[ "]*(?=[;\t|\r\n]|$)', re.MULTILINE
)
"""A number with a decimal comma; three digits behind a comma may be thousands."""


@dataclass(frozen=True)
class _Layout:
    """Layout of a text with one row a line.

    Attributes:
        begin: Position of the line with the names, or of the first row if `names` are given.
        lines_above: Number of lines above the first row.
        delimiter: Separator of the cells.
        decimal_point: Point or comma of numbers.
        names: Names of the columns from a comment above rows without a header; () if a line names them.
    """

    begin: int
    lines_above: int
    delimiter: bytes
    decimal_point: str
    names: tuple[str, ...] = ()

    @classmethod
    def of(cls, name: str, first: bytes, delimiter: bytes) -> _Layout:
        """Return the layout that the first bytes of a file show; `delimiter` is the usual one of its ending.

        Blank lines and lines that begin with "#" above the header are skipped.

        Raises: DataError for a file whose first line is a row of numbers.
        """
        begin, lines_above, comment = 0, 0, b""
        for line in first.splitlines(keepends=True):
            content = line.removeprefix(b"\xef\xbb\xbf").strip()
            if content and not content.startswith(b"#"):
                break
            begin, lines_above, comment = begin + len(line), lines_above + 1, content.lstrip(b"# ") or comment
        header = first[begin:].splitlines()[0] if first[begin:] else b""
        unquoted = re.sub(rb'"[^"]*"', b"", header)
        others = [other for other in (b",", b";", b"\t", b"|", b" ") if other in unquoted.strip()]
        if delimiter not in unquoted and others:
            delimiter = max(others, key=unquoted.count)
        has_comma = delimiter != b"," and _DECIMAL_COMMA.search(first[begin:]) is not None
        decimal_point = "," if has_comma else "."
        header_cells = [cell.strip(b' "') for cell in header.split(delimiter)]
        numbered = [b"%d" % place for place in range(len(header_cells))]  # names that pandas gives
        if header_cells == numbered or not all(map(_NUMBER.fullmatch, header_cells)):
            return cls(begin, lines_above + 1, delimiter, decimal_point)
        names = [cell.strip() for cell in comment.split(delimiter)]
        if len(names) != len(header_cells) or not comment or any(map(_NUMBER.fullmatch, names)):
            pair = delimiter.join((b"score", b"member")).decode()
            line_of_names = shortened(repr(pair)) if len(header_cells) == 2 else "their names"
            raise DataError(
                f"{name} must name its columns in its first line, got numbers; write {line_of_names} above them"
            )
        return cls(begin, lines_above, delimiter, decimal_point, tuple(cell.decode() for cell in names))


def _text(name: str, file: BinaryIO, delimiter: bytes) -> FileContent:
    """Return the table in a text, whose columns are named by its first line or by a comment above the numbers."""
    size, first = _size_of(file), file.read(1 << 20)
    layout = _Layout.of(name, first, delimiter)
    rest = first[layout.begin :]
    header = rest[: min(place for place in (rest.find(b"\n"), rest.find(b"\r"), len(rest)) if place >= 0)]
    require_width(name, 1 + header.count(layout.delimiter))
    try:
        header.decode()
    except UnicodeDecodeError as err:
        raise DataError(f"{name} must name its columns in UTF-8: {line_of(err)}; save it as UTF-8") from err
    if size > SMALL_FILE_BYTES:
        file.seek(0)
        cells = sum(
            part.count(layout.delimiter) + part.count(b"\n") + part.count(b"\r")
            for part in iter(lambda: file.read(SMALL_FILE_BYTES), b"")
        )
        require_fits_memory(max(size, _CELL * cells), name)
    file.seek(layout.begin)
    try:
        table = pacsv.read_csv(
            file,
            read_options=pacsv.ReadOptions(column_names=list(layout.names) or None),
            parse_options=pacsv.ParseOptions(delimiter=layout.delimiter.decode()),
            convert_options=pacsv.ConvertOptions(decimal_point=layout.decimal_point),
        )
    except pa.ArrowInvalid as err:
        if "columns, got" not in str(err):
            raise
        must = f"{name} must have as many cells in each line as in the line of its names"
        raise DataError(f"{must}: {line_of(err)}; correct that line, or quote cells that hold a separator") from err
    with_plain_names = table.rename_columns([column.strip() for column in table.column_names])
    return FileContent(name, with_plain_names, header_lines=layout.lines_above)


def _json_lines(name: str, file: BinaryIO, used: Used) -> tuple[pa.Table, tuple[str, ...]]:
    """Return the used columns of a text with one mapping on each line, and the names of the others.

    Python's reader refuses a nesting depth that would crash Arrow's, and keeps columns that only few lines have.
    """
    names: dict[str, None] = {}
    parts: list[pa.Table] = []
    is_list = file.read(4096).removeprefix(b"\xef\xbb\xbf").lstrip()[:1] == b"["
    file.seek(0)
    for records in _listed_records(name, file) if is_list else _records(name, file):
        for record in records:
            if not names.keys() >= record.keys():
                names |= dict.fromkeys(record)
                require_width(name, len(names))
        wanted = set(used(list(names)))
        parts.append(pa.table({column: _column(records, column) for column in names if column in wanted}))
        require_fits_memory(sum(part.nbytes for part in parts), name)
    table = pa.concat_tables(parts, promote_options="permissive")
    return table, tuple(column for column in names if column not in set(table.column_names))


def _listed_records(name: str, file: BinaryIO) -> list[list[dict[str, Any]]]:
    """Return the mappings in a list of JSON, as the only part."""
    require_fits_memory(MAX_TIMES_PARSED * _size_of(file), name)
    must = f'{name} must hold one record a line, or a list of records such as {{"score": 0.5, "member": 1}}'
    try:
        records = json.loads(file.read())
    except RecursionError as err:
        raise DataError(f"{must}, it is nested too deep") from err
    except ValueError as err:
        raise DataError(f"{must}: {line_of(err)}") from err
    other = next((record for record in records if not isinstance(record, dict)), None)
    if other is not None or not records:
        raise DataError(f"{must}, got {'nothing' if not records else shortened(other)}")
    return [records]


def _records(name: str, file: BinaryIO) -> Iterator[list[dict[str, Any]]]:
    """Yield the mappings in the lines of a text, some thousands at a time."""
    lines: list[tuple[int, bytes]] = []  # numbered lines, without blank ones
    size = 0
    for number, line in enumerate(iter(lambda: file.readline(MAX_LINE + 1), b""), 1):
        if len(line) > MAX_LINE:
            raise DataError(f"{name}: line {number} must have at most {MAX_LINE:,} bytes, it has more")
        if line.strip():
            lines.append((number, line.removeprefix(b"\xef\xbb\xbf")))
            size += len(line)
        if len(lines) == _RECORDS_AT_ONCE or size > _BYTES_AT_ONCE:
            yield _parsed(name, lines)
            lines, size = [], 0
    yield _parsed(name, lines)


def _parsed(name: str, lines: Sequence[tuple[int, bytes]]) -> list[dict[str, Any]]:
    """Return the mapping of each line; parsed together, and one by one only to locate an error."""
    try:
        records = json.loads(b"[" + b",".join(line for _, line in lines) + b"]")
        if len(records) == len(lines) and all(isinstance(record, dict) for record in records):
            return list(records)
    except (ValueError, RecursionError):
        pass
    return [_record(f"{name}: line {number}", line) for number, line in lines]


def _record(place: str, line: bytes) -> dict[str, Any]:
    try:
        record = json.loads(line.decode())
    except RecursionError as err:
        raise DataError(f"{place} must hold one record of numbers, it is nested too deep") from err
    except ValueError as err:
        raise DataError(f"{place} must be JSON in UTF-8: {line_of(err)}") from err
    if not isinstance(record, dict):
        raise DataError(f"{place} must hold a mapping from columns to values, got {shortened(record)}")
    return record


def _column(records: Sequence[Mapping[str, Any]], name: str) -> pa.Array:
    """Return the values of a field; integers of more than 64 bits make it a column of floats."""
    values = [record.get(name) for record in records]
    try:
        return pa.array(values)
    except (OverflowError, pa.ArrowInvalid):
        if not all(value is None or type(value) in (int, float) for value in values):
            raise
        return pa.array([None if value is None else float(value) for value in values])


def _array(name: str, file: BinaryIO, used: Used) -> FileContent:
    """Return the columns of a `.npy`: score and member, or the fields of a structured array."""
    header = _Header.of(file)
    header.require_held(name, _size_of(file))
    if header.dtype.names:
        fields = header.dtype.names
        require_width(name, len(fields))
        wanted = [field for field in fields if field in set(used(fields))]
        for field in wanted:
            _require_column(f"{name}: column {field}", header.dtype[field], header.shape)
        records = np.lib.format.read_array(file, allow_pickle=False)
        columns = {field: np.ascontiguousarray(records[field]) for field in wanted}
        return FileContent(name, columns, tuple(field for field in fields if field not in columns))
    if len(header.shape) != 2 or header.shape[1] != 2:
        raise DataError(
            f"{name} must hold two columns, score and member, or be a structured array with named fields, got an array "
            f"of shape {shortened(header.shape)}"
        )
    _require_column(name, header.dtype, header.shape[:1])
    array = np.lib.format.read_array(file, allow_pickle=False)
    return FileContent(name, {"score": array[:, 0], "member": array[:, 1]})


def _archive(name: str, file: BinaryIO, used: Used) -> FileContent:
    """Return the used arrays of a `.npz`."""
    size = _size_of(file)
    _require_directory(name, file, size)
    with zipfile.ZipFile(file) as archive:
        members = archive.infolist()
        names = [member.filename.removesuffix(".npy") for member in members]
        require_width(name, len(names))
        if not all(member.filename.endswith(".npy") for member in members):
            raise DataError(f"{name} must be a table ({FORMATS}), it is a zip archive of other files; {_UNPACK}")
        duplicates = [column for column, count in Counter(names).items() if count > 1]
        if duplicates:
            raise DataError(f"{name} must name each column once, got {shortened(duplicates[0])!r} more than once")
        wanted = set(used(names))
        chosen = {column: member for column, member in zip(names, members, strict=True) if column in wanted}
        # The size in the directory also limits the bytes read of a member.
        require_unpacked_size(
            sum(member.file_size for member in chosen.values()), size, name, max_ratio=MAX_TIMES_ZIPPED
        )
        for column, member in chosen.items():
            if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise DataError(f"{name}: array {shortened(column)} must be packed as NumPy packs it")
            with archive.open(member) as unpacked:
                header = _Header.of(unpacked)
            header.require_held(f"{name}: array {shortened(column)}", member.file_size)
            _require_column(f"{name}: array {shortened(column)}", header.dtype, header.shape)
        columns = {}
        for column, member in chosen.items():
            with archive.open(member) as unpacked:
                columns[column] = np.lib.format.read_array(unpacked, allow_pickle=False)
    return FileContent(name, columns, tuple(column for column in names if column not in columns))


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


@dataclass(frozen=True)
class _Header:
    """Header of a NumPy array file."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    length: int  # bytes of the header itself

    @classmethod
    def of(cls, file: IO[bytes]) -> _Header:
        version = np.lib.format.read_magic(file)
        width = 2 if version == (1, 0) else 4
        length = int.from_bytes(file.read(width), "little")
        if length > MAX_HEADER:
            raise ValueError(f"the header of an array must have at most {MAX_HEADER:,} bytes")
        about = ast.literal_eval(file.read(length).decode("utf-8" if version >= (3, 0) else "latin-1"))
        shape = about["shape"]
        if not isinstance(shape, tuple) or not all(type(end) is int and end >= 0 for end in shape):
            raise ValueError("the shape of an array must be whole numbers >= 0")
        return cls(np.lib.format.descr_to_dtype(about["descr"]), shape, length + width + 8)

    def require_held(self, name: str, size: int) -> None:
        """Raise DataError if a file of `size` bytes cannot hold the array's values."""
        unpacked = math.prod(self.shape) * self.dtype.itemsize
        if unpacked > size - self.length:
            raise DataError(
                f"{name} must hold what its header says, {unpacked:,} bytes of shape {shortened(self.shape)}, it has "
                f"{size - self.length:,}"
            )
        require_fits_memory(unpacked, name)


def _require_column(name: str, kind: np.dtype[Any], shape: tuple[int, ...]) -> None:
    """Raise DataError for anything but one column of numbers or texts."""
    if len(shape) != 1 or kind.kind not in "biufUS" or not kind.itemsize or kind.shape:
        must = f"{name} must be one column of numbers or texts"
        save = "it with .astype('float64')" if len(shape) == 1 else "one column, as in values[:, 0]"
        raise DataError(f"{must}, got {shortened(kind, 60)} of shape {shortened(shape)}; save {save}")
