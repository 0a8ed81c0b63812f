"""`dpaudit list`, `show` and `schema`: what can be named in a spec, and what can be said of it."""

from __future__ import annotations

import ast
import json
import textwrap
from collections.abc import Iterator
from importlib.resources import files

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
    "one_run/guess_tables",
    "two_world/ratio",
    "private_prediction/divergence",
    "private_prediction/two_cut",
    "private_prediction/k_cut",
    "private_prediction/rdp_bound",
    "private_prediction/conversion",
    "private_prediction/noisy_argmax",
    "label_reconstruction/advantage",
    "label_reconstruction/classes",
    "label_reconstruction/equivalence",
    "selection",
    "replays",
    "two_world/bands",
    "finding",
    "bound",
)
"""The modules of `dpaudit.estimators` whose public functions and types are there to be called by anyone."""


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
    from dpaudit.engine.spec.schema import NEEDED, described_fields

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
    from dpaudit.engine.spec.schema import spec_schema

    show_lines(json.dumps(spec_schema(), indent=1))


NAME_VERBS = (list_, show_name, schema)
