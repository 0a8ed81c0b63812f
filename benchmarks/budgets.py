"""Seconds that `check` takes against its budget, without start-up, and the tests that it omits.

    python -m benchmarks.budgets [budget] [NAME ...]

The program measures processor seconds, so that other load on the machine does not matter; disk waits do not count. With
a budget of 30 s, it writes the table to `docs/data/budgets.csv`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression

from benchmarks.check_defects import FLAT_DIGITS, checked_here, votes
from benchmarks.check_defects import dp_sgd as dp_sgd_on_digits
from dpaudit import Claim, from_sklearn
from dpaudit.actors.events import Event, EventKind
from tools.rows import DATA, measured_here, note_origin, table_rows, write

STEP = 0.632121  # of two-sided geometric noise at epsilon = 1


@dataclass(frozen=True)
class Subject:
    """A mechanism and the arguments of its check."""

    mechanism: Callable[[], Any]
    data: Any = None
    check_options: Mapping[str, Any] | None = None


def count(rows: Any, rng: Any) -> int:
    return len(rows) + int(rng.geometric(STEP) - rng.geometric(STEP))


SUBJECTS = {
    "randomised response": Subject(lambda: {"name": "randomized-response", "epsilon": 1.0}),
    "LP-1ST, digits": Subject(lambda: {"name": "lp-1st", "epsilon": 1.0, "model": "mlp"}, FLAT_DIGITS),
    "DP-SGD, digits": Subject(lambda: dp_sgd_on_digits("dp-sgd").mechanism, FLAT_DIGITS),
    "scikit-learn": Subject(lambda: from_sklearn(LogisticRegression(max_iter=50), Claim(1.0))),
    "random forest, digits": Subject(lambda: from_sklearn(RandomForestClassifier(100), Claim(1.0)), FLAT_DIGITS),
    "PATE, 20 teachers, digits": Subject(
        lambda: votes("pate", 20, {"name": "logistic-regression"}).mechanism, FLAT_DIGITS
    ),
    "function": Subject(lambda: count, check_options={"claim": 1.0, "schema": {"x": (0, 1)}}),
}


def run(subject: Subject, budget: str) -> dict[str, str]:
    """Run one check and return its row."""
    began, first = time.monotonic(), [0.0]

    def note(event: Event) -> None:
        if event.kind is EventKind.UNITS_PLANNED and not first[0]:
            first[0] = time.monotonic()

    report = checked_here(
        subject.mechanism(), subject.data, budget=budget, listeners=[note], **dict(subject.check_options or {})
    )
    assert report.joint is not None
    ended = time.monotonic()
    return {
        "before": f"{first[0] - began:.1f}",
        "seconds": f"{ended - first[0]:.1f}",
        "verdict": report.joint.verdict.value,
        "played": ", ".join(test.name for test in report.joint.tests),
        "not run": ", ".join(report.joint.not_played),
    }


def main(budget: str = "30s", *names: str) -> None:
    """Print the table."""
    time.monotonic = time.process_time
    columns = ["before", "seconds", "verdict", "played", "not run"]
    lines = [f"| subject | budget | {' | '.join(columns)} |", "| --- " * (len(columns) + 2) + "|"]
    print(*lines, sep="\n")
    for name, subject in SUBJECTS.items():
        if not names or name in names:
            row = run(subject, budget)
            lines.append(f"| {name} | {budget} | {' | '.join(row[column] for column in columns)} |")
            print(lines[-1], flush=True)
    if not names and budget == "30s":
        write(DATA / "budgets.csv", list(table_rows(lines, keys=2)))
        note_origin(measured_here("budgets.csv", "python -m benchmarks.budgets"))


if __name__ == "__main__":
    main(*sys.argv[1:])
