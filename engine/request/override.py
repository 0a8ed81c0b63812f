"""One field of an audit, however deep, with another value."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from dpaudit.engine.request.audit_spec import Audit
from dpaudit.engine.request.build import build, checked_value, named_part
from dpaudit.errors import SpecError, did_you_mean, shortened
from dpaudit.registry import PACKAGES


def overridden(audit: Audit, path: str, value: Any) -> Audit:
    """The audit with another value in a field: `overridden(audit, "mechanism.model.epochs", 20)`.

    Parts that are names or mappings stay so, with one more field in words: what they leave open is still open, and what
    is wrong with a field is said when the spec is completed. Where a nested part is left out, its usual one is varied.
    """
    first, _, rest = path.partition(".")
    _require_field(audit, first, "an audit")
    given = getattr(audit, first)
    kinds = {field.name: field.metadata.get("kind") for field in dataclasses.fields(Audit)}
    if kinds[first] is None or first == "name":
        made: Audit = _replaced(audit, path, value, "")
        return made
    if not rest:
        return dataclasses.replace(audit, **{first: value})
    if given is None:
        raise SpecError(f"{path}: {first} is left open, and the game chooses one; name it to vary its fields")
    kind = str(kinds[first])
    if isinstance(given, str | Mapping):
        part: Any = _worded(kind, given, rest, value, first)
    else:
        part = _replaced(given, rest, value, first)
    return dataclasses.replace(audit, **{first: part})


def _worded(kind: str, part: str | Mapping[str, Any], path: str, value: Any, at: str) -> dict[str, Any]:
    """A part in words with another value at a path."""
    words = {"name": part} if isinstance(part, str) else dict(part)
    first, _, rest = path.partition(".")
    if not rest:
        return {**words, first: value}
    here, field = f"{at}.{first}", _field_in_words(kind, words, first, at)
    inner = words.get(first, _usual(field))
    inner_kind = field.metadata.get("kind")
    if inner_kind in PACKAGES and isinstance(inner, str | Mapping):
        return {**words, first: _worded(inner_kind, inner, rest, value, here)}
    if isinstance(inner, Mapping) and "." not in rest:
        return {**words, first: {**inner, rest: value}}
    if inner is None:
        raise SpecError(f"{here} is left open, name it to vary its fields")
    return {**words, first: _replaced(inner, rest, value, here)}


def _field_in_words(kind: str, words: Mapping[str, Any], name: str, at: str) -> dataclasses.Field[Any]:
    """The field of the class that a part in words is made with."""
    called = words.get("name")
    if not isinstance(called, str):
        raise SpecError(f"{at} must have a `name`, got {shortened(words)}")
    part_class = named_part(kind, called)
    return _require_field(part_class, name, at)


def _usual(field: dataclasses.Field[Any]) -> Any:
    """What a field holds when nothing is said, in words where it is a registered part."""
    default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
    return None if default is dataclasses.MISSING else default


def _replaced(part: Any, path: str, value: Any, at: str) -> Any:
    """A dataclass with another value at a path."""
    first, _, rest = path.partition(".")
    field = _require_field(part, first, at)
    here = f"{at}.{first}" if at else first
    if rest:
        inner = getattr(part, first)
        kind = field.metadata.get("kind")
        if kind in PACKAGES and isinstance(inner, str | Mapping):
            inner = build(kind, inner, location=here)
        if inner is None:
            if kind in PACKAGES or "." in rest:
                raise SpecError(f"{here} is left open, name it to vary its fields")
            made = checked_value(type(part), first, {rest: value}, here)
        else:
            made = _replaced(inner, rest, value, here)
    else:
        made = checked_value(type(part), first, value, here)
    try:
        return dataclasses.replace(part, **{first: made})
    except ValueError as err:
        raise SpecError(f"{at or 'audit'}: {err}") from err


def _require_field(part: Any, name: str, at: str) -> dataclasses.Field[Any]:
    if not dataclasses.is_dataclass(part):
        raise SpecError(
            f"{at} must be a dataclass for its field {name!r} to be varied, got {shortened(part)}; vary {at} as a whole"
        )
    known = {field.name: field for field in dataclasses.fields(part) if field.init}
    if name not in known:
        names = ", ".join(known) or "none"
        raise SpecError(f"{at} has no field {name!r}; it has {names}{did_you_mean(name, known)}")
    return known[name]
