"""The JSON Schema of a whole spec, made from the fields of every part that a spec can name."""

from __future__ import annotations

import dataclasses
import inspect
import re
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal

from dpaudit.registry import PACKAGES, catalogue, load

Schema = dict[str, Any]


def spec_schema() -> Schema:
    """The JSON Schema (draft 2020-12) of a spec: every name, field, type and default that a spec can hold.

    It is a help for editors: ranges and what fits what are checked when a spec is loaded.
    """
    # Fields of one part are shown without the libraries that these load.
    from dpaudit.engine.spec.audit_spec import Audit, AuditSpec
    from dpaudit.engine.spec.check import CheckRequest

    kinds = {field.metadata["kind"] for field in dataclasses.fields(Audit) if "kind" in field.metadata}
    definitions: Schema = {}
    waiting = sorted(kinds)
    while waiting:
        kind = waiting.pop()
        if kind not in definitions:
            definitions[kind] = _kind_schema(kind)
            waiting += sorted(_kinds_named(definitions[kind]) - definitions.keys())
    # Whatever an audit holds may stand at the top as well, for all audits; what it needs may then be missing in each.
    audit = {name: schema for name, schema in _properties(Audit).items() if name != "name"}
    spec = {name: schema for name, schema in _properties(AuditSpec).items() if name != "audits"}
    name: Schema = {"type": "string", "description": meanings_of(Audit)["name"]}
    entry = {"type": "object", "properties": {**audit, "name": name}, "additionalProperties": False}
    audits = {"type": "array", "items": entry, "description": meanings_of(AuditSpec)["audits"]}
    check: Schema = {
        "type": "object",
        "properties": _properties(CheckRequest),
        "required": ["mechanism"],
        "additionalProperties": False,
        "description": meanings_of(AuditSpec)["together"],
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A dpaudit spec",
        "type": "object",
        "properties": {**audit, **spec, "audits": audits, "grid": GRID, "check": check},
        "additionalProperties": False,
        "anyOf": [{"required": ["mechanism"]}, {"required": ["audits"]}, {"required": ["check"]}],
        "$defs": definitions,
    }


_OWN_CLASS: Schema = {
    "type": "object",
    "properties": {"name": {"type": "string", "pattern": ":"}},
    "required": ["name"],
    "description": "One's own class, `package.module:Class`, with its fields.",
}


def _kind_schema(kind: str) -> Schema:
    """A part of one kind: a name alone, or a name with fields."""
    names = sorted(catalogue(kind))
    entries = catalogue(kind).values()
    parts = [_part_schema(entry.name, entry.summary, load(kind, entry.name)) for entry in entries]
    own_name = {"type": "string", "pattern": ":"}
    return {"anyOf": [{"enum": names}, own_name, _OWN_CLASS, *parts]}


def _part_schema(name: str, summary: str, part: type) -> Schema:
    fields = [field for field in dataclasses.fields(part) if field.init] if dataclasses.is_dataclass(part) else []
    needed = [field.name for field in fields if default_in_words(field) == NEEDED]
    return {
        "type": "object",
        "description": summary,
        "properties": {"name": {"const": name}, **(_properties(part) if fields else {})},
        "required": ["name", *needed],
        "additionalProperties": False,
    }


def _properties(part: type) -> Schema:
    """The schemas of a dataclass's fields."""
    hints, meanings = typing.get_type_hints(part), meanings_of(part)
    return {
        field.name: {**_field_schema(field, hints[field.name]), **_described(meanings.get(field.name, ""))}
        for field in dataclasses.fields(part)
        if field.init
    }


def _described(meaning: str) -> Schema:
    return {"description": meaning} if meaning else {}


def _field_schema(field: dataclasses.Field[Any], hint: Any) -> Schema:
    kind = field.metadata.get("kind")
    if kind not in PACKAGES:
        return _type_schema(hint)
    optional = field.default is None or type(None) in typing.get_args(hint)
    nested: Schema = {"$ref": f"#/$defs/{kind}"}
    return {"anyOf": [nested, {"type": "null"}]} if optional else nested


