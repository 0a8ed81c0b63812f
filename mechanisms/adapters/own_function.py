"""A function on rows, by the user or a library, called unchanged in this or another Python."""

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
from dpaudit.field_checks import check_fields
from dpaudit.locations import has_location
from dpaudit.mechanisms.adapters.other_python.calls import OtherPython, call_in_process, identity
from dpaudit.mechanisms.adapters.user_code import ClaimedByUser, code_of, imported
from dpaudit.mechanisms.queries.outcome import CallOutcome
from dpaudit.mechanisms.queries.row_function import CallLimits
from dpaudit.registry import register

Form = Literal["frame", "arrow", "array", "records", "list"]
MAX_ALTERNATIVES = 64
"""Most combinations of settings."""


@register("mechanism", "function", source="one's own code, or a library's")
@dataclass(frozen=True)
class OwnFunction(ClaimedByUser):
    """A function `f(rows, rng, **settings)` on a table of rows, such as a query, a statistic or a model.

    It may return a number, an array, a mapping, a data frame or an object with a `summary`, or raise an exception. The
    audit examines the numbers, the form of the result and how the call ended. `rng` is a numpy.random.Generator; the
    global generators of Python and NumPy are seeded as well.

    Attributes:
        function: The function, a `functools.partial` with keywords, or a callable object; or its import path
            "module:function".
        claimed: The claim about neighbouring tables.
        form: The form of the rows: a pandas "frame", an "arrow" table, an "array" of float64 of shape (n, d),
            "records" (a list of mappings), or the "list" of the values of the only column.
        settings: Keyword arguments, each a value or a list of values to try.
        python: Path of the Python that runs the function; "" for this one. Another one needs an import path.
        memory_mb: Memory limit of the other Python in megabytes, >= 64; None for no limit.
        folder: Folder in which the other Python looks for the function first; "" for the current folder.
        time: True if the duration of a call counts as an output too; such a check is not reproducible bit for bit.
        code: Versions and the hash of the function's file in the other Python. It is filled in at first; later, other
            code is refused, because finished results belong to this code.
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
                "a function for another Python must be given by its import path `module:function`, got "
                f"{self.function!r}"
            )
        if not self.folder:
            object.__setattr__(self, "folder", os.getcwd())
        if not self.code:
            object.__setattr__(self, "code", identity_elsewhere(self.python, self.function, self.folder))

    def _unwrap(self, code: Any) -> None:
        """Take settings from the keywords of a `functools.partial`, and the method of a callable object."""
        if isinstance(code, partial):
            must = "a `functools.partial` must fix keyword arguments only, because the rows come first"
            require(not code.args, must, arguments=code.args)
            fixed = {name: [value] for name, value in code.keywords.items()}
            object.__setattr__(self, "settings", fixed | dict(self.settings))
            code = code.func
        if callable(code) and not has_location(code):
            code = type(code).__call__.__get__(code)
        object.__setattr__(self, "function", code)

    def alternatives(self) -> Sequence[Mapping[str, Any]]:
        return combinations(self.settings)

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
        code = CodeElsewhere(
            self.python, str(self.function), self.folder, self.code, self.form, self.time, self.memory_mb
        )
        return code.outcomes(rows, seeds, settings, limits)


@dataclass(frozen=True)
class CodeElsewhere:
    """Code in another Python; the fields are those of `OwnFunction`.

    Attributes:
        generator: Columns and count of the table of a generator (`GeneratorCalls`); None for a function.
    """

    python: str
    function: str
    folder: str
    code: str
    form: str
    time: bool = False
    memory_mb: int | None = None
    generator: Mapping[str, Any] | None = None

    def outcomes(
        self, rows: pa.Table, seeds: Sequence[int], settings: Mapping[str, Any], limits: CallLimits
    ) -> Sequence[CallOutcome]:
        """Call the code once for each seed, in as many processes at a time as the limits allow."""
        pythons = [_cached_python(self, settings, limits.limit_s, place) for place in range(limits.processes)]
        parts = [seeds[place :: len(pythons)] for place in range(len(pythons))]
        with ThreadPoolExecutor(len(pythons)) as pool:  # threads suffice: they wait for other processes
            shares = list(pool.map(lambda python, part: python.call(rows, part), pythons, parts))
        return [shares[place % len(pythons)][place // len(pythons)] for place in range(len(seeds))]


_PYTHONS: OrderedDict[str, OtherPython] = OrderedDict()
_MAX_PYTHONS = 8
"""Most processes of other Pythons that are cached for the next unit: importing a library may take seconds."""


@cache
def identity_elsewhere(python: str, function: str, folder: str) -> str:
    """Return the identity of a function's code, once for each process: importing a library may take seconds."""
    return identity(python, function, path=(folder,))


def _cached_python(
    source: CodeElsewhere, settings: Mapping[str, Any], limit_s: float | None, place: int
) -> OtherPython:
    """Return worker number `place` for this code and these settings, started at its first use.

    Raises: InputError if the code has changed since the audit began.
    """
    key = repr((source, settings, limit_s, place))
    if key not in _PYTHONS:
        current_code = identity_elsewhere(source.python, source.function, source.folder)
        must = (
            f"the code of {source.function} in {source.python} must not change during an audit; "
            "start a new audit or restore the code"
        )
        require(current_code == source.code, must, now=current_code, then=source.code)
        _PYTHONS[key] = OtherPython(
            source.python,
            source.function,
            form=source.form,
            settings=settings,
            timed=source.time,
            limit_s=limit_s,
            memory_bytes=None if source.memory_mb is None else source.memory_mb * 2**20,
            path=(source.folder,),
            generator=source.generator,
        )
    _PYTHONS.move_to_end(key)
    while len(_PYTHONS) > _MAX_PYTHONS:
        _PYTHONS.popitem(last=False)[1].__exit__(None, None, None)
    return _PYTHONS[key]


def combinations(settings: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return all combinations of settings, each a value or a list of values."""
    values = [[*map(_as_tuple, each)] if isinstance(each, list) else [each] for each in settings.values()]
    return [dict(zip(settings, chosen, strict=True)) for chosen in itertools.product(*values)]


def _as_tuple(value: Any) -> Any:
    """Turn a list inside a list of alternatives, as YAML writes a pair of bounds, into a tuple."""
    return tuple(map(_as_tuple, value)) if isinstance(value, list) else value
