"""The watch itself: effects that it must detect, and an honest folder that causes none."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.hostile.conftest import SPEC
from tests.hostile.reader import Opened, Reader


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("open(ELSE + '/thesis.tex', 'a').write('x')", "changed"),
        ("open(ELSE + '/thesis.tex', 'r+').close()", "written"),
        ("import os; os.remove(ELSE + '/thesis.tex')", "changed"),
        ("import socket; socket.create_connection(('127.0.0.1', 9), 0.1)", "spoken"),
        ("import socket; socket.getaddrinfo('localhost', 80)", "spoken"),
        ("import subprocess; subprocess.Popen(['sleep', '30'], start_new_session=True)", "left_over"),
    ],
)
def test_the_watch_detects_effects(reader: Reader, code: str, expected: str) -> None:
    reader.patience_s = 1.0
    process = reader.runs([sys.executable, "-c", f"ELSE = {str(reader.elsewhere)!r}\n{code}"])
    assert getattr(process, expected)


def test_the_watch_detects_writes_of_a_command(reader: Reader) -> None:
    """Also for a warm start."""
    (reader.work / "spec.yaml").write_text(SPEC)
    opened = reader.opens("run", "spec.yaml", "--output", reader.elsewhere / "run")
    assert opened.code == 0
    assert any("bounds.json" in path for path in opened.changed)
    assert any("bounds.json" in event for event in opened.written)


def test_the_watch_detects_remaining_processes(reader: Reader) -> None:
    """The process is forked and detached before the command could adopt it, from a warm start."""
    reader.patience_s = 1.0
    (reader.work / "sitecustomize.py").write_text(
        "import os, time\nif os.fork() == 0:\n    if os.fork() == 0:\n        os.setsid()\n        time.sleep(30)\n"
        "    os._exit(0)\nos.wait()\n"
    )
    paths = reader.environment()["PYTHONPATH"]
    assert reader.opens("--help", PYTHONPATH=f"{reader.work}:{paths}").left_over
    assert not reader.opens("--help").left_over


@pytest.mark.parametrize("verb", ["report", "status", "resume"])
def test_an_honest_folder_is_harmless(reader: Reader, folder: Path, verb: str) -> None:
    process: Opened = reader.opens(verb, folder)
    process.harmless()
    assert process.code == 0, process.err
