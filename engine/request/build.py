"""Specs in words become values, and values become words again.

`{name: lp-1st, epsilon: 1, model: {name: mlp}}` is built into the registered class with those fields, nested parts
first; `describe` is the way back, so that every run folder holds a spec that can be run again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

from dpaudit.claims import Claim
from dpaudit.consent import require_code, require_file
from dpaudit.errors import AuditError, DataError, InputError, SpecError, UnknownNameError, did_you_mean, shortened
from dpaudit.estimators.selection import SELECTION_NAMES
from dpaudit.given import fitted, options_of, require_words, type_in_words
from dpaudit.locations import has_location, import_object, location
from dpaudit.registry import PACKAGES, catalogue, load

_SELECTIONS: dict[object, str] = {selection: name for name, selection in SELECTION_NAMES.items()}


def build(kind: str, spec: object, *, location: str = "", defaults: Mapping[str, object] | None = None) -> Any:
    """The value a spec describes.

    Args:
        location: Where in the spec file, for messages: "audits[2].mechanism".
    Raises: SpecError naming the place, what was given and what is possible.
    """
    location = location or kind
    if isinstance(spec, int | float | list | tuple):
        raise SpecError(f"{location} must be a name or a mapping with `name`, got {shortened(spec)}")
    if not isinstance(spec, str | Mapping):
        if spec is None or _is_part(kind, spec):
            return spec
        raise SpecError(
            f"{location} must be a name, a mapping with `name`, or an object with {_methods(kind)}, got "
            + (f"the class {spec.__name__}; make one of it" if isinstance(spec, type) else type(spec).__name__)
        )
    require_words(spec, location)
    fields = {"name": spec} if isinstance(spec, str) else dict(spec)
    name = fields.pop("name", None)
    if not isinstance(name, str):
        raise SpecError(f"{location} must have a `name`, one of {', '.join(catalogue(kind))}; got {shortened(spec)}")
    try:
        part_class = named_part(kind, name)
    except UnknownNameError as err:
        raise SpecError(f"{location}: {err}") from err
    return build_dataclass(part_class, fields, location=location, defaults=defaults)


def named_part(kind: str, name: str) -> Any:
    """The class or factory that a spec names: a registered name, or "module:Class"."""
    if ":" in name:
        return own_part(kind, name)
    entry = catalogue(kind).get(name)
    if entry is not None and entry.module.partition(".")[0] != "dpaudit":  # of another package's entry points
        require_code(f"{entry.module}:{entry.attribute}")
    return load(kind, name)


_FACES: Mapping[str, tuple[str, ...]] = {
    "mechanism": ("claim", "release", "fit"),
    "model": ("fit",),
    "embedder": ("embed",),
    "language-model": ("complete",),
    "game": ("play",),
    "attack": ("score",),
    "canary": ("choose", "gradient"),
    "poisoning": ("worlds", "candidates"),
    "adversary": ("craft",),
    "proxy": ("predictor",),
    "estimator": ("tally", "find"),
    "curve": ("miss_rate",),
    "data": ("load", "sample"),
}
"""Methods that tell a part of each kind from any other class: it has one of them at least."""


def own_part(kind: str, name: str) -> Any:
    """The user's own class, or their factory marked with `@register(kind, ...)`, that "module:name" names.

    Nothing else is ever called: a spec must not be able to name any function there is.
    """
    part = import_object(name)
    if isinstance(part, type):
        if _has_methods(kind, part):
            return part
    elif isinstance(part, types.FunctionType) and vars(part).get("registered_kind") == kind:
        return part
    raise UnknownNameError(
        f"{name!r} must name a class with {_methods(kind)}, or a function marked with "
        f'`@register("{kind}", NAME, source=...)`'
    )


def _has_methods(kind: str, part: type) -> bool:
    return any(callable(vars(base).get(method)) for base in part.__mro__ for method in _FACES[kind])


def _is_part(kind: str, value: object) -> bool:
    """Whether it is a part that was made already."""
    return type(value).__dict__.get("registered_kind") == kind or _has_methods(kind, type(value))


def _methods(kind: str) -> str:
    return "a method " + " or ".join(f"`{method}`" for method in _FACES[kind])


def build_dataclass(
    part_class: Any, fields: Mapping[str, object], *, location: str, defaults: Mapping[str, object] | None = None
) -> Any:
    """An instance of a dataclass from plain values, each checked against its field's type."""
    if not dataclasses.is_dataclass(part_class):  # a plain class or a factory of the user's own
        return _constructed(part_class, fields, location)
    known = {field.name: field for field in dataclasses.fields(part_class) if field.init}
    hints = typing.get_type_hints(part_class)
    filled = {name: value for name, value in (defaults or {}).items() if name in known} | dict(fields)
    values: dict[str, Any] = {}
    for name, value in filled.items():
        if name not in known:
            near = did_you_mean(name, known)
            raise SpecError(f"{location} has no field {name!r}; it has {', '.join(known) or 'none'}{near}")
        values[name] = checked_value(known[name], hints[name], value, f"{location}.{name}")
    missing = [
        name
        for name, field in known.items()
        if name not in values and field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    ]
    if missing:
        raise SpecError(f"{location} needs {', '.join(missing)}")
    return _constructed(part_class, values, location)


