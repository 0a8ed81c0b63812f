"""Results of a run as tables and figures, in Python and in notebooks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from dpaudit import Audit, AuditSpec, RunOptions, audit
from dpaudit.engine.games.one_run.label_inference import LabelInference
from dpaudit.errors import RunError, UnknownNameError
from tests.nightly import too

ROWS = np.random.default_rng(0).normal(size=(200, 2))
MECHANISM = {"name": "randomized-response", "epsilon": 1.0}


def test_tables_figures_and_representations(tmp_path: Path) -> None:
    entry = Audit(mechanism=MECHANISM, data=(ROWS, ROWS[:, 0] > 0), game=LabelInference(replays=3), name="<own>")
    report = audit(AuditSpec((entry,), run=RunOptions(runner="in-process", figures=False)), output=tmp_path, quiet=True)
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
    without_storage = RunOptions(runner="in-process", figures=False, keep_scores=False)
    (without,) = audit(AuditSpec((entry,), run=without_storage), output=tmp_path / "lean", quiet=True).results
    with pytest.raises(RunError, match="no scores were stored"):
        without.scores()


WHAT_DRAWS = """
import sys
from dpaudit import Audit, AuditSpec, RunOptions, audit
from tests.nightly import too

entry = Audit({"name": "randomized-response", "epsilon": 1.0}, {"name": "iris"}, {"name": "label-canaries"})
audit(AuditSpec((entry,), run=RunOptions("in-process", figures=sys.argv[2] == "drawn")), output=sys.argv[1], quiet=True)
print(*(name for name in sys.modules if name == "matplotlib" or name.endswith(("figures", "charts", "drawing"))))
"""


@pytest.mark.parametrize("figures", ["left out", *too("drawn")])
def test_only_a_run_with_figures_loads_drawing_libraries(figures: str, tmp_path: Path) -> None:
    command = [sys.executable, "-W", "ignore", "-c", WHAT_DRAWS, str(tmp_path / "run"), figures]
    process = subprocess.run(command, capture_output=True, text=True, check=True)
    loaded = process.stdout.splitlines()[-1].split()
    drawing = {
        "matplotlib",
        "dpaudit.engine.figures.drawing",
        "dpaudit.engine.report.charts",
        "dpaudit.engine.figures.finding_figures",
    }
    assert (drawing <= set(loaded)) if figures == "drawn" else not loaded
    assert (tmp_path / "run" / "figures" / "overview.png").exists() == (figures == "drawn")
    assert "</html>" in (tmp_path / "run" / "report.html").read_text()
