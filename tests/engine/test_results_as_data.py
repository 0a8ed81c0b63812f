"""What a run found as tables and figures, in Python and in a notebook."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from dpaudit import Audit, AuditSpec, RunOptions, audit
from dpaudit.engine.games.one_run.label_inference import LabelInference
from dpaudit.errors import RunError, UnknownNameError

ROWS = np.random.default_rng(0).normal(size=(200, 2))
MECHANISM = {"name": "randomized-response", "epsilon": 1.0}


def test_tables_figures_and_short_words(tmp_path: Path) -> None:
    asked = Audit(mechanism=MECHANISM, data=(ROWS, ROWS[:, 0] > 0), game=LabelInference(replays=3), name="<own>")
    report = audit(AuditSpec((asked,), run=RunOptions(runner="in-process", figures=False)), output=tmp_path, quiet=True)
    (result,) = report.results
    assert report.to_frame().to_dict("records")[0]["verdict"] == result.verdict.value
    scores = result.scores()
    assert len(scores) == 3 * result.rows["target"]
    assert {"replay", "canary", "truth", "score"} <= set(scores.columns)
    assert isinstance(result.figure("replays"), Figure)
    with pytest.raises(UnknownNameError, match=r"figure must be one of .*replays.*, got 'nothing'"):
        result.figure("nothing")
    assert repr(result).startswith(f"<AuditResult '<own>': {result.verdict}, ")
    assert len(repr(report)) < 100
    assert "&lt;own&gt;" in report._repr_html_()
    assert "<own>" not in result._repr_html_()
    lean = RunOptions(runner="in-process", figures=False, keep_scores=False)
    (without,) = audit(AuditSpec((asked,), run=lean), output=tmp_path / "lean", quiet=True).results
    with pytest.raises(RunError, match="no scores were kept"):
        without.scores()
