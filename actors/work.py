"""Graphs of calls of registered functions, in which the result of one call may be an argument of others.

    trained = work.add(train_reference, proxy, data, label="reference model", resources=resources)
    parts = work.split(play, replays, 10, attack, trained, label="replays", resources=resources, seed=seed)

A function must be pure and defined at module level. An argument may be a unit, or a tuple of units: the function gets
their values. It may also be a large input that the plan holds once (`Work.share`). A parameter `compute` is filled in
where the unit runs. The return annotation is a frozen dataclass of arrays and scalars, an iterator of such, or either
in an `Outcome`; `values.py` converts results to Arrow and back.
"""

from __future__ import annotations

import collections.abc
import functools
import inspect
import json
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, is_dataclass
from typing import Any, Generic, TypeVar

import pyarrow as pa

from dpaudit.actors.fingerprint import read_once
from dpaudit.actors.unit import Inputs, Resources, Unit
from dpaudit.actors.values import decode, encode
from dpaudit.errors import InputError, require
from dpaudit.mechanisms.compute import Compute, collected_notes

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

_OUTCOME = b"outcome"  # metadata of a unit's table: notes, metrics and failures as JSON


@dataclass(frozen=True)
class Outcome(Generic[T]):
    """Value of a unit, with notes, metrics and failures of single trials."""

    value: T
    notes: tuple[str, ...] = ()  # sentences for the report, such as choices made on search data
    metrics: Mapping[str, float] = field(default_factory=dict)  # additional measurements, such as utility
    failures: tuple[str, ...] = ()  # one sentence for each failed trial


def unit(function: F) -> F:
    """Register a module-level function with a return annotation, so that units may call it."""
    name = f"{function.__module__}.{function.__qualname__}"
    require("<locals>" not in function.__qualname__, f"{name} must be defined at module level to be a unit")
    require("return" in function.__annotations__, f"{name} must have a return annotation to be a unit")
    function.is_unit = True  # type: ignore[attr-defined]
    return function


def priced(price: Callable[..., str]) -> Callable[[F], F]:
    """Attach a price to a unit function.

    Args:
        price: Takes the arguments of the function except results of other units. Returns the cost of the call in
            words, "" if it is free.
    """

    def mark(function: F) -> F:
        function.price = price  # type: ignore[attr-defined]
        return function

    return mark


def measuring(names: Callable[..., Collection[str]]) -> Callable[[F], F]:
    """Declare all metrics that outcomes of a unit function can have.

    `names` takes arguments of the function by name, none of them results of other units.
    """

    def mark(function: F) -> F:
        function.measures = names  # type: ignore[attr-defined]
        return function

    return mark


def tossing(coins: Callable[..., Any]) -> Callable[[F], F]:
    """Declare how the coins of a unit function follow from seeds and numbers, for those who have no data.

    `coins` takes the values that the unit returned, and a mapping of those of its arguments that are seeds, numbers or
    a game; a unit among them is a mapping of its function and arguments. It returns the coins of each value, or None.
    """

    def mark(function: F) -> F:
        function.coins = coins  # type: ignore[attr-defined]
        return function

    return mark


@dataclass(frozen=True)
class _ResultType:
    """Type of a function's result."""

    type: Any  # dataclass of the value, or of each value
    many: bool = False  # True if the result is a sequence or iterator of values

    def value_in(self, table: pa.Table) -> Any:
        values = decode(table, self.type)
        return values if self.many else values[0]


@dataclass(frozen=True)
class Shared:
    """Placeholder of a large input that the plan holds once."""

    name: str


@dataclass(frozen=True)
class _Result:
    """Placeholder of another unit's value."""

    key: str
    result_type: _ResultType


