"""Attacks side by side: the canary attack's score by hand, and the comparison on a few rows."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pytest
from matplotlib.collections import LineCollection
from matplotlib.patches import Rectangle
from scipy.stats import binom

from dpaudit import RunOptions
from dpaudit.engine.data.generated import GaussianMixture
from dpaudit.engine.data.partition import Partition
from dpaudit.engine.games.one_run.answers import CanaryView
from dpaudit.engine.games.one_run.attacks import CanaryConfidence
from dpaudit.engine.games.proxies import CalibratedModel, ModelProxy
from dpaudit.estimators.one_run.signed_scores import OneRun
from dpaudit.estimators.scores import Scores
from dpaudit.mechanisms.learners.lp_mst import LP1ST
from dpaudit.mechanisms.learners.recalled_labels import Recall
from dpaudit.mechanisms.models.tables import LogisticRegression
from dpaudit.registry import load
from papers import criteo_tables, image_tables
from papers.attacks_compared import METHODS, Comparison, _comparison, _draw, compare, condition
from papers.reproduction import Options
from tests.nightly import nightly_games

CLASSES = 4


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, float]]:
    comparison = Comparison(
        learners={"LP-1ST": lambda epsilon: LP1ST(epsilon, Recall())},
        epsilons=(4.0,),
        data=GaussianMixture(classes=CLASSES, rows=2_000),
        split=Partition(target=0.4, reference=0.2, test=0.4),
        proxy=ModelProxy(LogisticRegression()),
        canaries=700,
        planted=350,
        replays=3,
    )
    folder = tmp_path_factory.mktemp("figure")
    messages: list[str] = []
    reproduction = compare(
        comparison, Options(folder, run=RunOptions(runner="in-process"), say=messages.append), "tiny"
    )
    assert messages[0].startswith("3 trainings")
    assert all(path.stat().st_size > 500 for path in reproduction.files)
    table = pacsv.read_csv(folder / "tiny" / "tiny.csv").to_pylist()
    assert len(table) == len(METHODS)
    assert "which is no bound" in reproduction.text
    return {row["attack"]: row for row in table}


def test_every_attack_sees_a_learner_that_recalls_its_labels(rows: dict[str, dict[str, float]]) -> None:
    for method, row in rows.items():
        assert row["bound"] > 0, method


def test_no_label_attack_exceeds_the_claim(rows: dict[str, dict[str, float]]) -> None:
    """False failure <= 0.05 for each of three bounds over seeds; the seed is fixed."""
    for method, row in rows.items():
        if "membership" not in method:
            assert row["bound"] <= 4.0, method


def test_only_planted_labels_touch_the_training_data(rows: dict[str, dict[str, float]]) -> None:
    for method, row in rows.items():
        assert bool(row["observational"]) == ("planted" not in method)
    conditions = {
        method: condition(bool(row["observational"]), bool(row["conditional"])) for method, row in rows.items()
    }
    assert set(conditions.values()) == {"if the proxy is right", "rows divided at random", "labels planted at random"}
    assert conditions["label inference"] == "if the proxy is right"


def test_the_control_is_a_line_across_its_bar(rows: dict[str, dict[str, float]]) -> None:
    """A game without a control has none."""
    controls = [row["never_seen"] for row in rows.values()]
    assert any(value >= 0 for value in controls)
    heights = [0.3, 1.25, math.nan, 0.0]
    table = pa.Table.from_pylist(
        [row | {"never_seen": height} for row, height in zip(rows.values(), heights, strict=True)]
    )
    (axes,) = _draw(table, "rows").axes
    segments = [
        line for lines in axes.collections if isinstance(lines, LineCollection) for line in lines.get_segments()
    ]
    # Error bars are upright, and a game without a control has an empty segment.
    flat = {
        round(float(line[0, 1]), 6): line[:, 0].mean() for line in segments if len(line) and line[0, 1] == line[1, 1]
    }
    assert sorted(flat) == [0.0, 0.3, 1.25]
    middles = [bar.get_x() + bar.get_width() / 2 for bar in axes.patches if isinstance(bar, Rectangle)]
    assert [flat[height] for height in (0.3, 1.25, 0.0)] == pytest.approx([middles[0], middles[1], middles[3]])


@pytest.mark.parametrize("kind", ["criteo", "images"])
def test_every_learner_of_the_paper_is_compared(tmp_path: Path, kind: str) -> None:
    """Five on click logs and four on pictures, at small scale too."""
    options = Options(tmp_path)
    if kind == "images":
        rng = np.random.default_rng(0)
        records = np.column_stack([np.arange(60) % 10, rng.integers(0, 256, (60, 3072))]).astype(np.uint8)
        (tmp_path / "cifar10").mkdir()
        records.tofile(tmp_path / "cifar10" / "data_batch_1.bin")
        options = replace(options, data=tmp_path)
    tables = image_tables if kind == "images" else criteo_tables
    comparison = _comparison(tables.study(options), kind, options)
    assert list(comparison.learners) == list(tables.BOUNDS)
    assert len(comparison.learners) == (4 if kind == "images" else 5)
    for learner in comparison.learners.values():
        assert {learner(epsilon).claim().epsilon for epsilon in comparison.epsilons} == set(comparison.epsilons)
    for split in (comparison.split, tables.study(options).split, image_tables.SMALL_SPLIT):
        proxy_rows = (1 - CalibratedModel().held_out) * split.reference
        assert proxy_rows >= split.target - 1e-9, "a proxy from fewer rows than the learner's is worse than the learner"


def test_every_canary_on_clicks_has_a_fresh_point(tmp_path: Path) -> None:
    options = Options(tmp_path)
    study = criteo_tables.study(options)
    comparison = _comparison(study, "criteo", options)
    parts = comparison.split.divide(study.data.load(), np.random.default_rng(0))
    assert comparison.canaries == min(len(parts.test), len(parts.target)) - 1
    assert comparison.split == study.split


def test_figure_1_is_registered() -> None:
    assert load("reproduction", "observational-label figure-1").__name__ == "figure_1"


def test_the_canary_attack_compares_wrong_labels_only() -> None:
    """Rows by hand; the reference's first choice, class 0, stands for the true label."""
    target = np.array([[0.5, 0.3, 0.1, 0.1], [0.1, 0.2, 0.6, 0.1], [0.9, 0.05, 0.05, 0.0]], np.float32)
    reference = np.array([[0.7, 0.1, 0.1, 0.1]] * 3, np.float32)
    view = CanaryView(target, reference, np.array([1, 3, 0]))
    assert CanaryConfidence().score(view) == pytest.approx([0.3 - 0.1, 0.1 - 0.6, 0.0], abs=1e-7)
    two = CanaryView(np.array([[0.2, 0.8]] * 2, np.float32), np.array([[0.9, 0.1]] * 2, np.float32), np.array([0, 1]))
    assert CanaryConfidence().score(two) == pytest.approx([-0.6, 0.6], abs=1e-7)


