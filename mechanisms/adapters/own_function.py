"""A function on rows, of one's own or of a library, called as it is: in this Python, or in another one."""

from __future__ import annotations

import itertools
import os
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any, Literal

import pyarrow as pa

from dpaudit.claims import Claim
from dpaudit.consent import PATH, require_code
from dpaudit.errors import InputError, require
from dpaudit.given import check_fields
from dpaudit.locations import has_location
from dpaudit.mechanisms.adapters.other_python.calls import OtherPython, call_in_process, identity
from dpaudit.mechanisms.adapters.user_code import ClaimedByUser, code_of, imported
from dpaudit.mechanisms.queries.outcome import CallOutcome
from dpaudit.mechanisms.queries.row_function import CallLimits
from dpaudit.registry import register

Form = Literal["frame", "arrow", "array", "records", "list"]
MAX_ALTERNATIVES = 64
"""Settings that are tried, at most."""


@register("mechanism", "function", source="one's own code, or a library's")
@dataclass(frozen=True)
class OwnFunction(ClaimedByUser):
    """A function `f(rows, rng, **settings)` on a table of rows: a query, a statistic, a model, whatever it gives.

    What comes back may be a number, an array, a mapping, a data frame, an object with a `summary`, or an exception:
    its numbers, its form and how the call ended are what is looked at. `rng` is a numpy.random.Generator; the global
    generators of Python and NumPy are seeded as well.

    Attributes:
        function: The function, a `functools.partial` of one with keywords, or an object that can be called; or where it
            is: "module:function".
        claimed: What it promises of neighbouring tables.
        form: How it is given the rows: a pandas "frame", an "arrow" table, an "array" of float64 of shape (n, d),
            "records" (a list of mappings), or the "list" of the values of the only column.
        settings: Keyword arguments, each a value or the list of values that may be tried.
        python: The Python that runs it; "" for this one. Then the function is given by where it is.
        memory_mb: Memory, in megabytes, that the other Python may have; None for no limit.
        folder: Where the other Python looks for the function first; "" for the folder one works in.
        time: Whether how long a call takes is given away too; such a check does not repeat to the same bits.
        code: What the other Python runs: versions and the hash of the function's file. It is filled in; another one is
            refused, as finished results are of this one.
    """

    function: Any
    claimed: Claim | None = None
    form: Form = "frame"
    settings: Mapping[str, Any] = field(default_factory=dict)
    python: str = field(default="", metadata=PATH)
    memory_mb: int | None = None
    folder: str = field(default="", metadata=PATH)
    time: bool = False
    code: str = ""

    made_by = "dpaudit.check(function, schema=...)"

    def __post_init__(self) -> None:
        check_fields(self)
        if not self.python:
            self._unwrap(imported(self.function, field="function"))
        require(self.memory_mb is None or self.memory_mb >= 64, "memory_mb must be >= 64", memory_mb=self.memory_mb)
        alternatives = self.alternatives()
        require(
            0 < len(alternatives) <= MAX_ALTERNATIVES,
            f"settings must come to 1 .. {MAX_ALTERNATIVES} combinations",
            combinations=len(alternatives),
        )
        if not self.python:
            code = code_of(self.function, field="function", arguments=("rows", "rng"), parameters=self.settings)
            object.__setattr__(self, "function", code)
            return
        require_code(f"{self.function} in {self.python}")
        if not isinstance(self.function, str):
            raise InputError(
                "a function that another Python runs must be given by where it is, as `module:function`, got "
                f"{self.function!r}"
            )
        if not self.folder:
            object.__setattr__(self, "folder", os.getcwd())
        if not self.code:
            object.__setattr__(self, "code", _identity(self.python, self.function, self.folder))

    def _unwrap(self, code: Any) -> None:
        """The keywords of a `functools.partial` are settings; an object that can be called is its method."""
        if isinstance(code, partial):
            must = "a `functools.partial` must fix keyword arguments alone, as the rows come first"
            require(not code.args, must, arguments=code.args)
            fixed = {name: [value] for name, value in code.keywords.items()}
            object.__setattr__(self, "settings", fixed | dict(self.settings))
            code = code.func
        if callable(code) and not has_location(code):
            code = type(code).__call__.__get__(code)
        object.__setattr__(self, "function", code)

    def alternatives(self) -> Sequence[Mapping[str, Any]]:
        values = [[*map(_as_tuple, each)] if isinstance(each, list) else [each] for each in self.settings.values()]
        return [dict(zip(self.settings, chosen, strict=True)) for chosen in itertools.product(*values)]

    def outcomes(
        self,
        rows: pa.Table,
        seeds: Sequence[int],
        settings: Mapping[str, Any],
        limits: CallLimits,
    ) -> Sequence[CallOutcome]:
        if not self.python:
            return call_in_process(
                self.function,
                rows,
                seeds,
                form=self.form,
                settings=settings,
                timed=self.time,
                limit_s=limits.limit_s,
                time_limit=limits.time_limit,
                from_outside=limits.from_outside,
            )
        pythons = [_cached_python(self, settings, limits.limit_s, place) for place in range(limits.processes)]
        parts = [seeds[place :: len(pythons)] for place in range(len(pythons))]
        with ThreadPoolExecutor(len(pythons)) as pool:  # the threads wait; the work is elsewhere
            shares = list(pool.map(lambda python, part: python.call(rows, part), pythons, parts))
        return [shares[place % len(pythons)][place // len(pythons)] for place in range(len(seeds))]


_PYTHONS: OrderedDict[str, OtherPython] = OrderedDict()
_MAX_PYTHONS = 8
"""Other Pythons that are kept for the next unit: a library may take seconds to be imported."""


@cache
def _identity(python: str, function: str, folder: str) -> str:
    """Asked for once a process: a library may take seconds to be imported."""
    return identity(python, function, path=(folder,))


def _cached_python(
    function: OwnFunction, settings: Mapping[str, Any], limit_s: float | None, place: int
) -> OtherPython:
    """One of several that has the function loaded; the system ends it with this process.

    Raises: InputError when its code is not that of the audit.
    """
    where = (
        function.python,
        function.folder,
        function.function,
        function.form,
        function.memory_mb,
        function.time,
        function.code,
    )
    key = repr((where, settings, limit_s, place))
    if key not in _PYTHONS:
        current_code = _identity(function.python, str(function.function), function.folder)
        must = f"the code of {function.function} in {function.python} must be what the audit began with; give the folder anew"
        require(current_code == function.code, must, now=current_code, then=function.code)
        _PYTHONS[key] = OtherPython(
            function.python,
            str(function.function),
            form=function.form,
            settings=settings,
            timed=function.time,
            limit_s=limit_s,
            memory_bytes=None if function.memory_mb is None else function.memory_mb * 2**20,
            path=(function.folder,),
        )
    _PYTHONS.move_to_end(key)
    while len(_PYTHONS) > _MAX_PYTHONS:
        _PYTHONS.popitem(last=False)[1].__exit__(None, None, None)
    return _PYTHONS[key]


def _as_tuple(value: Any) -> Any:
    """A list inside the list of what may be tried, as YAML has it, is a value: a pair of bounds, say."""
    return tuple(map(_as_tuple, value)) if isinstance(value, list) else value
