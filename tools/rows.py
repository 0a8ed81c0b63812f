"""Rows of `docs/data/*.csv`, each one measurement.

`docs/data/index.csv` holds program, date and machine of each file. `tools/pages.py` generates the tables of the pages
from both.
"""

from __future__ import annotations

import csv
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from datetime import UTC, datetime
from pathlib import Path

DATA = Path(__file__).parent.parent / "docs" / "data"


@dataclass(frozen=True)
class Row:
    """One measurement.

    Attributes:
        setting: Subject and conditions, `name=value` joined by "; ".
        what: The name of the number.
        value: The number, or a word such as VIOLATION; empty if there is only an interval.
        interval: "± 0.07" (a standard deviation), "(1.8, 5.3)", or a limit; empty if there is none.
        trials: Number of audits, games or runs; empty if unknown.
    """

    setting: str
    what: str
    value: str
    interval: str = ""
    trials: str = ""

    def settings(self) -> dict[str, str]:
        """Return the conditions by name."""
        return dict(part.split("=", 1) for part in self.setting.split("; ") if part)


@dataclass(frozen=True)
class Origin:
    """Origin of a data file.

    Attributes:
        file: Its name in `docs/data`.
        program: The command that wrote it.
        made: The date, if known.
        machine: Processor and load, if known.
        commit: The commit whose code measured the numbers, or that added them.
    """

    file: str
    program: str
    made: str
    machine: str
    commit: str = ""


def setting(conditions: Mapping[str, str]) -> str:
    """Return conditions as one line; names and values must not contain the separator."""
    if any("; " in name + value or "=" in name for name, value in conditions.items()):
        raise ValueError(f"a condition holds '; ' or a name '=': {dict(conditions)}")
    return "; ".join(f"{name}={value}" for name, value in conditions.items())


def read_rows(path: Path) -> list[Row]:
    """Return the rows of a data file."""
    with path.open(encoding="utf-8", newline="") as file:
        return [Row(*line) for line in list(csv.reader(file))[1:]]


def write(path: Path, rows: Sequence[Row]) -> None:
    """Write a data file, replacing its content."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(field.name for field in fields(Row))
        writer.writerows(astuple(row) for row in rows)


def origins(folder: Path = DATA) -> dict[str, Origin]:
    """Return the origin of each data file by its name."""
    with (folder / "index.csv").open(encoding="utf-8", newline="") as file:
        return {line[0]: Origin(*line) for line in list(csv.reader(file))[1:]}


def measured_here(file: str, program: str, *, gpu: str = "no GPU") -> Origin:
    """Return the origin of a file written today on this machine, with the name of the GPU that was used."""
    names = [
        line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line
    ]
    processor = names[0] if names else platform.processor()
    load, python = os.getloadavg()[0], platform.python_version()
    machine = f"{os.cpu_count()} cores of {processor}, {gpu}, Python {python}, load {load:.1f} at the end"
    git = ["git", "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(git, cwd=DATA, capture_output=True, text=True, check=False).stdout.strip()
    return Origin(file, program, f"{datetime.now(UTC):%Y-%m-%d}", machine, commit)


def note_origin(origin: Origin, folder: Path = DATA) -> None:
    """Write or replace the line of a data file in `index.csv`."""
    sources = (origins(folder) if (folder / "index.csv").exists() else {}) | {origin.file: origin}
    with (folder / "index.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(field.name for field in fields(Origin))
        writer.writerows(astuple(sources[name]) for name in sorted(sources))


def record(file: str, rows: Sequence[Row], program: str, *, gpu: str = "no GPU") -> None:
    """Write a data file of `docs/data` and its origin, measured now on this machine."""
    write(DATA / file, rows)
    note_origin(measured_here(file, program, gpu=gpu))
