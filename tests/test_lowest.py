"""The lowest versions in pyproject.toml equal those of `make lowest`, and the code needs no newer ones."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
APART = {"docs", "finetuning"}  # extras with a separate Python, or with exact versions
NO_SUCH_BUILD = {"torch"}  # on Linux an index has its lowest version with CUDA alone
PACKAGE = (
    *("actors", "cluster", "dpaudit", "engine", "estimators"),
    *("language_models", "mechanisms", "synthetic_tables"),
)
CLICK_8_1 = {
    *("Abort", "Argument", "BadParameter", "Choice", "ClickException", "Command", "Context", "FloatRange", "Group"),
    *("IntRange", "MissingParameter", "Option", "ParamType", "Parameter", "Path", "UsageError", "argument", "command"),
    *("echo", "exceptions", "group", "option", "prompt", "shell_completion", "style", "unstyle", "version_option"),
}
"""Names of click 8.1 that may be used; more of it can be added here."""


def pins(name: str) -> dict[str, Version]:
    """Return the versions in a file of constraints, by package."""
    lines = (line.partition("#")[0].strip() for line in (ROOT / name).read_text(encoding="utf-8").splitlines())
    return {canonicalize_name(line.partition("==")[0]): Version(line.partition("==")[2]) for line in lines if line}


def declared() -> Iterator[Requirement]:
    """Return the requirements of the package and its extras on Linux that state a version."""
    extras = PROJECT["optional-dependencies"]
    for lines in (PROJECT["dependencies"], *(extras[name] for name in extras if name not in APART)):
        for needed in map(Requirement, lines):
            if needed.specifier and (needed.marker is None or needed.marker.evaluate({"sys_platform": "linux"})):
                yield needed


def lowest(needed: Requirement) -> Version:
    (bound,) = (Version(part.version) for part in needed.specifier if part.operator in (">=", "=="))
    return bound


def test_the_lowest_versions_are_installed_as_declared() -> None:
    """A raised or added bound must appear in both files."""
    pinned = pins("requirements/lowest.txt")
    for needed in declared():
        name = canonicalize_name(needed.name)
        assert name in pinned, f"{name} has no line in requirements/lowest.txt"
        assert needed.specifier.contains(pinned[name]), f"{needed} is not met by {pinned[name]}"
        at_bound = [each for each in declared() if canonicalize_name(each.name) == name]
        if name not in NO_SUCH_BUILD:
            assert pinned[name] == max(map(lowest, at_bound)), f"{needed}, and {pinned[name]} there"


def test_what_is_installed_otherwise_is_no_older() -> None:
    usual = pins("requirements/constraints.txt")
    for needed in declared():
        name = canonicalize_name(needed.name)
        assert name not in usual or usual[name] >= lowest(needed), needed


def test_every_extra_is_installed_at_its_lowest_every_night() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    recipe = makefile.partition("\n$(LOWEST)/.installed:")[2].partition("\n\n")[0]
    (extras,) = re.findall(r'-e "\.\[(.*)\]"', recipe)
    assert set(extras.split(",")) == set(PROJECT["optional-dependencies"]) - APART
    assert "$(MAKE) lowest" in makefile.partition("\nnightly:")[2].partition("\n\n")[0]
    tests = makefile.partition("\nLOWEST_TESTS ?=")[2].partition("\nlowest:")[0]
    for name in re.findall(r"tests/\S+\.py", tests):
        assert (ROOT / name).is_file(), name


def test_no_name_of_click_is_newer_than_what_is_declared() -> None:
    used = {name for source in sources() for name, _ in click_names(source.read_text(encoding="utf-8"))}
    assert {"Group", "option"} <= used
    assert used - CLICK_8_1 == set()


def test_no_type_of_click_takes_brackets_at_run_time() -> None:
    """`class Place(click.ParamType[str])` is a TypeError below 8.4; annotations do not run."""
    for source in sources():
        lines = [line for _, line in click_names(source.read_text(encoding="utf-8")) if line]
        assert not lines, f"{source.relative_to(ROOT)}, line {lines}"


@pytest.mark.parametrize(
    ("code", "names"),
    [
        ("import click\nclass A(click.ParamType[str]): ...", [("ParamType", 2)]),
        ("from click import ParamType as Kind\nclass A(Kind[str]): ...", [("ParamType", 2)]),
        ("import click\nclass A(click.ParamType): ...", [("ParamType", 0)]),
        (
            "import click\nif TYPE_CHECKING:\n    A = click.ParamType[str]\nelse:\n    A = click.ParamType",
            [("ParamType", 0)],
        ),
        ("import click\ndef f(a: click.Choice[str]) -> click.Choice[str]: ...", []),
    ],
)
def test_what_is_used_of_click_is_seen(code: str, names: list[tuple[str, int]]) -> None:
    assert click_names(code) == names


def sources() -> list[Path]:
    return [path for room in PACKAGE for path in sorted((ROOT / room).rglob("*.py"))]


def click_names(code: str) -> list[tuple[str, int]]:
    """Return names of click that run as code, each with the line of its brackets, or 0 without brackets.

    Annotations do not run (`from __future__ import annotations`), nor does code below `if TYPE_CHECKING`.
    """
    if "click" not in code:
        return []
    tree = ast.parse(code)
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module == "click"]
    alias = {name.asname or name.name: name.name for node in imports for name in node.names}
    names: list[tuple[str, int]] = []

    def name_of(node: ast.AST) -> str:
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "click":
            return node.attr
        return alias.get(node.id, "") if isinstance(node, ast.Name) else ""

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING":
            for other in node.orelse:
                visit(other)
            return
        if isinstance(node, ast.Subscript) and (name := name_of(node.value)):
            names.append((name, node.lineno))
            return
        if name := name_of(node):
            names.append((name, 0))
            return
        for field, value in ast.iter_fields(node):
            if field not in ("annotation", "returns"):
                for child in value if isinstance(value, list) else [value]:
                    if isinstance(child, ast.AST):
                        visit(child)

    visit(tree)
    return names
