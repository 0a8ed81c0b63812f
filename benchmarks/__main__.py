"""`make bench`: runs every `bench_*.py` here and writes the figures, with the hardware, into docs/benchmarks.md."""

from __future__ import annotations

import importlib
import os
import platform
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).parent
MARKER = "<!-- measured: everything below is written by `make bench` -->"


def main() -> None:
    """Runs, prints and records."""
    sections = []
    for path in sorted(ROOT.glob("bench_*.py")):
        module = importlib.import_module(f"benchmarks.{path.stem}")
        title = (module.__doc__ or path.stem).splitlines()[0].rstrip(".")
        rows = [f"| {what} | {seconds:.4g} | {note} |" for what, seconds, note in module.run()]
        section = "\n".join([f"## {title}", "", "| what | seconds | note |", "| --- | --- | --- |", *rows])
        print(section, end="\n\n", flush=True)
        sections.append(section)
    page = ROOT.parent / "docs" / "benchmarks.md"
    before = page.read_text(encoding="utf-8").partition(MARKER)[0] if page.exists() else "# Benchmarks\n\n"
    page.write_text(f"{before}{MARKER}\n\n{hardware()}\n\n" + "\n\n".join(sections) + "\n", encoding="utf-8")


def hardware() -> str:
    """Date, machine and load, in a sentence."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.split(":")[1].strip() for line in lines if "model name" in line]
    processor = names[0] if names else platform.processor()
    load = os.getloadavg()[0]
    return (
        f"{datetime.now(UTC):%Y-%m-%d}, {os.cpu_count()} cores of {processor}, no GPU, Python "
        f"{platform.python_version()}, load average {load:.1f} at the end. Best of several runs after compilation, "
        "unless a note says otherwise."
    )


if __name__ == "__main__":
    main()
