"""Packages of extras: a missing one is refused before anything runs, with the command that installs it."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
from collections.abc import Mapping
from typing import Any, TypeAlias

from dpaudit.errors import InputError

Packages: TypeAlias = Mapping[str, str]
"""Packages that a part of an audit imports, each with the extra that installs it; the class attribute `packages`."""


def imported(package: str, extra: str) -> Any:
    """Return the imported package. Raises: InputError if it is not installed."""
    try:
        return importlib.import_module(package)
    except ImportError as err:
        raise InputError(_missing(package, extra)) from err


def require_packages(part: object) -> None:
    """Raise InputError if a part, or a part in its fields, needs a package that is not installed."""
    for package, extra in getattr(type(part), "packages", {}).items():
        if importlib.util.find_spec(package) is None:
            raise InputError(_missing(package, extra))
    if dataclasses.is_dataclass(part):
        for field in dataclasses.fields(part):
            require_packages(getattr(part, field.name))


def _missing(package: str, extra: str) -> str:
    return f"this needs the package {package}; install it with `pip install dpaudit[{extra}]`"
