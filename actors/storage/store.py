"""Results of finished units in the run folder. They make runs resumable, cached and exactly-once."""

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

MAX_FAILURE_BYTES = 16 << 20  # limit for reading the record of a failure
_SEAL = re.compile(rb"dpaudit-seal:([0-9a-f]{64})")
PRINTED_LOG = "printed.log"  # output of units
WORKER_MARK = ".workers"  # exists while workers run, so that they can check that they see the same folder
MAX_PRINTED_BYTES = 10_000_000  # size limit of the log
_EMPTY_SEAL = b"dpaudit-seal:" + b"0" * 64  # placeholder in the file while its hash is computed


@dataclass(frozen=True)
class Provenance:
    """Time and code versions of the results of finished units."""

    units: int = 0
    first: datetime | None = None  # time of the first result, UTC; None if there is none
    last: datetime | None = None  # time of the last result, UTC
    versions: tuple[str, ...] = ()  # code versions of dpaudit
    user_code: tuple[str, ...] = ()  # short hashes of the user's code

    def to_dict(self) -> dict[str, Any]:
        first, last = (when.isoformat(timespec="seconds") if when else None for when in (self.first, self.last))
        return {"units": self.units, "first": first, "last": last, "versions": self.versions, "own": self.user_code}

    def __str__(self) -> str:
        if self.first is None or self.last is None:
            return "never"
        first, last = (f"{when:%Y-%m-%d %H:%M}" for when in (self.first, self.last))
        when = f"{first} UTC" if first == last else f"{first} to {last} UTC"
        user_code = f", your code {' and '.join(self.user_code)}" if self.user_code else ""
        return f"{when}, dpaudit {' and '.join(self.versions)}{user_code}"


