"""Run every `bench_*.py` and write the measurements and the hardware to `docs/data` (`make bench`)."""

from __future__ import annotations

import importlib
from pathlib import Path

from tools.rows import Row, record, setting

ROOT = Path(__file__).parent


def main() -> None:
    """Run, print and record the measurements; `make pages` then updates the pages."""
    rows = []
    for path in sorted(ROOT.glob("bench_*.py")):
        module = importlib.import_module(f"benchmarks.{path.stem}")
        print((module.__doc__ or path.stem).splitlines()[0], flush=True)
        for measured, seconds, note in module.run():
            print(f"  {measured}: {seconds:.4g} {note}", flush=True)
            conditions = setting({"program": path.stem, "measured": measured.replace(";", ",")})
            rows += [Row(conditions, "seconds", f"{seconds:.4g}"), *([Row(conditions, "note", note)] if note else [])]
    record("bench.csv", rows, "make bench (python -m benchmarks)")


if __name__ == "__main__":
    main()
