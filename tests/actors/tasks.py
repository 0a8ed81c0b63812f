"""Tasks that do little, for tests of the actors."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from dpaudit.actors.unit import Inputs
from dpaudit.mechanisms.protocols import Compute, TrainingError


@dataclass(frozen=True)
class Add:
    """The number, plus the shared number, plus all numbers it needs."""

    number: int
    sleep_s: float = 0.0

    def run(self, inputs: Inputs, compute: Compute) -> pa.Table:
        time.sleep(self.sleep_s)
        total = (
            self.number
            + sum(inputs.shared.values())
            + sum(table["total"][0].as_py() for table in inputs.tables.values())
        )
        return pa.table({"total": [total]})


@dataclass(frozen=True)
class FailsFirst:
    """Fails its first `failures` attempts, counted in a file."""

    folder: str
    name: str
    failures: int
    how: str

    def run(self, inputs: Inputs, compute: Compute) -> pa.Table:
        marks = Path(self.folder)
        attempt = len(list(marks.glob(f"{self.name}.*")))
        (marks / f"{self.name}.{attempt}").touch()
        if attempt < self.failures:
            if self.how == "die":
                os._exit(7)
            raise TrainingError("loss is NaN") if self.how == "training" else ValueError("a bug")
        return pa.table({"total": [attempt]})


@dataclass(frozen=True)
class GoesOn:
    """Leaves a mark in its scratch folder, fails, and finds the mark at the next attempt."""

    def run(self, inputs: Inputs, compute: Compute) -> pa.Table:
        assert compute.scratch is not None
        mark = compute.scratch / "epoch-7"
        if not mark.exists():
            mark.parent.mkdir(parents=True)
            mark.touch()
            raise TrainingError("lost power")
        return pa.table({"total": [7]})
