"""Convert values back to specs, so that every run folder holds a spec that can be rerun."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from enum import Enum
from typing import Any

from dpaudit.claims import Claim
from dpaudit.estimators.selection import SELECTION_NAMES
from dpaudit.locations import has_location, location

_SELECTIONS: dict[object, str] = {selection: name for name, selection in SELECTION_NAMES.items()}


def describe(value: object) -> Any:
    """Return the spec from which `build` creates the value, without defaults."""
    if isinstance(value, Claim):
        words: dict[str, Any] = {"epsilon": value.epsilon}
        if value.delta:
            words["delta"] = value.delta
        if value.relation != Claim.relation:
            words["relation"] = value.relation.value
        if not value.is_point:
            words["curve"] = describe(value.curve)
        return words
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
    if hasattr(value, "__dict__"):  # an object of the user
        return {"name": _name(value), **describe(vars(value))}
    return value.item() if getattr(value, "shape", None) == () else value  # type: ignore[attr-defined]  # of NumPy


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


def call_text(value: Any) -> str:
    """Return a part of an audit as `name(field=value, ...)`, without defaults."""
    words = describe(value)
    return _as_call(words) if isinstance(words, Mapping) else str(words)


def _as_call(words: Mapping[str, Any]) -> str:
    fields = ", ".join(
        f"{key}={_as_call(value) if isinstance(value, Mapping) else value}"
        for key, value in words.items()
        if key != "name"
    )
    name = words.get("name", "")
    return f"{name}({fields})" if fields else str(name)
