"""Checks of jobs on a real job server. `test_jobs` runs them in a process with the server's token."""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path

from dpaudit.cluster.jobs import Jobs
from dpaudit.engine.cli.remote import job_of
from dpaudit.engine.run.run_status import run_status
from tests.waiting import until


def main(server: str, folder: Path, working_dir: Path) -> None:
    """Submit a job twice, kill its driver, resume it, and stop another job."""
    os.chdir(working_dir)
    sys.path.insert(0, str(working_dir))
    gate, output = folder / "gate", folder / "shared" / "run"
    gate.touch()
    jobs, job = Jobs(server), job_of(Path("spec.yaml"), output, working_dir=working_dir)
    first = jobs.submit(job)
    assert first.new
    again = Jobs(server).submit(job)
    assert (again.name, again.new) == (first.name, False)
    driver = until(lambda: _driver(output), "the driver holds its folder")
    until(lambda: (output / "events.jsonl").exists() and run_status(output).finished >= 1, "a unit is finished")
    os.kill(driver, signal.SIGKILL)
    until(lambda: jobs.state(first.name) == "FAILED", "the job whose driver was killed has failed")
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
    assert not jobs.submit(job).new, "a job that succeeded does not start again"
    gate.touch()
    other = jobs.submit(job_of(Path("spec.yaml"), folder / "shared" / "other", working_dir=working_dir, seed=7))
    assert other.name != first.name
    assert jobs.stop(other.name) == "STOPPED"


def _driver(output: Path) -> int | None:
    """Return the process id in the lease of the run folder; None if there is none."""
    try:
        match = re.search(r'"pid": (\d+)', (output / ".lease").read_text())
    except OSError:
        return None
    return int(match[1]) if match else None


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
