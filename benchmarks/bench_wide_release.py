"""Peak memory of a check with a budget of a minute, for a mechanism that releases 100,000 numbers.

python -m benchmarks.bench_wide_release
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

NUMBERS, GOAL_GB = 100_000, 1.5


def noisy_totals(rows: Any, rng: np.random.Generator) -> np.ndarray[Any, Any]:
    """Return a noisy histogram with sensitivity 1 and epsilon 1; rounded, because low bits of the noise would leak."""
    cells = np.clip(np.nan_to_num(np.asarray(rows["x"], float)), 0, 1) * (NUMBERS - 1)
    return np.round(np.bincount(cells.astype(int), minlength=NUMBERS) + rng.laplace(0, 1.0, NUMBERS), 3)


def run() -> list[tuple[str, float, str]]:
    """Return (name, wall seconds, note) of the measurement."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        words = [sys.executable, "-m", "benchmarks.bench_wide_release", str(Path(folder) / "run")]
        output = subprocess.run(words, check=True, capture_output=True, text=True).stdout.splitlines()
        seconds = time.perf_counter() - began
    note = f"{output[0]}; at most {float(output[1]):.2f} GB of memory (goal {GOAL_GB})"
    return [(f"check of a release of {NUMBERS:,} numbers, budget 60 s", seconds, note)]


def main(folder: str) -> None:
    """Run one check and print its verdict and its peak memory in GB."""
    import dpaudit
    from dpaudit.actors.backend import peak_memory_mb

    run = dpaudit.RunOptions(runner="in-process", figures=False)
    options: dict[str, Any] = {"schema": {"x": (0, 1)}, "budget": "60s", "quiet": True, "output": folder, "run": run}
    report = dpaudit.check(noisy_totals, claim=1.0, **options)
    assert report.joint is not None
    print(report.joint.verdict.value)
    print(peak_memory_mb() / 1000)


if __name__ == "__main__":
    if len(sys.argv) == 2:
        main(*sys.argv[1:])
    else:
        for name, figure, remark in run():
            print(f"{figure:8.1f} s  {name}: {remark}")
