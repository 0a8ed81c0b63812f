"""Imports between the modules of the package, read from the source text; no module is imported.

Every import counts: at the top of a file, in a function, for type checkers, relative, through
`importlib.import_module` or `__import__` with a literal name, and by attribute access on an imported module such as
`dpaudit`. Two kinds do not count. A name computed at run time cannot be read from the text: `dpaudit.registry.load` and
`dpaudit.locations.located` import the part that a spec names. Importing `dpaudit.a.b.c` does not count as importing
the packages `dpaudit.a` and `dpaudit.a.b`, because their `__init__` files are empty.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

PACKAGE = "dpaudit"

Sources = Mapping[str, str]
"""Source text by module name."""
Graph = Mapping[str, frozenset[str]]
"""Imported modules of the package by importing module."""


@dataclass(frozen=True)
class Import:
    """An import of one name.

    Attributes:
        module: The importing module.
        name: Full name of the imported module or attribute.
        line: Line number, from 1.
        relative: True if the import is written with leading dots.
    """

    module: str
    name: str
    line: int
    relative: bool = False

    @property
    def package(self) -> str:
        """First part of the imported name."""
        return _first(self.name)


def read_sources(root: Path) -> dict[str, str]:
    """Return the source text of every module of the package below `root`, following its symbolic links."""
    sources = {}
    for folder, _, files in os.walk(root / PACKAGE, followlinks=True):
        for path in (Path(folder, file) for file in files if file.endswith(".py")):
            parts = path.relative_to(root).with_suffix("").parts
            sources[".".join(part for part in parts if part != "__init__")] = path.read_text(encoding="utf-8")
    return sources


def imports(sources: Sources) -> list[Import]:
    """Return all imports of all modules."""
    packages = {name.rpartition(".")[0] for name in sources}
    return [entry for module, text in sources.items() for entry in _imports(module, text, module in packages)]


def import_graph(sources: Sources) -> dict[str, frozenset[str]]:
    """Return the modules of the package that each module imports."""
    graph: dict[str, set[str]] = {module: set() for module in sources}
    for entry in imports(sources):
        target = module_of(entry.name, sources)
        if target is not None:
            graph[entry.module].add(target)
    return {module: frozenset(names) for module, names in graph.items()}


def module_of(name: str, sources: Sources) -> str | None:
    """Return the module that defines `name`; None outside the package."""
    while name and name not in sources:
        name = name.rpartition(".")[0]
    return name or None


def reachable(graph: Graph, start: str) -> set[str]:
    """Return the direct and indirect imports of `start`; `start` itself is among them only if it is in a cycle."""
    reached: set[str] = set()
    pending = list(graph[start])
    while pending:
        module = pending.pop()
        if module not in reached:
            reached.add(module)
            pending += graph[module]
    return reached


def cycles(graph: Graph) -> set[frozenset[str]]:
    """Return the groups of nodes that import one another, directly or indirectly."""
    below = {module: reachable(graph, module) for module in graph}
    return {
        frozenset(other for other in below[module] if module in below[other])
        for module in graph
        if module in below[module]
    }


def grouped(graph: Graph, groups: Mapping[str, str]) -> dict[str, frozenset[str]]:
    """Return the graph between groups of modules, such as folders, without imports inside a group."""
    result: dict[str, set[str]] = {group: set() for group in groups.values()}
    for module, group in groups.items():
        result[group] |= {groups[name] for name in graph[module] if name in groups} - {group}
    return {group: frozenset(names) for group, names in result.items()}


@cache
def _imports(module: str, text: str, is_package: bool) -> tuple[Import, ...]:
    nodes = list(ast.walk(ast.parse(text)))
    package = module if is_package else module.rpartition(".")[0]
    importers = {"import_module", "__import__"}
    bound: dict[str, str] = {}
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            importers |= {alias.asname for alias in node.names if alias.name in importers and alias.asname}
            bound |= {alias.asname or alias.name: f"{_home(node, package)}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            bound |= {alias.asname: alias.name for alias in node.names if alias.asname}
            bound |= {_first(alias.name): _first(alias.name) for alias in node.names if not alias.asname}
    inner = {id(node.value) for node in nodes if isinstance(node, ast.Attribute)}
    outermost = [node for node in nodes if not (isinstance(node, ast.Attribute) and id(node) in inner)]
    return tuple(entry for node in outermost for entry in _imports_of(node, module, package, importers, bound))


def _imports_of(
    node: ast.AST, module: str, package: str, importers: set[str], bound: Mapping[str, str]
) -> Iterator[Import]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield Import(module, alias.name, node.lineno)
    elif isinstance(node, ast.ImportFrom):
        home = _home(node, package)
        for alias in node.names:
            name = home if alias.name == "*" else f"{home}.{alias.name}"
            yield Import(module, name, node.lineno, relative=node.level > 0)
    elif isinstance(node, ast.Call) and _last_name(node.func) in importers:
        literals = [value.value for value in _arguments(node) if isinstance(value, ast.Constant)]
        words = [word for word in literals if isinstance(word, str)]
        if words:
            anchor = words[1] if len(words) > 1 else package
            yield Import(module, _absolute(words[0], anchor), node.lineno, relative=words[0].startswith("."))
    elif isinstance(node, ast.Attribute):
        dotted = _dotted(node)
        first, _, rest = dotted.partition(".")
        if _first(bound.get(first, "")) == PACKAGE:
            yield Import(module, f"{bound[first]}.{rest}", node.lineno)


def _home(node: ast.ImportFrom, package: str) -> str:
    return _absolute("." * node.level + (node.module or ""), package)


def _first(name: str) -> str:
    return name.partition(".")[0]


def _dotted(node: ast.expr) -> str:
    """Return "a.b.c" for names and attributes of names, "" for any other expression."""
    if isinstance(node, ast.Name):
        return node.id
    inner = _dotted(node.value) if isinstance(node, ast.Attribute) else ""
    return f"{inner}.{node.attr}" if isinstance(node, ast.Attribute) and inner else ""


def _arguments(call: ast.Call) -> list[ast.expr]:
    """Return the arguments `name` and `package` of an import call, by position or keyword."""
    keywords = {word.arg: word.value for word in call.keywords}
    return [*call.args, *(keywords[word] for word in ("name", "package") if word in keywords)][:2]


def _absolute(name: str, package: str) -> str:
    """Resolve leading dots in `name`; one dot is `package` itself."""
    dots = len(name) - len(name.lstrip("."))
    if dots == 0:
        return name
    parts = package.split(".")
    return ".".join([*parts[: len(parts) - dots + 1], *filter(None, [name[dots:]])])


def _last_name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
