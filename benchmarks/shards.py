"""Peak memory of the driver and of workers when rows stay in Parquet shards, next to rows in the driver's memory.

    python -m benchmarks.shards [--write]

Made rows have four 32-bit numbers and a label of two classes, in 20 shards. `label-inference` audits LP-1ST with a
logistic regression of a tenth of them, and `label-canaries` audits randomised response on half of them, each with
100,000 canaries, on one Ray worker. Each run is a process of its own. 10^8 rows are split at random and, instead of in
memory, in the given order. Written to `docs/data/shards.csv`.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq

import dpaudit
from benchmarks.campaign import rows_about
from dpaudit.actors.backend import peak_memory_mb
from dpaudit.actors.events import EventKind, read_events
from dpaudit.engine.planning.plan import make_plan
from tools.rows import record

COUNTS = (1_000_000, 10_000_000, 100_000_000)
MAX_IN_MEMORY = 10_000_000
SHARDS, GROUP_ROWS = 20, 500_000
MODEL = {"name": "logistic-regression", "iterations": 20}
AUDITS: tuple[dict[str, Any], ...] = (
    {
        "name": "model",
        "mechanism": {"name": "lp-1st", "epsilon": 2.0, "model": MODEL},
        "game": {"name": "label-inference", "canaries": 100_000, "replays": 4},
        "split": {"target": 0.1, "reference": 0.01, "test": 0.01},
    },
    {
        "name": "labels",
        "mechanism": {"name": "randomized-response", "epsilon": 2.0},
        "game": {"name": "label-canaries", "canaries": 100_000, "replays": 4},
        "split": {"target": 0.5, "reference": 0.01, "test": 0.01},
    },
)


@dataclass(frozen=True)
class Run:
    """One run of both audits."""

    driver_mb: float  # peak memory of the driver
    before_mb: float  # its peak before the run, with all libraries of planning
    worker_mb: float  # peak memory of the worker
    planning_s: float
    run_s: float  # of the whole run, planning included
    scores: str  # hash of all scores


def write_rows(folder: Path, count: int) -> None:
    """Write made rows as shards, and as one file if it is read into memory, without holding more than a row group."""
    (folder / "shards").mkdir()
    rng, whole = np.random.default_rng(count), None
    rows = min(GROUP_ROWS, count // SHARDS)
    for shard in range(SHARDS):
        with pq.ParquetWriter(folder / "shards" / f"part_{shard}.parquet", schema()) as writer:
            for _ in range(count // SHARDS // rows):
                label = rng.random(rows) < 0.3
                numbers = rng.standard_normal((4, rows), np.float32) + label * np.float32(0.5)
                cells = pa.table([*map(pa.array, numbers), pa.array(label.astype(np.int8))], schema())
                writer.write_table(cells)
                if count <= MAX_IN_MEMORY:
                    whole = whole or pq.ParquetWriter(folder / "rows.parquet", schema())
                    whole.write_table(cells)
    if whole is not None:
        whole.close()


def schema() -> pa.Schema:
    """Return the columns of the made rows."""
    return pa.schema([*((f"x{number}", pa.float32()) for number in range(4)), ("label", pa.int8())])


def run_here(folder: Path, name: str, order: str) -> Run:
    """Run both audits in this process, whose peak memory is then that of the driver."""
    path = folder / {"parquet-shards": "shards", "parquet": "rows.parquet"}[name]
    content: dict[str, Any] = {
        "data": {"name": name, "path": str(path), "label": "label"},
        "proxy": {"name": "model", "model": MODEL},
        "audits": [{**audit, "split": {**audit["split"], "order": order}} for audit in AUDITS],
        "run": {"runner": "ray", "workers": 1, "figures": False, "repeats": 0},
    }
    spec, output = dpaudit.load_spec(content), folder / f"run-{name}"
    import ray  # noqa: F401  loaded before the first measurement

    before_mb, began = peak_memory_mb(), time.monotonic()
    make_plan(spec)
    planning_s, began = time.monotonic() - began, time.monotonic()
    dpaudit.audit(spec, output=output)
    run_s = time.monotonic() - began
    finished = [event for event in read_events(output / "events.jsonl") if event.kind is EventKind.UNIT_DONE]
    worker_mb = max(event.memory_mb for event in finished)
    hasher = hashlib.sha256()
    for scores in sorted((output / "scores").iterdir()):
        for column in pads.dataset(scores, format="parquet").to_table().columns:
            hasher.update(np.ascontiguousarray(column.to_numpy()).tobytes())
    return Run(peak_memory_mb(), before_mb, worker_mb, planning_s, run_s, hasher.hexdigest())


def main() -> None:
    """Measure, print and write."""
    rows = []
    for count in COUNTS:
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            write_rows(folder, count)
            in_memory = count <= MAX_IN_MEMORY
            kinds = [("parquet-shards", "random"), ("parquet", "random") if in_memory else ("parquet-shards", "given")]
            runs = {}
            for kind in kinds:
                command = [sys.executable, "-m", "benchmarks.shards", "--run", str(folder), *kind]
                out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
                runs[kind] = Run(**json.loads(out.splitlines()[-1]))
                shutil.rmtree(folder / f"run-{kind[0]}")
            same = len({run.scores for run in runs.values()}) == 1
            files_gb = sum(file.stat().st_size for file in (folder / "shards").iterdir()) / 1e9
        for (name, order), run in runs.items():
            measured = {
                "driver, peak MB": f"{run.driver_mb:.0f}",
                "driver before the run, MB": f"{run.before_mb:.0f}",
                "worker, peak MB": f"{run.worker_mb:.0f}",
                "planning, s": f"{run.planning_s:.1f}",
                "run, s": f"{run.run_s:.0f}",
                "files, GB": f"{files_gb:.2f}",
                "scores": ("the same bits" if same else "differ") if in_memory else "",
            }
            print(count, name, order, measured, flush=True)
            rows += rows_about({"rows": f"{count:,}", "data": name, "order": order}, measured)
    if "--write" in sys.argv:
        record("shards.csv", rows, "python -m benchmarks.shards --write")


if __name__ == "__main__":
    if "--run" in sys.argv:
        print(json.dumps(asdict(run_here(Path(sys.argv[-3]), *sys.argv[-2:]))))
    else:
        main()
