"""Generate the reference pages from the code: spec fields, commands, registered names, Python names.

`python -m tools.pages` writes them to `docs/reference`.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import typing
from collections.abc import Collection, Iterator, Mapping
from enum import Enum
from functools import cached_property
from types import MappingProxyType
from typing import Any

import click
from click.testing import CliRunner

import dpaudit
from dpaudit.engine.cli.main import main as command_line
from dpaudit.engine.cli.names import OF_CHECK, REQUIRED, described_fields, spec_schema
from dpaudit.engine.request.audit_spec import Audit, AuditSpec
from dpaudit.engine.request.check import CheckOptions, CheckRequest
from dpaudit.registry import PACKAGES, Entry, catalogue, load, plural

SECTION = re.compile(r"^(?:Attributes|Args|Returns|Raises|Source):", re.MULTILINE)
WIDTH = 100
"""Longest signature on one line."""
FIRST = ("audit", "check", "estimate", "synthetic", "sweep")


def pages() -> dict[str, str]:
    """Return the Markdown of every reference page by path."""
    names = {f"reference/names/{plural(kind)}.md": names_page(kind) for kind in PACKAGES}
    return {
        "reference/spec.md": spec_page(),
        "reference/commands.md": commands_page(),
        "reference/python.md": python_page(),
        **names,
    }


def spec_page() -> str:
    """Return the page of the fields of a spec, of an audit, and of their unnamed parts."""
    parts: dict[type, str] = {AuditSpec: "A spec", Audit: "An audit", CheckRequest: "`check`"}
    waiting = list(parts)
    while waiting:
        for name, part in _inner(waiting.pop(0)):
            if part not in parts:
                parts[part] = f"`{name}`"
                waiting.append(part)
    links = {part.__name__: re.sub("`", "", title).lower().replace(" ", "-") for part, title in parts.items()}
    lead = (
        "# Fields of a spec\n\nFields of an audit may stand at the top of a spec too, for all its audits. "
        "`dpaudit schema` prints the same as JSON Schema, for editors.\n"
    )
    sections = [f"## {title}\n\n{_summary(part)}\n\n{_fields(part, links)}" for part, title in parts.items()]
    kinds = ", ".join(f"[{plural(kind)}](names/{plural(kind)}.md)" for kind in PACKAGES)
    grid = f"## `grid`\n\n{spec_schema()['properties']['grid']['description']}\n"
    next_to_check = f"## `effort`, `strict`\n\nThey stand next to `check`.\n\n{_fields(CheckOptions, only=OF_CHECK)}"
    return "\n".join([lead, *sections, next_to_check, grid, f"## Names\n\nRegistered names by kind: {kinds}.\n"])


def _inner(part: type) -> Iterator[tuple[str, type]]:
    """Yield dataclasses without a registered name that fields of a dataclass hold, with the first field's name."""
    hints = typing.get_type_hints(part)
    for field in dataclasses.fields(part):
        for hint in (hints[field.name], *typing.get_args(hints[field.name])):
            if (
                field.init
                and isinstance(hint, type)
                and dataclasses.is_dataclass(hint)
                and "kind" not in field.metadata
            ):
                yield field.name, hint


def _summary(part: type) -> str:
    return inspect.cleandoc(part.__doc__ or "").partition("\n\n")[0]


def _fields(part: type, links: Mapping[str, str] = MappingProxyType({}), *, only: Collection[str] = ()) -> str:
    """Return a list of fields of a part, all or `only` some; `links` maps types to the sections that describe them."""
    lines = []
    for field in described_fields(part):
        if only and field.name not in only:
            continue
        kind = field.type.partition(" ")[2]
        section = next((links[word] for word in re.findall(r"\w+", field.type) if word in links), "")
        if kind in PACKAGES:
            described = f"[{field.type}](names/{plural(kind)}.md)"
        else:
            described = f"[`{field.type}`](#{section})" if section else f"`{field.type}`"
        if field.default == REQUIRED:
            described += f", {REQUIRED}"
        elif field.default.partition("(")[0] not in links:
            described += f", default `{field.default}`" if field.default else ", empty by default"
        lines.append(f"- **`{field.name}`**: {described}. {field.description}".rstrip())
    return "\n".join([*lines, ""])


def commands_page() -> str:
    """Return the page of every command with its `--help` text."""
    context = click.Context(command_line, info_name="dpaudit", terminal_width=90)
    parts = ["# Commands\n", _help(context)]
    parts += [text for name in command_line.list_commands(context) for text in _commands(context, name, "##")]
    return "\n".join(parts)


def _commands(parent: click.Context, name: str, heading: str) -> Iterator[str]:
    assert isinstance(parent.command, click.Group)
    command = parent.command.get_command(parent, name)
    assert command is not None
    context = click.Context(command, info_name=name, parent=parent, terminal_width=90)
    yield f"{heading} `{context.command_path}`\n\n{_help(context)}"
    if isinstance(command, click.Group):
        for inner in command.list_commands(context):
            yield from _commands(context, inner, f"{heading}#")


