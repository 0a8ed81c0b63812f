"""Which module of the package imports which, read from the source text; nothing is imported.

Every import counts, wherever it stands: at the top, in a function, for type checkers, relative ones,
`importlib.import_module` or `__import__` with a name that is written out, and what is reached by dots from a module
that was imported, such as `dpaudit`. Two things do not. Names that are put together while the program runs cannot be
read from the text: `dpaudit.registry.load` and `dpaudit.locations.located` import the part that a spec names. And the
packages that a name leads through are empty, but for `dpaudit` and `dpaudit.claims`, which lend the names of their own
modules: `dpaudit.claims.curve` counts as that file, not as its package.
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
"""The text of each module, by its name."""
Graph = Mapping[str, frozenset[str]]
"""What each module imports of the package."""


@dataclass(frozen=True)
class Import:
    """One name that a module imports.

    Attributes:
        module: Which one imports.
        name: What, in full: a module, or something in one.
        line: Where.
        relative: Whether it is written with leading dots.
    """

    module: str
    name: str
    line: int
    relative: bool = False

    @property
    def package(self) -> str:
        """The first part of the name."""
        return _first(self.name)


def read_sources(root: Path) -> dict[str, str]:
    """Every module of the package below `root`, the folders behind its links among them."""
    found = {}
    for folder, _, files in os.walk(root / PACKAGE, followlinks=True):
        for path in (Path(folder, file) for file in files if file.endswith(".py")):
            parts = path.relative_to(root).with_suffix("").parts
            found[".".join(part for part in parts if part != "__init__")] = path.read_text(encoding="utf-8")
    return found


def imports(sources: Sources) -> list[Import]:
    """All imports of all modules."""
    packages = {name.rpartition(".")[0] for name in sources}
    return [one for module, text in sources.items() for one in _imports(module, text, module in packages)]


def import_graph(sources: Sources) -> dict[str, frozenset[str]]:
    """What each module imports of the package; the folders that a name leads through are not counted."""
    found: dict[str, set[str]] = {module: set() for module in sources}
    for one in imports(sources):
        home = module_of(one.name, sources)
        if home is not None:
            found[one.module].add(home)
    return {module: frozenset(names) for module, names in found.items()}


def module_of(name: str, sources: Sources) -> str | None:
    """The module in which a name is found; None outside the package."""
    while name and name not in sources:
        name = name.rpartition(".")[0]
    return name or None


def reachable(graph: Graph, start: str) -> set[str]:
    """What `start` imports, and what that imports, and so on; `start` itself only by a circle."""
    seen: set[str] = set()
    waiting = list(graph[start])
    while waiting:
        module = waiting.pop()
        if module not in seen:
            seen.add(module)
            waiting += graph[module]
    return seen


def circles(graph: Graph) -> set[frozenset[str]]:
    """The groups that import one another."""
    below = {module: reachable(graph, module) for module in graph}
    return {
        frozenset(other for other in below[module] if module in below[other])
        for module in graph
        if module in below[module]
    }


def grouped(graph: Graph, groups: Mapping[str, str]) -> dict[str, frozenset[str]]:
    """The graph of groups of modules, such as rooms; a group does not import itself."""
    found: dict[str, set[str]] = {group: set() for group in groups.values()}
    for module, group in groups.items():
        found[group] |= {groups[name] for name in graph[module] if name in groups} - {group}
    return {group: frozenset(names) for group, names in found.items()}


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
    within = {id(node.value) for node in nodes if isinstance(node, ast.Attribute)}
    outermost = [node for node in nodes if not (isinstance(node, ast.Attribute) and id(node) in within)]
    return tuple(one for node in outermost for one in _imports_of(node, module, package, importers, bound))


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
        given = [value.value for value in _arguments(node) if isinstance(value, ast.Constant)]
        words = [word for word in given if isinstance(word, str)]
        if words:
            here = words[1] if len(words) > 1 else package
            yield Import(module, _absolute(words[0], here), node.lineno, relative=words[0].startswith("."))
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
    """ "a.b.c"; "" for what is reached otherwise."""
    if isinstance(node, ast.Name):
        return node.id
    inner = _dotted(node.value) if isinstance(node, ast.Attribute) else ""
    return f"{inner}.{node.attr}" if isinstance(node, ast.Attribute) and inner else ""


def _arguments(call: ast.Call) -> list[ast.expr]:
    """The name first, then the package that a relative one starts from."""
    named = {word.arg: word.value for word in call.keywords}
    return [*call.args, *(named[word] for word in ("name", "package") if word in named)][:2]


def _absolute(name: str, package: str) -> str:
    """A name with leading dots as it is from the top; one dot is the package itself."""
    dots = len(name) - len(name.lstrip("."))
    if dots == 0:
        return name
    parts = package.split(".")
    return ".".join([*parts[: len(parts) - dots + 1], *filter(None, [name[dots:]])])


def _last_name(called: ast.expr) -> str:
    return called.attr if isinstance(called, ast.Attribute) else called.id if isinstance(called, ast.Name) else ""
