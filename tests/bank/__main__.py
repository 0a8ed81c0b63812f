"""Run `dpaudit check` with default settings on the defect bank: detections, durations, and verdicts on the twins.

    python -m tests.bank OUTPUT.jsonl [defects|twins|table] [runs a case] [seconds at most] [KIND or NAME ...]
    python -m tests.bank OUTPUT.jsonl [in-30s|table-30s] [runs a case] [seconds at most] [KIND or NAME ...]

Each run adds a line of JSON to OUTPUT. The program skips runs that OUTPUT has, so the same command resumes. It then
prints a table with a row for each case; `table` runs nothing, and writes the table to `docs/data/defect-bank.csv`. A
VIOLATION of a twin is a false positive, allowed in at most one of a thousand runs.

`in-30s` gives each check 30 processor seconds, so that other load on the machine does not matter. It covers the defects
of labels and of DP-SGD in the bank and in the package (`benchmarks.check_defects`). `table-30s` writes
`docs/data/defects-in-30-s.csv`.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
import statistics
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.check_defects import DEFECTS, checked_here, lines
from dpaudit import Verdict
from tests import bank
from tests.bank import Case
from tools.rows import DATA, measured_here, note_origin, table_rows, write


def cases() -> dict[str, Case]:
    """Return all cases by "kind/name"; a kind is a file of this folder with a table `BANK`."""
    all_cases = {}
    for module in pkgutil.iter_modules(bank.__path__):
        if module.name != "__main__":
            table = getattr(importlib.import_module(f"tests.bank.{module.name}"), "BANK", {})
            all_cases |= {f"{module.name}/{name}": case for name, case in table.items()}
    return all_cases


MISSED = {
    "sigma-for-b, labels": "nothing to refute: one label released alone spends 0.80",
    "dp-sgd-clip-doubled": "found with some seeds alone, with 5 minutes too",
}
"""Reasons that planted defects are missed within 30 seconds."""


def soon() -> dict[str, Case]:
    """Return the cases of labels and of DP-SGD, with 30 seconds each."""
    planted = {
        f"planted/{name}": Case(
            lambda checked=checked: checked.mechanism,  # type: ignore[misc]
            claim=checked.claim,
            data=checked.data,
            missed=MISSED.get(name, ""),
        )
        for name, checked in DEFECTS.items()
        if not name.startswith("diffprivlib")
    }
    written = {name: case for name, case in cases().items() if name.startswith(("labels/", "loops/"))}
    return {name: replace(case, budget="30s") for name, case in (planted | written).items()}


def run(name: str, case: Case, seed: int, twin: bool) -> dict[str, Any]:
    """Run one check of a case or of its twin, and return its line."""
    make = case.twin if twin else case.defect
    assert make is not None
    began = time.monotonic()
    line: dict[str, Any] = {"case": name, "twin": twin, "seed": seed}
    try:
        rows = {} if case.schema is None else {"schema": case.schema, "strict": "all"}  # side findings are defects too
        report = checked_here(make(), case.data, claim=case.claim, budget=case.budget, seed=seed, **rows)
    except Exception as err:  # an aborted check is a result too
        return line | {"verdict": type(err).__name__, "game": None, "headline": str(err), "seconds": 0.0}
    joint = report.joint
    assert joint is not None
    test = joint.deciding
    return line | {
        "verdict": joint.verdict.value,
        "game": None if test is None else test.name,
        "headline": joint.answer.headline,
        "played": {result.name: result.headline for result in report.results},
        "seconds": round(time.monotonic() - began, 1),
        "not_run": joint.not_played,
    }


def main(output: Path, what: str = "defects", runs: int = 1, seconds: float = 1e9, *names: str) -> None:
    """Run the missing checks of the named cases or kinds, or of all, then print the table."""
    offered = soon() if what.endswith("30s") else cases()
    wanted = {name: case for name, case in offered.items() if not names or any(map(name.startswith, names))}
    if what == "in-30s":
        time.monotonic = time.process_time
    if not what.startswith("table"):
        _run_missing(output, wanted, what == "twins", runs, seconds)
    written = (table_soon if what.endswith("30s") else table)(wanted, list(lines(output)))
    print(*written, sep="\n")
    if what == "table-30s":
        write(DATA / "defects-in-30-s.csv", list(table_rows(written, keys=2)))
        note_origin(measured_here("defects-in-30-s.csv", "python -m tests.bank OUTPUT.jsonl in-30s"))
    if what == "table":
        write(DATA / "defect-bank.csv", list(table_rows(written, keys=2)))
        note_origin(measured_here("defect-bank.csv", "make evidence"))


def _run_missing(output: Path, wanted: Mapping[str, Case], twins: bool, runs: int, seconds: float) -> None:
    began = time.monotonic()
    finished = {(line["case"], line["seed"]) for line in lines(output) if line["twin"] == twins}
    for seed in range(runs):
        for name, case in wanted.items():
            if (name, seed) in finished or (twins and case.twin is None) or time.monotonic() - began > seconds:
                continue
            line = run(name, case, seed, twins)
            with output.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
            cells = (name, line["verdict"], line["game"], line["headline"], f"{line['seconds']:.0f} s")
            print(*cells, sep=" | ", flush=True)


def table(wanted: Mapping[str, Case], records: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a table with a row for each finished case: verdicts on the defect and its twin, games and seconds."""
    rows = ["| kind | case | true epsilon | defect | found by | seconds, median | twin |", "| --- " * 7 + "|"]
    correct, total = 0, 0
    for name, case in wanted.items():
        runs = [line for line in records if line["case"] == name and not line["twin"]]
        twins = Counter(line["verdict"] for line in records if line["case"] == name and line["twin"])
        if runs:
            kind, short = name.split("/", 1)
            verdicts = Counter(line["verdict"] for line in runs)
            games = ", ".join(sorted({str(line["game"]) for line in runs if line["verdict"] == case.expects.value}))
            took = statistics.median(line["seconds"] for line in runs)
            true = "" if case.true is None else f"{case.true:.3g}"
            rows.append(f"| {kind} | {short} | {true} | {_words(verdicts)} | {games} | {took:.0f} | {_words(twins)} |")
            correct, total = correct + verdicts[case.expects.value], total + len(runs)
    return [*rows, "", f"{correct} of {total} runs ended as they should."]


def table_soon(wanted: Mapping[str, Case], records: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a table with a row for each finished case: verdict, game, seconds, and the reason if it was missed."""
    rows = ["| kind | case | verdict | found by | seconds | missed |", "| --- " * 6 + "|"]
    correct: Counter[str] = Counter()
    total: Counter[str] = Counter()
    for line in (line for line in records if line["case"] in wanted):
        kind, short = line["case"].split("/", 1)
        refuted = line["verdict"] == Verdict.VIOLATION.value
        correct[kind], total[kind] = correct[kind] + refuted, total[kind] + 1
        why = "" if refuted else wanted[line["case"]].missed or "not known"
        game = line["game"] if refuted else ""
        rows.append(f"| {kind} | {short} | {line['verdict']} | {game} | {line['seconds']:.0f} | {why} |")
    return [*rows, "", "; ".join(f"{kind}: {correct[kind]} of {total[kind]} refuted" for kind in total)]


def _words(verdicts: Counter[str]) -> str:
    """Return verdicts in words, with the count of each that occurs several times."""
    return ", ".join(verdict if count == 1 else f"{verdict} ({count})" for verdict, count in verdicts.items())


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:3], *map(int, sys.argv[3:5]), *sys.argv[5:])
