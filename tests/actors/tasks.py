"""Small tasks for tests of the actors."""

from __future__ import annotations

import json
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from dpaudit.actors.unit import Inputs
from dpaudit.mechanisms.compute import Compute, TrainingError


@dataclass(frozen=True)
class Add:
    """Adds its number, the shared number, and the results of the units it needs."""

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
            if self.how in signal.Signals.__members__:
                os.kill(os.getpid(), signal.Signals[self.how])
                time.sleep(60)
            raise TrainingError("loss is NaN") if self.how == "training" else ValueError("a bug")
        return pa.table({"total": [attempt]})


@dataclass(frozen=True)
class Resumes:
    """Writes a checkpoint and fails; the next attempt finds the checkpoint."""

    def run(self, inputs: Inputs, compute: Compute) -> pa.Table:
        assert compute.scratch is not None
        mark = compute.scratch / "epoch-7"
        if not mark.exists():
            mark.parent.mkdir(parents=True)
            mark.touch()
            raise TrainingError("lost power")
        return pa.table({"total": [7]})


@dataclass(frozen=True)
class WritesToItsInput:
    """Adds one to a shared array in place."""

    def run(self, inputs: Inputs, compute: Compute) -> pa.Table:
        (shared,) = inputs.shared.values()
        shared += 1
        return pa.table({"total": [int(shared.sum())]})


@dataclass(frozen=True)
class Exits:
    """Raises an exception that is not an `Exception`."""

    how: str

    def run(self, inputs: Inputs, compute: Compute) -> pa.Table:
        raise {"exit": SystemExit(0), "generator": GeneratorExit(), "interrupt": KeyboardInterrupt()}[self.how]


@dataclass(frozen=True)
class LongError:
    """Fails with an error of `megabytes`, which contains a surrogate."""

    megabytes: float = 0.0

    def run(self, inputs: Inputs, compute: Compute) -> pa.Table:
        raise ValueError("beginning \udc80" + "x" * int(self.megabytes * 1e6) + " end")


@dataclass(frozen=True)
class HangsFirst:
    """Sleeps for `sleep_s` in its first attempt, or stops its process as `kill -STOP` does."""

    folder: str
    how: str = "sleep"
    sleep_s: float = 60.0

    def run(self, inputs: Inputs, compute: Compute) -> pa.Table:
        mark = Path(self.folder) / "hung-once"
        if not mark.exists():
            mark.touch()
            if self.how == "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
            time.sleep(self.sleep_s)
        return pa.table({"total": [7]})


@dataclass(frozen=True)
class Draws:
    """Draws numbers, from its seed or unseeded."""

    seed: int
    seeded: bool = True

    def run(self, inputs: Inputs, compute: Compute) -> pa.Table:
        rng = np.random.default_rng(self.seed if self.seeded else None)
        return pa.table({"total": [np.nan, *rng.random(3)]})


@dataclass(frozen=True)
class AssignedResources:
    """Returns the resources that Ray has assigned to its worker, as JSON."""

    def run(self, inputs: Inputs, compute: Compute) -> pa.Table:
        import ray

        return pa.table({"resources": [json.dumps(ray.get_runtime_context().get_assigned_resources())]})


@dataclass(frozen=True)
class Where:
    """Waits for a file, sleeps, and returns its node, process and GPUs."""

    number: int
    sleep_s: float = 0.0
    gate: str = "/"

    def run(self, inputs: Inputs, compute: Compute) -> pa.Table:
        import ray

        while not os.path.exists(self.gate):
            time.sleep(0.05)
        time.sleep(self.sleep_s)
        context = ray.get_runtime_context()
        cards = ",".join(context.get_accelerator_ids()["GPU"])
        return pa.table({"node": [context.get_node_id()], "process": [os.getpid()], "cards": [cards]})
