"""Commands `dpaudit list`, `show` and `schema`: names that a spec can use, and their fields.

The JSON Schema of a spec is generated from the fields of all registered parts.
"""

from __future__ import annotations

import ast
import dataclasses
import json
import textwrap
from dataclasses import dataclass
from enum import Enum
from importlib.resources import files
from typing import Any, TypeGuard

import click

from dpaudit.engine.cli.options import completing, json_option
from dpaudit.engine.exits import attributes, in_json, show, show_lines
from dpaudit.engine.request.build import PART_KEY, Schema, field_descriptions, fields_schema, init_fields
from dpaudit.errors import InputError, UnknownNameError, did_you_mean
from dpaudit.registry import PACKAGES, Entry, catalogue, load, plural

WIDTH = 110
_PUBLIC_MODULES = (
    "proportions/binomial",
    "proportions/multinomial",
    "two_world/confusion",
    "one_run/guesses",
    "one_run/f_dp",
    "two_world/ratio",
    "private_prediction/divergence",
    "private_prediction/two_cut",
    "private_prediction/k_cut",
    "private_prediction/rdp_bound",
    "private_prediction/noisy_argmax",
    "label_reconstruction/advantage",
    "selection",
    "replays",
    "two_world/bands",
    "finding",
    "bound",
)
"""Modules of `dpaudit.estimators` with public functions and types."""


def _entries() -> list[Entry]:
    return [entry for kind in PACKAGES for entry in catalogue(kind).values()]


@click.command(name="list")
@click.argument("kind", required=False, shell_complete=completing(lambda: [(plural(kind), "") for kind in PACKAGES]))
@click.option("--fields", "with_fields", is_flag=True, help="Also show the type, default and meaning of every field.")
@json_option
def list_(kind: str | None, with_fields: bool, as_json: bool) -> None:
    """List mechanisms, games, attacks and all other names.

    These include models, proxies, estimators, data sets and reproductions. KIND selects one kind: `dpaudit list
    estimators` also lists functions for use in Python.
    """
    kinds = {plural(name): name for name in PACKAGES}
    if kind is not None and kind not in kinds:
        raise InputError(f"KIND must be one of {', '.join(kinds)}, got {kind!r}{did_you_mean(kind, kinds)}")
    if as_json:
        chosen = {title: catalogue(name).values() for title, name in kinds.items() if kind in (None, title)}
        values = {title: [_entry_values(entry, with_fields) for entry in part] for title, part in chosen.items()}
        show_lines(in_json(values))
        return
    for title, name in kinds.items():
        if kind in (None, title):
            show("", bold=title)
            for entry in catalogue(name).values():
                show(f"  {entry.name:<28} {entry.summary}")
                if kind is not None:
                    show(f"  {'':<28} [{entry.source}]")
                if with_fields:
                    _show_fields(entry)
    if kind == "estimators":
        show("", bold="functions and types (in Python: from dpaudit.estimators.MODULE import NAME)")
        for module in _PUBLIC_MODULES:
            for node in ast.parse((files("dpaudit.estimators") / f"{module}.py").read_text(encoding="utf-8")).body:
                if _is_public(node):
                    summary = (ast.get_docstring(node) or "").partition("\n")[0]
                    show(f"  {f'{module}.{node.name}'.replace('/', '.'):<40} {summary}")


def _entry_values(entry: Entry, with_fields: bool) -> dict[str, Any]:
    """Return an entry as plain values, and its fields if asked for."""
    fields = {"fields": described_fields(load(entry.kind, entry.name))} if with_fields else {}
    return {**attributes(entry, ("kind", "name", "summary", "source")), **fields}


def _is_public(node: ast.stmt) -> TypeGuard[ast.ClassDef | ast.FunctionDef]:
    """True for a public function or type of a module that is no registered part."""
    if not isinstance(node, ast.ClassDef | ast.FunctionDef) or node.name.startswith("_"):
        return False
    decorators = {ast.unparse(decorator).partition("(")[0] for decorator in node.decorator_list}
    return not decorators & {"overload", "register"}


@click.command(name="show")
@click.argument("name", shell_complete=completing(lambda: [(entry.name, entry.summary) for entry in _entries()]))
@json_option
def show_name(name: str, as_json: bool) -> None:
    """Print the source and fields of NAME.

    Each field is listed with its type, default and meaning.
    """
    entries = [entry for entry in _entries() if entry.name == name]
    if not entries:
        names = [entry.name for entry in _entries()]
        raise UnknownNameError(f"NAME must be one that `dpaudit list` shows, got {name!r}{did_you_mean(name, names)}")
    if as_json:
        show_lines(in_json([_entry_values(entry, with_fields=True) for entry in entries]))
        return
    for entry in entries:
        show(f"  {entry.kind} [{entry.source}]", bold=entry.name)
        show(f"  {entry.summary}")
        _show_fields(entry)


