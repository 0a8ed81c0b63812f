"""Random mutants of the code that decides a bound or a verdict, and which tests catch them.

    .venv-mutation/bin/python -m tools.mutants RESULTS.jsonl [--mutants 200] [--seed 0] [--jobs 2] [--day]

A mutant is one change by cosmic-ray (an operator, a comparison, a number, a condition) at a random place of
`estimators`, `dpaudit/claims` or the modules of `engine/answer` that settle a verdict. The program writes each mutant
into a clone of the last commit and runs the tests of its room: the day's tests first, and if they all pass, the night's
(`--day` skips them). Files that import the mutated module run first, and the first failure ends the run. The program
prints the share that each run catches, and every mutant that only the night's tests or no tests catch. A second call
continues the results file. No test catches a mutant that only changes speed or an impossible case.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import Queue

import cosmic_ray.plugins
from cosmic_ray.ast import ast_nodes, get_ast_from_path
from cosmic_ray.mutating import apply_mutation

ROOT = Path(__file__).parents[1]
CLONES = ROOT / "build" / "mutants"
PYTHON = ROOT / ".venv" / "bin" / "python"
ROOMS: Mapping[str, tuple[str, ...]] = {
    "estimators/**/*.py": ("tests/estimators", "tests/twins"),
    "dpaudit/claims/*.py": ("tests/test_claims.py", "tests/test_composed_laplace.py", "tests/estimators"),
    "engine/answer/verdict.py": ("tests/engine",),
    "engine/answer/run_report.py": ("tests/engine",),
    "engine/answer/result.py": ("tests/engine",),
}
"""Files that are mutated, and the tests of their room."""
UNLIKELY = re.compile(r"BitOr|BitAnd|BitXor|Shift|FloorDiv|_Mod|_Pow|Invert|RemoveDecorator|UAdd")
"""Operators that a programmer would not confuse with the correct one, or that only change speed."""
HANGS_S = 900
"""Timeout of a test run in seconds; a mutant that never ends counts as caught, because a user would notice."""
CAUGHT_BY = ("day", "night", "nothing")


@dataclass(frozen=True)
class Mutant:
    """One change of one file.

    Attributes:
        file: Path below the root.
        operator: Name of cosmic-ray's operator.
        occurrence: Number of the place in the file that this operator can change.
        line: Where the change is.
        tests: Test files and folders, in the order in which they run.
    """

    file: str
    operator: str
    occurrence: int
    line: int
    tests: tuple[str, ...]

    def key(self) -> str:
        """The mutant in one line, the same in every run."""
        return f"{self.file}:{self.line} {self.operator} {self.occurrence}"


def main(arguments: Sequence[str]) -> None:
    """Run the mutants that have no result yet, and print the table of all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("--mutants", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--day", action="store_true", help="leave out the tests of the night")
    options = parser.parse_args(arguments)
    chosen = sample(places(), options.mutants, options.seed)
    finished = {line["mutant"]: line for line in map(json.loads, lines_of(options.results))}
    missing = [mutant for mutant in chosen if mutant.key() not in finished]
    clones: Queue[Path] = Queue()
    for number in range(options.jobs):
        clones.put(clone(CLONES / str(number)))

    def run(mutant: Mutant) -> dict[str, object]:
        folder = clones.get()
        try:
            return asdict(mutant) | {"mutant": mutant.key()} | outcome(mutant, folder, night=not options.day)
        finally:
            clones.put(folder)

    with ThreadPoolExecutor(options.jobs) as pool, options.results.open("a", encoding="utf-8") as results:
        for line in pool.map(run, missing):
            results.write(json.dumps(line) + "\n")
            results.flush()
            print(line["caught_by"], line["mutant"], flush=True)
            finished[str(line["mutant"])] = line
    print(*table([finished[mutant.key()] for mutant in chosen]), sep="\n")


def places() -> dict[tuple[str, int, int], list[Mutant]]:
    """Every mutant, by the place (file, line, column) that it changes."""
    operators = {
        name: kind() for name in cosmic_ray.plugins.operator_names() if not UNLIKELY.search(name)
        for kind in [cosmic_ray.plugins.get_operator(name)] if not kind.arguments()
    }  # fmt: skip
    mutants: dict[tuple[str, int, int], list[Mutant]] = defaultdict(list)
    for pattern, tests in ROOMS.items():
        for path in sorted(ROOT.glob(pattern)):
            file = path.relative_to(ROOT).as_posix()
            ordered = tuple(importers_first(file, tests))
            nodes = list(ast_nodes(get_ast_from_path(path)))
            for name, operator in operators.items():
                spots = [spot for node in nodes for spot in operator.mutation_positions(node)]
                for occurrence, ((line, column), _) in enumerate(spots):
                    mutants[file, line, column].append(Mutant(file, name, occurrence, line, ordered))
    return mutants


def importers_first(file: str, tests: Iterable[str]) -> Iterator[str]:
    """Test files below `tests` that name the module of `file`, then all of them."""
    module = file.removesuffix(".py").replace("/", ".")
    name = re.compile(rf"\b{re.escape(module if module.startswith('dpaudit') else 'dpaudit.' + module)}\b")
    for test in tests:
        for path in sorted((ROOT / test).rglob("test_*.py")) if (ROOT / test).is_dir() else [ROOT / test]:
            if name.search(path.read_text(encoding="utf-8")):
                yield path.relative_to(ROOT).as_posix()
    yield from tests


def sample(by_place: Mapping[tuple[str, int, int], list[Mutant]], number: int, seed: int) -> list[Mutant]:
    """Return `number` mutants: random places, with one of the possible changes of each."""
    rng = random.Random(seed)
    return [rng.choice(by_place[place]) for place in rng.sample(sorted(by_place), min(number, len(by_place)))]


def clone(folder: Path) -> Path:
    """Return a clone of the last commit."""
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["git", "clone", "--quiet", "--shared", str(ROOT), str(folder)], check=True)
    subprocess.run(["git", "fetch", "--quiet", "origin", "HEAD"], cwd=folder, check=True)
    subprocess.run(["git", "reset", "--quiet", "--hard", "FETCH_HEAD"], cwd=folder, check=True)
    return folder


