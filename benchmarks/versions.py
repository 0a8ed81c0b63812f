"""The version of the code that makes a data file's numbers.

A program is some modules: those of `python -m MODULE`, or those that register the items of `dpaudit reproduce PAPER
ITEM; dpaudit reproduce PAPER ITEM`. Its version is a hash of the code of these and of every module they import, words
apart: comments and docstrings do not count, nor do the modules that ask for, run and draw what others compute.

Of a reproduction, which names all that it plays, only what is used of those modules counts: the classes, functions and
constants that are named, or registered under a word that stands there, and so on. Rather too much than too little: a
class counts whole, and an attribute may be whatever has its name in the module. Annotations do not count.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.import_graph import import_graph, reachable, read_sources

ROOT = Path(__file__).parent.parent
NOT_NUMBERS = (
    "actors", "cluster", "engine.cli", "engine.drawing", "engine.finding_figures", "engine.palette", "engine.planning",
    "engine.report", "engine.run", "engine.request", "papers.making",
)  # fmt: skip
VERDICTS = ("joint", "result", "stopping", "verdict")
"""Modules of `engine.reading`: no number of the papers is a verdict, and no audit of theirs stops early."""
READ_BY = {"dpaudit.engine.games.one_run.proxy_game": "dpaudit.engine.reading.shift"}
"""What reads the outcomes of a module, where only modules that do not count name it."""
REPRODUCTION = re.compile(r"dpaudit reproduce ([\w-]+) (.*)")
MODULE = re.compile(r"python(?: -W ignore)? -m ([\w.]+)")
NAMES = (ast.Name, ast.Attribute)
Part = tuple[str, str]
"""A module, and a name at its top."""


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
    hasher = hashlib.sha256()
    if all(name.startswith("papers.") for name in modules):
        left_out = {f"dpaudit.engine.reading.{name}" for name in VERDICTS}
        counting = {name for name in sources if _counts(name)} - left_out
        kept = {name: sources[name] for name in counting | modules}
        for module, name in sorted(_used(kept, modules)):
            hasher.update(f"{module}\n{name}\n{_parts(kept[module])[name].code}\n".encode())
        return hasher.hexdigest()[:12]
    graph = {
        name: frozenset(other for other in found if _counts(other)) for name, found in import_graph(sources).items()
    }
    for name in sorted(modules.union(*(reachable(graph, module) for module in modules))):  # type: ignore[attr-defined]
        hasher.update(f"{name}\n{_code(sources[name])}\n".encode())
    return hasher.hexdigest()[:12]


def _used(kept: Mapping[str, str], modules: Set[str]) -> Set[Part]:
    """All parts of some modules, and of the kept ones those that they use, and so on."""
    waiting = {(module, name) for module in modules for name in _parts(kept[module])}
    used, by_name = set[Part](), _registered(kept)
    while waiting:
        part = waiting.pop()
        used.add(part)
        waiting |= set(_uses(*part, kept, by_name)) - used
    return used


def _registered(kept: Mapping[str, str]) -> Mapping[str, Set[Part]]:
    """The parts that a spec, or a game, may name: by each of their registered names."""
    found = defaultdict[str, set[Part]](set)
    for module, text in kept.items():
        for name, part in _parts(text).items():
            for word in part.registered:
                found[word].add((module, name))
    return found


def _uses(module: str, name: str, kept: Mapping[str, str], by_name: Mapping[str, Set[Part]]) -> Iterator[Part]:
    """What a part of a module needs of all kept modules: what it names, and what is registered by words in it."""
    here = _parts(kept[module])
    yield from ((module, other) for other in here if other in here[name].names or here[other].always)
    bound = {**_bound(kept[module]), **here[name].bound}
    for used in here[name].names & bound.keys():
        yield from _named(bound[used], here[name].names, kept)
    for word in here[name].words:
        yield from by_name.get(word, ())
        yield from ((word, other) for other in (_parts(kept[word]) if word in kept else ()))


def _named(full: str, names: Set[str], kept: Mapping[str, str]) -> Iterator[Part]:
    """The part that an imported name leads to, through modules that lend it; of a module what is used with a dot."""
    if full in kept:
        parts = _parts(kept[full])
        yield from ((full, other) for other in parts if other in names or parts[other].always)
        return
    module, _, name = full.rpartition(".")
    if module in READ_BY:
        yield from ((READ_BY[module], other) for other in _parts(kept[READ_BY[module]]))
    if module not in kept:
        return
    parts = _parts(kept[module])
    if name in parts:
        yield module, name
    elif name in _bound(kept[module]):
        yield from ((module, other) for other in parts if parts[other].always)
        yield from _named(_bound(kept[module])[name], names, kept)
    else:
        yield from ((module, other) for other in parts)


def _counts(module: str) -> bool:
    name = module.removeprefix("dpaudit.")
    return not any(name == other or name.startswith(f"{other}.") for other in NOT_NUMBERS)


@dataclass(frozen=True)
class _Written:
    """What stands at the top of a module under one name: a class, a function, a constant. Or what an import runs."""

    code: str
    names: frozenset[str]  # variables and attributes
    words: frozenset[str]  # texts, but for what a check complains of
    registered: frozenset[str]
    bound: Mapping[str, str]  # what is imported inside
    always: bool

    def __add__(self, other: _Written) -> _Written:
        sets = {name: getattr(self, name) | getattr(other, name) for name in ("names", "words", "registered", "bound")}
        return _Written(self.code + other.code, always=self.always or other.always, **sets)


@cache
def _parts(text: str) -> Mapping[str, _Written]:
    """The statements of a module by the names they define."""
    found: dict[str, _Written] = {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.Import | ast.ImportFrom) or _is_text(node) or _is_for_checkers(node):
            continue
        for inner in ast.walk(node):
            if isinstance(inner, ast.ClassDef | ast.FunctionDef):
                inner.body = [part for part in inner.body if not _is_text(part)]
        written, targets = _written(node), _targets(node)
        for name in targets or [written.code]:
            found[name] = found[name] + written if name in found else written
    return found


def _written(node: ast.stmt) -> _Written:
    decorators = getattr(node, "decorator_list", [])
    by_type = any(
        isinstance(one, ast.Attribute) and one.attr == "register" for each in decorators for one in _run(each)
    )
    run = list(ast.walk(node) if by_type else _run(node))
    calls = [one for one in run if isinstance(one, ast.Call)]
    marks = [one.args[1] for one in calls if one in decorators and len(one.args) > 1]
    checks = [one for one in calls if ast.dump(one.func).startswith("Name(id='require")]
    complaints = {word for one in checks for word in ast.walk(one)}
    return _Written(
        ast.dump(node),
        frozenset(one.id if isinstance(one, ast.Name) else one.attr for one in run if isinstance(one, NAMES)),
        frozenset(_texts(one for one in run if one not in complaints)),
        frozenset(_texts(marks)),
        _imported(run),
        not _targets(node),
    )


def _texts(nodes: Iterable[ast.AST]) -> Iterator[str]:
    return (one.value for one in nodes if isinstance(one, ast.Constant) and isinstance(one.value, str))


def _run(node: ast.AST) -> Iterator[ast.AST]:
    """All of a statement but annotations, which are not run."""
    yield node
    for field, value in ast.iter_fields(node):
        if field not in ("annotation", "returns"):
            for inner in value if isinstance(value, list) else [value]:
                if isinstance(inner, ast.AST):
                    yield from _run(inner)


def _targets(node: ast.stmt) -> list[str]:
    """The names that a statement defines; none of a function that another calls by the type of what it is given."""
    if isinstance(node, ast.FunctionDef) and node.name == "_":
        return []
    if isinstance(node, ast.ClassDef | ast.FunctionDef):
        return [node.name]
    if isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return [inner.id for target in targets for inner in ast.walk(target) if isinstance(inner, ast.Name)]
    return []


@cache
def _bound(text: str) -> Mapping[str, str]:
    """What each name that a module imports leads to, imports for type checkers among them: packages lend by these."""
    top = [node for node in ast.parse(text).body if not isinstance(node, ast.ClassDef | ast.FunctionDef)]
    return _imported([inner for node in top for inner in ast.walk(node)])


def _imported(nodes: Iterable[ast.AST]) -> dict[str, str]:
    found: dict[str, str] = {}
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.level == 0:
            found |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.asname: alias.name for alias in node.names if alias.asname}
            found |= {
                alias.name.partition(".")[0]: alias.name.partition(".")[0] for alias in node.names if not alias.asname
            }
    return found


@cache
def _code(text: str) -> str:
    """The program without its words."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            node.body = [part for part in node.body if not _is_text(part)]
    return ast.dump(tree)


def _is_for_checkers(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
