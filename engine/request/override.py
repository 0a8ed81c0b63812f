"""Change one field of an audit, at any depth."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from dpaudit.engine.request.audit_spec import Audit, default_game
from dpaudit.engine.request.build import checked_value, init_fields, named_part
from dpaudit.errors import SpecError, did_you_mean, shortened
from dpaudit.registry import PACKAGES


def overridden(audit: Audit, path: str, value: Any) -> Audit:
    """Return the audit with another value in one field: `overridden(audit, "mechanism.model.epochs", 20)`.

    Names and mappings become mappings with one more field, and are built later: errors in their fields are raised when
    the spec is completed. If a nested part is absent, its default is changed.
    """
    first, _, rest = path.partition(".")
    kind = _field(audit, first, "an audit").metadata.get("kind")
    if kind is None:
        changed: Audit = _changed(audit, None, path, value, "")
        return changed
    part = getattr(audit, first)
    if first == "game" and part is None:
        part = default_game(audit)
    if rest and part is None:
        raise SpecError(f"{path}: {first} is not set, so the game chooses it; set it to vary its fields")
    return dataclasses.replace(audit, **{first: _changed(part, kind, rest, value, first) if rest else value})


def _changed(part: Any, kind: str | None, path: str, value: Any, at: str) -> Any:
    """Return a part, a name or a mapping with another value at a path below it."""
    first, _, rest = path.partition(".")
    if isinstance(part, str | Mapping):
        mapping = {"name": part} if isinstance(part, str) else dict(part)
        if rest:
            class_name = mapping.get("name")
            if kind is None or not isinstance(class_name, str):
                raise SpecError(f"{at} must have a `name`, got {shortened(mapping)}")
            field = _field(named_part(kind, class_name), first, at)
            default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
            inner = mapping.get(first, None if default is dataclasses.MISSING else default)
            value = _changed_field(inner, field, rest, value, f"{at}.{first}")
        return {**mapping, first: value}
    field, place = _field(part, first, at), f"{at}.{first}" if at else first
    if rest:
        value = _changed_field(getattr(part, first), field, rest, value, place)
    value = checked_value(type(part), first, value, at=at)
    try:
        return dataclasses.replace(part, **{first: value})
    except ValueError as err:
        raise SpecError(f"{at or 'audit'}: {err}") from err


def _changed_field(inner: Any, field: dataclasses.Field[Any], path: str, value: Any, at: str) -> Any:
    kind = field.metadata.get("kind")
    if inner is None and (kind in PACKAGES or "." in path):
        raise SpecError(f"{at} is not set; set it to vary its fields")
    return {path: value} if inner is None else _changed(inner, kind, path, value, at)


def _field(part: Any, name: str, at: str) -> dataclasses.Field[Any]:
    if not dataclasses.is_dataclass(part):
        raise SpecError(
            f"{at} must be a dataclass for its field {name!r} to be varied, got {shortened(part)}; vary {at} itself"
        )
    fields = init_fields(part)
    if name not in fields:
        names = ", ".join(fields) or "none"
        raise SpecError(f"{at} has no field {name!r}; it has {names}{did_you_mean(name, fields)}")
    return fields[name]