def _constructed(part_class: Any, values: Mapping[str, object], location: str) -> Any:
    try:
        return part_class(**values)
    except (InputError, DataError) as err:
        raise SpecError(f"{location}: {err}") from err
    except AuditError:
        raise
    except Exception as err:  # a class of the user's own may raise anything
        why = f"{type(err).__name__}: {shortened(err)}"
        raise SpecError(
            f"{location}: {part_class.__qualname__} cannot be made from {shortened(dict(values))}: {why}"
        ) from err


def describe(value: object) -> Any:
    """The spec of a value: what `build` would make it from, defaults left out."""
    if isinstance(value, Claim):
        return _describe_claim(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {
            field.name: describe(getattr(value, field.name))
            for field in dataclasses.fields(value)
            if field.init and not _is_default(field, getattr(value, field.name))
        }
        name = _name(value)
        return {"name": name, **fields} if name else fields
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, list | tuple):
        return [describe(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): describe(item) for key, item in value.items()}
    if has_location(value):
        return location(value)
    if hasattr(value, "__dict__"):  # an object of the user's own
        return {"name": _name(value), **describe(vars(value))}
    return value.item() if getattr(value, "shape", None) == () else value  # type: ignore[attr-defined]  # of NumPy


def _describe_claim(claim: Claim) -> dict[str, Any]:
    """A claim of one point without its curve, which follows from it; relation left out where it is the default."""
    words: dict[str, Any] = {"epsilon": claim.epsilon}
    if claim.delta:
        words["delta"] = claim.delta
    if claim.relation != Claim.relation:
        words["relation"] = claim.relation.value
    if not claim.is_point:
        words["curve"] = describe(claim.curve)
    return words


def _name(value: object) -> str:
    registered = type(value).__dict__.get("registered_name") or _SELECTIONS.get(type(value))
    if isinstance(registered, str):
        return registered
    inside = type(value).__module__.startswith("dpaudit.")
    return "" if inside else f"{type(value).__module__}:{type(value).__qualname__}"


def _is_default(field: dataclasses.Field[Any], value: object) -> bool:
    if field.default is not dataclasses.MISSING:
        default = field.default
    elif field.default_factory is not dataclasses.MISSING:
        default = field.default_factory()
    else:
        return False
    if isinstance(value, float) and isinstance(default, float) and math.isnan(value):
        return math.isnan(default)
    return type(value) is type(default) and bool(value == default)


def checked_value(field: dataclasses.Field[Any], hint: Any, value: object, location: str) -> Any:
    """What a spec writes for a field, as the field takes it."""
    if value is None and type(None) in typing.get_args(hint):
        return None
    if field.metadata.get("holds") == "path" and isinstance(value, str):
        require_file(value)
    kind = field.metadata.get("kind")
    if kind in PACKAGES:
        return build(kind, value, location=location)
    if _parses_itself(hint):
        return value
    inner = _dataclass_of(hint)
    literals = [typing.get_args(option) for option in options_of(hint) if typing.get_origin(option) is typing.Literal]
    if inner is not None and not any(isinstance(value, str) and value in those for those in literals):
        return _mapped(inner, value, location)
    if _holds_bool(value) and not _mentions(hint, bool):
        kinds = {int: "a whole number", float: "a number", str: "text"}
        words = next((kinds[kind] for kind in kinds if _mentions(hint, kind)), "another value")
        raise SpecError(f"{location}: must be {words}, got {shortened(value)}")
    if isinstance(value, Iterator):  # it may have no end
        raise SpecError(f"{location}: must be a value or a list of values, got a {type(value).__name__}")
    try:
        fits, taken = fitted(_read(value, hint, location), hint)
    except SpecError:
        raise
    except Exception as err:  # an object of the caller's own may raise anything when it is looked at
        raise SpecError(f"{location}: cannot be read, got an object of the type {type(value).__name__}") from err
    if not fits:
        shown = shortened(repr(value) if isinstance(value, str) else value)
        raise SpecError(f"{location}: must be {type_in_words(hint)}, got {shown}")
    lists = any(list in (option, typing.get_origin(option)) for option in options_of(hint))
    return list(taken) if lists and isinstance(taken, tuple) else taken


