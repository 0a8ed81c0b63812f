"""Places of run folders and checkpoints: local paths or URIs."""

from __future__ import annotations

from pathlib import Path
from typing import TypeAlias

from dpaudit.errors import RunError

Scratch: TypeAlias = str | Path  # folder of all units' checkpoints, or its URI


def is_remote(place: str | Path) -> bool:
    """True for a URI, such as s3://bucket/runs/mine; False for a path."""
    return "://" in str(place)


def join_place(place: str | Path, name: str) -> str:
    """Return the path or URI of the file or folder `name` in `place`."""
    path, question, options = str(place).partition("?") if is_remote(place) else (str(place), "", "")
    return f"{path.rstrip('/')}/{name}{question}{options}"


def require_no_credentials(uri: str) -> None:
    """Raise RunError if `uri` holds credentials."""
    if "@" in uri.partition("://")[2].partition("/")[0]:
        raise RunError(
            "a place must be named without credentials, because plans, logs and reports contain its name; set them in "
            "the environment (such as AWS_ACCESS_KEY_ID), or give the machine a role"
        )
