"""Progress in Python: on standard error without being asked for, and only there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dpaudit import Audit, AuditSpec, RunOptions, audit
from dpaudit.actors.events import Event
from dpaudit.engine.games.label_inference import LabelInference

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


def test_a_line_now_and_then_where_no_terminal_is(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    audit(SPEC, output=tmp_path)
    shown = capfd.readouterr()
    assert shown.err.splitlines()[0].startswith("running ")
    assert shown.err.splitlines()[-1] == "estimating"
    assert shown.out == ""


def test_nothing_when_quiet_or_when_somebody_else_listens(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    heard: list[Event] = []
    audit(SPEC, output=tmp_path, quiet=True)
    audit(SPEC, output=tmp_path, listeners=[heard.append])
    assert capfd.readouterr().err == ""
    assert heard