_FLAGS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


def _read(value: Any, hint: Any, location: str) -> Any:
    """What a spec writes, in the form of the type where it has one: "1e-5" as a number, 3 as 3.0, a list as a tuple."""
    options = options_of(hint)
    if dataclasses.is_dataclass(options[0]) and isinstance(value, Mapping):
        return build_dataclass(options[0], value, location=location)
    if isinstance(value, list | tuple):
        lists = [typing.get_args(option) for option in options if typing.get_origin(option) in (tuple, list, Sequence)]
        alike = lists and (len(lists[0]) == 1 or lists[0][-1] is ...)
        if not alike:
            return value
        return tuple(_read(item, lists[0][0], f"{location}[{place}]") for place, item in enumerate(value))
    if isinstance(value, Mapping):
        mappings = [typing.get_args(option) for option in options if typing.get_origin(option) in (dict, Mapping)]
        if not mappings:
            return value
        return {name: _read(item, mappings[0][1], f"{location}.{name}") for name, item in value.items()}
    if isinstance(value, str) and not {str, Any, object} & set(options):
        return _read_text(value, options)
    if type(value) is int and float in options and int not in options:
        with contextlib.suppress(OverflowError):
            return float(value)
    if type(value) is float and int in options and float not in options and value.is_integer():
        return int(value)
    return bool(value) if bool in options and type(value) is int and value in (0, 1) else value


def _read_text(value: str, options: tuple[Any, ...]) -> Any:
    """Text where none is meant: a number or another value as people write it down."""
    if bool in options and value.lower() in _FLAGS:
        return _FLAGS[value.lower()]
    for kind in (int, float, Path):
        if kind in options:
            with contextlib.suppress(ValueError):
                return kind(value)
    return value


def _holds_bool(value: object) -> bool:
    """Whether it is true or false, or a list of values one of which is: Python would count with it."""
    return any(map(_holds_bool, value)) if isinstance(value, list | tuple) else isinstance(value, bool)


def _mentions(hint: Any, kind: type) -> bool:
    return hint in (kind, Any, object) or any(_mentions(part, kind) for part in typing.get_args(hint))


def _mapped(inner: Any, value: object, location: str) -> Any:
    if isinstance(value, Mapping):
        return build_dataclass(inner, value, location=location)
    if isinstance(value, inner):
        return value
    names = ", ".join(field.name for field in dataclasses.fields(inner))
    raise SpecError(f"{location} must be a mapping with fields among {names}, got {shortened(value)}")


def _dataclass_of(hint: Any) -> Any:
    """The dataclass a field holds, when its type is one or is an optional one."""
    found = [option for option in options_of(hint) if dataclasses.is_dataclass(option)]
    return found[0] if len(found) == 1 else None


def _parses_itself(hint: Any) -> bool:
    """Whether the class reads what a spec writes for this field: it may hold one of several dataclasses."""
    return sum(dataclasses.is_dataclass(option) for option in options_of(hint)) > 1


T = TypeVar("T")


def anchored(part: T) -> T:
    """A data set or another of dpaudit's parts with its relative paths made absolute, at any depth.

    Paths that begin with `~` or a `$VARIABLE` stay as they are written.
    """
    if not dataclasses.is_dataclass(part) or isinstance(part, type):
        return part
    changes: dict[str, Any] = {}
    for field in dataclasses.fields(part):
        value = getattr(part, field.name)
        new = _absolute(value) if field.name == "path" and isinstance(value, str) else anchored(value)
        if new is not value and field.init:
            changes[field.name] = new
    return dataclasses.replace(part, **changes) if changes else part


def _absolute(path: str) -> str:
    apart = not path or path.startswith(("~", "$")) or "://" in path or os.path.isabs(path)
    return path if apart else os.path.abspath(path)


def in_words(value: Any) -> str:
    """A part of an audit as `name(field=value, ...)`, defaults left out."""
    words = describe(value)
    return _call(words) if isinstance(words, Mapping) else str(words)


def _call(words: Mapping[str, Any]) -> str:
    fields = ", ".join(
        f"{key}={_call(value) if isinstance(value, Mapping) else value}"
        for key, value in words.items()
        if key != "name"
    )
    name = words.get("name", "")
    return f"{name}({fields})" if fields else str(name)
