"""Print size and structure of the package: imports of a small audit, cycles between rooms, lines, names.

    python -m tools.house

All but the first two figures are read from the source text with the standard library.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path

from tests.import_graph import Sources, cycles, grouped, import_graph, imports, module_of, read_sources

ROOT = Path(__file__).parent.parent
WALKS = """
import sys, tempfile
from itertools import groupby
import numpy as np
import dpaudit

def loaded():
    return [name for name in sys.modules if name.partition(".")[0] == "dpaudit"]

def walked(call, *arguments, **options):
    entered = {}
    def note(frame, event, argument):
        if event == "call" and str(frame.f_globals.get("__name__")).startswith("dpaudit."):
            entered.setdefault(frame.f_code, frame.f_globals["__name__"])
    sys.setprofile(note)
    try:
        return call(*arguments, **options), [module for module, _ in groupby(entered.values())]
    finally:
        sys.setprofile(None)

"""
ESTIMATE = """
score = np.random.default_rng(0).normal(size=200)
scores = {"score": score, "member": np.arange(200) % 2 == 0}
str(dpaudit.estimate(scores, claim=1.0))
print("estimate", *loaded())
"""
AUDIT_WALK = """
from dpaudit import Audit, AuditSpec, RunOptions, audit
from dpaudit.engine.run import policy

read, walks = policy.read_audit, []

def reading(*arguments, **options):
    result, walk = walked(read, *arguments, **options)
    walks.append(walk)
    return result

policy.read_audit = reading
entry = Audit({"name": "randomized-response", "epsilon": 1.0}, {"name": "digits"}, {"name": "label-canaries"})
run = RunOptions(runner="in-process", figures=False)
audit(AuditSpec((entry,), run=run), output=tempfile.mkdtemp() + "/run", quiet=True)
print("audit", *loaded())
print("read_audit", *walks[-1])
"""
"""Programs that print the modules that an estimate and a small audit load, and those that the latter walks through."""


@dataclass(frozen=True)
class Figure:
    """A measured number of the package.

    Attributes:
        subject: Description of the count.
        value: The count.
        detail: The largest member or all members, in a few words.
        limit: Largest value wanted; None if there is no limit.
    """

    subject: str
    value: int
    detail: str = ""
    limit: int | None = None

    def __str__(self) -> str:
        limit = "" if self.limit is None else f"{self.limit:,}"
        return f"{self.value:>8,}  {limit:>8}  {self.subject}{': ' if self.detail else ''}{self.detail}"


def main() -> None:
    """Print all figures."""
    sources = read_sources(ROOT)
    print(f"{'now':>8}  {'at most':>8}")
    for figure in (*small_audit(sources), *rooms_in_cycles(sources), *source_figures(sources)):
        print(figure)


def small_audit(sources: Sources) -> list[Figure]:
    """Count the modules that an estimate and an audit of randomised labels import and walk through.

    A walk is the order in which functions are entered for the first time: a stay is a visit of a module, a return a
    visit of one that was visited before.
    """
    loaded = _printed(WALKS + ESTIMATE)
    audit = _printed(WALKS + AUDIT_WALK)
    walk = audit["read_audit"]
    return [
        Figure("modules that an estimate of two arrays imports", len(loaded["estimate"]), limit=50),
        Figure("modules that a small label audit imports", len(audit["audit"]), limit=130),
        Figure("lines of them", sum(lines(sources[name]) for name in audit["audit"]), limit=16_000),
        Figure("stays from `read_audit` to its result", len(walk), f"{len(walk) - len({*walk})} returns"),
    ]


def _printed(program: str) -> dict[str, list[str]]:
    """Return the words after the first one of each line that a program prints, in a fresh process."""
    command = [sys.executable, "-c", program]
    process = subprocess.run(command, cwd=ROOT / "editable", capture_output=True, text=True, check=False)
    if process.returncode != 0:
        raise RuntimeError(process.stderr)
    return {first: words for first, *words in map(str.split, process.stdout.splitlines())}


def rooms_in_cycles(sources: Sources) -> list[Figure]:
    """Count the rooms that import one another; the front door, which exports names of all rooms, is left out."""
    graph = {module: names - {"dpaudit"} for module, names in import_graph(sources).items() if module != "dpaudit"}
    rooms = {module: room(module, sources) for module in graph}
    names = sorted(name.removeprefix("dpaudit.") for cycle in cycles(grouped(graph, rooms)) for name in cycle)
    return [Figure(f"rooms in a cycle, of {len(set(rooms.values()))}", len(names), " ".join(names), 0)]


def room(module: str, sources: Sources) -> str:
    """Return the room of a module: its folder, or the module itself if its folder holds other folders."""
    if is_package(module, sources):
        return module
    folder = module.rpartition(".")[0]
    has_folders = any(name.startswith(f"{folder}.") and is_package(name, sources) for name in sources)
    return module if has_folders else folder


def source_figures(sources: Sources) -> list[Figure]:
    """Count lines, modules and names in the source text."""
    files_by_folder = Counter(module.rpartition(".")[0] for module in sources if not is_package(module, sources))
    fullest, files = files_by_folder.most_common(1)[0]
    shared = shared_classes(sources)
    return [
        Figure("files side by side in the fullest folder", files, fullest, 20),
        Figure("public names that exactly one other module imports", len(names_with_one_user(sources)), limit=349),
        Figure("lines of the package", sum(map(lines, sources.values())), limit=51_000),
        Figure("lines of papers", _lines_below("papers")),
        Figure("lines of tests", _lines_below("tests"), limit=40_000),
        Figure("modules of the package", len(sources)),
        Figure("class names with several meanings", len(shared), ", ".join(sorted(shared)), 0),
    ]


def is_package(module: str, sources: Sources) -> bool:
    """Return True if the module is the `__init__` of a folder."""
    return any(name.startswith(f"{module}.") for name in sources)


def names_with_one_user(sources: Sources) -> list[tuple[str, str]]:
    """Return (module, name) of each public top-level name that exactly one other module imports."""
    users: dict[tuple[str, str], set[str]] = defaultdict(set)
    for entry in imports(sources):
        home = module_of(entry.name, sources)
        if home not in (None, entry.module) and entry.name != home:
            users[home or "", entry.name.removeprefix(f"{home}.").partition(".")[0]].add(entry.module)
    definitions = {(module, name) for module, text in sources.items() for name in public_names(text)}
    return sorted(definition for definition in definitions if len(users[definition]) == 1)


def public_names(text: str) -> set[str]:
    """Return the public classes, functions and values that a module defines at its top level."""
    names = set()
    for node in ast.parse(text).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)}
    return {name for name in names if not name.startswith("_")}


def shared_classes(sources: Sources) -> dict[str, int]:
    """Return the number of definitions of each public class name that several modules define."""
    counts = Counter(
        node.name
        for text in sources.values()
        for node in ast.parse(text).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    return {name: count for name, count in counts.items() if count > 1}


def lines(text: str) -> int:
    """Return the number of lines, including blank lines and comments."""
    return text.count("\n")


def _lines_below(folder: str) -> int:
    return sum(lines(path.read_text(encoding="utf-8")) for path in (ROOT / folder).rglob("*.py"))


if __name__ == "__main__":
    main()
