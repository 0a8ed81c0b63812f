"""Work: a graph of calls of registered functions. What one call gives is an argument of others.

    asked = work.add(ask, proxy, data, label="reference model", resources=resources)
    parts = work.split(play, replays, 10, attack, asked, label="replays", resources=resources, seed=seed)

A function is at module level and pure. An argument may be a unit, or a tuple of units: the function is given their
values. It may be a large input that was put into the plan once (`Work.share`). A parameter `compute` is filled in where
the unit runs. What it gives is a frozen dataclass of arrays and scalars, an iterator of such, or either in an
`Outcome`, as its annotation says; `values.py` brings it to Arrow and back.
"""

from __future__ import annotations

import collections.abc
import functools
import inspect
import json
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import pyarrow as pa

from dpaudit.actors.fingerprint import one_reading
from dpaudit.actors.unit import Inputs, Resources, Unit
from dpaudit.actors.values import decode, encode
from dpaudit.errors import InputError, require
from dpaudit.mechanisms.compute import Compute

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

_BESIDE = b"outcome"  # metadata of a unit's table: what its function said beside its value, as JSON


@dataclass(frozen=True)
class Outcome(Generic[T]):
    """What a unit leaves beside its value."""

    value: T
    notes: tuple[str, ...] = ()  # sentences for the report about a choice that was made on search data
    metrics: Mapping[str, float] = field(default_factory=dict)  # measured beside the evidence, such as utility
    failures: tuple[str, ...] = ()  # why single trials of it failed, a sentence each


def unit(function: F) -> F:
    """Registers a module-level function, which says what it gives, as one that units may call."""
    name = f"{function.__module__}.{function.__qualname__}"
    require("<locals>" not in function.__qualname__, f"{name} must be defined at module level to be a unit")
    require("return" in function.__annotations__, f"{name} must say what it gives to be a unit")
    function.is_unit = True  # type: ignore[attr-defined]
    return function


def priced(price: Callable[..., str]) -> Callable[[F], F]:
    """Says what a call is going to cost in money, by a function of the same arguments but units; "" for nothing."""

    def mark(function: F) -> F:
        function.price = price  # type: ignore[attr-defined]
        return function

    return mark


@dataclass(frozen=True)
class _Kind:
    """What a function gives."""

    type: Any  # the dataclass
    many: bool = False  # whether it gives several, one after another

    def value_in(self, table: pa.Table) -> Any:
        values = decode(table, self.type)
        return values if self.many else values[0]


@dataclass(frozen=True)
class Shared:
    """Stands for a large input that was put into the plan once."""

    name: str


@dataclass(frozen=True)
class _Result:
    """Stands for the value of another unit."""

    key: str
    kind: _Kind


@dataclass(frozen=True)
class Call:
    """A function and its arguments: what a unit does."""

    function: Callable[..., Any]  # registered by `unit`
    arguments: tuple[tuple[str, Any], ...]  # by parameter; units and large inputs in them by name
    kind: _Kind  # what it gives

    @property
    def name(self) -> str:
        return self.function.__name__

    def argument(self, name: str, default: Any = None) -> Any:
        return dict(self.arguments).get(name, default)

    def outcome(self, inputs: Inputs, compute: Compute) -> Outcome[Any]:
        """What the function gives for its arguments, with what was said by calls that are made in it."""
        said: list[Outcome[Any]] = []
        given = {name: _resolved(value, inputs, compute, said) for name, value in self.arguments}
        if "compute" in _signature(self.function).parameters:
            given["compute"] = compute
        value = self.function(**given)
        last = value if isinstance(value, Outcome) else Outcome(value)
        said.append(last)
        return Outcome(
            last.value,
            tuple(note for one in said for note in one.notes),
            {name: number for one in said for name, number in one.metrics.items()},
            tuple(failure for one in said for failure in one.failures),
        )

    def price(self, inputs: Inputs) -> str:
        """What it is going to cost in money; "" where it costs nothing, or nobody can tell."""
        price: Callable[..., str] | None = getattr(self.function, "price", None)
        if price is None:
            return ""
        given = {name: value for name, value in self.arguments if not any(_keys_in(value))}
        return price(**{name: _resolved(value, inputs, Compute(), []) for name, value in given.items()})

    def run(self, inputs: Inputs, compute: Compute) -> pa.Table:
        """The same as a table, with what was said beside it."""
        outcome = self.outcome(inputs, compute)
        table = encode(outcome.value if self.kind.many else [outcome.value], self.kind.type)
        beside = {"notes": outcome.notes, "metrics": dict(outcome.metrics), "failures": outcome.failures}
        if not any(beside.values()):
            return table
        return table.replace_schema_metadata({**(table.schema.metadata or {}), _BESIDE: json.dumps(beside)})


@dataclass(frozen=True)
class _Inlined:
    """Stands for the value of a call that is made where it is needed; its result is not kept."""

    call: Call


