"""`dpaudit list`, `show` and `schema`: what can be named in a spec, and what can be said of it.

The JSON Schema of a whole spec is made from the fields of every part that a spec can name.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import re
import textwrap
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from importlib.resources import files
from typing import Any, Literal

import click
from click.shell_completion import CompletionItem

from dpaudit.engine.exits import show, show_lines
from dpaudit.errors import InputError, UnknownNameError, did_you_mean
from dpaudit.registry import PACKAGES, Entry, catalogue, load, plural

WIDTH = 110
_FUNCTIONAL = (
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
    "private_prediction/conversion",
    "private_prediction/noisy_argmax",
    "label_reconstruction/advantage",
    "label_reconstruction/equivalence",
    "selection",
    "replays",
    "two_world/bands",
    "finding",
    "bound",
)
"""The modules of `dpaudit.estimators` whose public functions and types are there to be called by anyone."""
Schema = dict[str, Any]


def _complete_kind(ctx: click.Context, parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    return [CompletionItem(plural(kind)) for kind in PACKAGES if plural(kind).startswith(begun)]


def _complete_name(ctx: click.Context, parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    return [CompletionItem(entry.name, help=entry.summary) for entry in _entries() if entry.name.startswith(begun)]


def _entries() -> list[Entry]:
    return [entry for kind in PACKAGES for entry in catalogue(kind).values()]


@click.command(name="list")
@click.argument("kind", required=False, shell_complete=_complete_kind)
@click.option("--fields", "with_fields", is_flag=True, help="Every field of each name: type, default, meaning.")
def list_(kind: str | None, with_fields: bool) -> None:
    """Lists mechanisms, games, attacks and all other names.

    Models, proxies, estimators, data sets and reproductions too. KIND narrows it: `dpaudit list estimators`, which
    shows the functions they are made of as well.
    """
    kinds = {plural(name): name for name in PACKAGES}
    if kind is not None and kind not in kinds:
        raise InputError(f"KIND must be one of {', '.join(kinds)}, got {kind!r}{did_you_mean(kind, kinds)}")
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
        for name, summary in _functions():
            show(f"  {name:<40} {summary}")


def _functions() -> Iterator[tuple[str, str]]:
    """Public functions and types of `_FUNCTIONAL`, with a line on each; what is registered is not repeated."""
    for module in _FUNCTIONAL:
        for node in ast.parse((files("dpaudit.estimators") / f"{module}.py").read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_"):
                decorators = {ast.unparse(decorator).partition("(")[0] for decorator in node.decorator_list}
                if not decorators & {"overload", "register"}:
                    yield f"{module.replace('/', '.')}.{node.name}", (ast.get_docstring(node) or "").partition("\n")[0]


@click.command(name="show")
@click.argument("name", shell_complete=_complete_name)
def show_name(name: str) -> None:
    """Shows what NAME is, and every field of it.

    Where it comes from; of each field type, default and meaning.
    """
    entries = [entry for entry in _entries() if entry.name == name]
    if not entries:
        names = [entry.name for entry in _entries()]
        raise UnknownNameError(f"NAME must be one that `dpaudit list` shows, got {name!r}{did_you_mean(name, names)}")
    for entry in entries:
        show(f"  {entry.kind} [{entry.source}]", bold=entry.name)
        show(f"  {entry.summary}")
        _show_fields(entry)


def _show_fields(entry: Entry) -> None:
    for field in described_fields(load(entry.kind, entry.name)):
        default = NEEDED if field.default == NEEDED else f"default {field.default}"
        show(f"    {field.name}: {field.type}, {default}")
        for line in textwrap.wrap(field.meaning, WIDTH - 8):
            show(f"        {line}")


@click.command()
def schema() -> None:
    """Prints the JSON Schema of a spec, for editors.

    With it they complete and check YAML.
    """
    show_lines(json.dumps(spec_schema(), indent=1))


def spec_schema() -> Schema:
    """The JSON Schema (draft 2020-12) of a spec: every name, field, type and default that a spec can hold.

    It is a help for editors: ranges and what fits what are checked when a spec is loaded.
    """
    # Fields of one part are shown without the libraries that these load.
    from dpaudit.engine.request.audit_spec import Audit, AuditSpec
    from dpaudit.engine.request.check import CheckRequest

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


NAME_VERBS = (list_, show_name, schema)
