"""Where a long training keeps its checkpoints: a folder that all workers share, or one with a remote copy."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

import pyarrow as pa

from dpaudit.actors.storage.mirror import Mirror, inside, is_remote
from dpaudit.errors import RunError
from dpaudit.plain_files import private_folder

Scratch: TypeAlias = str | Path
"""A folder, or the URI of one."""
EVERY_S = 30.0
"""How often new checkpoints are uploaded."""


@contextlib.contextmanager
def checkpoints(scratch: Scratch | None, key: str) -> Iterator[Path | None]:
    """The folder of a unit's checkpoints for the length of a `with` block; a unit that finishes leaves nothing there.

    Where the folder is remote and cannot be reached, the training begins anew, or its checkpoints stay on its node:
    they change no result.
    """
    if scratch is None:
        yield None
    elif is_remote(scratch):
        with _mirrored(inside(str(scratch), key)) as folder:
            yield folder
    else:
        yield Path(scratch) / key
        shutil.rmtree(Path(scratch) / key, ignore_errors=True)


@contextlib.contextmanager
def _mirrored(uri: str) -> Iterator[Path]:
    mirror = Mirror(_temporary_folder() / hashlib.sha256(uri.encode()).hexdigest()[:24], uri)
    with contextlib.suppress(RunError):
        mirror.pull()
    done = False
    try:
        with contextlib.suppress(RunError), mirror.kept_up(EVERY_S, patience_s=0.0):
            yield mirror.folder
            done = True
    finally:
        if done:
            with contextlib.suppress(OSError, pa.ArrowException):
                mirror.forget()


def _temporary_folder() -> Path:
    """This user's own folder in the machine's temporary one, where what a run has left is found by the next.

    A new one where somebody else has taken its name.
    """
    try:
        return private_folder(Path(tempfile.gettempdir()) / f"dpaudit-of-{os.geteuid()}")
    except RunError:
        return Path(tempfile.mkdtemp(prefix="dpaudit-"))
