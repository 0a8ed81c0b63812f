"""Audited code that does to its process what it must not: the run goes on, says it, and leaves nothing running."""

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
    """A reader whose own mechanism misbehaves."""
    shutil.copy(misbehaving.__file__, reader.work / "misbehaving.py")
    return reader


def spec(folder: Path, *deeds: str) -> Path:
    """One audit for each list of misdeeds."""
    mechanisms = [{"name": "misbehaving:Misbehaving", "do": do} for do in deeds]
    audits = [{"name": f"audit {number}", "mechanism": mechanism} for number, mechanism in enumerate(mechanisms)]
    path = folder / "spec.json"
    path.write_text(json.dumps({**SPEC, "audits": audits}))
    return path


def scores(folder: Path) -> dict[str, pa.Table]:
    """What a run found, by file."""
    return {str(path.relative_to(folder)): pq.read_table(path) for path in folder.glob("scores/**/*.parquet")}


def test_what_audited_code_does_to_its_process_is_said_and_the_audits_after_it_are_as_they_were(
    at_work: Reader,
) -> None:
    deeds = ("detaches helps forks_twice", "prints", "changes closes", "")
    process = at_work.opens("run", spec(at_work.work, *deeds), "-o", "odd")
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
def test_a_command_ends_whatever_code_left_in_its_process(at_work: Reader, do: str) -> None:
    process = at_work.opens("run", spec(at_work.work, do), "-o", "run", time_limit_s=60)
    assert process.code in (0, 3), process.err
    assert not process.left_over
    assert "Traceback" not in process.err


def test_in_python_processes_of_the_audited_code_end_with_the_run_and_others_stay(at_work: Reader) -> None:
    spec(at_work.work, "detaches helps forks_twice changes")
    environment = {"PYTHONPATH": at_work.environment()["PYTHONPATH"] + f":{at_work.work}"}
    process = at_work.runs([sys.executable, "-c", LEFT_ALONE], environment=environment)
    assert process.code == 0, process.err
    assert process.out == "None True\n"
    assert not process.left_over


def test_code_that_nobody_here_wrote_runs_in_a_child_and_cannot_end_the_run(at_work: Reader) -> None:
    """It is finished elsewhere, loses its units on the way, and is gone on with by the reader."""
    theirs = at_work.stranger / "run"
    process = at_work.opens("run", spec(at_work.work, "", "dies"), "-o", theirs, HOME=str(at_work.stranger))
    assert process.code == 3, "in one's own process, one's own code may end the run"
    for unit in (theirs / "units").iterdir():
        unit.unlink()
    shutil.rmtree(at_work.home / ".local", ignore_errors=True)
    at_work.opens("resume", theirs).refused("--allow-code")
    process = at_work.opens("resume", theirs, "--allow-code", PYTHONPATH=f"{at_work.environment()['PYTHONPATH']}")
    assert process.code == 3, process.err
    assert "1 of 2 audits have no result" in process.err
    assert "exit code 7" in process.out + process.err
    assert not process.left_over
