"""Utility and measured epsilon of three private learners on two data sets, next to their claims.

    python -m benchmarks.privacy_utility [FOLDER]

Each learner trains the same perceptron at four claims; `dpaudit sweep` chooses the game by its power. A finished run in
FOLDER is reused.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dpaudit.engine.answer.sweep_summary import SweepRow
from dpaudit.engine.sweep.request import read_request
from dpaudit.engine.sweep.running import sweep
from dpaudit.estimators.bound import format_lower, format_upper
from tools.rows import DATA, record, table_rows

MODEL = {"name": "mlp", "hidden": [32], "epochs": 20}
LEARNERS: dict[str, dict[str, Any]] = {
    "lp-1st": {"model": MODEL},
    "pate": {"teachers": 20, "model": MODEL},
    "dp-sgd": {"delta": 1e-5, "model": {**MODEL, "learning_rate": 0.5, "momentum": 0.0}},
}
DATA_SETS: dict[str, Any] = {"digits": {"name": "digits", "flat": True}, "breast-cancer": "breast-cancer"}
CLAIMS = [0.5, 1, 2, 4]
COLUMNS = ("test accuracy", "majority", "measured ε at least", "detectable ε", "verdict", "game")


def spec(learner: str, data: str) -> dict[str, Any]:
    """Return the sweep of a learner on a data set."""
    return {
        "name": f"{learner} on {data}",
        "seed": 2026,
        "data": DATA_SETS[data],
        "split": {"target": 0.6, "reference": 0.1, "test": 0.3},
        "mechanism": {"name": learner, "epsilon": 1, **LEARNERS[learner]},
        "grid": {"mechanism.epsilon": CLAIMS},
        "sweep": {"maximise": "test accuracy"},
        "run": {"runner": "in-process", "figures": False},
    }


def rows(folder: Path) -> Iterator[str]:
    """Yield the lines of the table."""
    yield f"| learner | data | claimed ε | {' | '.join(COLUMNS)} |"
    yield "| --- " * (len(COLUMNS) + 3) + "|"
    for learner in LEARNERS:
        for data in DATA_SETS:
            content = spec(learner, data)
            game = str(read_request(content).base.game)
            summary = sweep(content, output=folder / f"{learner}-{data}", quiet=True).report.sweep
            assert summary is not None
            for row in summary.rows:
                yield f"| {learner} | {data} | {row.claimed:g} | {' | '.join(cells(row, game))} |"


def cells(row: SweepRow, game: str) -> tuple[str, ...]:
    """Return the cells of a configuration, as in `COLUMNS`."""
    return (
        f"{row.utility:.3f} ± {row.metrics['test_accuracy_error']:.3f}",
        f"{row.metrics['majority_accuracy']:.3f}",
        format_lower(row.audited, 2),
        format_upper(row.ceiling, 2),
        row.verdict,
        game,
    )


def draw(lines: list[str], path: Path) -> None:
    """Draw accuracy against epsilon: a dot at each claim, and a bar from it to the measured bound if one was shown."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    every_axes = figure.subplots(1, len(DATA_SETS), sharey=True)
    table = [[cell.strip() for cell in line.strip("| ").split("|")] for line in lines[2:]]
    for axes, data in zip(every_axes, DATA_SETS, strict=True):
        for number, learner in enumerate(LEARNERS):
            selected = [cells for cells in table if cells[:2] == [learner, data]]
            claimed, measured = ([float(cells[column]) for cells in selected] for column in (2, 5))
            accuracy, error = zip(*(map(float, cells[3].split(" ± ")) for cells in selected), strict=True)
            colour = f"C{number}"
            axes.errorbar(claimed, accuracy, yerr=error, marker="o", color=colour, label=f"{learner}, claim")
            axes.hlines(accuracy, measured, claimed, color=colour, alpha=0.35, linewidth=5)
        majority = float(next(cells[4] for cells in table if cells[1] == data))
        axes.axhline(majority, color="gray", linestyle="--", linewidth=1, label="always the most frequent label")
        axes.set(title=data, xlabel="ε of one record in nats", xlim=(0, 1.05 * max(CLAIMS)))
    every_axes[0].set_ylabel("test accuracy")
    every_axes[0].legend(fontsize=8)
    figure.savefig(path, dpi=100)


def main() -> None:
    """Print the table, write it to the data file and draw it."""
    with tempfile.TemporaryDirectory() as temporary:
        lines = []
        for line in rows(Path(sys.argv[1] if len(sys.argv) > 1 else temporary)):
            print(line, flush=True)
            lines.append(line)
    draw(lines, DATA.parent / "guides" / "privacy-utility.png")
    record("privacy-utility.csv", list(table_rows(lines, keys=3)), "python -m benchmarks.privacy_utility")


if __name__ == "__main__":
    main()
