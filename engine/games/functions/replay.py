"""Replay a function on a table and record the parts of its result, its random draws and the lines that it ran."""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from traceback import walk_tb
from types import CodeType, FrameType
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dpaudit.actors.audited.signals import raised_externally, time_limit
from dpaudit.mechanisms.adapters.other_python.calls import call_in_process
from dpaudit.mechanisms.adapters.other_python.worker import outcome_of
from dpaudit.mechanisms.queries.row_function import CallLimits, CallOutcome

MAX_LINES = 50_000  # traced in one call
MAX_NUMBERS = 5_000  # of a result, shared equally among its parts
MAX_PARTS = 500
MAX_DRAWS = 200  # recorded in one call
MAX_VALUES = 32  # recorded of one draw
WITH_LOCATION = ("laplace", "normal", "gumbel", "logistic")
NOISE = (*WITH_LOCATION, "exponential", "standard_normal", "standard_exponential", "uniform")
"""Methods that draw noise. The arguments of other draws, such as a shuffle, may depend on the rows."""
ORDER_OF_KEYS = "list("
"""Beginning of the name of the part that holds the keys of a mapping in their order."""
Step = tuple[str, str, int, int]
"""File, function, a line and the line that ran next in that call of the function; 0 is its start or end."""
Scope = Callable[[CodeType], bool]  # true for the audited code


class Part(NamedTuple):
    """A part of a result."""

    ending: str  # everything discrete, in words
    numbers: Sequence[float]


class Draw(NamedTuple):
    """A draw from the generator."""

    method: str
    scale: str  # of noise, in digits; "" for other draws
    size: int
    place: str  # where the audited code made it: "line 9 of mean.py"
    noise: NDArray[np.float64]  # the first values without their location and scale; empty for other draws


@dataclass
class Replay:
    """A call of the function."""

    parts: dict[str, Part]  # of the result by name: "result['mean']"
    error: str = ""  # the exception and its line, "" if the call returned
    draws: list[Draw] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)


def replay_of(outcome: CallOutcome) -> Replay:
    """Return a replay with the outcome of a call in another Python, without draws and steps."""
    numbers = outcome.numbers[: len(outcome.numbers) - outcome.low_bits].tolist()
    error = f"raises {outcome.fault}" if outcome.ending.startswith("raises ") else ""
    return Replay({"result": Part(outcome.ending, numbers)}, error)


def replay(
    function: Callable[..., Any], table: pa.Table, seed: int, limit_s: float, form: str, settings: Mapping[str, Any]
) -> Replay:
    """Call the function once, discard its printed output and record the call.

    Raises: InputError if the table cannot be converted to the form.
    """
    in_scope, parts, place = scope_of(function), dict[str, Part](), ""
    draws, steps = list[Draw](), list[Step]()

    def run(rows: Any, rng: np.random.Generator, **keywords: Any) -> None:
        nonlocal parts, place
        try:
            with open(os.devnull, "w") as null, redirect_stdout(null), redirect_stderr(null), _tracing(steps, in_scope):
                result = function(rows, Recorder(rng.bit_generator, draws, in_scope), **keywords)
                parts = _parts("result", result, 3)
                most = MAX_NUMBERS // len(parts)
                parts = {name: part._replace(numbers=part.numbers[:most]) for name, part in parts.items()}
        except BaseException as err:
            frames = [(frame.f_code, line) for frame, line in walk_tb(err.__traceback__) if in_scope(frame.f_code)]
            place = f" ({_location(*frames[-1])})" if frames else ""
            raise

    limits = CallLimits(limit_s, 1, time_limit, raised_externally)
    (outcome,) = call_in_process(run, table, [seed], form=form, settings=settings, limits=limits)
    whole = replay_of(outcome)
    ending, _, warned = outcome.ending.partition("; warns ")
    if ending != "None":
        parts = {"result": whole.parts["result"]._replace(ending=ending)}
    parts |= {"warnings": Part(warned, ())} if warned else {}
    return Replay(parts, whole.error and whole.error + place, draws, steps)


