"""Places: a path or a URI each."""

from __future__ import annotations

from pathlib import Path
from typing import TypeAlias

from dpaudit.errors import RunError

Scratch: TypeAlias = str | Path  # the folder of all units' checkpoints, or its URI


def is_remote(place: str | Path) -> bool:
    """Whether a place is named by a URI, such as s3://bucket/runs/mine, and not by a path."""
    return "://" in str(place)


def inside(place: str | Path, name: str) -> str:
    """The name of a file or folder in a place."""
    path, question, options = str(place).partition("?") if is_remote(place) else (str(place), "", "")
    return f"{path.rstrip('/')}/{name}{question}{options}"


def refuse_credentials(uri: str) -> None:
    if "@" in uri.partition("://")[2].partition("/")[0]:
        raise RunError(
            "a place must be named without credentials, since it is written into plans, logs and reports; set them in "
            "the environment (AWS_ACCESS_KEY_ID and its kin), or give the machine a role"
        )
