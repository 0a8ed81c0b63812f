"""One call of a function on rows, watched: the parts of what came back, what it drew, which lines followed which.

Of what it draws from its generator it is noted which method with which arguments, asked for at which of its lines.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from traceback import walk_tb
from types import CodeType, FrameType
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dpaudit.mechanisms.adapters.other_python.calls import call_in_process
from dpaudit.mechanisms.adapters.other_python.worker import outcome_of

MAX_EVENTS = 50_000  # lines of one call that are followed
MAX_NUMBERS = 5_000  # of what came back, as many of each part
MAX_PARTS = 500
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
class Part:
    """A part of what came back: everything discrete in words, and its numbers, shape (n,)."""

    ending: str
    numbers: NDArray[np.float64]


@dataclass
class Watched:
    """One call.

    Attributes:
        parts: Of what came back, by name: "result['mean']".
        raised: What it raised, and where.
        draws: In their order.
        steps: (file, function, line) to the lines that followed it, 0 for the end of the function; in order of arrival.
        cut: Whether lines were not followed to the end.
    """

    parts: dict[str, Part] = field(default_factory=dict)
    raised: str = ""
    draws: list[Draw] = field(default_factory=list)
    steps: dict[tuple[str, str, int], set[int]] = field(default_factory=dict)
    cut: bool = False


Pairs = Sequence[tuple[Watched, Watched]]
"""Calls on D and on D' with the same seeds."""


class OutOfTime(BaseException):
    """The time for watching is over."""


def watched(
    function: Callable[..., Any],
    table: pa.Table,
    seed: int,
    *,
    form: str,
    settings: Mapping[str, Any],
    also: Sequence[str],
    until: float,
    follow: bool = True,
) -> Watched:
    """Calls the function once; what it prints is dropped.

    Args:
        also: Packages whose lines are followed too; otherwise those of the function's own top-level package or file.
        until: On the monotonic clock. Looked at when a line that is followed is reached.
        follow: Whether lines are followed, which makes a call several times as long.
    Raises: OutOfTime; InputError when the form cannot hold the table.
    """
    scope = scope_of(function, also)
    call = Watched(cut=not follow)

    def run(rows: Any, rng: np.random.Generator, **given: Any) -> None:
        try:
            with _silence(), _followed(call, scope, until):
                result = function(rows, Recorder(rng.bit_generator, call.draws, scope), **given)
                parts = _parts("result", result, 3)
                each = MAX_NUMBERS // len(parts)
                call.parts.update({name: Part(part.ending, part.numbers[:each]) for name, part in parts.items()})
        except BaseException as err:
            places = [place_of(frame.f_code, line) for frame, line in walk_tb(err.__traceback__) if scope(frame.f_code)]
            call.raised = places[-1] if places else ""
            raise

    def outside(err: BaseException) -> bool:
        return isinstance(err, OutOfTime | KeyboardInterrupt)

    (outcome,) = call_in_process(run, table, [seed], form=form, settings=settings, from_outside=outside)
    ending, *warned = outcome.ending.split("; warns ")
    if ending != "None":
        where = f" ({call.raised})" if call.raised else ""
        call.parts = {"result": Part(ending, outcome.numbers)}
        call.raised = f"raises {outcome.fault}{where}"
    else:
        call.raised = ""
    if warned:
        call.parts["warnings"] = Part("; ".join(warned), np.empty(0))
    return call


def _parts(name: str, value: Any, depth: int) -> dict[str, Part]:
    """Values of mappings, columns of frames and public attributes of objects are parts of their own."""
    if depth and isinstance(value, Mapping):
        inner = {f"[{key!r}]": each for key, each in value.items()}
    elif depth and type(value).__module__.partition(".")[0] == "pandas" and hasattr(value, "columns"):
        inner = {f"[{key!r}]": value[key].to_numpy() for key in value.columns if value.columns.is_unique}
        inner |= {} if type(value.index).__name__ == "RangeIndex" else {".index": value.index}
    elif depth and hasattr(value, "__dict__") and not hasattr(value, "summary") and not hasattr(value, "__array__"):
        inner = {f".{key}": each for key, each in vars(value).items() if not key.startswith("_") and _plain(each)}
    else:
        inner = {}
    if not 0 < len(inner) <= MAX_PARTS:
        ending, numbers, _, low_bits = outcome_of(value)
        return {name: Part(ending, np.array(numbers[: len(numbers) - low_bits], np.float64))}
    return {each: part for key in sorted(inner) for each, part in _parts(name + key, inner[key], depth - 1).items()}


def _plain(value: Any) -> bool:
    return isinstance(value, int | float | str | list | tuple | Mapping) or hasattr(value, "__array__")


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
        yield


@contextlib.contextmanager
def _followed(call: Watched, scope: Callable[[CodeType], bool], until: float) -> Iterator[None]:
    """Notes which line follows which, frame by frame; whatever traced before goes on afterwards."""
    left = MAX_EVENTS

    def entered(frame: FrameType, event: str, arg: Any) -> Any:
        if call.cut or not scope(frame.f_code):
            return None
        before, where = 0, (frame.f_code.co_filename, frame.f_code.co_name)

        def reached(frame: FrameType, event: str, arg: Any) -> Any:
            nonlocal before, left
            if event not in ("line", "return"):
                return reached
            left -= 1
            if time.monotonic() > until:
                raise OutOfTime
            call.cut |= left < 0
            line = frame.f_lineno if event == "line" else 0
            call.steps.setdefault((*where, before), set()).add(line)
            before = line
            return None if call.cut else reached

        return reached

    old = sys.gettrace()
    if not call.cut:
        sys.settrace(entered)
    try:
        yield
    finally:
        sys.settrace(old)


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
