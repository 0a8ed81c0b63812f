"""Coverage of Katz-log, and the number of records that change."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.csv as pacsv
import pytest

from dpaudit.engine.request.audit_spec import RunOptions
from dpaudit.estimators.two_world.ratio import METHODS, ratio_epsilon
from papers import ml_audit_appendix
from papers.ml_audit_appendix import copies, coverage, too_high
from papers.reproduction import Options
from tests import nightly


def options(folder: Path) -> Options:
    return Options(folder, run=RunOptions(runner="in-process"), say=lambda text: None)


def test_exact_limits_err_no_more_often_than_stated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ml_audit_appendix, "RUNS", (100,))
    reproduction = coverage(options(tmp_path))
    assert reproduction.files[0].stat().st_size > 10_000, "a picture"
    rows = pacsv.read_csv(reproduction.files[1]).to_pylist()
    assert len(rows) == len(ml_audit_appendix.RATES)
    assert max(row["clopper-pearson"] for row in rows) <= 0.05


@pytest.mark.parametrize("method", METHODS)
def test_the_sum_over_counts_agrees_with_a_simulation(method: str) -> None:
    runs, p0, ratio, games = 50, 0.1, 2.0, 40_000
    rng = np.random.default_rng(0)
    hits1, hits0 = rng.binomial(runs, ratio * p0, games), rng.binomial(runs, p0, games)
    bounds = np.asarray(ratio_epsilon(hits1, hits0, runs, runs, delta=0.0, confidence=0.95, method=method))
    simulated = float((bounds > np.log(ratio)).mean())
    assert abs(too_high(runs, p0, ratio, method) - simulated) < 4 * np.sqrt(max(simulated, 1e-4) / games)


def test_records_that_change_never_show_more_than_is_claimed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ml_audit_appendix, "TRAININGS", {"small": 200})
    if not nightly.on():
        monkeypatch.setattr(ml_audit_appendix, "EPSILONS", (0.5, 4.0))
    reproduction = copies(options(tmp_path))
    rows = pacsv.read_csv(reproduction.files[1]).to_pylist()
    assert len(rows) == 4 * len(ml_audit_appendix.EPSILONS)
    assert all(0 <= row["detected"] <= row["epsilon"] for row in rows)
    few, many = ([row["detected"] for row in rows if row["epsilon"] == 0.5 and row["copies"] == n] for n in (1, 8))
    assert many > few
