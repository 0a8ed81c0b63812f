"""Forty audits on four workers: what remains to be unit_ends when the last unit has finished.

    python -m benchmarks.estimates [--write]

The audits are those of `examples/ml-audit-grid.yaml` with an eighth of the trials. Once the driver reads them one after
another at the end, and once units on the workers read each audit when its own units have finished. Both give the same
`bounds.json`. Written to `docs/data/estimates.csv`.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.campaign import rows_about
from dpaudit.actors.events import Event, EventKind
from dpaudit.cluster.session import ray_session
from dpaudit.engine.request.audit_spec import AuditSpec
from dpaudit.engine.request.loading import load_spec, spec_content
from dpaudit.engine.request.plain_yaml import YamlFile
from dpaudit.engine.run.driver import audit
from tools.rows import record

WORKERS, TRIALS = 4, 1000
SPEC = Path("examples/ml-audit-grid.yaml")


@dataclass(frozen=True)
class _Took:
    audits: int
    units_s: float  # from the start to the end of the last unit
    rest_s: float  # from there to the end of the run
    rest_cpu_s: float  # the driver's processor time in that time
    estimates_s: float  # time of the estimates on workers
    estimated_before: int  # audits that were estimated before the last unit ended
    answers: Any


def forty_audits() -> AuditSpec:
    """Return the audits with fewer trials."""
    content = dict(spec_content(YamlFile.read(SPEC)))
    content["game"] = {**content["game"], "trials": TRIALS, "search": TRIALS, "stack": TRIALS // 2}
    content["run"] = {**content["run"], "workers": str(WORKERS), "repeats": 0}
    return load_spec(content)


def run(spec: AuditSpec, folder: Path, *, by_workers: bool) -> _Took:
    """Run the audits; `by_workers` as the package does."""
    from dpaudit.actors.pool import RayPool

    RayPool.runs_answers = by_workers
    unit_ends: list[tuple[float, float]] = []
    estimates: list[Event] = []

    def watch(event: Event) -> None:
        if event.kind is EventKind.UNIT_DONE:
            unit_ends.append((time.monotonic(), time.process_time()))
        elif event.kind is EventKind.ESTIMATED:
            estimates.append(replace(event, count=len(unit_ends)))

    began = time.monotonic()
    report = audit(spec, output=folder, listeners=[watch])
    end, cpu = time.monotonic(), time.process_time()
    before = sum(event.count < len(unit_ends) for event in estimates)
    answers = json.loads((folder / "bounds.json").read_text())["results"]
    seconds = sum(event.seconds for event in estimates)
    last, last_cpu = unit_ends[-1]
    return _Took(len(report.results), last - began, end - last, cpu - last_cpu, seconds, before, answers)


def main() -> None:
    """Run, print and write the measurements."""
    spec = forty_audits()
    with tempfile.TemporaryDirectory() as folder, ray_session(cpus=WORKERS):
        driver = run(spec, Path(folder, "driver"), by_workers=False)
        workers = run(spec, Path(folder, "workers"), by_workers=True)
    assert driver.answers == workers.answers
    rows = []
    for name, took in (("the driver, at the end", driver), ("units, as soon as they can", workers)):
        measured = {
            "audits": str(took.audits),
            "workers": str(WORKERS),
            "until the last unit, s": f"{took.units_s:.1f}",
            "audits read before the last unit ended": str(took.estimated_before),
            "reading on workers, s": f"{took.estimates_s:.1f}",
            "after the last unit, s": f"{took.rest_s:.2f}",
            "driver after the last unit, processor s": f"{took.rest_cpu_s:.2f}",
            "load": f"{os.getloadavg()[0]:.1f}",
        }
        print(name, measured, flush=True)
        rows += rows_about({"read by": name}, measured)
    if "--write" in sys.argv:
        record("estimates.csv", rows, "python -m benchmarks.estimates --write")


if __name__ == "__main__":
    main()
