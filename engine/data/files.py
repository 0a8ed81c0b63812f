"""Opening data files, plain or compressed, and saying where one is wrong."""

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
    """The error for one place in a file: "file, line 3, column 'I5': must be a number, got 'x'; correct the cell".

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
    """The path of a file or folder that is there; `~` is the home folder, `$NAME` the environment's value."""
    unset = next((name for name in variable_names(path) if name not in os.environ), None)
    try:
        found = expand_path(path)
        if path and found.exists():
            return found
        why = "no such file or folder" + (f", the environment variable {unset} is not set" if unset else "")
    except (OSError, RuntimeError, ValueError) as err:  # a name too long, a user that is not there, a NUL
        why = (err.strerror if isinstance(err, OSError) else "") or "is no path"
    raise DataError(f"{shortened(path) or '(empty path)'}: {why}; set the option `path` of the data")


def existing_file(path: str) -> Path:
    """The path of a file that is there."""
    found = existing(path)
    if found.is_dir():
        raise fault(found, "must be a file, got a folder", do="set the option `path` to one file")
    return found


def find(folder: Path, *names: str) -> Path:
    """The first file in the folder with one of the names, plain, .gz or .xz."""
    for name in names:
        for compression in COMPRESSIONS:
            if (candidate := folder / (name + compression)).is_file():
                return candidate
    held = sorted(entry.name for entry in folder.iterdir())
    shown = ", ".join(held[:8]) + (", ..." if len(held) > 8 else "") or "nothing"
    wanted = " or ".join(names)
    raise fault(folder, f"must hold {wanted} (plain, .gz or .xz), holds {shown}", do="set `path` to its folder")


@dataclass(frozen=True)
class PublishedParts:
    """What data sets share that are published in parts, such as one to train on and one to test on.

    Attributes:
        path: The folder of the files, or one of them.
        part: "train" or "test"; a path that is a file is read whatever the part.
        rows: At most this many rows, from the start; all when None.
    """

    path: str = field(metadata=PATH)
    part: str = "train"
    rows: int | None = None
    parts: ClassVar[Any]  # from each part to the names that its file may have

    def __post_init__(self) -> None:
        *others, last = map(repr, self.parts)
        require(self.part in self.parts, f"part must be {', '.join(others)} or {last}", part=self.part)
        require(self.rows is None or self.rows >= 1, "rows must be >= 1", rows=self.rows)

    def file(self) -> Path:
        """The part's file, plain, .gz or .xz."""
        where = existing(self.path)
        return find(where, *self.parts[self.part]) if where.is_dir() else where


@contextmanager
def reading(path: Path) -> Iterator[BinaryIO]:
    """The bytes of a file, unpacked when its name ends in .gz or .xz."""
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
