"""What audited code draws from its generator: which method with which arguments, asked for at which of its lines."""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

import numpy as np
from numpy.typing import NDArray

MAX_DRAWS = 200  # of one call that are noted
MAX_VALUES = 32  # of one draw, and of one array among its arguments
ARGUMENTS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("laplace", "normal", "gumbel", "logistic"), ("loc", "scale")),
    **dict.fromkeys(("standard_normal", "standard_exponential", "standard_cauchy"), ()),
    "exponential": ("scale",),
    "gamma": ("shape", "scale"),
    "geometric": ("p",),
    "multivariate_normal": ("mean", "cov"),
    "poisson": ("lam",),
    "standard_t": ("df",),
    "uniform": ("low", "high"),
}
"""What noise is drawn with, in the order of the arguments; other draws, such as a shuffle, may depend on the rows."""
DEFAULTS = {"loc": 0.0, "scale": 1.0, "low": 0.0, "high": 1.0, "lam": 1.0}


@dataclass(frozen=True)
class Draw:
    """One draw from the generator.

    Attributes:
        method: Of the generator.
        place: Where the audited code asked for it: "line 9 of mean.py".
        arguments: Of noise: numbers, or the first numbers of arrays, by name.
        size: How many values were drawn.
        values: The first of them, shape (at most MAX_VALUES,).
    """

    method: str
    place: str
    arguments: Mapping[str, float | tuple[float, ...]]
    size: int
    values: NDArray[np.float64]


class Recorder(np.random.Generator):
    """A generator that notes what is drawn; the same values as the one whose bits it has."""

    def __init__(self, bits: Any, draws: list[Draw], scope: Callable[[CodeType], bool]) -> None:
        super().__init__(bits)
        self._draws, self._scope, self._inside = draws, scope, False

    def spawn(self, n_children: int) -> list[np.random.Generator]:
        return [Recorder(bits, self._draws, self._scope) for bits in self.bit_generator.spawn(n_children)]


def _noting(method: str) -> Callable[..., Any]:
    draw = getattr(np.random.Generator, method)

    @functools.wraps(draw)
    def noting(self: Any, *args: Any, **named: Any) -> Any:
        if self._inside or len(self._draws) >= MAX_DRAWS:
            return draw(self, *args, **named)
        self._inside = True  # a shuffle may draw numbers through this object
        try:
            found = draw(self, *args, **named)
        finally:
            self._inside = False
        names = ARGUMENTS.get(method, ())
        given = {name: DEFAULTS[name] for name in names if name in DEFAULTS} | dict(zip(names, args, strict=False))
        given |= {name: named[name] for name in names if name in named}
        is_number = method != "bytes" and np.asarray(found).dtype.kind in "fiub"
        values = np.ravel(found)[:MAX_VALUES].astype(np.float64) if is_number else np.empty(0)
        arguments = {name: _numbers(value) for name, value in given.items()}
        size = int(np.size(found if found is not None else args[0]))
        self._draws.append(Draw(method, _asked_from(self._scope), arguments, size, values))
        return found

    return noting


for _method in dir(np.random.Generator):
    if not _method.startswith("_") and _method not in ("spawn", "bit_generator"):
        setattr(Recorder, _method, _noting(_method))


def _numbers(value: Any) -> float | tuple[float, ...]:
    flat = tuple(float(each) for each in np.ravel(value)[:MAX_VALUES])
    return flat[0] if np.ndim(value) == 0 else flat


def _asked_from(scope: Callable[[CodeType], bool]) -> str:
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and not scope(frame.f_code):
        frame = frame.f_back
    return "" if frame is None else place_of(frame.f_code, frame.f_lineno)


def place_of(code: CodeType, line: int) -> str:
    return f"line {line} of {os.path.basename(code.co_filename)}"


def scope_of(function: Callable[..., Any], also: Sequence[str]) -> Callable[[CodeType], bool]:
    """Tells code of the function's own top-level package or file, and of these packages, from other code."""
    while isinstance(function, functools.partial):
        function = function.func
    inner = inspect.unwrap(function)
    inner = inner if hasattr(inner, "__code__") or inspect.ismethod(inner) else type(inner).__call__
    files = {getattr(getattr(inner, "__code__", None), "co_filename", "")}
    folders: tuple[str, ...] = ()
    for name in (str(getattr(inner, "__module__", "")).partition(".")[0], *also):
        folders += tuple(os.path.join(path, "") for path in getattr(sys.modules.get(name), "__path__", ()))

    @functools.cache
    def inside(code: CodeType) -> bool:
        file = code.co_filename
        return os.path.dirname(file) != os.path.dirname(__file__) and (
            file in files or (bool(folders) and file.startswith(folders))
        )

    return inside