def _show_fields(entry: Entry) -> None:
    for field in described_fields(load(entry.kind, entry.name)):
        default = REQUIRED if field.default == REQUIRED else f"default {field.default}"
        show(f"    {field.name}: {field.type}, {default}")
        for line in textwrap.wrap(field.description, WIDTH - 8):
            show(f"        {line}")


@click.command()
def schema() -> None:
    """Print the JSON Schema of a spec.

    Editors use it to complete and check YAML.
    """
    show_lines(json.dumps(spec_schema(), indent=1))


OF_CHECK = ("effort", "strict")
"""Fields that a spec has only next to `check`."""


def spec_schema() -> Schema:
    """Return the JSON Schema (draft 2020-12) of a spec, with all names, fields, types and meanings.

    Ranges and the compatibility of parts are checked only when a spec is loaded.
    """
    # These import libraries that `dpaudit list` and `show` do not need.
    from dpaudit.engine.request.audit_spec import Audit, AuditSpec
    from dpaudit.engine.request.check import CheckOptions, CheckRequest

    fields, spec, check, options = map(fields_schema, (Audit, AuditSpec, CheckRequest, CheckOptions))
    name, audits = fields["properties"].pop("name"), spec["properties"].pop("audits")
    # Fields at the top are defaults for all audits, so an audit may lack even required fields.
    entry = {"type": "object", "properties": {**fields["properties"], "name": name}, "additionalProperties": False}
    properties = {
        **fields["properties"],
        **spec["properties"],
        "audits": {**audits, "items": entry},
        "grid": GRID,
        "check": {**check, "description": spec["properties"]["together"]["description"]},
        **{name: options["properties"][name] for name in OF_CHECK},
    }
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A dpaudit spec",
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
        "anyOf": [{"required": ["mechanism"]}, {"required": ["audits"]}, {"required": ["check"]}],
        "$defs": {kind: _kind_schema(kind) for kind in PACKAGES if kind != "reproduction"},
    }
    # pydantic refuses references that it did not create itself.
    schema_with_references: Schema = json.loads(json.dumps(schema).replace(f'"{PART_KEY}": "', '"$ref": "#/$defs/'))
    return schema_with_references


_USER_NAME: Schema = {"type": "string", "pattern": ":"}
_USER_CLASS: Schema = {
    "type": "object",
    "properties": {"name": _USER_NAME},
    "required": ["name"],
    "description": "Your class, `package.module:Class`, with its fields.",
}


def _kind_schema(kind: str) -> Schema:
    """Return the schema of a part of one kind: a name, or a name with fields."""
    parts: list[Schema] = []
    for entry in catalogue(kind).values():
        part = load(kind, entry.name)
        fields = fields_schema(part) if dataclasses.is_dataclass(part) else {}
        parts.append(
            {
                "type": "object",
                "description": entry.summary,
                "properties": {"name": {"const": entry.name}, **fields.get("properties", {})},
                "required": ["name", *fields.get("required", ())],
                "additionalProperties": False,
            }
        )
    return {"anyOf": [{"enum": list(catalogue(kind))}, _USER_NAME, _USER_CLASS, *parts]}


GRID: Schema = {
    "type": "object",
    "additionalProperties": {"type": "array", "minItems": 1},
    "description": "Values by field, such as mechanism.epsilon: one audit for each combination. Fields separated by "
    "commas are paired. The schema needs some value for the replaced fields too.",
}

REQUIRED = "needed"


@dataclass(frozen=True)
class DescribedField:
    """Text about one field of a part.

    Attributes:
        name: Name in specs.
        type: Type as written in the source, or the kind of a nested part: "a model".
        default: Default value; "needed" if there is none.
        description: Text of the docstring; "" if there is none.
    """

    name: str
    type: str
    default: str
    description: str


def described_fields(part: type) -> tuple[DescribedField, ...]:
    """Return the fields of a registered class in declaration order; none if it is not a dataclass."""
    if not dataclasses.is_dataclass(part):
        return ()
    descriptions = field_descriptions(part)
    return tuple(
        DescribedField(name, _type_text(field), default_text(field), descriptions.get(name, ""))
        for name, field in init_fields(part).items()
    )


def _type_text(field: dataclasses.Field[Any]) -> str:
    kind = field.metadata.get("kind")
    if kind is not None:
        return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"
    return str(field.type) if isinstance(field.type, str) else getattr(field.type, "__name__", str(field.type))


def default_text(field: dataclasses.Field[Any]) -> str:
    """Return the default of a field as text; `REQUIRED` if it has none."""
    if field.default is not dataclasses.MISSING:
        return field.default.value if isinstance(field.default, Enum) else str(field.default)
    if field.default_factory is not dataclasses.MISSING:
        return str(field.default_factory())
    return REQUIRED


NAME_VERBS = (list_, show_name, schema)
