"""One driver a run folder: who holds it, for as long as they live."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from dpaudit.actors.meanwhile import meanwhile
from dpaudit.errors import RunError, shortened
from dpaudit.plain_files import created, opened_in_place

if TYPE_CHECKING:
    from dpaudit.actors.storage.mirror import FileStore

BEAT_S = 10.0
STALE_S = 60.0  # a driver on another machine that has not touched its lease for so long is held to be dead
SETTLE_S = 1.0  # after which a remote lease is read again: of two drivers that take it at once, the last one keeps it
_NAME = ".lease"
_MAX_BYTES = 4096


@contextlib.contextmanager
def lease(folder: Path) -> Iterator[None]:
    """Holds the run folder for the length of a `with` block.

    On one machine the kernel decides, by a lock that dies with its process, however it dies. A machine that shares the
    folder may not see that lock: for it, the file says which host holds the folder, and is touched every few seconds.

    Raises: RunError, which says who holds it.
    """
    file = opened_in_place(folder / _NAME, os.O_RDWR | os.O_CREAT)

    def beat() -> None:
        with contextlib.suppress(OSError):
            os.utime(file)

    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise _held(folder, _holder(os.pread(file, _MAX_BYTES, 0)), "wait for it") from None
        holder = _holder(os.pread(file, _MAX_BYTES, 0))
        elsewhere = (holder.get("host"), holder.get("boot")) != (socket.gethostname(), _boot())
        if holder and elsewhere and abs(_age_s(folder, file)) < STALE_S:
            raise _held(folder, holder, "wait for it")
        os.ftruncate(file, 0)
        os.pwrite(file, json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "boot": _boot()}).encode(), 0)
        try:
            with meanwhile(beat, BEAT_S, "lease"):
                yield
        finally:
            os.ftruncate(file, 0)
    finally:
        os.close(file)  # which lets go of the lock


def _age_s(folder: Path, file: int) -> float:
    """Seconds since the lease was touched, by the clock of the machine that keeps the folder.

    A time that lies further ahead than that was touched by nobody who lives: who does, touches it with that clock.
    """
    probe = folder / f"{_NAME}.{uuid.uuid4().hex}"
    try:
        with created(probe) as made:
            return os.fstat(made.fileno()).st_mtime - os.fstat(file).st_mtime
    finally:
        probe.unlink(missing_ok=True)


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


@contextlib.contextmanager
def remote_lease(store: FileStore) -> Iterator[None]:
    """Holds a remote run folder for the length of a `with` block, as far as an object store allows.

    No object store is asked for a condition when it writes, so the rule is write, wait, read: whoever stands there then
    holds it. Two drivers that begin within the same second and one of which is slower than that could both go on;
    they would write the same units, whole, and the later report. Ages are told by the store's own clock.

    Raises: RunError, which says who holds it, or that the place cannot be written.
    """
    mine = {"id": uuid.uuid4().hex, "pid": os.getpid(), "host": socket.gethostname()}
    wait = f"wait for it ({STALE_S:.0f} s, where it was lost)"

    def write() -> None:
        store.write(_NAME, json.dumps(mine).encode())

    def beat() -> None:
        with contextlib.suppress(OSError, pa.ArrowException):
            write()

    with store.answering("must be a place that can be written"):
        holder = _remote_holder(store)
        if holder and abs(_remote_age_s(store)) < STALE_S:  # ahead of the clock is no beat either
            raise _held(store.place, holder, wait)
        write()
        time.sleep(SETTLE_S)
        holder = _remote_holder(store)
    if holder.get("id") != mine["id"]:
        raise _held(store.place, holder, wait)
    try:
        with meanwhile(beat, BEAT_S, "lease"):
            yield
    finally:
        with contextlib.suppress(OSError, pa.ArrowException):
            if _remote_holder(store).get("id") == mine["id"]:
                store.delete(_NAME)


def _remote_holder(store: FileStore) -> dict[str, Any]:
    try:
        with store.reading(_NAME) as stream:
            return _holder(stream.read(_MAX_BYTES))
    except FileNotFoundError:
        return {}


def _remote_age_s(store: FileStore) -> float:
    """Seconds since the lease was written, by the clock of the store."""
    probe = f"{_NAME}.{uuid.uuid4().hex}"
    store.write(probe, b"{}")
    try:
        now, then = (store.info(name).mtime_ns or 0 for name in (probe, _NAME))
        return float(now - then) / 1e9
    finally:
        store.delete(probe)


def _holder(content: bytes) -> dict[str, Any]:
    """Who wrote a lease; nobody where it is empty or no lease."""
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _held(place: object, holder: dict[str, Any], wait: str) -> RunError:
    known = {"pid", "host"} <= holder.keys()
    who = f"process {shortened(holder['pid'])} on {shortened(holder['host'])}" if known else "another process"
    return RunError(f"{place} is being written by {who}; {wait}, or give another --output")
