"""Audited code that misuses its process: the run continues, reports it, and leaves no process."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.hostile import misbehaving
from tests.hostile.reader import Reader

SPEC = {
    "name": "odd",
    "seed": 3,
    "data": {"name": "digits"},
    "game": {"name": "label-canaries", "canaries": 50, "replays": 2},
    "run": {"runner": "in-process", "figures": False, "repeats": 0},
}
LEFT_ALONE = """
import json, os, subprocess, sys
import dpaudit
own = subprocess.Popen(["sleep", "299"])
folder = os.getcwd()
dpaudit.audit(json.load(open("spec.json")), output="run", quiet=True)
print(own.poll(), os.getcwd() == folder)
own.kill()
"""


@pytest.fixture
def at_work(reader: Reader) -> Reader:
    """Return a reader whose own mechanism misbehaves."""
    shutil.copy(misbehaving.__file__, reader.work / "misbehaving.py")
    return reader


def spec(folder: Path, *functions: str) -> Path:
    """Write a spec with one audit for each list of functions of `misbehaving`."""
    mechanisms = [{"name": "misbehaving:Misbehaving", "do": do} for do in functions]
    audits = [{"name": f"audit {number}", "mechanism": mechanism} for number, mechanism in enumerate(mechanisms)]
    path = folder / "spec.json"
    path.write_text(json.dumps({**SPEC, "audits": audits}))
    return path


def scores(folder: Path) -> dict[str, pa.Table]:
    """Return the scores of a run by file."""
    return {str(path.relative_to(folder)): pq.read_table(path) for path in folder.glob("scores/**/*.parquet")}


def test_changes_of_the_process_are_reported_and_affect_no_later_audit(
    at_work: Reader,
) -> None:
    functions = ("detaches helps forks_twice", "prints", "changes closes", "")
    process = at_work.opens("run", spec(at_work.work, *functions), "-o", "odd")
    assert process.code == 0, process.err
    assert not process.left_over
    assert "Traceback" not in process.err
    assert len(process.out) + len(process.err) < 10_000, "what units print goes nowhere but to their log"
    assert "words from" not in process.out + process.err
    printed = (at_work.work / "odd" / "units" / "printed.log").read_text()
    for way in ("print", "os.write", "C"):
        assert f"words from {way}" in printed
    assert len(printed) < 100_000
    remarks = "\n".join(json.loads((at_work.work / "odd" / "bounds.json").read_text())["remarks"])
    for words in (
        "processes it left running",
        "bytes printed",
        "json.dumps, numpy.random.default_rng",
        "the recursion limit",
        "the import path",
        "the working folder",
        "the umask",
        "signal handlers (SIGTERM)",
        "environment variables (MISBEHAVED)",
        "open files it closed (1, 2)",
        "numpy.seterr",
        "warnings filters",
    ):
        assert words in remarks, remarks
        assert words in " ".join(process.out.split())
    at_work.opens("run", spec(at_work.work, *[""] * 4), "-o", "even")
    assert scores(at_work.work / "odd") == scores(at_work.work / "even") != {}


@pytest.mark.parametrize("do", ["stays", "closes_all"])
def test_a_command_ends_despite_threads_and_exit_handlers_of_audited_code(at_work: Reader, do: str) -> None:
    process = at_work.opens("run", spec(at_work.work, do), "-o", "run", time_limit_s=60)
    assert process.code in (0, 3), process.err
    assert not process.left_over
    assert "Traceback" not in process.err


def test_in_python_only_processes_of_the_audited_code_end_with_the_run(at_work: Reader) -> None:
    spec(at_work.work, "detaches helps forks_twice changes")
    environment = {"PYTHONPATH": at_work.environment()["PYTHONPATH"] + f":{at_work.work}"}
    process = at_work.runs([sys.executable, "-c", LEFT_ALONE], environment=environment)
    assert process.code == 0, process.err
    assert process.out == "None True\n"
    assert not process.left_over


def test_foreign_code_runs_in_a_child_and_cannot_end_the_run(at_work: Reader) -> None:
    """The run started on another machine and lost some units; the reader resumes it."""
    theirs = at_work.stranger / "run"
    process = at_work.opens("run", spec(at_work.work, "", "dies"), "-o", theirs, HOME=str(at_work.stranger))
    assert process.code == 3, "the user's own code runs in this process and may end the run"
    for unit in (theirs / "units").iterdir():
        unit.unlink()
    shutil.rmtree(at_work.home / ".local", ignore_errors=True)
    at_work.opens("resume", theirs).refused("--allow-code")
    process = at_work.opens("resume", theirs, "--allow-code", PYTHONPATH=f"{at_work.environment()['PYTHONPATH']}")
    assert process.code == 3, process.err
    assert "1 of 2 audits have no result" in process.err
    assert "exit code 7" in process.out + process.err
    assert not process.left_over
