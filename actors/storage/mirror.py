"""Synchronisation of a local folder with its copy on any file system of pyarrow.fs: NFS, `s3://`, `gs://`.

Object stores cannot rename or append, so files are written locally and then uploaded. The size and time of each copied
file on both sides are stored in `.mirror.json` of the local folder. Files whose names start with a dot are not copied.
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

from dpaudit.actors.audited.signals import call_periodically
from dpaudit.errors import RunError, printable, shortened
from dpaudit.plain_files import (
    is_remote,
    open_to_read,
    private_folder,
    read_bytes,
    require_fits_memory,
    require_no_credentials,
    require_plain,
    write_atomically,
)

PUSH_INTERVAL_S = 5.0  # between uploads during a run; a lost machine loses the results of at most this time
PATIENCE_S = 300.0  # the final upload is retried for this long if the store does not answer
REST_FACTOR = 20.0  # the pause after a slow push, as a multiple of its duration
TIME_RESOLUTION_NS = 2_000_000_000  # of modification times in object stores
_UNKNOWN_MARK = (-1, -1)
_STATE = ".mirror.json"
_LOG = "events.jsonl"
"""Grows during uploads. Only its size at the start is uploaded, so that it names no unit that is not uploaded yet."""
_PERMANENT_ERRORS = (
    *("ACCESS_DENIED", "INVALID_ACCESS_KEY_ID", "INVALID_CLIENT_TOKEN_ID", "SIGNATURE_DOES_NOT_MATCH"),
    "NO_SUCH_BUCKET",
)
_UPLOADED_LAST = {_LOG: 1, "bounds.json": 2, "report.html": 3}  # after the files that they refer to


@dataclass(frozen=True)
class FileStore:
    """Files of a place on any file system of pyarrow.fs. Failing stores raise OSError or pa.ArrowException."""

    place: str  # its name in messages
    system: pafs.FileSystem
    root: str

    @classmethod
    def at(cls, place: str | Path) -> FileStore:
        """Return the store of a path or of a URI; RunError if it holds credentials or no file system accepts it."""
        if not is_remote(place):
            return cls(str(place), pafs.LocalFileSystem(), str(place))
        require_no_credentials(str(place))
        try:
            system, root = pafs.FileSystem.from_uri(str(place))
        except (pa.ArrowException, OSError, ValueError) as err:
            raise RunError(
                f"{shortened(place)} must be a place that can be reached: {_error_with_advice(err)}"
            ) from err
        return cls(str(place), system, root.rstrip("/"))

    @contextlib.contextmanager
    def explain_errors(self, must: str) -> Iterator[None]:
        """Raise errors of the store as RunError, with `must` as the rule that the place breaks."""
        try:
            yield
        except (OSError, pa.ArrowException) as err:
            raise RunError(f"{shortened(self.place, 300)} {must}: {_error_with_advice(err)}") from err

    @property
    def is_local(self) -> bool:
        """True for a folder of this machine, where files can be renamed."""
        return isinstance(self.system, pafs.LocalFileSystem)

    def require_plain(self) -> None:
        """Raise RunError if a local place holds links, pipes, sockets or devices; object stores hold none."""
        if self.is_local:
            require_plain(Path(self.root))

    def file_infos(self) -> dict[str, pafs.FileInfo]:
        """Return information on the files by name, without those whose names start with a dot."""
        infos = self.system.get_file_info(pafs.FileSelector(self.root, recursive=True, allow_not_found=True))
        files = {info.path.removeprefix(self.root).removeprefix("/"): info for info in infos if info.is_file}
        _require_safe_names(files, self.place)
        return {name: info for name, info in files.items() if not _is_hidden(name)}

    def info(self, name: str) -> pafs.FileInfo:
        return self.system.get_file_info(self._path(name))

    def open_file(self, name: str) -> IO[bytes]:
        if self.is_local:
            return open_to_read(Path(self._path(name)))
        stream: IO[bytes] = self.system.open_input_stream(self._path(name))
        return stream

    def content(self, name: str) -> bytes | None:
        """Return the content of a file; None if it is missing."""
        try:
            if self.is_local:
                return read_bytes(Path(self._path(name)))
            with self.system.open_input_file(self._path(name)) as file:
                require_fits_memory(file.size(), self._path(name))
                content: bytes = file.read()
                return content
        except FileNotFoundError:
            return None

    def write(self, name: str, content: bytes) -> None:
        """Write a file atomically: a local file is renamed, an object appears when its upload is complete."""
        path = self._path(name)
        target = path
        if self.is_local:
            folder, _, last = path.rpartition("/")
            self.system.create_dir(folder, recursive=True)
            target = f"{folder}/.{last}.{uuid.uuid4().hex}.partial"
        with self.system.open_output_stream(target) as stream:
            stream.write(content)
        if target != path:
            self.system.move(target, path)

    def delete(self, name: str) -> None:
        self.system.delete_file(self._path(name))

    def _path(self, name: str) -> str:
        return f"{self.root}/{name}"


def _is_hidden(name: str) -> bool:
    return any(part.startswith(".") for part in name.split("/"))


def _error_with_advice(err: Exception) -> str:
    """Return the error of a store, with advice if access was denied."""
    advice = "; check the credentials in the environment (such as AWS_ACCESS_KEY_ID) and their permissions"
    return f"{printable(shortened(err, 240))}{advice if _is_permanent(err) else ''}"


def _is_permanent(err: Exception) -> bool:
    """True if a retry would fail in the same way."""
    return any(f"AWS Error {word} " in str(err) for word in _PERMANENT_ERRORS)


class _CopiedFile(NamedTuple):
    """State of a file on both sides when it was copied."""

    local: tuple[int, int]  # size, modification time in nanoseconds
    remote: tuple[int, int]


class Mirror:
    """A private local folder and its remote copy.

    Args:
        excluded: Names of top-level folders that are not copied.
        on_trouble: Called with one sentence when the store stops answering, and when it answers again.
    """

    def __init__(
        self,
        folder: Path,
        uri: str,
        *,
        excluded: Collection[str] = (),
        on_trouble: Callable[[str], None] = lambda message: None,
    ) -> None:
        self.folder, self.uri, self._on_trouble = folder, uri, on_trouble
        self._excluded = frozenset(excluded)
        self._store = FileStore.at(uri)
        private_folder(folder)
        self._copied: dict[str, _CopiedFile] = self._read_state()
        self._is_failing = False
        self._lock = threading.Lock()

    def pull(self) -> None:
        """Download new and changed remote files. They replace local changes; new local files stay."""
        with self._store.explain_errors("must be a place that can be read"):
            infos = self._store.file_infos()
            remote = {name: _mark(info) for name, info in infos.items() if self._is_mirrored(name)}
            for name in self._copied.keys() - remote.keys():  # deleted at the remote place
                (self.folder / name).unlink(missing_ok=True)
                del self._copied[name]
            for name, mark in remote.items():
                copied = self._copied.get(name)
                if copied is None or copied.remote != mark or not (self.folder / name).exists():
                    self._download(name, mark)
            # Store times may have a resolution of a second: a file may change again within it, so it is read again.
            newest = max((time_ns for _, time_ns in remote.values()), default=0)
            for name in (name for name, (_, time_ns) in remote.items() if time_ns > newest - TIME_RESOLUTION_NS):
                self._copied[name] = self._copied[name]._replace(remote=_UNKNOWN_MARK)
        self._write_state()

    def push(self) -> None:
        """Upload files that are new or changed since the last push, and delete remote files that were deleted here."""
        with self._lock:
            local = dict(self._local_files())
            changed = [name for name in local if name not in self._copied or self._copied[name].local != local[name]]
            deleted = [name for name in self._copied if name not in local]
            try:
                for name in sorted(changed, key=lambda name: (_UPLOADED_LAST.get(Path(name).name, 0), name)):
                    self._upload(name, local[name])
                for name in deleted:
                    self._store.delete(name)
                    del self._copied[name]
            finally:
                if changed or deleted:
                    self._write_state()

    @contextlib.contextmanager
    def synchronized(self, interval_s: float = PUSH_INTERVAL_S, patience_s: float = PATIENCE_S) -> Iterator[None]:
        """Push every `interval_s` seconds during a block and once at its end; RunError if the last push fails."""
        try:
            with call_periodically(self._try_push, interval_s, "mirror", rest_factor=REST_FACTOR):
                yield
        finally:
            pause_s, waited_s = 1.0, 0.0
            while err := self._try_push():
                if waited_s >= patience_s or _is_permanent(err):
                    raise RunError(
                        f"{self.uri} did not accept uploads for {waited_s:.0f} s: {_error_with_advice(err)}; all "
                        f"results are in {self.folder}, and the next run of the same work on this machine uploads them"
                    )
                time.sleep(pause_s)
                waited_s, pause_s = waited_s + pause_s, min(2 * pause_s, 30.0)

    def delete_copies(self) -> None:
        """Delete the files on both sides."""
        if self._copied:
            self._store.system.delete_dir(self._store.root)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _try_push(self) -> Exception | None:
        """Push once; return the error if the store did not answer."""
        try:
            self.push()
        except (OSError, pa.ArrowException) as err:
            if not self._is_failing:
                self._on_trouble(f"{self.uri} does not answer, and is tried again: {_error_with_advice(err)}")
            self._is_failing = True
            return err
        if self._is_failing:
            self._on_trouble(f"{self.uri} answers again")
        self._is_failing = False
        return None

    def _local_files(self) -> Iterator[tuple[str, tuple[int, int]]]:
        for root, _, names in os.walk(self.folder):
            inside = Path(root).relative_to(self.folder)
            for name in ((inside / name).as_posix() for name in names):
                if self._is_mirrored(name):
                    with contextlib.suppress(FileNotFoundError):
                        status = (self.folder / name).stat()
                        yield name, (status.st_size, status.st_mtime_ns)

    def _is_mirrored(self, name: str) -> bool:
        return name.split("/")[0] not in self._excluded and not _is_hidden(name)

    def _download(self, name: str, mark: tuple[int, int]) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with self._store.open_file(name) as stream:
            write_atomically(path, lambda file: shutil.copyfileobj(stream, file))
        status = path.stat()
        self._copied[name] = _CopiedFile((status.st_size, status.st_mtime_ns), mark)

    def _upload(self, name: str, local: tuple[int, int]) -> None:
        try:
            content = read_bytes(self.folder / name)
            if Path(name).name == _LOG:
                content = content[: local[0]]
        except FileNotFoundError:  # deleted since
            return
        self._store.write(name, content)
        self._copied[name] = _CopiedFile(local, _mark(self._store.info(name)))

    def _read_state(self) -> dict[str, _CopiedFile]:
        try:
            state = json.loads((self.folder / _STATE).read_text(encoding="utf-8"))
            if state["uri"] != self.uri:
                return {}
            return {name: _CopiedFile(tuple(local), tuple(remote)) for name, (local, remote) in state["files"].items()}
        except (OSError, ValueError, KeyError, TypeError):
            return {}

    def _write_state(self) -> None:
        state = json.dumps({"uri": self.uri, "files": self._copied}).encode()
        write_atomically(self.folder / _STATE, lambda file: file.write(state))


def _mark(info: pafs.FileInfo) -> tuple[int, int]:
    return int(info.size), int(info.mtime_ns or 0)


_MAX_NAME_BYTES = 255  # of one part of a name, on the file systems there are


def _require_safe_names(names: Collection[str], place: object) -> None:
    """Raise RunError unless every name is a path below the folder and differs from the others on all file systems."""
    spellings: dict[str, str] = {}
    files = set(names)
    for name in sorted(files):
        parts = name.split("/")
        if not all(_is_safe_part(part) for part in parts):
            raise _name_error(place, name, "which is not the path of a file below a folder")
        for end in range(1, len(parts) + 1):
            path = "/".join(parts[:end])
            other = spellings.setdefault(unicodedata.normalize("NFC", path).casefold(), path)
            if other != path:
                raise _name_error(place, name, f"which differs only by case from {printable(shortened(other))}")
            if end < len(parts) and path in files:
                raise _name_error(place, name, "whose folder is a file")


def _is_safe_part(part: str) -> bool:
    """True if a part of a path is a plain name, and does not lead up, to the root, or to another drive."""
    return (
        part not in ("", ".", "..")
        and not any(sign in part for sign in "\\:")
        and part.isprintable()
        and len(part.encode(errors="replace")) <= _MAX_NAME_BYTES
    )


def _name_error(place: object, name: str, why: str) -> RunError:
    return RunError(
        f"{shortened(place)} must hold only files that can be copied below a folder, it holds "
        f"{printable(shortened(name))!r}, {why}; nothing was copied"
    )
