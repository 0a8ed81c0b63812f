"""How much of a two-world audit is training: the whole audit against the bare training loop on the same trials.

CPU seconds of one process, since wall time depends on the neighbours; and a shadow table of 512 models x 60,000 points.
Run as a script.
"""

from __future__ import annotations

import resource
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from dpaudit import audit, load_spec
from dpaudit.actors.seed import Seed
from dpaudit.actors.store import UnitStore
from dpaudit.engine.canaries.select_worst import SelectWorst
from dpaudit.engine.games.shadows import Shadows, TrainShadows, shadow_table, shadows_of
from dpaudit.engine.games.stacks import Run, train_runs
from dpaudit.engine.plan import make_plan
from dpaudit.mechanisms.protocols import Compute

TRIALS, STACK = 1024, 64
MODELS, POINTS = 512, 60_000
MLP = {"name": "mlp", "hidden": [64, 64], "epochs": 20}
SPEC = {
    "name": "efficiency",
    "data": {"name": "digits", "flat": True},
    "split": {"target": 0.85, "reference": 0.0, "test": 0.15},
    "mechanism": {"name": "non-private", "model": MLP},
    "game": {"name": "ind-mia", "trials": TRIALS, "stack": STACK, "canary": "mislabelled"},
    "attack": "loss",
    "run": {"runner": "in-process"},
}


def run() -> list[tuple[str, float, str]]:
    """Measures and gives (name, figure, unit)."""
    torch.set_num_threads(1)
    return [*efficiency(), *large_table()]


def efficiency() -> list[tuple[str, float, str]]:
    """Trainings a second of the whole audit, planning and report included, and of the loop alone."""
    spec = load_spec(SPEC)
    with tempfile.TemporaryDirectory() as folder:  # what is built once a process is no part of it
        audit(
            replace(spec, audits=(replace(spec.audits[0], game=replace(spec.audits[0].game, trials=64)),)),
            output=folder,
        )
    with tempfile.TemporaryDirectory() as folder:
        began = time.process_time()
        audit(spec, output=folder)
        whole = time.process_time() - began
    plan = make_plan(spec)
    pool = next(value for name, value in plan.shared.items() if name.startswith("target"))
    rows = np.random.default_rng(0).permutation(len(pool))[: len(pool) // 2]
    began = time.process_time()
    for first in range(0, TRIALS, STACK):
        runs = [Run(rows, Seed(0).child(number)) for number in range(first, first + STACK)]
        train_runs(spec.audits[0].mechanism, pool, runs, compute=Compute())
    bare = time.process_time() - began
    return [
        ("trainings a CPU second, whole audit", TRIALS / whole, "/s"),
        ("trainings a CPU second, bare loop", TRIALS / bare, "/s"),
        ("efficiency of the audit", 100 * bare / whole, "%"),
    ]


def large_table() -> list[tuple[str, float, str]]:
    """Writing, reading and selecting from a table of made-up confidences."""
    rng = np.random.default_rng(0)
    task = TrainShadows(None, Seed(0), 0, MODELS)
    with tempfile.TemporaryDirectory() as folder:
        store = UnitStore(folder)
        began = time.process_time()
        for first in range(0, MODELS, 64):
            member = np.array([task.members(model, POINTS) for model in range(first, first + 64)])
            confidence = rng.standard_normal((64, 1, POINTS), dtype=np.float32) + member[:, None]
            store.write(f"{first:03d}", shadow_table(Shadows(confidence, member), first))
        written = time.process_time() - began
        size = sum(path.stat().st_size for path in Path(folder).glob("*.parquet"))
        began = time.process_time()
        shadows = shadows_of([store.read(key) for key in sorted(store.finished())])
        read = time.process_time() - began
        began = time.process_time()
        SelectWorst().weights(shadows)
        selected = time.process_time() - began
    return [
        ("512 x 60,000 shadow table: made and written", written, "s"),
        ("512 x 60,000 shadow table: on disk", size / 1e6, "MB"),
        ("512 x 60,000 shadow table: read", read, "s"),
        ("512 x 60,000 shadow table: SelectWorst", selected, "s"),
        ("most memory of the process", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6, "GB"),
    ]


if __name__ == "__main__":
    for name, figure, unit in run():
        print(f"{name:55}{figure:10.2f} {unit}")
