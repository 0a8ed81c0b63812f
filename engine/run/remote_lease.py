"""One driver a remote run folder, as far as an object store allows: who holds it says so, again and again."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs

from dpaudit.actors.storage.mirror import filesystem_of, renames, why_not
from dpaudit.engine.run.lease import BEAT_S, STALE_S
from dpaudit.errors import RunError, shortened

MOST_BYTES = 4096
"""Of a lease."""
SETTLE_S = 1.0
"""After which a lease that was written is read again: of two drivers that take it at once, the last one keeps it."""


@contextlib.contextmanager
def remote_lease(uri: str, settle_s: float = SETTLE_S) -> Iterator[None]:
    """Holds a remote run folder for the length of a `with` block.

    No object store is asked for a condition when it writes, so the rule is write, wait, read: whoever stands there then
    holds it. Two drivers that begin within the same second and one of which is slower than that could both go on;
    they would write the same units, whole, and the later report. Ages are told by the store's own clock.

    Raises: RunError, which says who holds it, or that the place cannot be written.
    """
    filesystem, root = filesystem_of(uri)
    path = f"{root}/.lease"
    mine: dict[str, Any] = {"id": uuid.uuid4().hex, "pid": os.getpid(), "host": socket.gethostname()}
    try:
        if renames(filesystem):
            filesystem.create_dir(root, recursive=True)
        holder = _read(filesystem, path)
        if holder and abs(_age_s(filesystem, path, mine["id"])) < STALE_S:  # ahead of the clock is no beat either
            raise _held(uri, holder)
        _write(filesystem, path, mine)
        time.sleep(settle_s)
        holder = _read(filesystem, path)
    except (OSError, pa.ArrowException) as err:
        raise RunError(f"{uri} must be a place that can be written: {why_not(err)}") from err
    if holder.get("id") != mine["id"]:
        raise _held(uri, holder)
    ended = threading.Event()
    beat = threading.Thread(target=_beat, args=(filesystem, path, mine, ended), daemon=True)
    beat.start()
    try:
        yield
    finally:
        ended.set()
        beat.join()
        with contextlib.suppress(OSError, pa.ArrowException):
            if _read(filesystem, path).get("id") == mine["id"]:
                filesystem.delete_file(path)


def _held(uri: str, holder: dict[str, Any]) -> RunError:
    who = f"process {shortened(holder.get('pid'))} on {shortened(holder.get('host'))}" if holder else "another process"
    return RunError(
        f"{uri} is being written by {who}; wait for it ({STALE_S:.0f} s, where it was lost), or give another --output"
    )


def _read(filesystem: pafs.FileSystem, path: str) -> dict[str, Any]:
    """Who holds it; nobody where there is no lease, or none that can be read."""
    try:
        with filesystem.open_input_stream(path) as stream:
            found = json.loads(stream.read(MOST_BYTES))
    except (FileNotFoundError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _write(filesystem: pafs.FileSystem, path: str, holder: dict[str, Any]) -> None:
    where = f"{path}.{uuid.uuid4().hex}" if renames(filesystem) else path  # what has the name is not written into
    with filesystem.open_output_stream(where) as stream:
        stream.write(json.dumps(holder).encode())
    if where != path:
        filesystem.move(where, path)


def _age_s(filesystem: pafs.FileSystem, path: str, name: str) -> float:
    """Seconds since the lease was written, by the clock of the store."""
    probe = f"{path}.{name}"
    _write(filesystem, probe, {})
    try:
        now, then = (info.mtime_ns or 0 for info in filesystem.get_file_info([probe, path]))
        return float(now - then) / 1e9
    finally:
        filesystem.delete_file(probe)


def _beat(filesystem: pafs.FileSystem, path: str, mine: dict[str, Any], ended: threading.Event) -> None:
    while not ended.wait(BEAT_S):
        with contextlib.suppress(OSError, pa.ArrowException):
            _write(filesystem, path, mine)
