"""Generate the reference pages from the code: spec fields, commands, registered names, Python names.

    python -m tools.reference

prints them as JSON, from a page's path in the site to its Markdown; `tools/site_hook.py` adds them to the site.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import typing
from collections.abc import Iterator, Mapping
from types import MappingProxyType

import click
from click.testing import CliRunner

import dpaudit
from dpaudit.engine.cli.main import main as command_line
from dpaudit.engine.cli.names import REQUIRED, described_fields, spec_schema
from dpaudit.engine.request.audit_spec import Audit, AuditSpec
from dpaudit.engine.request.check import CheckRequest
from dpaudit.registry import PACKAGES, Entry, catalogue, load, plural

SECTION = re.compile(r"^(?:Attributes|Args|Returns|Raises|Source):", re.MULTILINE)
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
    return "\n".join([lead, *sections, f"## `grid`\n\n{spec_schema()['properties']['grid']['description']}\n"])


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


def _fields(part: type, links: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return a list of the fields of a part; `links` maps names of types to the sections that describe them."""
    lines = []
    for field in described_fields(part):
        kind = field.type.partition(" ")[2]
        section = next((links[word] for word in re.findall(r"\w+", field.type) if word in links), "")
        if kind in PACKAGES:
            described = f"[{field.type}](/reference/names/{plural(kind)}.md)"
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
    context = click.Context(command_line, info_name="dpaudit", max_content_width=90)
    parts = ["# Commands\n", _help(context)]
    parts += [text for name in command_line.list_commands(context) for text in _commands(context, name, "##")]
    return "\n".join(parts)


def _commands(parent: click.Context, name: str, heading: str) -> Iterator[str]:
    assert isinstance(parent.command, click.Group)
    command = parent.command.get_command(parent, name)
    assert command is not None
    context = click.Context(command, info_name=name, parent=parent, max_content_width=90)
    yield f"{heading} `{context.command_path}`\n\n{_help(context)}"
    if isinstance(command, click.Group):
        for inner in command.list_commands(context):
            yield from _commands(context, inner, f"{heading}#")


def _help(context: click.Context) -> str:
    return f"```text\n{context.get_help()}\n```\n"


def names_page(kind: str) -> str:
    """Return the page of every registered name of a kind: description, source and fields."""
    title = plural(kind).replace("-", " ").capitalize()
    text = "\n".join([f"# {title}\n", *map(_entry, catalogue(kind).values())])
    if kind == "estimator":
        listed = CliRunner().invoke(command_line, ["list", "estimators"], catch_exceptions=False).output
        text += f"\n## Functions and types\n\n```text\n{listed[listed.index('functions and types') :]}```\n"
    return text


def _entry(entry: Entry) -> str:
    part = load(entry.kind, entry.name)
    summary = re.split(SECTION, inspect.cleandoc(part.__doc__ or entry.summary), maxsplit=1)[0].rstrip()
    return f"## `{entry.name}`\n\n{summary}\n\n*{entry.source}* · `{entry.module}`\n\n{_fields(part)}"


def python_page() -> str:
    """Return the page of the public Python names; mkdocstrings renders each signature and docstring."""
    names = [name for name in dpaudit.__all__ if not name.startswith("_")]
    ordered = [*FIRST, *(name for name in names if name not in FIRST)]
    return "\n".join(["# Python names\n", *(f"::: dpaudit.{name}\n" for name in ordered)])


if __name__ == "__main__":
    print(json.dumps(pages()))
