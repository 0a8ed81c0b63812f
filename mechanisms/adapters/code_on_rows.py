"""Code of the user on rows, a function or a generator of tables, called unchanged in this or another Python."""

from __future__ import annotations

import itertools
import os
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any, ClassVar, Literal

import pyarrow as pa

from dpaudit.claims import Claim
from dpaudit.consent import PATH, require_code
from dpaudit.errors import InputError, require, shortened
from dpaudit.field_checks import check_fields
from dpaudit.locations import has_location
from dpaudit.mechanisms.adapters.other_python.calls import OtherPython, call_in_process
from dpaudit.mechanisms.adapters.user_code import ClaimedByUser, code_of, imported
from dpaudit.mechanisms.queries.row_function import CallLimits, CallOutcome
from dpaudit.registry import register

Form = Literal["frame", "arrow", "array", "records", "list"]
MAX_ALTERNATIVES = 64  # combinations of settings


@dataclass(frozen=True, kw_only=True)
class CodeOnRows(ClaimedByUser):
    """Code of the user on rows: the form of its rows, its settings, its Python and its limits.

    Attributes:
        form: The form of the rows: a pandas "frame", an "arrow" table, an "array" of float64 of shape (n, d),
            "records" (a list of mappings), or the "list" of the values of the only column.
        settings: Keyword arguments, each a value or a list of values to try.
        python: Path of the Python that runs the code; "" for this one. Another one needs an import path.
        memory_mb: Memory limit of the other Python in megabytes, >= 64; None for no limit.
        folder: Folder in which the other Python looks for the code first; "" for the current folder.
        time: True if the duration of a call counts as an output too; such a check is not reproducible bit for bit.
        code: Versions and the hash of the code's file in the other Python. It is filled in at first; later, other
            code is refused, because finished results belong to this code.
    """

    role: ClassVar[str]  # "function" or "generator": the field that holds the code
    form: Form = "frame"
    settings: Mapping[str, Any] = field(default_factory=dict)
    python: str = field(default="", metadata=PATH)
    memory_mb: int | None = None
    folder: str = field(default="", metadata=PATH)
    time: bool = False
    code: str = ""

    def __post_init__(self) -> None:
        check_fields(self)
        require(self.memory_mb is None or self.memory_mb >= 64, "memory_mb must be >= 64", memory_mb=self.memory_mb)
        source = self.source
        if not self.python:
            source = imported(source, field=self.role)
            if isinstance(source, partial):
                must = "a `functools.partial` must fix keyword arguments only"
                require(not source.args, must, arguments=source.args)
                fixed = {name: [value] for name, value in source.keywords.items()}
                object.__setattr__(self, "settings", fixed | dict(self.settings))
                source = source.func
        number = len(self.alternatives())
        must = f"settings must come to 1 .. {MAX_ALTERNATIVES} combinations"
        require(0 < number <= MAX_ALTERNATIVES, must, combinations=number)
        if not self.python:
            object.__setattr__(self, self.role, self._checked(source))
            return
        require_code(f"{source} in {self.python}")
        if not isinstance(source, str):
            raise InputError(
                f"a {self.role} for another Python must be given by its import path `module:name`, got "
                f"{shortened(source)}"
            )
        if not self.folder:
            object.__setattr__(self, "folder", os.getcwd())
        if not self.code:
            object.__setattr__(self, "code", identity_elsewhere(self.python, source, self.folder))

    @property
    def source(self) -> Any:
        """The code, or its import path."""
        return getattr(self, self.role)

    def _checked(self, source: Any) -> Any:
        """Return the value of the field for imported code of this Python. Raises: InputError if it has another role."""
        raise NotImplementedError

    def alternatives(self) -> Sequence[Mapping[str, Any]]:
        """Return all combinations of settings."""
        values = [[*map(_as_tuple, each)] if isinstance(each, list) else [each] for each in self.settings.values()]
        return [dict(zip(self.settings, chosen, strict=True)) for chosen in itertools.product(*values)]

    def calls(
        self,
        rows: pa.Table,
        seeds: Sequence[int],
        settings: Mapping[str, Any],
        limits: CallLimits,
        table: Mapping[str, Any] | None = None,
    ) -> Sequence[CallOutcome]:
        """Call the code once for each seed; elsewhere in as many processes at a time as the limits allow.

        Args:
            table: Columns and count of the table of a generator (`GeneratorCalls`); None for a function.
        """
        how: dict[str, Any] = {"form": self.form, "settings": settings, "timed": self.time, "generator": table}
        if not self.python:
            return call_in_process(imported(self.source, field=self.role), rows, seeds, limits=limits, **how)
        pythons = [self._other_python({**how, "limit_s": limits.limit_s}, place) for place in range(limits.processes)]
        parts = [seeds[place :: len(pythons)] for place in range(len(pythons))]
        with ThreadPoolExecutor(len(pythons)) as pool:  # threads suffice: they wait for other processes
            shares = list(pool.map(lambda python, part: python.call(rows, part), pythons, parts))
        return [shares[place % len(pythons)][place // len(pythons)] for place in range(len(seeds))]

    def _other_python(self, how: Mapping[str, Any], place: int) -> OtherPython:
        """Return worker number `place` for this code and these calls, started at its first use.

        Raises: InputError if the code has changed since the audit began.
        """
        memory = None if self.memory_mb is None else self.memory_mb * 2**20
        other = OtherPython(self.python, self.source, path=(self.folder,), memory_bytes=memory, **how)
        key = (repr(other), self.code, place)
        if key not in _PYTHONS:
            must = (
                f"the code of {self.source} in {self.python} must not change during an audit; "
                "start a new audit or restore the code"
            )
            current_code = identity_elsewhere(self.python, self.source, self.folder)
            require(current_code == self.code, must, now=current_code, then=self.code)
            _PYTHONS[key] = other
        _PYTHONS.move_to_end(key)
        while len(_PYTHONS) > _MAX_PYTHONS:
            _PYTHONS.popitem(last=False)[1].__exit__(None, None, None)
        return _PYTHONS[key]


_PYTHONS: OrderedDict[tuple[str, str, int], OtherPython] = OrderedDict()
_MAX_PYTHONS = 8  # processes that are cached for the next unit: importing a library may take seconds


@cache
def identity_elsewhere(python: str, source: str, folder: str) -> str:
    """Return the identity of code, once for each process: importing a library may take seconds."""
    return OtherPython(python, source, form="list", path=(folder,)).identity()


def _as_tuple(value: Any) -> Any:
    """Turn a list inside a list of alternatives, as YAML writes a pair of bounds, into a tuple."""
    return tuple(map(_as_tuple, value)) if isinstance(value, list) else value


@register("mechanism", "function", source="your own code, or a library's")
@dataclass(frozen=True)
class OwnFunction(CodeOnRows):
    """A function `f(rows, rng, **settings)` on a table of rows, such as a query, a statistic or a model.

    It may return a number, an array, a mapping, a data frame or an object with a `summary`, or raise an exception. The
    audit examines the numbers, the form of the result and how the call ended. `rng` is a numpy.random.Generator; the
    global generators of Python and NumPy are seeded as well.

    Attributes:
        function: The function, a `functools.partial` with keywords, or a callable object; or its import path
            "module:function".
        claimed: The claim about neighbouring tables.
    """

    function: Any
    claimed: Claim | None = None

    made_by = "dpaudit.check(function, schema=...)"
    role = "function"

    def _checked(self, source: Any) -> Any:
        if callable(source) and not has_location(source):  # an object
            source = type(source).__call__.__get__(source)
        return code_of(source, field="function", arguments=("rows", "rng"), parameters=self.settings)

    def outcomes(
        self, rows: pa.Table, seeds: Sequence[int], settings: Mapping[str, Any], limits: CallLimits
    ) -> Sequence[CallOutcome]:
        return self.calls(rows, seeds, settings, limits)
