"""Exit codes of the command as a shell sees them: 0, 1, 2 and 3 have their documented meaning in all cases."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from dpaudit.actors.events import EventKind, read_events
from dpaudit.engine.cli import supervisor
from tests.warm import CommandResult, dpaudit

MINE = """
import dataclasses, os, signal, subprocess, sys, time
import dpaudit

@dataclasses.dataclass(frozen=True)
class Ends:
    how: str = ""

    def claim(self):
        return dpaudit.Claim(1.0)

    def release(self, labels, *, classes, rng):
        if self.how == "exits":
            os._exit(0)
        if self.how == "dies":
            helper = subprocess.Popen(["sleep", "600"], start_new_session=True)
            open("helper", "w").write(str(helper.pid))
            os.kill(os.getpid(), signal.SIGKILL)
        if self.how == "sleeps":
            open("asleep", "w").write(str(os.getpid()))
            time.sleep(60)
        return labels
"""
SPEC = """
data: {name: gaussian-mixture, rows: 4000}
split: {target: 1.0, reference: 0.0, test: 0.0}
game: {name: label-inference, replays: 4}
proxy: true-posterior
run: {runner: in-process, figures: false}
mechanism: {name: "mine:Ends", how: HOW}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(MINE)
    return tmp_path


def ended(folder: Path, how: str, *options: str) -> CommandResult:
    """Run the command from a warm start with a mechanism that ends as `how` says."""
    return dpaudit("run", spec(folder, how), "-o", "run", "--quiet", *options, cwd=folder)


def spec(folder: Path, how: str) -> Path:
    path = folder / "spec.yaml"
    path.write_text(SPEC.replace("HOW", how))
    return path


def started(folder: Path, how: str) -> subprocess.Popen[str]:
    """Start the command in a new Python process, which can receive signals."""
    words = [sys.executable, "-m", "dpaudit", "run", str(spec(folder, how)), "-o", "run", "--quiet"]
    # Folders of other tests may hold a `mine.py` too.
    entries = [os.path.abspath(entry) for entry in sys.path if entry and not entry.startswith(tempfile.gettempdir())]
    path = os.pathsep.join(entries)
    environment = {**os.environ, "PYTHONPATH": path}
    return subprocess.Popen(words, cwd=folder, env=environment, stdout=-1, stderr=-1, text=True)


def wait_for_mechanism(folder: Path, running: subprocess.Popen[str]) -> int:
    """Wait until the mechanism runs; return the id of its process."""
    while not (folder / "asleep").exists() or not (folder / "asleep").read_text():
        assert running.poll() is None, running.communicate()[1]
        time.sleep(0.05)
    return int((folder / "asleep").read_text())


@pytest.mark.parametrize(("how", "message"), [("exits", "ended (exit code 0) before it was done"), ("dies", "SIGKILL")])
def test_a_mechanism_that_ends_the_process_exits_with_3(folder: Path, how: str, message: str) -> None:
    process = ended(folder, how)
    assert process.code == 3
    assert message in process.err
    assert "dpaudit resume" in process.err
    if how == "dies":
        assert not os.path.exists(f"/proc/{(folder / 'helper').read_text()}"), "its child process ends with it"


def test_a_module_that_exits_at_import_exits_with_3(folder: Path) -> None:
    (folder / "mine.py").write_text("raise SystemExit(0)")
    process = ended(folder, "")
    assert process.code == 3
    assert "audited or imported code ended the program (sys.exit(0)): no result" in process.err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_the_command_as_ctrl_c_does(folder: Path, number: signal.Signals) -> None:
    """The signal comes twice: still one message and one exit code."""
    before = signal.signal(number, signal.SIG_DFL)  # in the background, SIGINT is ignored
    running = started(folder, "sleeps")
    signal.signal(number, before)
    worker = wait_for_mechanism(folder, running)
    running.send_signal(number)
    running.send_signal(number)
    _, errors = running.communicate(timeout=60)
    assert running.returncode == 3
    assert (
        errors == f"dpaudit: interrupted by {number.name}; finished units are kept, `dpaudit resume run` continues it\n"
    )
    last = list(read_events(folder / "run" / "events.jsonl"))[-1]
    assert (last.kind, last.detail) == (EventKind.INTERRUPTED, number.name)
    assert not os.path.exists(f"/proc/{worker}")


def test_a_killed_command_leaves_no_process(folder: Path) -> None:
    running = started(folder, "sleeps")
    worker = wait_for_mechanism(folder, running)
    assert worker != running.pid, "the started process supervises a worker"
    running.kill()
    _, errors = running.communicate(timeout=60)  # both have closed their ends
    assert "Traceback" not in errors
    assert not os.path.exists(f"/proc/{worker}") or " Z " in Path(f"/proc/{worker}/stat").read_text()


def test_a_violation_and_bad_input_keep_their_codes(folder: Path) -> None:
    codes = [ended(folder, "keeps", option).code for option in ("--fail-on-violation", "--no-such-option")]
    assert codes == [1, 2]


@pytest.mark.parametrize(("code", "expected"), [(7, 3), (1, 3), ("no", 3), (None, 0), (2, 2)])
def test_a_foreign_exit_code_becomes_3(monkeypatch: pytest.MonkeyPatch, code: object, expected: int) -> None:
    """1 and 4 are verdicts; exits of audited code must not look like one."""

    def exits(**_: object) -> None:
        raise SystemExit(code)

    monkeypatch.setattr(supervisor, "install_escaping_streams", lambda: None)
    monkeypatch.setattr("dpaudit.engine.cli.main.main", exits)
    assert supervisor._command() == expected
