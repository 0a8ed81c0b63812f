"""One driver a run folder: who holds it, for as long as they live."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dpaudit.errors import RunError, shortened
from dpaudit.plain_files import created, opened_in_place

BEAT_S = 10.0
STALE_S = 60.0
"""A driver on another machine that has not touched its lease for so long is held to be dead."""


@contextlib.contextmanager
def lease(folder: Path) -> Iterator[None]:
    """Holds the run folder for the length of a `with` block.

    On one machine the kernel decides, by a lock that dies with its process, however it dies. A machine that shares the
    folder may not see that lock: for it, the file says which host holds the folder, and is touched every few seconds.

    Raises: RunError, which says who holds it.
    """
    path = folder / ".lease"
    file = opened_in_place(path, os.O_RDWR | os.O_CREAT)
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise _held(folder, _holder(file)) from None
        holder = _holder(file)
        elsewhere = (holder.get("host"), holder.get("boot")) != (socket.gethostname(), _boot())
        if holder and elsewhere and _beats(folder, file):
            raise _held(folder, holder)
        _write(file, {"pid": os.getpid(), "host": socket.gethostname(), "boot": _boot()})
        ended = threading.Event()
        beat = threading.Thread(target=_beat, args=(file, ended), daemon=True)
        beat.start()
        try:
            yield
        finally:
            ended.set()
            beat.join()
            os.ftruncate(file, 0)
    finally:
        os.close(file)  # which lets go of the lock


def _held(folder: Path, holder: dict[str, Any]) -> RunError:
    who = (
        f"process {shortened(holder['pid'])} on {shortened(holder['host'])}"
        if {"pid", "host"} <= holder.keys()
        else "another process"
    )
    return RunError(f"{folder} is being written by {who}; wait for it, or give another --output")


def _holder(file: int) -> dict[str, Any]:
    """Who wrote the lease; nobody where it is empty or no lease."""
    try:
        found = json.loads(os.pread(file, 4096, 0))
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _write(file: int, holder: dict[str, Any]) -> None:
    os.ftruncate(file, 0)
    os.pwrite(file, json.dumps(holder).encode(), 0)


def _beats(folder: Path, file: int) -> bool:
    """Whether the lease was touched a moment ago, by the clock of the machine that keeps the folder.

    A time that lies further ahead than that was touched by nobody who lives: who does, touches it with that clock.
    """
    probe = folder / f".lease.{uuid.uuid4().hex}"
    try:
        with created(probe) as made:
            now = os.fstat(made.fileno()).st_mtime
        return abs(now - os.fstat(file).st_mtime) < STALE_S
    finally:
        probe.unlink(missing_ok=True)


def _beat(file: int, ended: threading.Event) -> None:
    while not ended.wait(BEAT_S):
        with contextlib.suppress(OSError):
            os.utime(file)


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""
