"""A training that needs several attempts: each resumes from the checkpoint of the last."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from dpaudit.actors.unit import Inputs
from dpaudit.mechanisms.compute import Compute, TrainingError


@dataclass(frozen=True)
class CountsSteps:
    steps: int

    def run(self, inputs: Inputs, compute: Compute) -> pa.Table:
        assert compute.scratch is not None
        compute.scratch.mkdir(parents=True, exist_ok=True)
        saved = compute.scratch / "count"
        count = int(saved.read_text()) + 1 if saved.exists() else 1
        saved.write_text(str(count))
        if count < self.steps:
            raise TrainingError(f"ended after step {count}")
        return pa.table({"count": [count]})
