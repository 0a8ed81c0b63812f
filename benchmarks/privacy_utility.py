"""Utility and measured epsilon of three private learners on two data sets, next to their claims.

    python -m benchmarks.privacy_utility [--folder FOLDER] [--learners NAMES] [--write]

Each learner trains the same perceptron at four claims; `dpaudit sweep` chooses the game by its power. A finished run in
FOLDER is reused. Numbers of learners that are not named are those of the data file.
"""

from __future__ import annotations

import itertools
import json
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.campaign import measurement, rows_about
from dpaudit.engine.sweep.request import read_request
from dpaudit.engine.sweep.running import sweep
from dpaudit.estimators.bound import format_lower, format_upper
from tools.rows import DATA, Row, read_rows

MODEL = {"name": "mlp", "hidden": [64], "epochs": 20}
LEARNERS: dict[str, dict[str, Any]] = {
    "lp-1st": {"model": MODEL},
    "pate": {"teachers": 20, "model": MODEL},
    "dp-sgd": {
        "delta": 1e-5,
        "accountant": "pld",
        "sample_rate": 0.1,
        "model": {**MODEL, "learning_rate": 0.5, "momentum": 0.0},
    },
}
DATA_SETS: dict[str, Any] = {"digits": {"name": "digits", "flat": True}, "breast-cancer": "breast-cancer"}
CLAIMS = [1, 2, 4, 8]
FILE = "privacy-utility.csv"


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


def measured(_: int, folder: str, learners: str) -> Iterator[Row]:
    """Yield the numbers of all configurations and draw them; those of learners not named are in the data file."""
    rows, earlier = list[Row](), read_rows(DATA / FILE) if learners else []
    with tempfile.TemporaryDirectory() as temporary:
        for learner, data in itertools.product(LEARNERS, DATA_SETS):
            if learners and learner not in learners.split(","):
                of = {"learner": learner, "data": data}
                rows += [row for row in earlier if of.items() <= row.settings().items()]
            else:
                rows += rows_of_sweep(learner, data, Path(folder or temporary) / f"{learner}-{data}")
    yield from rows
    draw(rows, DATA.parent / "guides" / "privacy-utility.png")


def rows_of_sweep(learner: str, data: str, place: Path) -> Iterator[Row]:
    """Yield the numbers of each configuration of one sweep, which is run unless its folder exists."""
    if not (place / "sweep.json").exists():
        sweep(spec(learner, data), output=place, quiet=True)
    game = str(read_request(place / "sweep.yaml").base.game)
    rows = json.loads((place / "sweep.json").read_text())["rows"]
    audits = json.loads((place / "bounds.json").read_text())["results"]
    for row, audit in zip(rows, audits, strict=True):
        family = audit.get("under_family") if learner != "lp-1st" else None
        values = {
            "test accuracy": (f"{row['test_accuracy']:.3f}", f"± {row['test_accuracy_error']:.3f}"),
            "majority": f"{row['majority_accuracy']:.3f}",
            "measured ε at least": format_lower(row["audited_epsilon"], 2),
            "under its family": format_lower(family["epsilon"], 2) if family else "",
            "detectable ε": format_upper(row["ceiling_epsilon"], 2),
            "verdict": row["verdict"],
            "game": game,
        }
        claimed = f"{row['claimed_epsilon']:g}"
        yield from rows_about({"learner": learner, "data": data, "claimed ε": claimed}, values)


def draw(rows: Sequence[Row], path: Path) -> None:
    """Draw accuracy against epsilon: a dot at each claim, and a bar from it to the measured bound if one was shown."""
    from matplotlib.figure import Figure

    numbers = {(*row.settings().values(), row.what): row for row in rows}
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    every_axes = figure.subplots(1, len(DATA_SETS), sharey=True)
    for axes, data in zip(every_axes, DATA_SETS, strict=True):
        for number, learner in enumerate(LEARNERS):

            def column(what: str, learner: str = learner, data: str = data) -> list[Row]:
                return [numbers[learner, data, str(claim), what] for claim in CLAIMS]

            colour, accuracy = f"C{number}", [float(row.value) for row in column("test accuracy")]
            error = [float(row.interval.removeprefix("± ")) for row in column("test accuracy")]
            axes.errorbar(CLAIMS, accuracy, yerr=error, marker="o", color=colour, label=f"{learner}, claim")
            bounds = [float(row.value) for row in column("measured ε at least")]
            axes.hlines(accuracy, bounds, CLAIMS, color=colour, alpha=0.35, linewidth=5)
            majority = float(column("majority")[0].value)
        axes.axhline(majority, color="gray", linestyle="--", linewidth=1, label="always the most frequent label")
        axes.set(title=data, xlabel="ε of one record in nats", xlim=(0, 1.05 * max(CLAIMS)))
    every_axes[0].set_ylabel("test accuracy")
    every_axes[0].legend(fontsize=8)
    figure.savefig(path, dpi=100)


if __name__ == "__main__":
    measurement(
        measured,
        folder="folder of runs; a finished one is reused",
        learners="names of learners, by comma; numbers of others are kept",
    )
