"""Time and memory to bound a score table of 10^8 rows in parts on one core, with one replay or a hundred."""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

ROWS, PART = 100_000_000, 2_000_000
SCHEMA = pa.schema([("score", pa.float32()), ("member", pa.bool_()), ("replay", pa.int32())])
ASKED = (("band", 1, 8), ("simultaneous-guess-count", 1, 8), ("simultaneous-guess-count", 100, 4))
"""Method, replays, and maximum memory in GB."""


def write_table(path: Path, rows: int, replays: int) -> None:
    """Write scores from two unit normals half a deviation apart, with fair-coin membership."""
    schema = SCHEMA if replays > 1 else SCHEMA.remove(2)
    with pq.ParquetWriter(path, schema, compression="zstd", use_dictionary=False) as writer:
        for part, first in enumerate(range(0, rows, PART)):
            count = min(PART, rows - first)
            rng = np.random.default_rng((7, part))
            member = rng.random(count) < 0.5
            score = rng.standard_normal(count, dtype=np.float32) + np.float32(0.5) * member
            replay = np.arange(first, first + count, dtype=np.int64) * replays // rows
            columns = [score, member, replay.astype(np.int32)][: len(schema)]
            writer.write_table(pa.table(columns, schema=schema), row_group_size=PART // 4)


def run(rows: int = ROWS) -> list[tuple[str, float, str]]:
    """Return (name, processor seconds, note) of each method, run in a separate process from the command line."""
    measurements = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "scores.parquet"
        for method, replays, goal in ASKED:
            write_table(path, rows, replays)
            words = [sys.executable, "-m", "benchmarks.bench_large_table", str(path), method]
            lower, seconds, gigabytes = subprocess.run(words, check=True, capture_output=True, text=True).stdout.split()
            note = f"epsilon >= {float(lower):.3f}; at most {float(gigabytes):.2f} GB of memory (goal {goal})"
            many = f" in {replays} replays" if replays > 1 else ""
            measurements.append((f"dpaudit estimate --method {method}, {rows:,} rows{many}", float(seconds), note))
    return measurements


def main(path: str, method: str) -> None:
    """Print the bound of one estimate, its processor seconds and its peak memory in GB."""
    from dpaudit.actors.backend import peak_memory_mb
    from dpaudit.engine.estimate.estimating import Estimate, Question, estimates
    from dpaudit.engine.estimate.tables import SourceTable

    (estimate,) = estimates(SourceTable.of_file(Path(path)), Question(method))
    assert isinstance(estimate, Estimate)
    used = resource.getrusage(resource.RUSAGE_SELF)
    print(estimate.lower, used.ru_utime + used.ru_stime, peak_memory_mb() / 1000)


if __name__ == "__main__":
    if len(sys.argv) == 3:
        main(*sys.argv[1:])
    else:
        for name, figure, remark in run():
            print(f"{figure:8.1f} s  {name}: {remark}", flush=True)