def _help(context: click.Context) -> str:
    return f"```\n{context.get_help()}\n```\n"


def names_page(kind: str) -> str:
    """Return the page of every registered name of a kind: description, source and fields."""
    title = plural(kind).replace("-", " ").capitalize()
    text = "\n".join([f"# {title}\n", *map(_entry, catalogue(kind).values())])
    if kind == "estimator":
        listed = CliRunner().invoke(command_line, ["list", "estimators"], catch_exceptions=False).output
        text += f"\n## Functions and types\n\n```\n{listed[listed.index('functions and types') :]}```\n"
    return text


def _entry(entry: Entry) -> str:
    part = load(entry.kind, entry.name)
    summary = re.split(SECTION, inspect.cleandoc(part.__doc__ or entry.summary), maxsplit=1)[0].rstrip()
    fields = _fields(part).replace("](names/", "](")  # this page lies among those that the links lead to
    return f"## `{entry.name}`\n\n{summary}\n\n*{entry.source}* · `{entry.module}`\n\n{fields}"


def python_page() -> str:
    """Return the page of the public Python names: signatures, and docstrings with their members'."""
    names = [name for name in dpaudit.__all__ if not name.startswith("_")]
    ordered = [*FIRST, *(name for name in names if name not in FIRST)]
    return "\n".join(["# Python names\n", *(_described(f"dpaudit.{name}", getattr(dpaudit, name)) for name in ordered)])


def _described(name: str, thing: Any, heading: str = "##") -> str:
    """Return the section of a function, class or property, with sections of the public members of a class."""
    parts = [f"{heading} `{name}`\n", _signature(name.rpartition(".")[2], thing), docstring_page(inspect.getdoc(thing))]
    if inspect.isclass(thing):
        classes = [each for each in reversed(thing.__mro__) if each.__module__.startswith("dpaudit")]
        members = {
            key: value for each in classes for key, value in vars(each).items() if key[0] != "_" and value.__doc__
        }
        if issubclass(thing, Enum):
            parts.append(", ".join(f"`{each.name}`" for each in thing) + "\n")
        parts += [
            _described(f"{name}.{key}", getattr(value, "__func__", value), "###")
            for key, value in members.items()
            if inspect.isroutine(getattr(value, "__func__", value)) or isinstance(value, property | cached_property)
        ]
    return "\n".join(filter(None, parts))


def _signature(name: str, thing: Any) -> str:
    """Return a block with the signature of a function or class, on one line or with a line for each argument."""
    if not callable(thing) or (inspect.isclass(thing) and issubclass(thing, Enum | Exception)):
        return ""
    signature = inspect.signature(thing)
    parameters = [each for each in signature.parameters.values() if each.name not in ("self", "cls")]
    arguments, kinds = [_argument(each) for each in parameters], [each.kind for each in parameters]
    if inspect.Parameter.KEYWORD_ONLY in kinds and inspect.Parameter.VAR_POSITIONAL not in kinds:
        arguments.insert(kinds.index(inspect.Parameter.KEYWORD_ONLY), "*")
    returned = "" if inspect.isclass(thing) else _type(signature.return_annotation)
    end = returned and f" -> {returned}"
    line = f"{name}({', '.join(arguments)}){end}"
    if len(line) > WIDTH:
        line = f"{name}(\n" + "".join(f"    {each},\n" for each in arguments) + f"){end}"
    return f"```\n{line}\n```\n"


def _argument(parameter: inspect.Parameter) -> str:
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
    annotation, default = _type(parameter.annotation), parameter.default
    described = f"{stars}{parameter.name}" + (annotation and f": {annotation}")
    if default is inspect.Parameter.empty:
        return described
    text = re.sub(r" at 0x\w+|<factory>", "...", repr(default.value if isinstance(default, Enum) else default))
    return f"{described} = {text}" if annotation else f"{described}={text}"


def _type(annotation: Any) -> str:
    if annotation is inspect.Signature.empty:
        return ""
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


def docstring_page(docstring: str | None) -> str:
    """Return the Markdown of a docstring: its sections become lists or paragraphs with a bold title."""
    lines: list[str] = []
    section = ""
    for line in (docstring or "").splitlines():
        heading = re.match(r"(Attributes|Args|Returns|Raises|Source):(.*)", line)
        if heading:
            section = heading[1] if not heading[2] else ""
            lines += ["", f"**{heading[1]}:**{heading[2]}", *([""] if section else [])]
        elif section and (entry := re.match(r"    (\*{0,2}\w[\w, ]*): (.*)", line)):
            lines.append(f"- `{entry[1]}`: {entry[2]}")
        elif section and line.startswith("    "):
            lines.append(f"  {line.strip()}")
        else:
            is_continued = bool(lines) and re.match(r"\*\*\w+:\*\* ", lines[-1])
            lines.append(line.strip() if is_continued else line)
            section = ""
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)) + "\n"