def scores(planted_mass: float, seed: int) -> Scores:
    """A model that gives a planted label `planted_mass`, and the other classes equal shares of the rest."""
    rng = np.random.default_rng(seed)
    planted, other = rng.integers(0, CLASSES, 300), rng.integers(0, CLASSES, 300)
    bits = rng.random(300) < 0.5
    target = np.full((300, CLASSES), (1 - planted_mass) / (CLASSES - 1))
    target[np.arange(300), planted] = planted_mass
    # A real model's confidences vary slightly between rows, independent of planted labels.
    target += 0.01 * rng.random(target.shape)
    reference = np.zeros((300, CLASSES))
    reference[np.arange(300), rng.integers(0, CLASSES, 300)] = 1
    view = CanaryView(target.astype(np.float32), reference.astype(np.float32), np.where(bits, planted, other))
    return Scores(CanaryConfidence().score(view), bits)


def test_the_canary_attack_with_a_one_run_bound_errs_as_seldom_as_it_says() -> None:
    """False failure < 1e-6: the limit is the 1 - 1e-6 quantile of Binomial(games, 0.05)."""
    estimator, games = OneRun(), nightly_games(400)
    limit = binom.ppf(1 - 1e-6, games, 0.05)

    def too_high(planted_mass: float) -> int:
        bounds = (estimator.bound([estimator.tally(scores(planted_mass, seed))]) for seed in range(games))
        return sum(bound.lower > 0 for bound in bounds)

    assert too_high(1 / CLASSES) <= limit, "a model that learned nothing of the planted labels: epsilon = 0"
    assert too_high(0.6) > limit