@dataclass(frozen=True)
class Call:
    """Task of a unit: a call of a registered function."""

    function: Callable[..., Any]  # registered by `unit`
    arguments: tuple[tuple[str, Any], ...]  # by parameter; units and large inputs are placeholders
    result_type: _ResultType

    @property
    def name(self) -> str:
        return self.function.__name__

    @property
    def kind_of_work(self) -> str:
        """The function, and the types of the mechanism and of its model: `train_model: PATE of CatBoost`."""
        arguments = dict(self.arguments)
        mechanism = arguments.get("mechanism", arguments.get("predictor"))
        if not is_dataclass(mechanism):
            return self.name
        model = getattr(mechanism, "model", None)
        of_model = f" of {type(model).__name__}" if is_dataclass(model) else ""
        return f"{self.name}: {type(mechanism).__name__}{of_model}"

    def argument(self, name: str, default: Any = None) -> Any:
        return dict(self.arguments).get(name, default)

    def outcome(self, inputs: Inputs, compute: Compute) -> Outcome[Any]:
        """Call the function; return its outcome, merged with those of inlined calls among its arguments."""
        outcomes: list[Outcome[Any]] = []
        arguments = {name: _resolve(value, inputs, compute, outcomes) for name, value in self.arguments}
        if "compute" in _signature(self.function).parameters:
            arguments["compute"] = compute
        value = self.function(**arguments)
        last = value if isinstance(value, Outcome) else Outcome(value)
        outcomes.append(last)
        return Outcome(
            last.value,
            tuple(note for outcome in outcomes for note in outcome.notes),
            {name: number for outcome in outcomes for name, number in outcome.metrics.items()},
            tuple(failure for outcome in outcomes for failure in outcome.failures),
        )

    def price(self, inputs: Inputs) -> str:
        """Return the cost of the call in words; "" if it is free or unknown."""
        price: Callable[..., str] | None = getattr(self.function, "price", None)
        if price is None:
            return ""
        arguments = {name: value for name, value in self.arguments if not any(keys_in(value))}
        return price(**{name: _resolve(value, inputs, Compute(), []) for name, value in arguments.items()})

    def measures(self, inputs: Inputs) -> frozenset[str]:
        """Return the names of the metrics that the outcome can have, as the functions declare."""
        inlined = (value.call.measures(inputs) for _, value in self.arguments if isinstance(value, _Inlined))
        names: Callable[..., Collection[str]] | None = getattr(self.function, "measures", None)
        if names is None:
            return frozenset().union(*inlined)
        arguments = [self.argument(name) for name in _signature(names).parameters]
        return frozenset(names(*(_resolve(value, inputs, Compute(), []) for value in arguments))).union(*inlined)

    def run(self, inputs: Inputs, compute: Compute) -> pa.Table:
        """Return the outcome as a table, with notes, metrics and failures as metadata."""
        with collected_notes() as notes:
            outcome = self.outcome(inputs, compute)
            table = encode(outcome.value if self.result_type.many else [outcome.value], self.result_type.type)
        extras = {"notes": (*outcome.notes, *notes), "metrics": dict(outcome.metrics), "failures": outcome.failures}
        if not any(extras.values()):
            return table
        return table.replace_schema_metadata({**(table.schema.metadata or {}), _OUTCOME: json.dumps(extras)})


@dataclass(frozen=True)
class _Inlined:
    """Placeholder of a call that is evaluated when its value is needed; the result is not stored."""

    call: Call


class Work:
    """Builder of a graph of units."""

    def __init__(self) -> None:
        self.units: dict[str, Unit] = {}  # by key, in order of addition
        self.shared: dict[str, Any] = {}  # large inputs by name
        self._code_reading: Any = None  # cache of the source code behind keys, shared by all units

    def share(self, name: str, value: Any) -> Any:
        """Add a large input to the plan; return its placeholder for the arguments of units."""
        self.shared[name] = value
        return Shared(name)

    def add(
        self,
        function: Callable[..., Outcome[Any] | Any],
        *arguments: Any,
        label: str,
        resources: Resources,
        after: tuple[str, ...] = (),
        returns: Any = None,
        **keywords: Any,
    ) -> Unit:
        """Add a call of a registered function and return its unit.

        Args:
            arguments: Arguments of the function; units stand for their values.
            label: Name of the unit for users.
            after: Keys of units that must finish first although their results are not needed.
            returns: Return annotation, or another function with it, if the function's own is not specific enough.
            keywords: Further arguments of the function.
        Raises: InputError if the function is not registered, or the arguments do not match its signature.
        """
        call = make_call(function, *arguments, returns=returns, **keywords)
        needs = tuple(dict.fromkeys((*keys_in(call), *after)))
        shared = dict.fromkeys(item.name for item in _placeholders(call) if isinstance(item, Shared))
        with read_once(code_cache=self._code_reading) as self._code_reading:
            new_unit = Unit(call, label, tuple(shared), needs, resources)
        return self.units.setdefault(new_unit.key, new_unit)

    def split(
        self,
        function: Callable[..., Any],
        total: int,
        per: int,
        *arguments: Any,
        label: str,
        offset: int = 0,
        **keywords: Any,
    ) -> tuple[Unit, ...]:
        """Add calls that divide `total` pieces of work into units of `per` pieces each.

        The function gets the arguments `first` and `last`: the unit covers the pieces [first, last), counted from
        `offset`. Labels end with the numbers of the pieces, from 1. `keywords` are passed to `add`.
        """
        cuts = [(offset + first, offset + min(first + per, total)) for first in range(0, total, per)]
        return tuple(
            self.add(function, *arguments, label=f"{label} {first + 1}-{last}", first=first, last=last, **keywords)
            for first, last in cuts
        )


