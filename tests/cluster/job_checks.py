"""What is checked of jobs against a real job server: run by `test_jobs`, in a process whose token is the server's."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from dpaudit.cluster.jobs import Jobs
from dpaudit.engine.remote_jobs import job_of
from dpaudit.engine.watching import run_status

T = TypeVar("T")


def main(server: str, folder: Path, working_dir: Path) -> None:
    """Begins a job twice, kills its driver, goes on with it, and stops another one."""
    os.chdir(working_dir)
    sys.path.insert(0, str(working_dir))
    gate, output = folder / "gate", folder / "shared" / "run"
    gate.touch()
    jobs, job = Jobs(server), job_of(Path("spec.yaml"), output, working_dir=working_dir)
    first = jobs.submit(job)
    assert first.new
    again = Jobs(server).submit(job)
    assert (again.name, again.new) == (first.name, False)
    driver = _until(lambda: _driver(output), 120)
    _until(lambda: (output / "events.jsonl").exists() and run_status(output).finished >= 1, 120)
    os.kill(driver, signal.SIGKILL)
    _until(lambda: jobs.state(first.name) == "FAILED", 60)
    before = run_status(output).finished
    gate.unlink()
    resumed = jobs.submit(job)
    assert (resumed.name, resumed.new) == (f"{first.name}-2", True)
    printed = "".join(jobs.logs(resumed.name, follow=True))
    assert jobs.state(resumed.name) == "SUCCEEDED", printed
    status = run_status(output)
    assert (status.stage, status.finished) == ("finished", status.units)
    assert status.cached >= before >= 1
    assert f"report: {output}/report.html" in printed
    assert not jobs.submit(job).new, "what has succeeded is not begun again"
    gate.touch()
    other = jobs.submit(job_of(Path("spec.yaml"), folder / "shared" / "other", working_dir=working_dir, seed=7))
    assert other.name != first.name
    assert jobs.stop(other.name) == "STOPPED"


def _driver(output: Path) -> int | None:
    """The process that holds the run folder."""
    try:
        found = re.search(r'"pid": (\d+)', (output / ".lease").read_text())
    except OSError:
        return None
    return int(found[1]) if found else None


def _until(reached: Callable[[], T | None], seconds: float) -> T:
    until = time.monotonic() + seconds
    while not (value := reached()):
        assert time.monotonic() < until, "it took too long"
        time.sleep(0.2)
    return value


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
