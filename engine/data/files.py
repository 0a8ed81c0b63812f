"""Opening of data files, plain or compressed, and tables and errors that name a place in a file."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, TypeAlias

from dpaudit.actors.storage.bounded_parquet import ALWAYS_ALLOWED
from dpaudit.consent import PATH, expand_path, variable_names
from dpaudit.engine.data.columns import fault
from dpaudit.errors import DataError, require, shortened
from dpaudit.plain_files import SMALL_FILE_BYTES, require_fits_memory

COMPRESSIONS = ("", ".gz", ".xz")
MAX_TIMES_UNPACKED = 100
"""Largest ratio of unpacked to packed size of a large file: zeros are packed to 1/1,000, tables to a tenth."""
MAX_TIMES_DECODED = 4
"""Largest ratio of the size of a text in memory, while UTF-16 or UTF-32 is converted, to its size in the file."""
_PACKED: tuple[tuple[bytes, str, Any], ...] = (
    (b"\x1f\x8b", ".gz", gzip.open),
    (b"\xfd7zXZ\x00", ".xz", lzma.open),
    (b"BZh", ".bz2", bz2.open),
)
"""First bytes, ending and reader of packed files."""
PACKED = tuple(suffix for _, suffix, _ in _PACKED)
_MARKS = (b"\xff\xfe\0\0", b"\0\0\xfe\xff", b"\xff\xfe", b"\xfe\xff")
_ENCODINGS = tuple(zip(_MARKS, ("utf-32", "utf-32", "utf-16", "utf-16"), strict=True))
"""First bytes of a text that name its encoding, longer ones first; UTF-8 needs none."""


@dataclass(frozen=True)
class Piped:
    """Content of a pipe or of standard input, which is opened as a file is.

    Attributes:
        name: Name in messages.
    """

    name: str
    content: bytes = field(repr=False)

    def __str__(self) -> str:
        return self.name

    def open(self, mode: str) -> BinaryIO:
        """Return the content as an open file."""
        return io.BytesIO(self.content)


Source: TypeAlias = Path | Piped


def existing(path: str) -> Path:
    """Return the path of an existing file or folder, with `~` and `$NAME` expanded; DataError if there is none."""
    unset = next((name for name in variable_names(path) if name not in os.environ), None)
    try:
        expanded = expand_path(path)
        if path and expanded.exists():
            return expanded
        why = "no such file or folder" + (f", the environment variable {unset} is not set" if unset else "")
    except (OSError, RuntimeError, ValueError) as err:  # a name too long, an unknown user, a NUL
        why = (err.strerror if isinstance(err, OSError) else "") or "is no path"
    raise DataError(f"{shortened(path) or '(empty path)'}: {why}; set the option `path` of the data")


def existing_file(path: str) -> Path:
    """Return the path of an existing file; DataError for a folder."""
    file = existing(path)
    if file.is_dir():
        raise fault(file, "must be a file, got a folder", do="set the option `path` to one file")
    return file


def files_in_order(path: Path) -> list[Path]:
    """Return the file, or the files of the folder in natural order (day_2 before day_10), without hidden ones."""
    if path.is_file():
        return [path]
    files = [entry for entry in path.iterdir() if entry.is_file() and not entry.name.startswith(".")]
    if not files:
        raise fault(path, "must hold data files, holds none", do="set `path` to the file or its folder")
    return sorted(files, key=lambda entry: re.sub(r"\d+", lambda digits: digits[0].zfill(20), entry.name))


def find(folder: Path, *names: str) -> Path:
    """Return the first file in the folder with one of the names, plain, .gz or .xz."""
    for name in names:
        for compression in COMPRESSIONS:
            if (candidate := folder / (name + compression)).is_file():
                return candidate
    files = sorted(entry.name for entry in folder.iterdir())
    listed = ", ".join(files[:8]) + (", ..." if len(files) > 8 else "") or "nothing"
    wanted = " or ".join(names)
    raise fault(folder, f"must hold {wanted} (plain, .gz or .xz), holds {listed}", do="set `path` to its folder")


@dataclass(frozen=True)
class PublishedParts:
    """Base of data sets that are published in parts, such as a training and a test part.

    Attributes:
        path: The folder of the files, or one of them.
        part: "train" or "test"; ignored if the path is a file.
        rows: Largest number of rows, from the start; None for all.
    """

    path: str = field(metadata=PATH)
    part: str = "train"
    rows: int | None = None
    parts: ClassVar[Any]  # possible file names of each part

    def __post_init__(self) -> None:
        *others, last = map(repr, self.parts)
        require(self.part in self.parts, f"part must be {', '.join(others)} or {last}", part=self.part)
        require(self.rows is None or self.rows >= 1, "rows must be >= 1", rows=self.rows)

    def file(self) -> Path:
        """Return the path of the part's file, plain, .gz or .xz."""
        path = existing(self.path)
        return find(path, *self.parts[self.part]) if path.is_dir() else path


