"""The figures of the house: how much a small audit imports, which rooms stand in a circle, how full the folders are.

    python -m benchmarks.house

Everything but the first two is read from the source text, by the standard library alone.
"""

from __future__ import annotations

import ast
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path

from tests.import_graph import Sources, circles, grouped, import_graph, imports, module_of, read_sources

ROOT = Path(__file__).parent.parent
ENGINE = "dpaudit.engine"
SMALL_AUDIT = """
import sys
import dpaudit
from dpaudit import Audit, AuditSpec, RunOptions, audit

entry = Audit({"name": "randomized-response", "epsilon": 1.0}, {"name": "digits"}, {"name": "label-canaries"})
audit(AuditSpec((entry,), run=RunOptions(runner="in-process", figures=False)), output=sys.argv[1], quiet=True)
print(*(name for name in sys.modules if name.partition(".")[0] == "dpaudit"))
"""


@dataclass(frozen=True)
class Figure:
    """One number.

    Attributes:
        what: Is counted.
        value: How many.
        which: The largest, or the members, in a few words.
        most: What is wanted at most; None where nothing is.
    """

    what: str
    value: int
    which: str = ""
    most: int | None = None

    def __str__(self) -> str:
        wanted = "" if self.most is None else f"{self.most:,}"
        return f"{self.value:>8,}  {wanted:>8}  {self.what}{': ' if self.which else ''}{self.which}"


def main() -> None:
    """Prints the figures."""
    sources = read_sources(ROOT)
    print(f"{'now':>8}  {'at most':>8}")
    for figure in (*small_audit(sources), *rooms_in_circles(sources), *text(sources)):
        print(figure)


def small_audit(sources: Sources) -> list[Figure]:
    """What one audit of labels imports of the package, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", SMALL_AUDIT, f"{folder}/run"]
        done = subprocess.run(command, cwd=ROOT / "editable", capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(done.stderr)
    loaded = done.stdout.splitlines()[-1].split()
    return [
        Figure("modules that a small label audit imports", len(loaded), most=130),
        Figure("lines of them", sum(lines(sources[name]) for name in loaded), most=16_000),
    ]


def rooms_in_circles(sources: Sources) -> list[Figure]:
    """The rooms of the engine that reach themselves through another one; every folder is a room, at any depth."""
    rooms = {module: folder(module, sources) for module in sources if module.startswith(ENGINE)}
    named = sorted(
        room.removeprefix(f"{ENGINE}.") for circle in circles(grouped(import_graph(sources), rooms)) for room in circle
    )
    return [Figure(f"rooms of the engine in a circle, of {len(set(rooms.values()))}", len(named), " ".join(named), 0)]


def folder(module: str, sources: Sources) -> str:
    """The package a module is in; a package is in itself."""
    return module if is_package(module, sources) else module.rpartition(".")[0]


def text(sources: Sources) -> list[Figure]:
    """What the source text alone says."""
    beside = Counter(module.rpartition(".")[0] for module in sources if not is_package(module, sources))
    fullest, files = beside.most_common(1)[0]
    single = names_with_one_user(sources)
    shared = shared_classes(sources)
    papers = sum(lines(path.read_text(encoding="utf-8")) for path in ROOT.glob("papers/*.py"))
    whole = sum(map(lines, sources.values()))
    return [
        Figure("files side by side in the fullest folder", files, fullest, 20),
        Figure("public names that exactly one other module imports", len(single), most=349),
        Figure("lines of the package", whole, most=48_000),
        Figure("lines of the papers' tables, outside of it", papers),
        Figure("modules of the package", len(sources)),
        Figure("names that several classes share", len(shared), ", ".join(sorted(shared))),
    ]


def is_package(module: str, sources: Sources) -> bool:
    """Whether a module is a folder's `__init__`."""
    return any(name.startswith(f"{module}.") for name in sources)


def names_with_one_user(sources: Sources) -> list[tuple[str, str]]:
    """Module and name of what stands at the top of a module, is public, and is imported by one other alone."""
    users: dict[tuple[str, str], set[str]] = defaultdict(set)
    for one in imports(sources):
        home = module_of(one.name, sources)
        if home not in (None, one.module) and one.name != home:
            users[home or "", one.name.removeprefix(f"{home}.").partition(".")[0]].add(one.module)
    made = {(module, name) for module, text in sources.items() for name in public_names(text)}
    return sorted(found for found in made if len(users[found]) == 1)


def public_names(text: str) -> set[str]:
    """Classes, functions and values that a module makes at its top."""
    found = set()
    for node in ast.parse(text).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)}
    return {name for name in found if not name.startswith("_")}


def shared_classes(sources: Sources) -> dict[str, int]:
    """Names that more than one public class at the top of a module has, and how many have it."""
    counts = Counter(
        node.name
        for text in sources.values()
        for node in ast.parse(text).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    return {name: count for name, count in counts.items() if count > 1}


def lines(text: str) -> int:
    """Lines of a text, empty ones and comments among them."""
    return text.count("\n")


if __name__ == "__main__":
    main()
