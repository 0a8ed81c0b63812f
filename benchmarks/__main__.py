"""Run the `bench_*.py` whose names begin with a word of the command, or all (`make bench`).

    python -m benchmarks [NAME ...]

All of them together are written, with the hardware, to `docs/data`; `make pages` then updates the pages.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from benchmarks.campaign import rows_about
from tools.rows import Row, record

ROOT = Path(__file__).parent


def main(names: list[str]) -> None:
    """Run, print and record the measurements."""
    rows: list[Row] = []
    for path in sorted(ROOT.glob("bench_*.py")):
        if not names or path.stem.startswith(tuple(f"bench_{name.removeprefix('bench_')}" for name in names)):
            module = importlib.import_module(f"benchmarks.{path.stem}")
            print((module.__doc__ or path.stem).splitlines()[0], flush=True)
            for measured, seconds, note in module.run():
                print(f"  {measured}: {seconds:.4g} {note}", flush=True)
                subject = {"program": path.stem, "measured": measured.replace(";", ",")}
                rows += rows_about(subject, {"seconds": f"{seconds:.4g}", "note": note})
    if not names:
        record("bench.csv", rows, "make bench (python -m benchmarks)")


if __name__ == "__main__":
    main(sys.argv[1:])