@contextmanager
def reading(path: Source) -> Iterator[BinaryIO]:
    """Open a file for reading bytes, unpacked if its first bytes are those of gzip, bzip2 or xz.

    A text in UTF-16 or UTF-32 with its mark becomes UTF-8.

    Raises: DataError for a file that is not whole, or that unpacks to more than `MAX_TIMES_UNPACKED` times its size.
    """
    try:
        with path.open("rb") as file, as_plain(file, str(path)) as plain:
            yield plain
    except (EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError) as err:
        reason = str(err).rstrip(".")
        raise fault(path, f"is not a whole {Path(str(path)).suffix} file ({reason})", do="fetch it again") from err
    except OSError as err:
        raise fault(path, f"cannot be read ({err.strerror or err})") from err


def as_plain(file: BinaryIO, name: str) -> BinaryIO:
    """Return the content of an open file, unpacked and in UTF-8; see `reading`."""
    first, size = file.read(6), size_of(file)
    for mark, _, opened in _PACKED:
        if first.startswith(mark):
            unpacked = _Unpacked(opened(file), max(ALWAYS_ALLOWED, MAX_TIMES_UNPACKED * size), name)
            file = io.BufferedReader(unpacked)
            first = file.peek(4)
            break
    encoding = next((encoding for mark, encoding in _ENCODINGS if first.startswith(mark)), "")
    if not encoding:
        return file
    require_fits_memory(MAX_TIMES_DECODED * size, name)
    content = file.read()
    require_fits_memory(MAX_TIMES_DECODED * len(content), name)
    try:
        return io.BytesIO(content.decode(encoding).encode())
    except UnicodeDecodeError as err:
        must = f"{name} must be whole text in {encoding.upper()}"
        raise DataError(f"{must}: {str(err).splitlines()[0]}; save it as UTF-8") from err


def seekable(file: BinaryIO, name: str) -> BinaryIO:
    """Return an open file in which one can go back; the content of a pipe, a device or a packed file is in memory."""
    return file if file.seekable() else io.BytesIO(content_of(file, name))


def content_of(file: BinaryIO, name: str) -> bytes:
    """Return all bytes of an open file; RunError, before more is read, if they do not fit into memory."""
    parts, size = [], 0
    while part := file.read(SMALL_FILE_BYTES):
        size += len(part)
        require_fits_memory(size, name)
        parts.append(part)
    return b"".join(parts)


def size_of(file: BinaryIO) -> int:
    """Return the size of an open file, which is then at its begin."""
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    return size


class _Unpacked(io.RawIOBase):
    """A packed file that gives at most `most` bytes."""

    def __init__(self, file: BinaryIO, most: int, name: str) -> None:
        self._file, self._left, self._most, self._name = file, most, most, name

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        content = self._file.read(min(len(buffer), self._left + 1))
        self._left -= len(content)
        if self._left < 0:
            raise DataError(
                f"{self._name} must unpack to at most {self._most:,} bytes ({MAX_TIMES_UNPACKED} times its size, but "
                "256 MiB at least), it holds more. Unpack it yourself if you trust it"
            )
        buffer[: len(content)] = content
        return len(content)