class Work:
    """A plan while it grows."""

    def __init__(self) -> None:
        self.units: dict[str, Unit] = {}  # by key, in the order in which they were added
        self.shared: dict[str, Any] = {}  # the large inputs, by name
        self._reading: Any = None  # of all code that keys speak of, once for the whole plan

    def share(self, name: str, value: Any) -> Any:
        """Puts a large input into the plan; what stands for it in the arguments of units."""
        self.shared[name] = value
        return Shared(name)

    def add(
        self,
        function: Callable[..., Outcome[Any] | Any],
        *arguments: Any,
        label: str,
        resources: Resources,
        after: tuple[str, ...] = (),
        gives: Any = None,
        **more: Any,
    ) -> Unit:
        """Adds a call of a registered function; its arguments may be units, `label` is for people.

        Args:
            after: Keys of units that must be finished before, though nothing of theirs is needed.
            gives: An annotation, or another function with one, that says what it gives where its own cannot tell.
        Raises: InputError when the function is not registered, or the arguments are not its.
        """
        call = call_of(function, *arguments, gives=gives, **more)
        needs = tuple(dict.fromkeys((*_keys_in(call), *after)))
        names = tuple(dict.fromkeys(stands.name for stands in _placeholders(call) if isinstance(stands, Shared)))
        with one_reading(reading=self._reading) as self._reading:
            made = Unit(call, label, names, needs, resources)
        return self.units.setdefault(made.key, made)

    def split(
        self,
        function: Callable[..., Any],
        total: int,
        per: int,
        *arguments: Any,
        label: str,
        offset: int = 0,
        **more: Any,
    ) -> tuple[Unit, ...]:
        """Adds calls for pieces `first` to before `last`, as the function's parameters are called, `per` of them each.

        There are `total` pieces, the first has the number `offset`; labels end with their numbers from 1. `more` are
        further arguments of the function and of `add`.
        """
        cuts = [(offset + first, offset + min(first + per, total)) for first in range(0, total, per)]
        return tuple(
            self.add(function, *arguments, label=f"{label} {first + 1}-{last}", first=first, last=last, **more)
            for first, last in cuts
        )


def call_of(function: Callable[..., Any], *arguments: Any, gives: Any = None, **more: Any) -> Call:
    """A call as a unit makes it, units and large inputs among the arguments by name; InputError as `Work.add`."""
    require(getattr(function, "is_unit", False), "a unit must call a function marked with `@unit`", function=function)
    name = function.__name__
    filled = {"compute": None} if "compute" in _signature(function).parameters else {}
    try:
        given = _signature(function).bind(*arguments, **more, **filled).arguments
    except TypeError as err:
        raise InputError(f"{name} must be given its arguments: {err}") from err
    stands = tuple((parameter, _standing(value)) for parameter, value in given.items() if parameter not in filled)
    return Call(function, stands, _kind_of(gives or function))


def inlined(work: Unit | Callable[..., Any], *arguments: Any, **more: Any) -> Any:
    """Stands for a unit's value in another one's arguments, which makes it itself: the result is not kept.

    The same for a call that has no unit of its own, with InputError as `Work.add`; it may give a value of any type.
    """
    if isinstance(work, Unit):
        assert isinstance(work.task, Call)
        return _Inlined(work.task)
    return _Inlined(call_of(work, *arguments, **more))


@functools.cache
def _kind_of(gives: Any) -> _Kind:
    """By an annotation, or that of a function."""
    given = typing.get_type_hints(gives)["return"] if inspect.isroutine(gives) else gives
    if typing.get_origin(given) is Outcome:
        (given,) = typing.get_args(given)
    several = (collections.abc.Iterator, collections.abc.Iterable, collections.abc.Sequence, list, tuple)
    if typing.get_origin(given) in several:
        return _Kind(typing.get_args(given)[0], many=True)
    return _Kind(given)


def beside(schema: pa.Schema) -> Outcome[None]:
    """What a unit said beside its value: notes, metrics and failures of single trials."""
    said = json.loads((schema.metadata or {}).get(_BESIDE, b"{}"))
    return Outcome(None, tuple(said.get("notes", ())), said.get("metrics", {}), tuple(said.get("failures", ())))


def value_of(unit: Unit, table: pa.Table) -> Any:
    """What a finished unit gave: a value, or the list of them."""
    assert isinstance(unit.task, Call)
    return unit.task.kind.value_in(table)


_signature = functools.cache(inspect.signature)


def _standing(value: Any) -> Any:
    """What stands for a value in a call: for a unit its key, for everything else itself."""
    if isinstance(value, Unit):
        assert isinstance(value.task, Call)
        return _Result(value.key, value.task.kind)
    if isinstance(value, tuple | list):
        return tuple(_standing(each) for each in value)
    return value


def _placeholders(value: Any) -> Iterator[_Result | Shared]:
    if isinstance(value, _Result | Shared):
        yield value
    elif isinstance(value, _Inlined):
        yield from _placeholders(value.call)
    elif isinstance(value, Call):
        for _, argument in value.arguments:
            yield from _placeholders(argument)
    elif isinstance(value, tuple):
        for each in value:
            yield from _placeholders(each)


def _keys_in(value: Any) -> Iterable[str]:
    return (stands.key for stands in _placeholders(value) if isinstance(stands, _Result))


def _resolved(value: Any, inputs: Inputs, compute: Compute, said: list[Outcome[Any]]) -> Any:
    """What stands behind a placeholder; the outcomes of calls that are made for it are added to `said`."""
    if isinstance(value, _Result):
        return value.kind.value_in(inputs.tables[value.key])
    if isinstance(value, Shared):
        return inputs.shared[value.name]
    if isinstance(value, _Inlined):
        said.append(value.call.outcome(inputs, compute))
        return said[-1].value
    if isinstance(value, tuple) and any(True for _ in _placeholders(value)):
        return tuple(_resolved(each, inputs, compute, said) for each in value)
    return value
