"""Compilation of numerical loops by numba; without numba, as in `dpaudit-light`, they run as plain Python.

Importing this module imports numba, which is slow. So functions that may not be called import it when they are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

_F = TypeVar("_F", bound=Callable[..., object])

try:
    from numba import njit
    from numba import prange as prange
    from numba.extending import register_jitable
except ModuleNotFoundError:
    IS_INSTALLED = False
    prange = range  # type: ignore[misc]
else:
    IS_INSTALLED = True


def compiled(**options: Any) -> Callable[[_F], _F]:
    """Return a decorator that compiles a function when it is first called.

    Compiled code is cached on disk, and runs without the interpreter's lock.

    Args:
        options: Further options of `numba.njit`, such as `parallel`.
    """
    if IS_INSTALLED:
        return cast(Callable[[_F], _F], njit(**{"cache": True, "nogil": True} | options))
    return lambda function: function


def part_of_compiled(function: _F) -> _F:
    """Return a function that compiled ones call, and that stays Python for others."""
    return register_jitable(function) if IS_INSTALLED else function
