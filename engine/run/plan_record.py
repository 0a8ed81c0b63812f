"""A plan as JSON without data and code, from which a stranger reads results: units, games, estimators and claims.

Only values of dpaudit's frozen dataclasses are stored, with their classes by name. The mechanism, the attack, the proxy
and the data become text. A reader builds no object of another package.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import json
from collections.abc import Callable, Mapping
from enum import Enum
from types import GenericAlias, SimpleNamespace
from typing import Any, cast

from dpaudit.actors.seed import Seed
from dpaudit.actors.unit import Resources, Unit
from dpaudit.actors.work import Call, keys_in
from dpaudit.engine.planning.plan import Plan, PlannedAudit
from dpaudit.engine.request.audit_spec import Audit
from dpaudit.engine.request.build import call_text
from dpaudit.errors import SpecError, shortened

GAMES = ("dpaudit.engine.games.", "dpaudit.language_models.games", "dpaudit.synthetic_tables.games")
"""Modules whose functions a stored plan may name."""
_OTHERS = (
    "actors.seed",
    "actors.work",
    "engine.attacks.",
    "engine.data.partition",
    "engine.planning.",
    "engine.request.",
)
_VALUES = ("claims", "estimators.", "mechanisms.training.private.", "mechanisms.queries.")
_TEXTS = ("canary_kinds.", "canary_texts.", "mechanisms.token_statistics")
READABLE = (
    *GAMES,
    *(f"dpaudit.{name}" for name in (*_OTHERS, *_VALUES)),
    *(f"dpaudit.language_models.{name}" for name in _TEXTS),
)
"""Modules whose dataclasses and enumerations a stored plan may name."""
SEQUENCES: Mapping[str, Callable[..., Any]] = {"list": list, "tuple": tuple, "frozenset": frozenset}
TEXTS = ("mechanism", "data", "proxy", "attack")
"""Fields of an audit that are stored as text."""
OF_SPEC = ("name", "seed", "confidence", "together", "sweep")
"""Fields of a spec that decide how results are read."""


def as_json(value: object) -> str:
    """Return JSON in one form, so that equal values have equal hashes."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def plan_to_plain(plan: Plan) -> dict[str, Any]:
    """Return a plan as values of JSON.

    Raises: SpecError if a game or an estimator is no part of dpaudit.
    """
    units = {unit.key: _unit(unit) for unit in plan.units}
    audits = []
    for entry in plan.audits:
        texts = {name: None if (part := getattr(entry.audit, name)) is None else call_text(part) for name in TEXTS}
        claim = entry.audit.mechanism.claim() if hasattr(entry.audit.mechanism, "claim") else None
        audit = {field.name: getattr(entry.audit, field.name) for field in dataclasses.fields(Audit)} | texts
        audit["resources"] = None
        fields = {field.name: getattr(entry, field.name) for field in dataclasses.fields(PlannedAudit)}
        fields |= {"audit": audit, "claim": entry.effective_claim if claim is None else claim}
        units |= {unit.key: _unit(unit) for unit in (entry.state, entry.game.where) if unit is not None}
        audits.append(_plain(fields))
    spec = {name: getattr(plan.spec, name) for name in OF_SPEC}
    return {"spec": _plain(spec), "units": units, "order": [unit.key for unit in plan.units], "audits": audits}


def plan_from_plain(content: Mapping[str, Any]) -> Plan:
    """Return the plan that JSON describes, with texts in place of mechanisms and data.

    Raises: SpecError if it is no such plan.
    """
    try:
        units: dict[str, Unit] = {}
        for key, facts in content["units"].items():  # a unit comes after the units it needs, but for follow-ups
            call = Call(cast(Any, None), (), _value(facts["result"], units))
            if facts["function"] is not None:
                arguments = tuple((name, _value(each, units)) for name, each in facts["arguments"].items())
                call = dataclasses.replace(call, function=_named(facts["function"], GAMES), arguments=arguments)
            units[key] = Unit(call, facts["label"], (), tuple(facts["needs"]), Resources(), key)
        audits = []
        for facts in content["audits"]:
            fields = dict(_value(facts, units))
            audit, claim = fields.pop("audit"), fields.pop("claim")
            facts_of_text = {"__slots__": (), "claim": lambda _, claim=claim: claim}
            audit["mechanism"] = type("Stated", (str,), facts_of_text)(audit["mechanism"])
            audits.append(PlannedAudit(audit=Audit(**audit), **fields))
        spec: Any = SimpleNamespace(**_value(content["spec"], units), to_yaml=str)  # the run folder has the YAML
        return Plan(spec, tuple(units[key] for key in content["order"]), tuple(audits), {})
    except (KeyError, TypeError, AttributeError, ValueError, ImportError, RecursionError) as err:
        raise SpecError(f"the registered plan must be one that dpaudit wrote: {shortened(err, 200)}") from err


