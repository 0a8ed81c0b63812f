"""The version of the code that makes a data file's numbers: what a page says of numbers whose code has changed since.

    python -m benchmarks.versions              # of each data file: whether its program's code is that of now
    python -m benchmarks.versions FILE.csv     # records that FILE was made by the code of now, today

A program is a module: that of `python -m MODULE`, or the one that registers `dpaudit reproduce PAPER ITEM`. Its version
is a hash of the code of that module and of every one it imports, words apart: comments and docstrings do not count, nor
do the modules that ask for, run and draw what others compute.
"""

from __future__ import annotations

import ast
import hashlib
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

from benchmarks.rows import Origin, note_origin, origins
from tests.import_graph import import_graph, reachable, read_sources

ROOT = Path(__file__).parent.parent
NOT_NUMBERS = (
    "actors", "cluster", "engine.cli", "engine.drawing", "engine.planning", "engine.report", "engine.run",
    "engine.spec", "estimators.chart", "papers.making",
)  # fmt: skip
REPRODUCTION = re.compile(r"dpaudit reproduce ([\w-]+ [\w-]+)")
MODULE = re.compile(r"python(?: -W ignore)? -m ([\w.]+)")


def version_of(program: str) -> str:
    """The version of a program's code, 12 hex digits; "" where its module is not known."""
    module = module_of(program)
    return "" if module is None else digest(sources(), module)


def module_of(program: str) -> str | None:
    """The module that a command runs; None for what is none of ours."""
    named = MODULE.search(program)
    asked = REPRODUCTION.search(program)
    if asked is not None:
        line = f'"reproduction", "{asked[1]}"'
        return next((name for name, text in sources().items() if name.startswith("papers.") and line in text), None)
    return named[1] if named is not None and named[1] in sources() else None


@cache
def sources() -> Mapping[str, str]:
    """Every module of the package, the papers' and the benchmarks', by name."""
    others = {
        f"{folder}.{path.stem}": path.read_text(encoding="utf-8")
        for folder in ("papers", "benchmarks")
        for path in sorted((ROOT / folder).glob("*.py"))
    }
    return read_sources(ROOT) | others


def digest(sources: Mapping[str, str], module: str) -> str:
    """The hash of a module's code and of what it imports."""
    graph = {
        name: frozenset(other for other in found if _counts(other)) for name, found in import_graph(sources).items()
    }
    hasher = hashlib.sha256()
    for name in sorted({module} | reachable(graph, module)):
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


def said_of(origin: Origin) -> str:
    """What a reader must know of the code behind a data file; "" where it is that of now, or no program of ours."""
    now = version_of(origin.program)
    if not now or origin.code == now:
        return ""
    return "its code has changed since" if origin.code else "its code was not recorded"


def main(files: Sequence[str]) -> None:
    """Records the code of now for some files, or says of every file whether its code is that of now."""
    known = origins()
    for origin in [known[file] for file in files]:
        note_origin(replace(origin, made=f"{datetime.now(UTC):%Y-%m-%d}", code=version_of(origin.program)))
    if not files:
        for origin in known.values():
            if version_of(origin.program):
                print(f"{origin.file}: {said_of(origin) or 'its code is that of now'}")


if __name__ == "__main__":
    main(sys.argv[1:])
