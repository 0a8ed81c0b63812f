"""Run `dpaudit check` with default settings on functions of third-party libraries, each in a separate Python.

    make libraries
    python -m tests.bank.run_libraries OUTPUT.jsonl [defects|honest|table] [runs a case] [NAME ...]

Each run adds a line of JSON to OUTPUT, and the program skips runs that OUTPUT has. `table` prints a row for each case
in OUTPUT, and writes the table to `docs/data/library-bank.csv`.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.check_defects import lines
from dpaudit import ResourceRequest, RunOptions, check
from tests.bank.libraries import LIBRARIES, LibraryCase
from tools.rows import DATA, measured_here, note_origin, table_rows, write

ROOT = Path(__file__).parent.parent.parent
FOLDER = ROOT / "examples" / "libraries"


def python_of(case: LibraryCase) -> Path:
    """Return the Python of `make libraries` for a case."""
    return ROOT / f".venv-{case.python}" / "bin" / "python"


def run(name: str, case: LibraryCase, seed: int) -> dict[str, Any]:
    """Check one case with default settings and `strict`: low digits and rows beyond the schema count."""
    began = time.monotonic()
    line: dict[str, Any] = {"case": name, "twin": case.honest, "seed": seed}
    try:
        with tempfile.TemporaryDirectory() as folder:
            report = check(
                case.function,
                claim=case.claim,
                schema=case.schema,
                relation=case.claim.relation,
                form=case.form,  # type: ignore[arg-type]
                settings={name: [value] for name, value in case.settings.items()},
                python=str(python_of(case)),
                folder=str(FOLDER),
                seed=seed,
                output=folder,
                quiet=True,
                strict="all",
                run=RunOptions("in-process", resources=ResourceRequest(2), figures=False, repeats=0),
            )
    except Exception as err:  # an aborted check is a result too
        return line | {"verdict": type(err).__name__, "headline": str(err), "seconds": 0.0}
    assert report.joint is not None
    deciding = report.joint.deciding
    return line | {
        "verdict": report.joint.verdict.value,
        "headline": report.joint.answer.headline,
        "epsilon": None if deciding is None else max(0.0, deciding.epsilon),
        "test": "" if deciding is None else deciding.name,
        "seconds": round(time.monotonic() - began, 1),
    }


def table(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a table with a row for each finished case."""
    columns = (
        "library",
        "function",
        "case",
        "leak",
        "claimed",
        "verdict",
        "epsilon at least, median",
        "seconds, median",
    )
    rows = [f"| {' | '.join(columns)} |", "| --- " * len(columns) + "|"]
    for name, case in LIBRARIES.items():
        runs = [line for line in records if line["case"] == name]
        if runs:
            verdicts = Counter(line["verdict"] for line in runs)
            median_epsilon = statistics.median(line.get("epsilon") or 0.0 for line in runs)
            took = statistics.median(line["seconds"] for line in runs)
            words = ", ".join(verdict if count == 1 else f"{verdict} ({count})" for verdict, count in verdicts.items())
            kind = "honest" if case.honest else "defect"
            claimed = f"{case.claim.epsilon:.4g}"
            cells = (case.python, name, kind, case.leak, claimed, words, f"{median_epsilon:.3f}", f"{took:.0f}")
            rows.append(f"| {' | '.join(cells)} |")
    return rows


def main(output: Path, what: str = "defects", runs: int = 1, *names: str) -> None:
    """Run the missing checks, then print the table."""
    finished = {(line["case"], line["seed"]) for line in lines(output)}
    for seed in range(runs if what != "table" else 0):
        for name, case in LIBRARIES.items():
            wanted = case.honest == (what == "honest") and (not names or any(map(name.startswith, names)))
            if wanted and (name, seed) not in finished and python_of(case).exists():
                line = run(name, case, seed)
                with output.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(line) + "\n")
                print(name, line["verdict"], line["headline"], f"{line['seconds']:.0f} s", sep=" | ", flush=True)
    written = table(list(lines(output)))
    print(*written, sep="\n")
    if what == "table":
        write(DATA / "library-bank.csv", list(table_rows(written, keys=3)))
        note_origin(measured_here("library-bank.csv", "python -m tests.bank.run_libraries FOUND.jsonl"))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:3], *map(int, sys.argv[3:4]), *sys.argv[4:])
