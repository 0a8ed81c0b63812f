"""Duration of a check of an honest mechanism: DP-SGD on digits with default settings.

python -m benchmarks.bench_honest_check
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

GOAL_S = 120
CHECK = """\
import sys
import dpaudit
from benchmarks.check_defects import FLAT_DIGITS, HONEST

print(dpaudit.check(HONEST["dp-sgd"].mechanism, FLAT_DIGITS, output=sys.argv[1], quiet=True).joint.verdict.value)
"""


def run() -> list[tuple[str, float, str]]:
    """Return (name, wall seconds, note) of the measurement."""
    with tempfile.TemporaryDirectory() as folder:
        began, before = time.perf_counter(), os.times()
        words = [sys.executable, "-c", CHECK, str(Path(folder) / "run")]
        verdict = subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()
        seconds, after = time.perf_counter() - began, os.times()
    spent = after.children_user + after.children_system - before.children_user - before.children_system
    note = f"{verdict}; {spent:.0f} s of processor time on {os.cpu_count()} cores (goal {GOAL_S} s by the clock)"
    return [("check of an honest DP-SGD on digits, by the clock", seconds, note)]


if __name__ == "__main__":
    for name, figure, remark in run():
        print(f"{figure:8.1f} s  {name}: {remark}")