def _unit(unit: Unit) -> dict[str, Any]:
    """Return what a stored plan says of a unit: its name, what it needs, and from which seeds it draws."""
    call = unit.task
    assert isinstance(call, Call)
    is_of_game, arguments = call.function.__module__.startswith(GAMES), {}
    for name, value in call.arguments if is_of_game else ():
        if needed := tuple(keys_in(value)):
            arguments[name] = {"tuple": [{"unit": key} for key in needed]}
        elif name == "game" or isinstance(value, Seed | int):
            arguments[name] = _plain(value)
    return {
        "label": unit.label,
        "needs": list(unit.needs),
        "function": _name(call.function) if is_of_game else None,
        "arguments": arguments,
        "result": _plain(call.result_type),
    }


def _plain(value: Any) -> Any:
    """Return a value as JSON that names its class."""
    if value is None or type(value) in (bool, int):
        return value
    for kind, text in ((float, repr), (str, str)):
        if isinstance(value, kind) and not isinstance(value, Enum):
            return {kind.__name__: text(kind(value))}
    if isinstance(value, Enum):
        return {"enum": _name(type(value)), "value": value.value}
    if isinstance(value, Unit):
        return {"unit": value.key}
    if type(value) in SEQUENCES.values():
        items = sorted(value) if isinstance(value, frozenset) else value
        return {type(value).__name__: [_plain(item) for item in items]}
    if isinstance(value, Mapping):
        return {"mapping": [[_plain(key), _plain(item)] for key, item in value.items()]}
    if isinstance(value, functools.partial):
        return {"partial": _name(value.func), "arguments": [_plain(item) for item in value.args]}
    if isinstance(value, GenericAlias | type):
        of = {"of": [_plain(item) for item in value.__args__]} if isinstance(value, GenericAlias) else {}
        return {"class": _name(value.__origin__ if isinstance(value, GenericAlias) else value), **of}
    if dataclasses.is_dataclass(value) and type(value).__module__.startswith(READABLE):
        named = {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if field.init}
        return {"dataclass": _name(type(value)), "fields": {name: _plain(item) for name, item in named.items()}}
    raise SpecError(
        f"a registration must name parts of dpaudit, got {type(value).__name__}: a stranger could not read it. Choose "
        "a registered game and estimator"
    )


def _value(plain: Any, units: Mapping[str, Unit]) -> Any:
    """Return the value that JSON describes."""
    if plain is None or isinstance(plain, bool | int):
        return plain
    kind = next(iter(plain.keys() - {"fields", "value", "arguments", "of"}))
    content = plain[kind]
    if kind in SEQUENCES:
        return SEQUENCES[kind](_value(item, units) for item in content)
    match kind:
        case "float" | "str":
            return float(content) if kind == "float" else str(content)
        case "enum":
            return _named(content, READABLE, Enum)(plain["value"])
        case "unit":
            return units[content]
        case "mapping":
            return {_value(key, units): _value(item, units) for key, item in content}
        case "partial":
            return functools.partial(_named(content, GAMES), *(_value(item, units) for item in plain["arguments"]))
        case "class":
            cls = list if content == "builtins:list" else _named(content, READABLE, object)
            return GenericAlias(cls, tuple(_value(item, units) for item in plain["of"])) if "of" in plain else cls
        case _:
            fields = {name: _value(item, units) for name, item in plain["fields"].items()}
            cls = _named(plain["dataclass"], READABLE, object)
            dataclasses.fields(cls)  # TypeError for other classes, whose constructors may do more
            return cls(**fields)


def _name(thing: Any) -> str:
    return f"{thing.__module__}:{thing.__qualname__}"


def _named(name: str, modules: tuple[str, ...], base: type | None = None) -> Any:
    """Return a class of these modules or, without `base`, a function, by its name."""
    module, _, path = name.partition(":")
    thing: Any = None
    if module.startswith(modules):
        thing = functools.reduce(getattr, path.split("."), importlib.import_module(module))
    fits = isinstance(thing, type) and issubclass(thing, base) if base else not isinstance(thing, type)
    if not fits or thing.__module__ != module:
        raise ValueError(f"{shortened(name)} is no part of a plan")
    return thing