GRID: Schema = {
    "type": "object",
    "additionalProperties": {"type": "array", "minItems": 1},
    "description": "From a field, such as mechanism.epsilon, to its values: one audit for each combination. Fields "
    "separated by commas go together. What the fields replace must be there for the schema, with any value.",
}

_PLAIN: Mapping[Any, Schema] = {
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"anyOf": [{"type": "number"}, {"type": "string", "pattern": "^[-+]?([.]?inf|[0-9].*)$"}]},
    str: {"type": "string"},
    type(None): {"type": "null"},
}
"""A float may be a string: YAML 1.1 reads 1e-5 as one."""


def _type_schema(hint: Any) -> Schema:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint in _PLAIN:
        return _PLAIN[hint]
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [_type_schema(option) for option in arguments]}
    if origin is Literal:
        return {"enum": list(arguments)}
    if isinstance(hint, type) and issubclass(hint, Enum):
        return {"enum": [member.value for member in hint]}
    if origin in (tuple, list):
        return {"type": "array", "items": _type_schema(arguments[0]) if arguments else {}}
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        # Selections, and others that read what a spec writes for them, may be words too.
        return {"anyOf": [{"type": "object", "properties": {"name": {}, **_properties(hint)}}, {"type": "string"}]}
    return {}


def _kinds_named(schema: Any) -> set[str]:
    """The kinds that references in a schema lead to."""
    if isinstance(schema, Mapping):
        named = {schema["$ref"].rpartition("/")[2]} if isinstance(schema.get("$ref"), str) else set()
        return named.union(*(_kinds_named(value) for value in schema.values()))
    return set().union(*(_kinds_named(value) for value in schema)) if isinstance(schema, list) else set()


NEEDED = "needed"


@dataclass(frozen=True)
class DescribedField:
    """One field of a part, in words."""

    name: str  # what a spec calls it
    type: str  # its type as it is written in the source; for a nested part its kind: "a model"
    default: str  # what it is when left out; "needed" where it may not be
    meaning: str  # what the docstring says of it; "" where it says nothing


def described_fields(part: type) -> tuple[DescribedField, ...]:
    """The fields of a registered class in the order in which it declares them; none for a class without fields."""
    if not dataclasses.is_dataclass(part):
        return ()
    meanings = meanings_of(part)
    return tuple(
        DescribedField(field.name, _type_in_words(field), default_in_words(field), meanings.get(field.name, ""))
        for field in dataclasses.fields(part)
        if field.init
    )


def _type_in_words(field: dataclasses.Field[Any]) -> str:
    kind = field.metadata.get("kind")
    if kind is not None:
        return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"
    return str(field.type) if isinstance(field.type, str) else getattr(field.type, "__name__", str(field.type))


def default_in_words(field: dataclasses.Field[Any]) -> str:
    """What a field is when it is left out; `NEEDED` where it may not be."""
    if field.default is not dataclasses.MISSING:
        return field.default.value if isinstance(field.default, Enum) else str(field.default)
    if field.default_factory is not dataclasses.MISSING:
        return str(field.default_factory())
    return NEEDED


def meanings_of(part: type) -> dict[str, str]:
    """The entries of the sections `Attributes:` of a class and of those it inherits from; its own come first."""
    found: dict[str, str] = {}
    for base in part.__mro__:
        section = re.search(r"^Attributes:\n((?:[ ]+.*\n?|\n)+)", inspect.cleandoc(base.__doc__ or ""), re.MULTILINE)
        if section:
            for name, text in re.findall(r"^    (\w+): ((?:.*\n?)(?:^ {5,}.*\n?)*)", section[1], re.MULTILINE):
                found.setdefault(name, " ".join(text.split()))
    return found
