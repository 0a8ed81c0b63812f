"""Paths in a spec: a relative one is meant from the folder in which the spec was first read, also by a later resume."""

from __future__ import annotations

import dataclasses
import os
from typing import Any, TypeVar

T = TypeVar("T")


def anchored(part: T) -> T:
    """A data set or another of dpaudit's parts with its relative paths made absolute, at any depth.

    Paths that begin with `~` or a `$VARIABLE` stay as they are written.
    """
    if not dataclasses.is_dataclass(part) or isinstance(part, type):
        return part
    changes: dict[str, Any] = {}
    for field in dataclasses.fields(part):
        value = getattr(part, field.name)
        new = _absolute(value) if field.name == "path" and isinstance(value, str) else anchored(value)
        if new is not value and field.init:
            changes[field.name] = new
    return dataclasses.replace(part, **changes) if changes else part


def _absolute(path: str) -> str:
    apart = not path or path.startswith(("~", "$")) or "://" in path or os.path.isabs(path)
    return path if apart else os.path.abspath(path)