def make_call(function: Callable[..., Any], *arguments: Any, returns: Any = None, **keywords: Any) -> Call:
    """Return a call, with placeholders for units and large inputs among the arguments; InputError as `Work.add`."""
    require(getattr(function, "is_unit", False), "a unit must call a function marked with `@unit`", function=function)
    filled_later = {"compute": None} if "compute" in _signature(function).parameters else {}
    try:
        bound = _signature(function).bind(*arguments, **keywords, **filled_later).arguments
    except TypeError as err:
        raise InputError(f"the arguments of {function.__name__} must match its signature: {err}") from err
    stored = tuple((name, _placeholder_for(value)) for name, value in bound.items() if name not in filled_later)
    return Call(function, stored, _result_type(returns or function))


def inlined(work: Unit | Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
    """Return a placeholder of a unit's value that the unit using it computes itself, without storing the value.

    `work` may also be a function with its arguments; it may return any type. Raises InputError as `Work.add`.
    """
    if isinstance(work, Unit):
        assert isinstance(work.task, Call)
        return _Inlined(work.task)
    return _Inlined(make_call(work, *arguments, **keywords))


@functools.cache
def _result_type(returns: Any) -> _ResultType:
    """Return the result type of an annotation, or of a function's return annotation."""
    annotation = typing.get_type_hints(returns).get("return") if inspect.isroutine(returns) else returns
    must = f"{getattr(returns, '__qualname__', returns)} must be annotated with the dataclass that it returns or yields"
    require(annotation is not None, must)
    if typing.get_origin(annotation) is Outcome:
        (annotation,) = typing.get_args(annotation)
    containers = (collections.abc.Iterator, collections.abc.Iterable, collections.abc.Sequence, list, tuple)
    if typing.get_origin(annotation) in containers:
        return _ResultType(typing.get_args(annotation)[0], many=True)
    return _ResultType(annotation)


def outcome_metadata(schema: pa.Schema) -> Outcome[None]:
    """Return the notes, metrics and failures in the schema of a unit's table."""
    extras = json.loads((schema.metadata or {}).get(_OUTCOME, b"{}"))
    return Outcome(None, tuple(extras.get("notes", ())), extras.get("metrics", {}), tuple(extras.get("failures", ())))


def value_of(unit: Unit, table: pa.Table) -> Any:
    """Return the value of a finished unit, or the list of its values."""
    assert isinstance(unit.task, Call)
    return unit.task.result_type.value_in(table)


_signature = functools.cache(inspect.signature)


def _placeholder_for(value: Any) -> Any:
    """Return `value` with units replaced by placeholders."""
    if isinstance(value, Unit):
        assert isinstance(value.task, Call)
        return _Result(value.key, value.task.result_type)
    if isinstance(value, tuple | list):
        return tuple(_placeholder_for(item) for item in value)
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
        for item in value:
            yield from _placeholders(item)


def keys_in(value: Any) -> Iterable[str]:
    """Return the keys of the units whose results an argument holds."""
    return (placeholder.key for placeholder in _placeholders(value) if isinstance(placeholder, _Result))


def _resolve(value: Any, inputs: Inputs, compute: Compute, outcomes: list[Outcome[Any]]) -> Any:
    """Return `value` with placeholders replaced by their values; append outcomes of inlined calls to `outcomes`."""
    if isinstance(value, _Result):
        return value.result_type.value_in(inputs.tables[value.key])
    if isinstance(value, Shared):
        return inputs.shared[value.name]
    if isinstance(value, _Inlined):
        outcomes.append(value.call.outcome(inputs, compute))
        return outcomes[-1].value
    if isinstance(value, tuple) and any(True for _ in _placeholders(value)):
        return tuple(_resolve(item, inputs, compute, outcomes) for item in value)
    return value
