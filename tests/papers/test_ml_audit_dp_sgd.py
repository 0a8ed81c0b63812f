"""Figure 8 of ML-Audit: three attacks on DP-SGD."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow.csv as pacsv
import pytest
from numpy.typing import NDArray

from dpaudit.engine.attacks.output_set import SummaryView
from dpaudit.engine.data.bundled import Digits
from dpaudit.engine.games.neighbours.game import Neighbours
from dpaudit.engine.games.neighbours.poisonings.rows import ClipBackdoorPair, InsertRecords
from dpaudit.engine.request.audit_spec import RunOptions
from papers import ml_audit_dp_sgd
from papers.data_files import dp_sgd
from papers.ml_audit_dp_sgd import (
    ATTACKS,
    NETWORK,
    SHADOW,
    UPDATED,
    AnswerAtThePoint,
    AtTheBestThreshold,
    TwoClasses,
    figure_8,
    words,
)
from papers.reproduction import Options


def test_three_attacks_on_learners_without_noise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ml_audit_dp_sgd, "EACH", 50)
    monkeypatch.setattr(ml_audit_dp_sgd, "BOUNDS", ("Clopper-Pearson",))
    monkeypatch.setattr(ml_audit_dp_sgd, "NETWORK", replace(NETWORK, epochs=2, learning_rate=5.0))
    monkeypatch.setattr(ml_audit_dp_sgd, "ROWS", {"small": 60})
    monkeypatch.setattr(ml_audit_dp_sgd, "EPSILONS", {"small": (float("inf"),)})
    monkeypatch.setattr(ml_audit_dp_sgd, "_data_sets", lambda options: {"digits": TwoClasses(Digits(), 60)})
    monkeypatch.setattr(ml_audit_dp_sgd, "SEEDS", 2)
    options = Options(tmp_path / "ml-audit", run=RunOptions(runner="in-process"), say=lambda text: None)
    reproduction = figure_8(options)
    rows = pacsv.read_csv(reproduction.files[1]).to_pylist()
    detected_by_attack = {row["attack"]: row["detected"] for row in rows}
    assert set(detected_by_attack) == set(ATTACKS)
    assert detected_by_attack[UPDATED] > 0.5
    assert {row["verdict"] for row in rows} == {"NO CLAIM"}
    assert UPDATED in reproduction.text
    # The data file has the mean of the seeds between the least and the largest.
    detected = [row["detected"] for row in rows if row["attack"] == SHADOW]
    assert len(set(detected)) == 2
    (row,) = [row for row in dp_sgd(tmp_path) if row.setting.endswith(SHADOW)]
    least, largest = (float(end) for end in row.interval.strip("()").split(", "))
    assert least == pytest.approx(min(detected), abs=0.011)
    assert largest == pytest.approx(max(detected), abs=0.011)
    assert float(row.value) == pytest.approx(np.mean(detected), abs=0.011)
    assert row.trials == "2 seeds"
    assert reproduction.files[0].stat().st_size > 0


@pytest.mark.parametrize(
    ("detected", "message"), [(0.9, "0 of 3 bounds exceed the claim."), (1.1, "1 of 3 bounds exceed")]
)
def test_a_bound_above_its_claim_is_named(detected: float, message: str) -> None:
    rows = [
        {"data": "digits", "epsilon": 1.0, "attack": UPDATED, "bound": bound, "detected": value, "seed": 0}
        for bound, value in zip(ml_audit_dp_sgd.BOUNDS, (0.5, detected, 0.0), strict=True)
    ]
    assert message in words(rows)


def test_two_classes_are_the_first_rows_of_them() -> None:
    every, two = Digits().load(), TwoClasses(Digits(), 50).load()
    places = np.flatnonzero(every.labels < 2)[:50]
    assert np.array_equal(two.labels, every.labels[places])
    assert np.array_equal(two.features, np.asarray(every.features)[places].reshape(50, -1))


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize(("less", "expected"), [(1, [0.4, -0.4]), (None, [0.9, 0.5])])
def test_a_score_is_the_probability_at_the_point_less_that_at_zero(
    sign: float, less: int | None, expected: list[float]
) -> None:
    truth = np.arange(20) % 2 == 0
    search = np.stack([sign * (2.0 * truth - 1), np.zeros(20), np.arange(20.0)], axis=1)
    nine = np.log(9.0)  # log-odds of 0.9
    fresh = np.array([[nine, 0.0, 9.0], [0.0, nine, 9.0]])
    score = AnswerAtThePoint(less).score(SummaryView(search, truth, fresh))
    assert score == pytest.approx([sign * value for value in expected])


@dataclass(frozen=True)
class FirstNumber:
    def score(self, view: SummaryView) -> NDArray[np.float64]:
        return view.fresh[:, 0]


def test_the_threshold_is_where_the_search_samples_show_most() -> None:
    """World 0 reaches 5 in one of twenty trainings, world 1 in ten; 7 is reached once, too rarely to count on."""
    zero = np.repeat([0.0, 5.0, 7.0], [379, 20, 1])
    scores_of_one = np.repeat([0.0, 5.0, 7.0], [190, 200, 10])
    search, truth = np.concatenate([zero, scores_of_one])[:, None], np.repeat([False, True], 400)
    view = SummaryView(search, truth, np.array([[4.0], [5.0], [7.0]]))
    assert AtTheBestThreshold(FirstNumber()).score(view).tolist() == [-1.0, 0.0, 2.0]


def test_the_point_of_clip_bkd_keeps_its_length() -> None:
    """The directions in which pictures vary least have entries below 0."""
    rows = TwoClasses(Digits(), 60).load()
    worlds = Neighbours(scale=ml_audit_dp_sgd.SCALE).chosen(
        InsertRecords(ClipBackdoorPair()), rows, np.random.default_rng(0)
    )
    lengths = np.linalg.norm(np.asarray(worlds.world_zero.features), axis=1)
    (point,) = np.asarray(worlds.rows.features)[worlds.in_d_prime & ~worlds.in_d]
    assert np.linalg.norm(point) == pytest.approx(np.median(lengths), rel=0.01)
