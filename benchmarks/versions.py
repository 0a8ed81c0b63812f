"""The version of the code that makes a data file's numbers.

A program is some modules: those of `python -m MODULE`, or those that register the items of `dpaudit reproduce PAPER
ITEM; ITEM`. Its version is a hash of the code of these and of every module they import, words apart: comments and
docstrings do not count, nor do the modules that ask for, run and draw what others compute.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Mapping, Set
from functools import cache
from pathlib import Path

from tests.import_graph import import_graph, reachable, read_sources

ROOT = Path(__file__).parent.parent
NOT_NUMBERS = (
    "actors", "cluster", "engine.cli", "engine.drawing", "engine.planning", "engine.report", "engine.run",
    "engine.spec", "estimators.chart", "papers.making",
)  # fmt: skip
REPRODUCTION = re.compile(r"dpaudit reproduce ([\w-]+) (.*)")
MODULE = re.compile(r"python(?: -W ignore)? -m ([\w.]+)")


def version_of(program: str) -> str:
    """The version of a program's code, 12 hex digits; "" where it has no module of ours."""
    modules = modules_of(program)
    return digest(sources(), modules) if modules else ""


def modules_of(program: str) -> Set[str]:
    """The modules that a program runs."""
    asked = REPRODUCTION.search(program)
    if asked is None:
        return {name for name in MODULE.findall(program) if name in sources()}
    lines = {f'"reproduction", "{asked[1]} {item}"' for item in re.findall(r"[\w-]+", asked[2])}
    papers = {name: text for name, text in sources().items() if name.startswith("papers.")}
    return {name for name, text in papers.items() if any(line in text for line in lines)}


@cache
def sources() -> Mapping[str, str]:
    """Every module of the package, the papers' and the benchmarks', by name."""
    others = {
        f"{folder}.{path.stem}": path.read_text(encoding="utf-8")
        for folder in ("papers", "benchmarks")
        for path in sorted((ROOT / folder).glob("*.py"))
    }
    return read_sources(ROOT) | others


def digest(sources: Mapping[str, str], modules: Set[str]) -> str:
    """The hash of the code of some modules and of what they import."""
    graph = {
        name: frozenset(other for other in found if _counts(other)) for name, found in import_graph(sources).items()
    }
    hasher = hashlib.sha256()
    for name in sorted(modules.union(*(reachable(graph, module) for module in modules))):  # type: ignore[attr-defined]
        hasher.update(f"{name}\n{_code(sources[name])}\n".encode())
    return hasher.hexdigest()[:12]


def _counts(module: str) -> bool:
    name = module.removeprefix("dpaudit.")
    return not any(name == other or name.startswith(f"{other}.") for other in NOT_NUMBERS)


@cache
def _code(text: str) -> str:
    """The program without its words."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            node.body = [part for part in node.body if not _is_text(part)]
    return ast.dump(tree)


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
