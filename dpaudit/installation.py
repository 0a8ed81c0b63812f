"""The two distributions of this package: `dpaudit`, and `dpaudit-light`, which leaves its largest libraries out."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec, TypeVar

from dpaudit.errors import RunError

LEFT_OUT = ("ray", "torch", "catboost", "numba")
"""Libraries that `dpaudit-light` does not install."""
NAMES = ("dpaudit", "dpaudit-light")

P = ParamSpec("P")
T = TypeVar("T")


def requirements() -> list[str]:
    """Return what the installed distribution needs, extras included; empty if the package is not installed by pip."""
    import importlib.metadata

    for name in NAMES:
        try:
            return importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue
    return []


@functools.cache
def require_one_distribution() -> None:
    """Raise RunError if both distributions are installed: they write the same files."""
    folder = Path(__file__).parent.parent
    if len(list(folder.glob("dpaudit-*.dist-info")) + list(folder.glob("dpaudit_light-*.dist-info"))) > 1:
        raise RunError(
            "dpaudit and dpaudit-light are both installed, and hold the same files. Uninstall both, then install one: "
            "`pip uninstall dpaudit dpaudit-light`"
        )


def without_library(error: ModuleNotFoundError) -> RunError | None:
    """Return an error that says what to install, if the module is of a library that `dpaudit-light` leaves out."""
    library = (error.name or "").partition(".")[0]
    if library not in LEFT_OUT:
        return None
    return RunError(
        f"this needs {library}, which is not installed and which dpaudit-light leaves out. Install the whole package: "
        "`pip uninstall dpaudit-light`, then `pip install dpaudit`"
    )


def explained(function: Callable[P, T]) -> Callable[P, T]:
    """Return `function` with a sentence in place of a missing library of `dpaudit`; see `without_library`."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        require_one_distribution()
        try:
            return function(*args, **kwargs)
        except ModuleNotFoundError as err:
            raise without_library(err) or err from err

    return call
