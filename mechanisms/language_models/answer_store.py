"""What all processes that ask one server share on disk: the answers there are, and the pace the server allows.

Answers lie under a hash of what was asked: what was answered once is never asked again. Every process appends whole
lines to a file of its own, so many can write side by side and one that is killed loses nothing but a line it was
writing. What was asked is not kept: prompts hold training examples.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import stat
import threading
import time
import uuid
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpaudit.errors import InputError, printable, require, shortened

_FARTHEST_S = 86_400.0  # A moment farther away than this was not written by a request that waited for its turn
_MAX_BYTES = 1 << 30  # Of a file that one process has written: more than all answers of a large audit


class AnswerStore:
    """The answers in one folder, by key, and a journal of what went wrong on the way to them.

    Lines that are no answers are not used, which is noted in a file beside them and said by whoever finds them first. A
    folder that others can write in is refused: their answers would be taken for the model's.
    """

    def __init__(self, folder: Path) -> None:
        _require_private(folder)
        self._folder = folder
        self._own = f"{os.getpid()}-{uuid.uuid4().hex[:8]}.jsonl"
        self._known: dict[str, dict[str, Any]] = {}
        self._read_to: dict[Path, int] = {}
        self._lock = threading.Lock()

    def known(self, keys: Iterable[str]) -> dict[str, dict[str, Any]]:
        """The answers there are to these questions, other processes' included."""
        with self._lock:
            unused = [one for path in sorted(self._folder.glob("answers-*.jsonl")) for one in self._catch_up(path)]
            if unused:
                self._say(unused)
            return {key: self._known[key] for key in keys if key in self._known}

    def keep(self, key: str, answer: Mapping[str, Any]) -> None:
        """Writes an answer down before anybody uses it."""
        self._append("answers", {"key": key, **answer})
        with self._lock:
            self._known[key] = dict(answer)

    def note(self, key: str, what: str, attempt: int) -> None:
        self._append("trouble", {"key": key, "what": what, "attempt": attempt})

    def _append(self, kind: str, record: Mapping[str, Any]) -> None:
        line = json.dumps({**record, "at": round(time.time(), 3)}).encode() + b"\n"
        file = _open_regular(self._folder / f"{kind}-{self._own}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            os.write(file, line)
        finally:
            os.close(file)

    def _catch_up(self, path: Path) -> list[dict[str, Any]]:
        """Takes up what is new in a file; what of it is not used, and why."""
        unused = []
        start = self._read_to.get(path, 0)
        try:
            for begin, line in _lines(path, start):
                self._read_to[path] = begin + len(line)
                record = _record(line, text=str)
                if record is None:
                    unused.append({"file": path.name, "byte": begin, "why": "no answer"})
                elif self._known.setdefault(record.pop("key"), record)["text"] != record["text"]:
                    unused.append({"file": path.name, "byte": begin, "why": "another answer was kept before"})
        except OSError as err:
            unused.append({"file": path.name, "byte": start, "why": err.strerror})
        return unused

    def _say(self, unused: Sequence[Mapping[str, Any]]) -> None:
        """Notes and says what is not used, where nobody has before."""
        noted = {
            (record["file"], record["byte"])
            for path in self._folder.glob("unused-*.jsonl")
            for _, line in _lines(path, 0)
            if (record := _record(line, file=str, byte=int)) is not None
        }
        new = [one for one in unused if (one["file"], one["byte"]) not in noted]
        with contextlib.suppress(OSError):  # a cache that is read only
            for one in new:
                self._append("unused", {"key": "", **one})
        if new:
            warnings.warn(
                f"{len(new):,} lines of the answers kept in {printable(str(self._folder))} are not used, since they "
                f"are no answers, or differ from one that was kept before; {self._folder.name}/unused-{self._own} says "
                "which, and what is not answered otherwise is asked again",
                RuntimeWarning,
                stacklevel=2,
            )


def _require_private(folder: Path) -> None:
    """Makes a folder for its owner alone where there is none, and refuses one that others can write in."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        found = folder.stat()
    except OSError as err:
        raise InputError(f"the folder of answers must be one, {shortened(folder)} is not: {err.strerror}") from err
    private = found.st_uid == os.geteuid() and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    require(
        private,
        f"the folder of answers must be yours, and nobody else may write in it, {shortened(folder)} is not",
        do="take it away or set `cache` to another one, or `chmod go-w` it where you know what is in it",
    )


def _open_regular(path: Path, flags: int) -> int:
    """Opens a file that is one: no link is followed, and no pipe waited for."""
    file = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    if stat.S_ISREG(os.fstat(file).st_mode):
        return file
    os.close(file)
    raise OSError(errno.EINVAL, "not a file", str(path))


def _lines(path: Path, start: int) -> Iterator[tuple[int, bytes]]:
    """Where each whole line from a byte on begins, and the line; OSError for what is no file, or too large."""
    with open(_open_regular(path, os.O_RDONLY), "rb") as file:
        if os.fstat(file.fileno()).st_size > _MAX_BYTES:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
        file.seek(start)
        begin = start
        # A last line without its end is still being written, or never will be.
        while (line := file.readline()).endswith(b"\n"):
            yield begin, line
            begin += len(line)


def _record(line: bytes, **kinds: type) -> dict[str, Any] | None:
    """The record in a line; None where it holds none, or a field of another kind than given here."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    kinds = {"key": str, **kinds}
    fits = isinstance(record, dict) and all(type(record.get(name)) is kind for name, kind in kinds.items())
    return record if fits else None


@dataclass(frozen=True)
class Pace:
    """The limits of one server: no more requests and tokens a minute than it allows, over all processes of a machine.

    Each request takes the next free moment and moves it on by its share of a minute: requests are evenly spaced.
    """

    file: Path  # where the next free moments are kept; shared by whoever shares the limit
    requests: float | None = None  # A minute; None: no limit
    tokens: float | None = None  # A minute; None: no limit
    clock: Callable[[], float] = time.time  # seconds, the same for all processes of a machine

    def reserve(self, tokens: int) -> float:
        """Takes the next free moment for one request of so many tokens; the seconds until then."""
        now = self.clock()
        with self._moments() as moments:
            start = max(now, *moments.values())
            if self.requests is not None:
                moments["requests"] = start + 60 / self.requests
            if self.tokens is not None:
                moments["tokens"] = start + 60 * tokens / self.tokens
        return start - now

    def hold(self, seconds: float) -> None:
        """Nobody starts a request within so many seconds: the server asked for that."""
        with self._moments() as moments:
            moments["held"] = max(moments["held"], self.clock() + seconds)

    @contextmanager
    def _moments(self) -> Iterator[dict[str, float]]:
        file = _open_regular(self.file, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            moments = {"requests": 0.0, "tokens": 0.0, "held": 0.0}
            try:
                kept = json.loads(os.pread(file, 4096, 0))
                found = {name: float(kept[name]) for name in moments}
                if all(moment <= self.clock() + _FARTHEST_S for moment in found.values()):
                    moments |= found
            except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
                pass  # new, or cut while it was written: nobody has waited for anything yet
            yield moments
            os.ftruncate(file, 0)
            os.pwrite(file, json.dumps(moments).encode(), 0)
        finally:
            os.close(file)  # which lets go of the lock