def _parts(name: str, value: Any, depth: int) -> dict[str, Part]:
    """Split mappings, data frames and objects with public attributes into their parts."""
    inner: dict[str, Any] = {}
    if depth and isinstance(value, Mapping):
        inner = {f"[{key!r}]": element for key, element in value.items()}
    elif depth and type(value).__module__.partition(".")[0] == "pandas" and hasattr(value, "columns"):
        inner = {f"[{key!r}]": value[key].to_numpy() for key in value.columns if value.columns.is_unique}
        inner |= {} if type(value.index).__name__ == "RangeIndex" else {".index": value.index}
    elif depth and hasattr(value, "__dict__") and not hasattr(value, "summary") and not hasattr(value, "__array__"):
        plain = (int, float, str, list, tuple, Mapping)
        values = {f".{key}": each for key, each in vars(value).items() if not key.startswith("_")}
        inner = {key: each for key, each in values.items() if isinstance(each, plain) or hasattr(each, "__array__")}
    if not 0 < len(inner) <= MAX_PARTS:
        ending, numbers, _, low_bits, _ = outcome_of(value)
        return {name: Part(ending, numbers[: len(numbers) - low_bits])}
    parts = {path: part for key in sorted(inner) for path, part in _parts(name + key, inner[key], depth - 1).items()}
    if isinstance(value, Mapping):
        parts[f"{ORDER_OF_KEYS}{name})"] = Part(str(list(value)), ())
    return parts


@contextmanager
def _tracing(steps: list[Step], in_scope: Scope) -> Iterator[None]:
    """Record steps of the audited code; restore any other trace function afterwards."""

    def enter(frame: FrameType, event: str, arg: Any) -> Any:
        if not in_scope(frame.f_code):
            return None
        previous, file, function = 0, frame.f_code.co_filename, frame.f_code.co_name

        def step(frame: FrameType, event: str, arg: Any) -> Any:
            nonlocal previous
            if event in ("line", "return"):
                line = frame.f_lineno if event == "line" else 0
                steps.append((file, function, previous, line))
                previous = line
                if len(steps) >= MAX_LINES:
                    sys.settrace(None)  # from here on at full speed
            return step

        return step

    other = sys.gettrace()
    sys.settrace(enter)
    try:
        yield
    finally:
        sys.settrace(other)


class Recorder(np.random.Generator):
    """A generator that draws the same values as another one with its bits, and records the draws."""

    def __init__(self, bits: Any, draws: list[Draw], in_scope: Scope) -> None:
        super().__init__(bits)
        self._draws, self._in_scope, self._inside = draws, in_scope, False

    def spawn(self, n_children: int) -> list[np.random.Generator]:
        return [Recorder(bits, self._draws, self._in_scope) for bits in self.bit_generator.spawn(n_children)]


def _recorded(method: str) -> Callable[..., Any]:
    draw = getattr(np.random.Generator, method)

    @functools.wraps(draw)
    def record(self: Any, *args: Any, **named: Any) -> Any:
        if self._inside or len(self._draws) >= MAX_DRAWS:
            return draw(self, *args, **named)
        self._inside = True  # a shuffle may draw numbers through this object
        try:
            values = draw(self, *args, **named)
        finally:
            self._inside = False
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and not self._in_scope(frame.f_code):
            frame = frame.f_back
        place, scale, noise = _location(frame.f_code, frame.f_lineno) if frame else "", "", np.empty(0)
        if method in NOISE:
            names = ("loc", "scale") if method in WITH_LOCATION else ("scale",) if method == "exponential" else ()
            arguments = {"loc": 0.0, "scale": 1.0} | dict(zip(names, args, strict=False)) | named
            scale = ", ".join(f"{each:.9g}" for each in np.ravel(arguments["scale"])[:MAX_VALUES]) if names else ""
            with np.errstate(all="ignore"):  # a scale of 0
                noise = np.ravel((values - np.asarray(arguments["loc"])) / np.asarray(arguments["scale"]))[:MAX_VALUES]
        size = int(np.size([*args, *named.values()][0] if values is None else values))
        self._draws.append(Draw(method, scale, size, place, noise))
        return values

    return record


for _method in {*dir(np.random.Generator)} - {"spawn", "bit_generator"}:
    if not _method.startswith("_"):
        setattr(Recorder, _method, _recorded(_method))


def _location(code: CodeType, line: int) -> str:
    return f"line {line} of {os.path.basename(code.co_filename)}"


def scope_of(function: Callable[..., Any]) -> Scope:
    """Return a predicate that is true for code of the function's file and of its top-level package."""
    while isinstance(function, functools.partial):
        function = function.func
    inner = inspect.unwrap(function)
    inner = inner if hasattr(inner, "__code__") or inspect.ismethod(inner) else type(inner).__call__
    own_file = getattr(getattr(inner, "__code__", None), "co_filename", "")
    package = sys.modules.get(str(getattr(inner, "__module__", "")).partition(".")[0])
    folders = tuple(os.path.join(path, "") for path in getattr(package, "__path__", ()))

    @functools.cache
    def in_scope(code: CodeType) -> bool:
        file = code.co_filename
        return file != __file__ and (file == own_file or file.startswith(folders))

    return in_scope