def outcome(mutant: Mutant, folder: Path, *, night: bool) -> dict[str, object]:
    """Return the mutated line and the test run that catches it."""
    kind = cosmic_ray.plugins.get_operator(mutant.operator)
    path = folder / mutant.file
    before = path.read_text(encoding="utf-8")
    try:
        apply_mutation(path, kind(), mutant.occurrence)
        after = path.read_text(encoding="utf-8")
        changed = [line for line in after.splitlines() if line not in before.splitlines()]
        caught_by = "day" if not passed(mutant, folder, {}) else "unknown"
        if caught_by != "day" and night:
            caught_by = "nothing" if passed(mutant, folder, {"DPAUDIT_NIGHTLY": "yes"}) else "night"
        return {"caught_by": caught_by, "change": changed[:2]}
    finally:
        path.write_text(before, encoding="utf-8")


def passed(mutant: Mutant, folder: Path, environment: Mapping[str, str]) -> bool:
    """True if the tests of the mutant's room do not notice it."""
    command = [str(PYTHON), "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", "not ray and not cluster"]
    paths = {"PYTHONPATH": os.pathsep.join((str(folder / "editable"), str(folder))), "OMP_NUM_THREADS": "1"}
    settings = {**os.environ, **paths, **environment}
    try:
        run = subprocess.run([*command, *mutant.tests], cwd=folder, env=settings, capture_output=True, timeout=HANGS_S)
    except subprocess.TimeoutExpired:
        return False
    return run.returncode == 0


def lines_of(path: Path) -> list[str]:
    """The lines of a file; none if it does not exist."""
    return path.read_text(encoding="utf-8").splitlines() if path.is_file() else []


def table(results: Sequence[Mapping[str, object]]) -> Iterator[str]:
    """Counts as a Markdown table, then the mutants that the day does not catch."""
    yield "|caught by|mutants|share|"
    yield "|-|-|-|"
    for caught_by in (*CAUGHT_BY, "unknown"):
        count = sum(line["caught_by"] == caught_by for line in results)
        if count:
            yield f"|{caught_by}|{count}|{count / len(results):.1%}|"
    for line in results:
        if line["caught_by"] != "day":
            yield f"{line['caught_by']}: {line['mutant']}: {line['change']}"


if __name__ == "__main__":
    main(sys.argv[1:])
