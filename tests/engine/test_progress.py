"""Progress in Python: shown on standard error by default."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest

from dpaudit import Audit, AuditSpec, RunOptions, audit
from dpaudit.actors.events import Event, EventKind
from dpaudit.engine.games.one_run.label_inference import LabelInference
from dpaudit.engine.report.progress import Terminal, TerminalProgress

ROWS = np.random.default_rng(0).normal(size=(200, 2))
SPEC = AuditSpec(
    (
        Audit(
            mechanism={"name": "randomized-response", "epsilon": 1.0},
            data=(ROWS, ROWS[:, 0] > 0),
            game=LabelInference(replays=2),
        ),
    ),
    run=RunOptions(runner="in-process", figures=False),
)


def test_without_a_terminal_progress_is_printed_in_lines(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    audit(SPEC, output=tmp_path)
    printed = capfd.readouterr()
    assert printed.err.splitlines()[0].startswith("running ")
    assert printed.err.splitlines()[-2:] == ["estimating", "INCONCLUSIVE; writing the report"]
    assert printed.out == ""


def test_no_progress_if_quiet_or_with_listeners(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    emitted: list[Event] = []
    audit(SPEC, output=tmp_path, quiet=True)
    audit(SPEC, output=tmp_path, listeners=[emitted.append])
    assert capfd.readouterr().err == ""
    assert emitted


HOSTILE = "x\x1b[2J\x1b]8;;http://evil.example\x07\x9b\u202e[link=http://evil.example][red]\rfinished\n100 of 100"


def test_control_characters_in_names_are_escaped_on_a_terminal() -> None:
    """The progress bar moves the cursor and uses colours; names of units must do neither."""
    stream = io.StringIO()
    console = Terminal(file=stream, force_terminal=True)
    assert console.is_terminal
    with TerminalProgress(console) as progress:
        for kind in EventKind:
            progress(Event(kind, label=HOSTILE, detail=f"{HOSTILE}\n{HOSTILE}", worker=HOSTILE))
        print(HOSTILE, "a print of audited code")
    output = stream.getvalue()
    assert "\x1b[31mfailed: " in output
    assert "\x1b[2K" in output
    assert "a print of audited code" in output
    for obeyed in ("\x1b[2J", "\x1b]8", "\x07", "\x9b", "\u202e", "\n100"):
        assert obeyed not in output, obeyed
