"""How often an honest mechanism is convicted in an observational game, and a real leak found, proxy by proxy.

    python -m benchmarks.false_violations [audits a cell] [seconds at most] [first seed]

Prints the table of docs/validity.md. Every mechanism of the first rows is exactly epsilon = 1 and claims 1: a VIOLATION
is false, and may come in at most 5 % of the audits. The audits go round all cells, so a run cut short has them all.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from dataclasses import replace

from benchmarks.observational_audits import Observed, fitted, powered
from dpaudit.estimators.one_run.signed_scores import OneRun
from dpaudit.estimators.selection import Split

PROXIES = {
    "exact": powered(1.0),
    "x 1.1": powered(1.1),
    "x 1.2": powered(1.2),
    "x 1.3": powered(1.3),
    "fitted to 60 rows": fitted(60),
}
READERS = {
    "one-run": OneRun(),
    "one-run, delta 1e-5": OneRun(delta=1e-5),
    "one-run, split": OneRun(selection=Split()),
}


def cells() -> dict[str, Observed]:
    """Every case by its row of the table."""
    base = Observed(powered(1.0), canaries=8_000, held_out=400, replays=1)
    seen = {"released labels": base, "a model's answers": replace(base, learner=True)}
    honest = {
        f"{what} | {reader} | {name}": replace(case, proxy=proxy, estimator=estimator)
        for what, case in seen.items()
        for reader, estimator in READERS.items()
        for name, proxy in PROXIES.items()
    }
    leaky = {
        f"released labels, really 2.94, 10 classes | one-run | {name}": replace(
            base, proxy=proxy, epsilon=2.94, classes=10, canaries=4_000, held_out=4_000
        )
        for name, proxy in PROXIES.items()
    }
    return honest | leaky


def main(audits: int = 400, seconds: float = 1e9, first: int = 0) -> None:
    """Prints one row a cell: audits, VIOLATION by significance (before), by size (now), of a claim of 1."""
    began, played = time.monotonic(), Counter[str]()
    before, now = Counter[str](), Counter[str]()
    for seed in range(first, first + audits):
        for name, case in cells().items():
            if time.monotonic() - began > seconds:
                break
            outcome = case.run(seed)
            played[name] += 1
            before[name] += outcome.by_significance(1.0)
            now[name] += outcome.by_size(1.0)
    print(
        "| seen | estimator | proxy | audits | VIOLATION by significance | VIOLATION by size |\n" + "| --- " * 6 + "|"
    )
    for name, count in played.items():
        print(f"| {name} | {count} | {before[name]} | {now[name]} |")


if __name__ == "__main__":
    main(*(int(word) for word in sys.argv[1:]))
