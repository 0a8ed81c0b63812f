"""Registered names of the parts of an audit: each part is one file that calls `register`.

The catalogue is read from the source text, so listing all names imports nothing, and `load` imports only one file.
Other packages add parts through entry points of the group `dpaudit.<kind>s`.
"""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import importlib.util
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from dpaudit.errors import FormerNameError, UnknownNameError, did_you_mean, shortened

T = TypeVar("T")

PAPERS = "papers"
PACKAGES: Mapping[str, tuple[str, ...]] = {
    "mechanism": ("dpaudit.mechanisms", "dpaudit.language_models.mechanisms", "dpaudit.synthetic_tables.mechanisms"),
    "model": ("dpaudit.mechanisms",),
    "base-model": ("dpaudit.language_models.mechanisms",),
    "embedder": ("dpaudit.mechanisms",),
    "language-model": ("dpaudit.mechanisms",),
    "text-trainer": ("dpaudit.language_models.mechanisms",),
    "game": ("dpaudit.engine.games", "dpaudit.language_models.games", "dpaudit.synthetic_tables.games"),
    "attack": ("dpaudit.engine.attacks", "dpaudit.engine.games", "dpaudit.language_models.attacks"),
    "table-attack": ("dpaudit.synthetic_tables.attacks",),
    "text-attack": ("dpaudit.language_models.attacks",),
    "canary": ("dpaudit.engine.games",),
    "text-canary": ("dpaudit.language_models.canary_kinds",),
    "poisoning": ("dpaudit.engine.games",),
    "proxy": ("dpaudit.engine.games",),
    "adversary": ("dpaudit.engine.games",),
    "estimator": ("dpaudit.estimators",),
    "curve": ("dpaudit.claims",),
    "data": ("dpaudit.engine.data", "dpaudit.language_models.data"),
    "reproduction": (PAPERS,),
}
"""Packages that hold the parts of each kind; `papers/` exists only in a checkout."""
WING_PARTS: Mapping[str, tuple[str, ...]] = {
    "verb": ("dpaudit.synthetic_tables.front_door",),
    "utility": ("dpaudit.synthetic_tables.games",),
}
"""Packages of what wings add to the rest, which no spec names: commands, and units that measure utility in sweeps."""

FORMER_NAMES = {
    "guess-band": "simultaneous-guess-count",
    "step-walk": "step-martingale",
    "crafted-crowd": "opposing-gradients",
    "pull-apart": "opposing-records",
    "answer-odds": "output-set",
    "recognised-release": "output-set",
}
"""New names by the names of earlier versions, for error messages."""


@dataclass(frozen=True)
class Entry:
    """One registered name.

    Attributes:
        kind: A key of `PACKAGES` or `WING_PARTS`.
        name: Name in specs.
        summary: First line of the docstring.
        source: Paper or package that the part comes from.
        module: Module that defines the part.
        attribute: Name of the part in that module.
    """

    kind: str
    name: str
    summary: str
    source: str
    module: str
    attribute: str


def register(kind: str, name: str, *, source: str) -> Callable[[T], T]:
    """Register a class or function as `name` of a kind; arguments must be literals, since they are read as text."""
    if kind not in PACKAGES and kind not in WING_PARTS:
        raise UnknownNameError(f"kind must be one of {', '.join(PACKAGES)}, got {kind!r}")

    def mark(part: T) -> T:
        part.registered_name, part.registered_kind = name, kind  # type: ignore[attr-defined]
        return part

    return mark


def plural(kind: str) -> str:
    """Return the plural of a kind, as in `dpaudit list mechanisms` and the entry points `dpaudit.mechanisms`."""
    if kind == "data":
        return kind
    return f"{kind[:-1]}ies" if kind.endswith("y") else f"{kind}s"


@cache
def catalogue(kind: str) -> dict[str, Entry]:
    """Return the registered parts of a kind, sorted by name; parts of dpaudit take precedence over other packages."""
    entries = {entry.name: entry for entry in _registered_entries(kind)}
    for point in importlib.metadata.entry_points(group=f"dpaudit.{plural(kind)}"):
        module, _, attribute = point.value.partition(":")
        distribution = point.dist.name if point.dist else "another package"
        entries.setdefault(point.name, Entry(kind, point.name, f"from {distribution}", distribution, module, attribute))
    return dict(sorted(entries.items()))


def load(kind: str, name: str) -> Any:
    """Import and return the class or function registered as `name`.

    Raises: UnknownNameError, which lists the known names; FormerNameError for a name of an earlier dpaudit.
    """
    entries = catalogue(kind)
    if FORMER_NAMES.get(name) in entries:
        raise FormerNameError(f"{kind} {name} is now called {FORMER_NAMES[name]}; use that name")
    if name not in entries:
        if kind == "mechanism" and name.startswith("planted-"):
            raise FormerNameError(f"mechanism {name} is a planted defect, in tests/bank of the repository")
        raise UnknownNameError(
            f"{kind} must be one of {', '.join(entries) or '(none)'}, got {shortened(repr(name))}"
            f"{did_you_mean(name, entries)}"
        )
    entry = entries[name]
    return getattr(import_module(entry.module), entry.attribute)


def import_module(module: str) -> Any:
    """Import a module of the catalogue; `papers` always comes from the checkout."""
    if module.partition(".")[0] == PAPERS and PAPERS not in sys.modules:
        folder = _package_folder(PAPERS)
        if folder is None:
            raise UnknownNameError("tables and figures of papers need a checkout of dpaudit, this is an installation")
        spec = importlib.util.spec_from_file_location(
            PAPERS, folder / "__init__.py", submodule_search_locations=[str(folder)]
        )
        assert spec is not None
        sys.modules[PAPERS] = importlib.util.module_from_spec(spec)
    return importlib.import_module(module)


def _package_folder(package: str) -> Path | None:
    """Return the folder of a package without importing it, since its `__init__` may be slow."""
    package_folder = Path(__file__).parent
    if package == PAPERS:
        folder = package_folder.resolve().parent / PAPERS
        return folder if folder.joinpath("reproduction.py").is_file() else None
    folder = package_folder.joinpath(*package.split(".")[1:])
    return folder if folder.is_dir() else None


def _registered_entries(kind: str) -> Iterator[Entry]:
    marked = re.compile(rf'^@register\(\s*"{kind}"', re.MULTILINE)
    for package in PACKAGES.get(kind) or WING_PARTS[kind]:
        root = _package_folder(package)
        for path in sorted(root.rglob("*.py")) if root else ():
            text = path.read_text(encoding="utf-8")
            inner = path.relative_to(root or path).with_suffix("").parts
            module = ".".join([package, *(part for part in inner if part != "__init__")])
            for match in marked.finditer(text):
                head = _HEAD.search(text, match.start())  # parsing stops at the docstring, to be fast
                for node in ast.parse(text[match.start() : head.end() if head else None]).body:
                    if not isinstance(node, ast.ClassDef | ast.FunctionDef):
                        continue
                    summary = (ast.get_docstring(node) or "").partition("\n")[0]
                    for call in node.decorator_list:
                        if isinstance(call, ast.Call) and getattr(call.func, "id", "") == "register":
                            of_kind, name, source = map(ast.literal_eval, (*call.args, call.keywords[0].value))
                            if of_kind == kind:
                                yield Entry(kind, name, summary, source, module, node.name)


_HEAD = re.compile(r'^(?:class|def) .*?^    """.*?"""', re.MULTILINE | re.DOTALL)
