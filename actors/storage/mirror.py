"""A local folder and its copy anywhere pyarrow.fs reaches: NFS, `s3://`, `gs://`; one is brought to the other.

Object stores rename nothing and append to nothing, so what is written is written here, in whole files or by appending,
and is then uploaded: an object appears under its name when its upload is complete, or not at all. What was uploaded is
known by its size and time on both sides, kept in `.mirror.json` of the local folder. Files whose names start with a
dot belong to one side alone.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

import pyarrow as pa
import pyarrow.fs as pafs

from dpaudit.actors.storage.object_names import require_below
from dpaudit.errors import RunError, printable, shortened
from dpaudit.plain_files import bytes_of, created, private_folder, reading, require_fits

EVERY_S = 5.0
"""How often what is new is uploaded while a run goes on: at most so much of it is lost with its machine."""
PATIENCE_S = 300.0
"""For how long, at the end, an upload is tried again when the store does not answer."""
BUSY = 20.0
"""Pushes that take long come so many times as long after each other."""
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
_LAST = (_LOG, "bounds.json", "report.html")
"""Uploaded after everything they speak of."""


def is_remote(place: str | Path) -> bool:
    """Whether a place is named by a URI, such as s3://bucket/runs/mine, and not by a path."""
    return "://" in str(place)


def inside(uri: str, name: str) -> str:
    """The URI of a file or folder in the place of another URI."""
    path, question, options = uri.partition("?")
    return f"{path.rstrip('/')}/{name}{question}{options}"


def reached(place: str | Path) -> tuple[pafs.FileSystem, str]:
    """The file system of a path or a URI, and the path in it.

    Raises: RunError as `filesystem_of`.
    """
    return filesystem_of(str(place)) if is_remote(place) else (pafs.LocalFileSystem(), str(place))


def refuse_credentials(uri: str) -> None:
    """Refuses a URI that holds credentials.

    Raises: RunError, which does not show it.
    """
    if "@" in uri.partition("://")[2].partition("/")[0]:
        raise RunError(
            "a place must be named without credentials, since it is written into plans, logs and reports; set them in "
            "the environment (AWS_ACCESS_KEY_ID and its kin), or give the machine a role"
        )


def filesystem_of(uri: str) -> tuple[pafs.FileSystem, str]:
    """The file system of a URI and the path in it.

    Args:
        uri: As `pyarrow.fs.FileSystem.from_uri` takes it. Credentials come from the environment of the machine.
    Raises: RunError for one that holds credentials, or is of no file system here.
    """
    refuse_credentials(uri)
    try:
        filesystem, path = pafs.FileSystem.from_uri(uri)
    except (pa.ArrowException, OSError, ValueError) as err:
        raise RunError(f"{shortened(uri)} must be a place that can be reached: {why_not(err)}") from err
    return filesystem, path.rstrip("/")


def renames(filesystem: pafs.FileSystem) -> bool:
    """Whether a file there can be renamed in one step: of an object store the copy would be no better."""
    return isinstance(filesystem, pafs.LocalFileSystem)


def files_in(filesystem: pafs.FileSystem, root: str, place: str | Path) -> dict[str, pafs.FileInfo]:
    """The files of a place by their names from it, those aside whose names start with a dot.

    Args:
        filesystem: Of the place.
        root: Where it is there; it holds nothing where it is not there.
        place: What messages call it.
    Raises: RunError for a name that is no file below a folder; OSError when the store does not answer.
    """
    found = filesystem.get_file_info(pafs.FileSelector(root, recursive=True, allow_not_found=True))
    files = {info.path.removeprefix(root).removeprefix("/"): info for info in found if info.is_file}
    require_below(files, place)
    return {name: info for name, info in files.items() if not any(part.startswith(".") for part in name.split("/"))}


