"""Results of finished units in the run folder: resume, cache and exactly-once at the same time."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import re
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from dpaudit.actors.storage.bounded_parquet import read_bounded
from dpaudit.errors import DataError, RunError, shortened
from dpaudit.plain_files import open_for_update, open_to_read, read_all, write_atomically

MAX_FAILURE_BYTES = 16 << 20  # of the record of a failure, as much is read
_SEAL = re.compile(rb"dpaudit-seal:([0-9a-f]{64})")
PRINTED = "printed.log"  # what units printed
WORKERS = ".workers"  # while workers run: what tells them whether they see this folder
MAX_PRINTED = 10_000_000  # bytes of it
_OPEN = b"dpaudit-seal:" + b"0" * 64  # stands in the file while the hash over the whole of it is taken


@dataclass(frozen=True)
class Made:
    """What made the results of finished units."""

    units: int = 0
    first: datetime | None = None  # when the first of them was written, UTC; None when there is none
    last: datetime | None = None  # when the last was
    versions: tuple[str, ...] = ()  # the code versions of dpaudit
    own: tuple[str, ...] = ()  # short names of the user's code behind them

    def to_dict(self) -> dict[str, Any]:
        first, last = (when.isoformat(timespec="seconds") if when else None for when in (self.first, self.last))
        return {"units": self.units, "first": first, "last": last, "versions": self.versions, "own": self.own}

    def __str__(self) -> str:
        if self.first is None or self.last is None:
            return "never"
        first, last = (f"{when:%Y-%m-%d %H:%M}" for when in (self.first, self.last))
        when = f"{first} UTC" if first == last else f"{first} to {last} UTC"
        own = f", your code {' and '.join(self.own)}" if self.own else ""
        return f"{when}, dpaudit {' and '.join(self.versions)}{own}"


class UnitStore:
    """A folder of `<key>.parquet`, each written whole and then renamed, and of `printed.log`.

    A unit whose file is there is finished. Each file holds its key and a hash over all its bytes, checked when it is
    read: one that was damaged, or is another key's, does not count. This protects from accidents, not from somebody who
    can write in the folder. Failures are recorded beside it as `<key>.failed`, and tried again by the next run.
    """

    def __init__(self, folder: str | Path) -> None:
        self._folder = str(folder)
        os.makedirs(self._folder, exist_ok=True)
        self._checked: dict[str, tuple[int, int, str, str]] = {}  # time in nanoseconds, size, version, own code
        self.damaged: dict[str, str] = {}  # what is wrong with each unit file that failed its check, by key

    def finished(self, keys: Iterable[str]) -> set[str]:
        """Those of the units whose results are here and whole; `damaged` says what is wrong with others."""
        wanted, found = set(keys), set()
        with os.scandir(self._folder) as entries:
            for entry in entries:
                key, dot, kind = entry.name.partition(".")
                if dot and kind == "parquet" and key in wanted and self._whole(key, entry.stat(follow_symlinks=False)):
                    found.add(key)
        return found

    def _whole(self, key: str, facts: os.stat_result) -> bool:
        checked = self._checked.get(key)
        if checked is not None and checked[:2] == (facts.st_mtime_ns, facts.st_size):
            return True
        try:
            _, made_by = self._content(key)
        except RunError:
            if key not in self.damaged:  # there is no memory for it
                raise
            return False
        self._checked[key] = (facts.st_mtime_ns, facts.st_size, made_by["version"], made_by["own"])
        return True

    def made(self, keys: Iterable[str]) -> Made:
        """When and by which code the results of these units, all finished, were made."""
        known = set(keys)
        if not known <= self._checked.keys():
            self.finished(known - self._checked.keys())
        facts = [self._checked[key] for key in sorted(known & self._checked.keys())]
        if not facts:
            return Made()
        times, _, versions, own = zip(*facts, strict=True)
        first, last = (datetime.fromtimestamp(time_ns / 1e9, UTC) for time_ns in (min(times), max(times)))
        return Made(len(facts), first, last, tuple(sorted({*versions})), tuple(sorted({*own} - {""})))

    def marked(self) -> tuple[str, str]:
        """The folder, and what `.workers` in it says from now on: who reads the same there can write in it."""
        self.unmark()
        folder, mark = os.path.abspath(self._folder), uuid.uuid4().hex
        write_atomically(Path(folder, WORKERS), lambda file: file.write(mark.encode()))
        return folder, mark

    def unmark(self) -> None:
        """Takes that away, and what workers that were ended had not written whole."""
        folder = Path(self._folder)
        for left in (folder / WORKERS, *folder.glob(".*.parquet.*.partial")):
            left.unlink(missing_ok=True)

    @classmethod
    def reached(cls, folder: str, mark: str) -> UnitStore | None:
        """The same folder, seen from a worker; None where there is none or another one."""
        try:
            with open_to_read(Path(folder, WORKERS)) as file:
                return cls(folder) if file.read(len(mark) + 1) == mark.encode() else None
        except (OSError, RunError):
            return None

    def has(self, key: str) -> bool:
        """Whether there is a file of this unit, whole or not."""
        return os.path.lexists(self.path(key))

    def path(self, key: str) -> str:
        """Where a unit's table is or will be."""
        return f"{self._folder}/{key}.parquet"

    def read(self, key: str) -> pa.Table:
        found, _ = self._content(key)
        try:
            return read_bounded(io.BytesIO(found), self.path(key))
        except (pa.ArrowException, OSError, ValueError, DataError) as err:
            raise self._refused(key, f"it cannot be read ({shortened(err)})") from err

    def schema(self, key: str) -> pa.Schema:
        """A unit's columns, and what its work said beside them."""
        return pq.ParquetFile(pa.BufferReader(self._content(key)[0])).schema_arrow

    def holds(self, key: str, table: pa.Table) -> bool:
        """Whether a finished unit's table is the same as this one bit by bit, so that NaN is the same as NaN."""
        return _plain_bytes(self.read(key)) == _plain_bytes(table)

    def _content(self, key: str) -> tuple[bytes, dict[str, str]]:
        """A unit's file, whole and its own, and what its footer says."""
        self.damaged.pop(key, None)
        try:
            with self._opened(key) as file:
                found = read_all(file)
        except OSError as err:
            raise self._refused(key, f"it cannot be read ({err})") from err
        seal = _SEAL.match(found, max(0, found.rfind(_OPEN[:-64])))  # in the file's footer: the last one there is
        if seal is None or _digest(found[: seal.start()] + _OPEN + found[seal.end() :]) != seal[1]:
            raise self._refused(key, "its content is not what was written")
        try:
            footer = pq.read_metadata(pa.BufferReader(found))
            facts = {name: footer.metadata[f"dpaudit-{name}".encode()].decode() for name in ("key", "version", "own")}
        except (pa.ArrowException, OSError, ValueError, KeyError, TypeError) as err:  # sealed, and no unit
            raise self._refused(key, f"it cannot be read ({shortened(err)})") from err
        if facts["key"] != key:
            raise self._refused(key, "it holds another unit's results")
        return found, facts

    def _opened(self, key: str) -> BinaryIO:
        try:
            return open_to_read(Path(self.path(key)))
        except RunError as err:
            raise self._refused(key, f"it cannot be read ({err})") from err

    def _refused(self, key: str, why: str) -> RunError:
        self.damaged[key] = why
        return RunError(f"{self.path(key)} must be whole: {why}; `dpaudit resume` runs this unit again")

    def write(self, key: str, content: bytes) -> None:
        """Stores a finished unit's file; a second write of the same key leaves the same content."""
        self.set_aside(key)
        write_atomically(Path(self.path(key)), lambda file: file.write(content))
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{self._folder}/{key}.failed")

    def set_aside(self, key: str) -> None:
        """Keeps a file that failed its check under another name, for whoever wants to know what happened to it."""
        if self.damaged.pop(key, None) is not None:
            os.replace(self.path(key), f"{self._folder}/{key}.damaged")

    def fail(self, key: str, log: str) -> None:
        """Records that no attempt succeeded, with the last error's text."""
        text = log.encode("utf-8", errors="backslashreplace")
        write_atomically(Path(self._folder, f"{key}.failed"), lambda file: file.write(text))

    def keep_printed(self, label: str, printed: bytes) -> None:
        """Appends what an attempt at a unit printed to `printed.log`, which takes no more once it is full."""
        log = open_for_update(Path(self._folder, PRINTED), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        with os.fdopen(log, "ab") as file:
            left = MAX_PRINTED - file.tell()
            if left > 0:
                end = b"\n" if len(printed) < left else b"\n... full: what other units print is not kept ...\n"
                file.write(f"--- {label}\n".encode(errors="backslashreplace") + printed[:left].rstrip(b"\n") + end)

    def failures(self) -> dict[str, str]:
        """Error text by key of the units recorded as failed; bytes that are no text are shown as question marks."""
        with os.scandir(self._folder) as entries:
            found = [entry for entry in entries if not entry.is_dir(follow_symlinks=False)]
        records = [Path(entry) for entry in found if entry.name.endswith(".failed")]
        return {path.stem: _text_in(path) or "the record of its failure is empty" for path in records}


def _text_in(record: Path) -> str:
    try:
        with open_to_read(record) as file:
            return file.read(MAX_FAILURE_BYTES).decode(errors="replace").strip()
    except (OSError, RunError) as err:
        return f"the record of its failure cannot be read ({err})"


def sealed(key: str, table: pa.Table, *, version: str = "", own: str = "") -> bytes:
    """The file of a finished unit, the same for the same table."""
    facts = {"dpaudit-key": key, "dpaudit-version": version, "dpaudit-own": own, "dpaudit-seal": _OPEN.decode()}
    sink = pa.BufferOutputStream()
    # Floats are kept as they are: a dictionary of numbers that hardly recur takes forty times as long.
    words = [field.name for field in table.schema if not pa.types.is_floating(field.type)]
    with pq.ParquetWriter(sink, table.schema, use_dictionary=words, compression="zstd", compression_level=1) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata(facts)
    content: bytes = sink.getvalue().to_pybytes()
    start = content.rindex(_OPEN)
    return content[:start] + _OPEN[:-64] + _digest(content) + content[start + len(_OPEN) :]


def _digest(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest().encode()


def table_in(content: bytes) -> pa.Table:
    return pq.ParquetFile(pa.BufferReader(content)).read()  # `read_table` imports pandas


def _plain_bytes(table: pa.Table) -> bytes:
    """The columns and what the work wrote beside them, without what the store did."""
    facts = sorted((name, said) for name, said in (table.schema.metadata or {}).items() if name[:8] != b"dpaudit-")
    sink = pa.BufferOutputStream()
    pq.write_table(table.combine_chunks().replace_schema_metadata(dict(facts)), sink, use_dictionary=False)
    return bytes(sink.getvalue())
