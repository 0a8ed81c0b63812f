"""A local folder and its copy anywhere pyarrow.fs reaches: NFS, `s3://`, `gs://`; one is brought to the other.

Object stores rename nothing and append to nothing, so what is written is written here, and then uploaded. What was
uploaded is known by its size and time on both sides, kept in `.mirror.json` of the local folder. Files whose names
start with a dot belong to one side alone.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import threading
import time
import unicodedata
import uuid
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NamedTuple

import pyarrow as pa
import pyarrow.fs as pafs

from dpaudit.actors.meanwhile import meanwhile
from dpaudit.actors.storage.places import is_remote, refuse_credentials
from dpaudit.errors import RunError, printable, shortened
from dpaudit.plain_files import (
    open_to_read,
    private_folder,
    read_bytes,
    require_fits_memory,
    require_plain,
    write_atomically,
)

EVERY_S = 5.0  # how often what is new is uploaded while a run goes on: at most so much of it is lost with its machine
PATIENCE_S = 300.0  # for how long, at the end, an upload is tried again when the store does not answer
BUSY = 20.0  # pushes that take long come so many times as long after each other
SAME_TIME_NS = 2_000_000_000
_UNSURE = (-1, -1)
_STATE = ".mirror.json"
_LOG = "events.jsonl"
"""Grows while others are uploaded: of it goes what there was before, which speaks of no unit that is not there."""
_DENIED = (
    "ACCESS_DENIED",
    "INVALID_ACCESS_KEY_ID",
    "INVALID_CLIENT_TOKEN_ID",
    "SIGNATURE_DOES_NOT_MATCH",
    "NO_SUCH_BUCKET",
)
_LAST = (_LOG, "bounds.json", "report.html")  # uploaded after everything they speak of


@dataclass(frozen=True)
class FileStore:
    """The files of a place anywhere pyarrow.fs reaches. What does not answer raises OSError or pa.ArrowException."""

    place: str  # what messages call it
    system: pafs.FileSystem
    root: str

    @classmethod
    def at(cls, place: str | Path) -> FileStore:
        """That of a path, or of a URI as pyarrow takes it; RunError where that holds credentials or is of no system."""
        if not is_remote(place):
            return cls(str(place), pafs.LocalFileSystem(), str(place))
        refuse_credentials(str(place))
        try:
            system, root = pafs.FileSystem.from_uri(str(place))
        except (pa.ArrowException, OSError, ValueError) as err:
            raise RunError(f"{shortened(place)} must be a place that can be reached: {_why_not(err)}") from err
        return cls(str(place), system, root.rstrip("/"))

    @contextlib.contextmanager
    def answering(self, must: str) -> Iterator[None]:
        """Turns into one sentence what a store raises that does not answer."""
        try:
            yield
        except (OSError, pa.ArrowException) as err:
            raise RunError(f"{shortened(self.place, 300)} {must}: {_why_not(err)}") from err

    @property
    def is_local(self) -> bool:
        """Whether it is a folder of this machine: files are renamed there, objects of a store are not."""
        return isinstance(self.system, pafs.LocalFileSystem)

    def require_plain(self) -> None:
        """Refuses a place on this machine that holds links, pipes, sockets or devices; object stores hold none."""
        if self.is_local:
            require_plain(Path(self.root))

    def infos(self) -> dict[str, pafs.FileInfo]:
        """What is known of its files, by name; of none whose name starts with a dot."""
        found = self.system.get_file_info(pafs.FileSelector(self.root, recursive=True, allow_not_found=True))
        files = {info.path.removeprefix(self.root).removeprefix("/"): info for info in found if info.is_file}
        _require_below(files, self.place)
        return {name: info for name, info in files.items() if not _is_hidden(name)}

    def info(self, name: str) -> pafs.FileInfo:
        return self.system.get_file_info(self._path(name))

    def reading(self, name: str) -> IO[bytes]:
        if self.is_local:
            return open_to_read(Path(self._path(name)))
        stream: IO[bytes] = self.system.open_input_stream(self._path(name))
        return stream

    def content(self, name: str) -> bytes | None:
        """All of a file; None where there is no such file."""
        try:
            if self.is_local:
                return read_bytes(Path(self._path(name)))
            with self.system.open_input_file(self._path(name)) as file:
                require_fits_memory(file.size(), self._path(name))
                found: bytes = file.read()
                return found
        except FileNotFoundError:
            return None

    def write(self, name: str, content: bytes) -> None:
        """Writes a file, which is there whole or not at all: an object is there when its upload is complete."""
        path = self._path(name)
        written = path
        if self.is_local:
            folder, _, last = path.rpartition("/")
            self.system.create_dir(folder, recursive=True)
            written = f"{folder}/.{last}.{uuid.uuid4().hex}.partial"
        with self.system.open_output_stream(written) as stream:
            stream.write(content)
        if written != path:
            self.system.move(written, path)

    def delete(self, name: str) -> None:
        self.system.delete_file(self._path(name))

    def _path(self, name: str) -> str:
        return f"{self.root}/{name}"


def _is_hidden(name: str) -> bool:
    return any(part.startswith(".") for part in name.split("/"))


def _why_not(err: Exception) -> str:
    """Why a store could not be used, and what to do, where that is known."""
    do = "; check the credentials in the environment (AWS_ACCESS_KEY_ID and its kin) and what they may do there"
    return f"{printable(shortened(err, 240))}{do if _is_denied(err) else ''}"


def _is_denied(err: Exception) -> bool:
    """Whether a store has answered, and will say the same again."""
    return any(f"AWS Error {word} " in str(err) for word in _DENIED)


class _Copied(NamedTuple):
    """A file that is the same on both sides, as it was then."""

    here: tuple[int, int]  # size, time of last change in nanoseconds
    there: tuple[int, int]


class Mirror:
    """A local folder, for this user alone, and its remote copy.

    Folders at their top that are named in `without` are not copied. `trouble` is told in one sentence when the store
    does not answer, and when it answers again.
    """

    def __init__(
        self,
        folder: Path,
        uri: str,
        *,
        without: Collection[str] = (),
        trouble: Callable[[str], None] = lambda said: None,
    ) -> None:
        self.folder, self.uri, self._trouble = folder, uri, trouble
        self._without = frozenset(without)
        self._store = FileStore.at(uri)
        private_folder(folder)
        self._copied: dict[str, _Copied] = self._read_state()
        self._troubled = False
        self._one_at_a_time = threading.Lock()

    def pull(self) -> None:
        """Brings what is new at the remote place here; it wins where both changed, but loses nothing new here."""
        with self._store.answering("must be a place that can be read"):
            found = self._store.infos()
            there = {name: _mark(info) for name, info in found.items() if self._shared(name)}
            for name in self._copied.keys() - there.keys():  # taken away at the other end
                (self.folder / name).unlink(missing_ok=True)
                del self._copied[name]
            for name, mark in there.items():
                known = self._copied.get(name)
                if known is None or known.there != mark or not (self.folder / name).exists():
                    self._download(name, mark)
            # Stores tell time by the second: what was written last may be written again within it, and is read again.
            newest = max((time_ns for _, time_ns in there.values()), default=0)
            for name in (name for name, (_, time_ns) in there.items() if time_ns > newest - SAME_TIME_NS):
                self._copied[name] = self._copied[name]._replace(there=_UNSURE)
        self._write_state()

    def push(self) -> None:
        """Uploads what is new or changed here since the last time, and takes away there what is gone here."""
        with self._one_at_a_time:
            here = dict(self._here())
            changed = [name for name in here if name not in self._copied or self._copied[name].here != here[name]]
            gone = [name for name in self._copied if name not in here]
            try:
                for name in sorted(changed, key=lambda name: (_turn(name), name)):
                    self._upload(name, here[name])
                for name in gone:
                    self._store.delete(name)
                    del self._copied[name]
            finally:
                if changed or gone:
                    self._write_state()

    @contextlib.contextmanager
    def kept_up(self, every_s: float = EVERY_S, patience_s: float = PATIENCE_S) -> Iterator[None]:
        """Pushes every few seconds for the length of a block, and once more at its end: RunError where that fails."""
        try:
            with meanwhile(self._tried, every_s, "mirror", rest=BUSY):
                yield
        finally:
            self._push_at_last(patience_s)

    def forget(self) -> None:
        """Takes away what was copied, at both ends."""
        if self._copied:
            self._store.system.delete_dir(self._store.root)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _tried(self) -> Exception | None:
        """One push; why it was not possible."""
        try:
            self.push()
        except (OSError, pa.ArrowException) as err:
            if not self._troubled:
                self._trouble(f"{self.uri} does not answer, and is tried again: {_why_not(err)}")
            self._troubled = True
            return err
        if self._troubled:
            self._trouble(f"{self.uri} answers again")
        self._troubled = False
        return None

    def _push_at_last(self, patience_s: float) -> None:
        pause_s, waited_s = 1.0, 0.0
        while err := self._tried():
            if waited_s >= patience_s or _is_denied(err):
                raise RunError(
                    f"{self.uri} did not take what is finished for {waited_s:.0f} s: {_why_not(err)}; it is all in "
                    f"{self.folder} and is brought there by the next run of the same work on this machine"
                )
            time.sleep(pause_s)
            waited_s, pause_s = waited_s + pause_s, min(2 * pause_s, 30.0)

    def _here(self) -> Iterator[tuple[str, tuple[int, int]]]:
        for root, _, names in os.walk(self.folder):
            inside = Path(root).relative_to(self.folder)
            for name in ((inside / name).as_posix() for name in names):
                if self._shared(name):
                    with contextlib.suppress(FileNotFoundError):
                        facts = (self.folder / name).stat()
                        yield name, (facts.st_size, facts.st_mtime_ns)

    def _shared(self, name: str) -> bool:
        return name.split("/")[0] not in self._without and not _is_hidden(name)

    def _download(self, name: str, mark: tuple[int, int]) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with self._store.reading(name) as stream:
            write_atomically(path, lambda file: shutil.copyfileobj(stream, file))
        facts = path.stat()
        self._copied[name] = _Copied((facts.st_size, facts.st_mtime_ns), mark)

    def _upload(self, name: str, here: tuple[int, int]) -> None:
        try:
            content = read_bytes(self.folder / name)
            if Path(name).name == _LOG:
                content = content[: here[0]]
        except FileNotFoundError:  # gone since
            return
        self._store.write(name, content)
        self._copied[name] = _Copied(here, _mark(self._store.info(name)))

    def _read_state(self) -> dict[str, _Copied]:
        try:
            state = json.loads((self.folder / _STATE).read_text(encoding="utf-8"))
            if state["uri"] != self.uri:
                return {}
            return {name: _Copied(tuple(here), tuple(there)) for name, (here, there) in state["files"].items()}
        except (OSError, ValueError, KeyError, TypeError):
            return {}

    def _write_state(self) -> None:
        state = json.dumps({"uri": self.uri, "files": self._copied}).encode()
        write_atomically(self.folder / _STATE, lambda file: file.write(state))


def _turn(name: str) -> int:
    last = Path(name).name
    return 1 + _LAST.index(last) if last in _LAST else 0


def _mark(info: pafs.FileInfo) -> tuple[int, int]:
    return int(info.size), int(info.mtime_ns or 0)


MAX_BYTES = 255  # of one part of a name, on the file systems there are


def _require_below(names: Collection[str], place: object) -> None:
    """Refuses names that are no files below a folder, each for itself on every file system."""
    spelled: dict[str, str] = {}
    files = set(names)
    for name in sorted(files):
        parts = name.split("/")
        if not all(_is_plain(part) for part in parts):
            raise _refusal(place, name, "which is no name of a file below a folder")
        for end in range(1, len(parts) + 1):
            path = "/".join(parts[:end])
            other = spelled.setdefault(unicodedata.normalize("NFC", path).casefold(), path)
            if other != path:
                raise _refusal(place, name, f"which differs by case alone from {printable(shortened(other))}")
            if end < len(parts) and path in files:
                raise _refusal(place, name, "whose folder is a file")


def _is_plain(part: str) -> bool:
    """Whether a part of a name is one, and no way up, to the root, or to another drive."""
    return (
        part not in ("", ".", "..")
        and not any(sign in part for sign in "\\:")
        and part.isprintable()
        and len(part.encode(errors="replace")) <= MAX_BYTES
    )


def _refusal(place: object, name: str, why: str) -> RunError:
    return RunError(
        f"{shortened(place)} must hold files that can be copied below a folder, it names one "
        f"{printable(shortened(name))!r}, {why}; nothing was copied"
    )