def reading_from(filesystem: pafs.FileSystem, path: str) -> IO[bytes]:
    """A file of a store, open to be read.

    Raises: FileNotFoundError; RunError when it is no plain file; OSError when the store does not answer.
    """
    if isinstance(filesystem, pafs.LocalFileSystem):
        return reading(Path(path))
    stream: IO[bytes] = filesystem.open_input_stream(path)
    return stream


def bytes_from(filesystem: pafs.FileSystem, path: str) -> bytes:
    """All of a file of a store.

    Raises: FileNotFoundError; RunError when it is no plain file, or too large; OSError when the store does not answer.
    """
    if isinstance(filesystem, pafs.LocalFileSystem):
        return bytes_of(Path(path))
    with filesystem.open_input_file(path) as file:
        require_fits(file.size(), path)
        found: bytes = file.read()
        return found


def why_not(err: Exception) -> str:
    """Why a store could not be used, and what to do, where that is known."""
    denied = is_denied(err)
    do = "; check the credentials in the environment (AWS_ACCESS_KEY_ID and its kin) and what they may do there"
    return f"{printable(shortened(err, 240))}{do if denied else ''}"


def is_denied(err: Exception) -> bool:
    """Whether a store has answered, and will say the same again."""
    return any(f"AWS Error {word} " in str(err) for word in _DENIED)


@dataclass(frozen=True)
class _Copied:
    """A file that is the same on both sides, as it was then."""

    here: tuple[int, int]  # size, time of last change in nanoseconds
    there: tuple[int, int]


