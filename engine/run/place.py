"""Where a run folder is: a path, or a URI that a local working folder is brought to and from."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow.fs as pafs

from dpaudit.actors.storage.mirror import Mirror, inside, is_remote, reached
from dpaudit.engine.run.remote_lease import remote_lease
from dpaudit.errors import AuditError
from dpaudit.given import path
from dpaudit.plain_files import require_plain

CHECKPOINTS = "checkpoints"
"""The folder of the units' checkpoints, which workers bring to and from a remote place themselves."""


def place_of(named: str | Path) -> str | Path:
    """A place as it was named: a URI as it is, a path as a path.

    Raises: InputError when it is neither.
    """
    named = path("the folder of a run", named)
    return named.rstrip("/") if is_remote(named) else Path(named)


def working_folder(place: str | Path) -> Path:
    """Where the files of a run are on this machine: the place itself, or a folder of the user's cache for a URI."""
    if not is_remote(place):
        return Path(place)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", str(place).partition("?")[0].rpartition("/")[2])[:40]
    return cache / "dpaudit" / "runs" / f"{name}-{hashlib.sha256(str(place).encode()).hexdigest()[:12]}"


def checkpoints_of(place: str | Path) -> str | Path:
    """Where the workers of a run keep checkpoints."""
    if is_remote(place):
        return inside(str(place), CHECKPOINTS)
    return (Path(place) / CHECKPOINTS).absolute()


def require_plain_place(place: str | Path) -> None:
    """Refuses a place on this machine that holds links, pipes, sockets or devices; object stores hold none.

    Raises: RunError, also when the place cannot be reached.
    """
    filesystem, root = reached(place)
    if isinstance(filesystem, pafs.LocalFileSystem):
        require_plain(Path(root))


@contextlib.contextmanager
def opened(place: str | Path, trouble: Callable[[str], None] = lambda said: None) -> Iterator[Path]:
    """The working folder of a place for the length of a `with` block; what is written there is brought to a URI.

    Args:
        place: A path or a URI.
        trouble: Told in a sentence when the remote store does not answer, and when it does again.
    Raises: RunError when the place cannot be reached, holds what is no file, or another driver holds it.
    """
    folder = working_folder(place)
    require_plain_place(place)
    if not is_remote(place):
        yield folder
        return
    with remote_lease(str(place)):
        mirror = Mirror(folder, str(place), without=(CHECKPOINTS,), trouble=trouble)
        mirror.pull()
        with mirror.kept_up():
            try:
                yield folder
            except AuditError as err:  # it speaks of the copy, which nobody has asked for
                raise type(err)(str(err).replace(str(folder), str(place))) from err
