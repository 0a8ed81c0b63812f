"""Opening of data files, plain or compressed, and errors that name a place in a file."""

from __future__ import annotations

import gzip
import lzma
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, cast

from dpaudit.consent import PATH
from dpaudit.errors import DataError, require, shortened
from dpaudit.variables import expand_path, variable_names

COMPRESSIONS = ("", ".gz", ".xz")


def fault(
    path: Path, problem: str, *, line: int | None = None, row: int | None = None, column: str = "", do: str = ""
) -> DataError:
    """Return the error for a place in a file: "file, line 3, column 'I5': must be a number, got 'x'; correct the cell".

    Args:
        line: Physical line of a text file, counted from 1.
        row: Row or record of any other file, counted from 1.
    """
    place = str(path)
    place += f", line {line:,}" if line is not None else ""
    place += f", row {row:,}" if row is not None else ""
    place += f", column {column!r}" if column else ""
    return DataError(f"{place}: {problem}" + (f"; {do}" if do else ""))


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
def reading(path: Path) -> Iterator[BinaryIO]:
    """Open a file for reading bytes, decompressed if its name ends in .gz or .xz."""
    try:
        with _opened(path) as file:
            yield file
    except (EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError) as err:
        reason = str(err).rstrip(".")
        raise fault(path, f"is not a whole {path.suffix} file ({reason})", do="fetch it again") from err
    except OSError as err:
        raise fault(path, f"cannot be read ({err.strerror or err})") from err


def _opened(path: Path) -> BinaryIO:
    if path.suffix == ".gz":
        return cast(BinaryIO, gzip.open(path, "rb"))
    if path.suffix == ".xz":
        return cast(BinaryIO, lzma.open(path, "rb"))
    return path.open("rb")