class UnitStore:
    """Folder with one file `<key>.parquet` for each finished unit, `<key>.failed` for each failed one, `printed.log`.

    Files are written atomically. Each unit file holds its key and a hash over all its bytes, checked when it is read: a
    file that is damaged, or has another key, does not count. This detects accidents, not manipulation. Failed units run
    again in the next run.
    """

    def __init__(self, folder: str | Path) -> None:
        self._folder = str(folder)
        os.makedirs(self._folder, exist_ok=True)
        self._checked: dict[str, tuple[int, int, str, str]] = {}  # time in nanoseconds, size, version, own code
        self.damaged: dict[str, str] = {}  # the defect of each file that failed its check, by key

    def finished(self, keys: Iterable[str]) -> set[str]:
        """Return the keys whose results are stored and intact; `damaged` describes the defects of others."""
        wanted, finished = set(keys), set()
        with os.scandir(self._folder) as entries:
            for entry in entries:
                key, dot, kind = entry.name.partition(".")
                if (
                    dot
                    and kind == "parquet"
                    and key in wanted
                    and self._is_intact(key, entry.stat(follow_symlinks=False))
                ):
                    finished.add(key)
        return finished

    def _is_intact(self, key: str, status: os.stat_result) -> bool:
        checked = self._checked.get(key)
        if checked is not None and checked[:2] == (status.st_mtime_ns, status.st_size):
            return True
        try:
            _, facts = self._content(key)
        except RunError:
            if key not in self.damaged:  # the file exceeds the memory limit
                raise
            return False
        self._checked[key] = (status.st_mtime_ns, status.st_size, facts["version"], facts["own"])
        return True

    def provenance(self, keys: Iterable[str]) -> Provenance:
        """Return the times and code versions of the results of finished units."""
        requested = set(keys)
        if not requested <= self._checked.keys():
            self.finished(requested - self._checked.keys())
        facts = [self._checked[key] for key in sorted(requested & self._checked.keys())]
        if not facts:
            return Provenance()
        times, _, versions, user_code = zip(*facts, strict=True)
        first, last = (datetime.fromtimestamp(time_ns / 1e9, UTC) for time_ns in (min(times), max(times)))
        return Provenance(len(facts), first, last, tuple(sorted({*versions})), tuple(sorted({*user_code} - {""})))

    def mark_for_workers(self) -> tuple[str, str]:
        """Write a random mark to `.workers`; return the folder and the mark, by which workers recognise the folder."""
        self.remove_worker_files()
        folder, mark = os.path.abspath(self._folder), uuid.uuid4().hex
        write_atomically(Path(folder, WORKER_MARK), lambda file: file.write(mark.encode()))
        return folder, mark

    def remove_worker_files(self) -> None:
        """Delete the mark, and incomplete files of workers that were ended."""
        folder = Path(self._folder)
        for file in (folder / WORKER_MARK, *folder.glob(".*.parquet.*.partial")):
            file.unlink(missing_ok=True)

    @classmethod
    def open_marked(cls, folder: str, mark: str) -> UnitStore | None:
        """Return the store on a worker; None if the worker does not see the same folder, by its mark."""
        try:
            with open_to_read(Path(folder, WORKER_MARK)) as file:
                return cls(folder) if file.read(len(mark) + 1) == mark.encode() else None
        except (OSError, RunError):
            return None

    def has_file(self, key: str) -> bool:
        """True if the unit has a file, intact or not."""
        return os.path.lexists(self.path(key))

    def path(self, key: str) -> str:
        """Return the path of a unit's file, which may not exist yet."""
        return f"{self._folder}/{key}.parquet"

    def read(self, key: str) -> pa.Table:
        content, _ = self._content(key)
        try:
            return read_bounded(io.BytesIO(content), self.path(key))
        except (pa.ArrowException, OSError, ValueError, DataError) as err:
            raise self._record_damage(key, f"it cannot be read ({shortened(err)})") from err

    def schema(self, key: str) -> pa.Schema:
        """Return the columns and metadata of a unit's table."""
        return pq.ParquetFile(pa.BufferReader(self._content(key)[0])).schema_arrow

    def has_same_table(self, key: str, table: pa.Table) -> bool:
        """True if the stored table of a unit is bitwise equal to `table`, so that NaN equals NaN."""
        return _comparable_bytes(self.read(key)) == _comparable_bytes(table)

    def _content(self, key: str) -> tuple[bytes, dict[str, str]]:
        """Return the content of a unit's file, and the facts in its footer; RunError if it is damaged."""
        self.damaged.pop(key, None)
        try:
            with self._open(key) as file:
                content = read_all(file)
        except OSError as err:
            raise self._record_damage(key, f"it cannot be read ({err})") from err
        last = content.rfind(_EMPTY_SEAL[:-64])  # in the file's footer
        seal = _SEAL.match(content, max(0, last))
        if seal is None or _digest(content[: seal.start()] + _EMPTY_SEAL + content[seal.end() :]) != seal[1]:
            raise self._record_damage(key, "its content has changed since it was written")
        try:
            footer = pq.read_metadata(pa.BufferReader(content))
            facts = {name: footer.metadata[f"dpaudit-{name}".encode()].decode() for name in ("key", "version", "own")}
        except (pa.ArrowException, OSError, ValueError, KeyError, TypeError) as err:  # a valid seal in another file
            raise self._record_damage(key, f"it cannot be read ({shortened(err)})") from err
        if facts["key"] != key:
            raise self._record_damage(key, "it holds another unit's results")
        return content, facts

    def _open(self, key: str) -> BinaryIO:
        try:
            return open_to_read(Path(self.path(key)))
        except RunError as err:
            raise self._record_damage(key, f"it cannot be read ({err})") from err

    def _record_damage(self, key: str, why: str) -> RunError:
        self.damaged[key] = why
        return RunError(f"{self.path(key)} must be whole: {why}; `dpaudit resume` runs this unit again")

    def write(self, key: str, content: bytes) -> None:
        """Store the file of a finished unit; a second write of the same key has the same content."""
        self.set_aside_damaged(key)
        write_atomically(Path(self.path(key)), lambda file: file.write(content))
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{self._folder}/{key}.failed")

    def set_aside_damaged(self, key: str) -> None:
        """Rename a file that failed its check to `<key>.damaged`, for inspection."""
        if self.damaged.pop(key, None) is not None:
            os.replace(self.path(key), f"{self._folder}/{key}.damaged")

    def fail(self, key: str, log: str) -> None:
        """Record a failed unit with the text of its last error."""
        text = log.encode("utf-8", errors="backslashreplace")
        write_atomically(Path(self._folder, f"{key}.failed"), lambda file: file.write(text))

    def append_printed(self, label: str, printed: bytes) -> None:
        """Append the output of an attempt to `printed.log`, up to its size limit."""
        log = open_for_update(Path(self._folder, PRINTED_LOG), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        with os.fdopen(log, "ab") as file:
            free = MAX_PRINTED_BYTES - file.tell()
            if free > 0:
                end = b"\n" if len(printed) < free else b"\n... full: output of further units is not stored ...\n"
                file.write(f"--- {label}\n".encode(errors="backslashreplace") + printed[:free].rstrip(b"\n") + end)

    def failures(self) -> dict[str, str]:
        """Return the error texts of failed units by key; bytes that are not UTF-8 become replacement characters."""
        with os.scandir(self._folder) as entries:
            files = [entry for entry in entries if not entry.is_dir(follow_symlinks=False)]
        records = [Path(entry) for entry in files if entry.name.endswith(".failed")]
        return {path.stem: _read_failure(path) or "the record of its failure is empty" for path in records}


def _read_failure(record: Path) -> str:
    try:
        with open_to_read(record) as file:
            return file.read(MAX_FAILURE_BYTES).decode(errors="replace").strip()
    except (OSError, RunError) as err:
        return f"the record of its failure cannot be read ({err})"


def encode_unit(key: str, table: pa.Table, *, version: str = "", user_code: str = "") -> bytes:
    """Return the file content of a finished unit; equal tables give equal content."""
    facts = {
        "dpaudit-key": key,
        "dpaudit-version": version,
        "dpaudit-own": user_code,
        "dpaudit-seal": _EMPTY_SEAL.decode(),
    }
    sink = pa.BufferOutputStream()
    # No dictionary for floats: with few repeated values, encoding takes forty times as long.
    dictionary_columns = [field.name for field in table.schema if not pa.types.is_floating(field.type)]
    with pq.ParquetWriter(
        sink, table.schema, use_dictionary=dictionary_columns, compression="zstd", compression_level=1
    ) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata(facts)
    content: bytes = sink.getvalue().to_pybytes()
    start = content.rindex(_EMPTY_SEAL)
    return content[:start] + _EMPTY_SEAL[:-64] + _digest(content) + content[start + len(_EMPTY_SEAL) :]


def _digest(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest().encode()


def decode_unit(content: bytes) -> pa.Table:
    return pq.ParquetFile(pa.BufferReader(content)).read()  # `read_table` imports pandas


def _comparable_bytes(table: pa.Table) -> bytes:
    """Return the columns and metadata of a table as bytes, without the metadata written by the store."""
    facts = sorted((name, value) for name, value in (table.schema.metadata or {}).items() if name[:8] != b"dpaudit-")
    sink = pa.BufferOutputStream()
    pq.write_table(table.combine_chunks().replace_schema_metadata(dict(facts)), sink, use_dictionary=False)
    return bytes(sink.getvalue())