class Mirror:
    """A local folder and its remote copy.

    Args:
        folder: The local folder, for this user alone; made if it is not there.
        uri: Of the remote one.
        without: Folders at their top that are not copied.
        only: Tells of a file's name, from the folder, whether it is copied.
        trouble: Told in one sentence when the store does not answer, and when it answers again.
    """

    def __init__(
        self,
        folder: Path,
        uri: str,
        *,
        without: Collection[str] = (),
        only: Callable[[str], bool] = lambda name: True,
        trouble: Callable[[str], None] = lambda said: None,
    ) -> None:
        self.folder, self.uri, self._trouble = folder, uri, trouble
        self._without, self._only = frozenset(without), only
        self._fs, self._root = filesystem_of(uri)
        private_folder(folder)
        self._copied: dict[str, _Copied] = self._read_state()
        self._troubled = False
        self._one_at_a_time = threading.Lock()

    def pull(self) -> None:
        """Brings what is new at the remote place here; it wins where both changed, but loses nothing new here.

        Raises: RunError when it cannot be reached.
        """
        try:
            there = self._there()
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
                self._copied[name] = replace(self._copied[name], there=_UNSURE)
        except (OSError, pa.ArrowException) as err:
            raise RunError(f"{self.uri} must be a place that can be read: {why_not(err)}") from err
        self._write_state()

    def push(self) -> None:
        """Uploads what is new or changed here since the last time, and takes away there what is gone here.

        Raises: OSError when the store does not answer.
        """
        with self._one_at_a_time:
            here = dict(self._here())
            changed = [name for name in here if name not in self._copied or self._copied[name].here != here[name]]
            gone = [name for name in self._copied if name not in here]
            try:
                for name in sorted(changed, key=lambda name: (_turn(name), name)):
                    self._upload(name, here[name])
                for name in gone:
                    self._fs.delete_file(f"{self._root}/{name}")
                    del self._copied[name]
            finally:
                if changed or gone:
                    self._write_state()

    @contextlib.contextmanager
    def kept_up(self, every_s: float = EVERY_S, patience_s: float = PATIENCE_S) -> Iterator[None]:
        """Pushes every few seconds for the length of a `with` block, and once more at its end.

        Args:
            every_s: Seconds between two pushes; more where they take long.
            patience_s: For how long the last one is tried again.
        Raises: RunError when that last push cannot be made; what could not be brought is here still.
        """
        ended = threading.Event()
        pushing = threading.Thread(target=self._push_until, args=(ended, every_s), name="dpaudit-mirror", daemon=True)
        pushing.start()
        try:
            yield
        finally:
            ended.set()
            pushing.join()
            self._push_at_last(patience_s)

    def forget(self) -> None:
        """Takes away what was copied, at both ends.

        Raises: OSError when the store does not answer.
        """
        if self._copied:
            self._fs.delete_dir(self._root)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _push_until(self, ended: threading.Event, every_s: float) -> None:
        pause_s = every_s
        while not ended.wait(pause_s):
            began = time.monotonic()
            self._tried()
            pause_s = max(every_s, BUSY * (time.monotonic() - began))

    def _tried(self) -> Exception | None:
        """One push; why it was not possible."""
        try:
            self.push()
        except (OSError, pa.ArrowException) as err:
            if not self._troubled:
                self._trouble(f"{self.uri} does not answer, and is tried again: {why_not(err)}")
            self._troubled = True
            return err
        if self._troubled:
            self._trouble(f"{self.uri} answers again")
        self._troubled = False
        return None

    def _push_at_last(self, patience_s: float) -> None:
        pause_s, waited_s = 1.0, 0.0
        while err := self._tried():
            if waited_s >= patience_s or is_denied(err):
                raise RunError(
                    f"{self.uri} did not take what is finished for {waited_s:.0f} s: {why_not(err)}; it is all in "
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

    def _there(self) -> dict[str, tuple[int, int]]:
        found = files_in(self._fs, self._root, self.uri)
        return {name: _mark(info) for name, info in found.items() if self._shared(name)}

    def _shared(self, name: str) -> bool:
        parts = name.split("/")
        hidden = any(part.startswith(".") for part in parts)
        return parts[0] not in self._without and not hidden and self._only(name)

    def _download(self, name: str, mark: tuple[int, int]) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
        with reading_from(self._fs, f"{self._root}/{name}") as stream, created(partial) as file:
            shutil.copyfileobj(stream, file)
        os.replace(partial, path)
        facts = path.stat()
        self._copied[name] = _Copied((facts.st_size, facts.st_mtime_ns), mark)

    def _upload(self, name: str, here: tuple[int, int]) -> None:
        try:
            content = bytes_of(self.folder / name)
            if Path(name).name == _LOG:
                content = content[: here[0]]
        except FileNotFoundError:  # gone since
            return
        target = f"{self._root}/{name}"
        if renames(self._fs):
            self._fs.create_dir(target.rpartition("/")[0], recursive=True)
            partial = "{}/.{}.{}.partial".format(*target.rsplit("/", 1), uuid.uuid4().hex)
            with self._fs.open_output_stream(partial) as stream:
                stream.write(content)
            self._fs.move(partial, target)
        else:  # an object is there when its upload is complete
            with self._fs.open_output_stream(target) as stream:
                stream.write(content)
        self._copied[name] = _Copied(here, _mark(self._fs.get_file_info(target)))

    def _read_state(self) -> dict[str, _Copied]:
        try:
            state = json.loads((self.folder / _STATE).read_text(encoding="utf-8"))
            if state["uri"] != self.uri:
                return {}
            return {name: _Copied(tuple(here), tuple(there)) for name, (here, there) in state["files"].items()}
        except (OSError, ValueError, KeyError, TypeError):
            return {}

    def _write_state(self) -> None:
        files = {name: (copied.here, copied.there) for name, copied in self._copied.items()}
        partial = self.folder / f"{_STATE}.partial"
        partial.write_text(json.dumps({"uri": self.uri, "files": files}), encoding="utf-8")
        os.replace(partial, self.folder / _STATE)


def _turn(name: str) -> int:
    last = Path(name).name
    return 1 + _LAST.index(last) if last in _LAST else 0


def _mark(info: pafs.FileInfo) -> tuple[int, int]:
    return int(info.size), int(info.mtime_ns or 0)
