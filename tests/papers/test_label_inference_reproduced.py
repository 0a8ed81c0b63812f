"""The comparison of label mechanisms at equal utility, and the paper's figures end to end at a tiny size."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpaudit.engine.games.proxies.calibrated import CalibratedModel
from dpaudit.engine.reading.label_comparison import RANDOMIZED_RESPONSE, LabelStudy, MechanismSetting
from dpaudit.engine.request.audit_spec import RunOptions
from dpaudit.mechanisms.labels.proportions import GeometricProportions, LabelProportions, LaplaceProportions
from dpaudit.mechanisms.labels.randomized_response import RandomizedResponse
from dpaudit.mechanisms.models.tables import LogisticRegression
from papers import label_inference
from papers.reproduction import Options
from tests import nightly

NOTHING = {"prior": np.zeros(1), "posterior": np.zeros(1)}


def setting(family: str, auc: float, advantage: float) -> MechanismSetting:
    return MechanismSetting(
        f"{family} {auc}",
        family,
        family,
        auc,
        math.nan,
        {"multiplicative": advantage},
        advantage,
        math.inf,
        {},
        NOTHING,
    )


RESPONSES = [setting(RANDOMIZED_RESPONSE, 0.6, 1.0), setting(RANDOMIZED_RESPONSE, 0.8, 3.0)]


def test_a_setting_is_dominated_where_another_teaches_no_less_and_tells_no_more() -> None:
    worse, infinite, alone = setting("llp", 0.6, 2.0), setting("llp", 0.7, math.inf), setting("llp", 0.9, 9.0)
    study = LabelStudy("data", (*RESPONSES, worse, infinite, alone))
    assert study.dominated("multiplicative") == (worse, infinite)
    twins = LabelStudy("data", (setting("llp", 0.7, 1.0), setting("llp-laplace", 0.7, 1.0)))
    assert twins.dominated("multiplicative") == ()


def test_randomised_response_is_read_off_at_the_same_auc_and_nowhere_beyond() -> None:
    study = LabelStudy("data", (*RESPONSES, setting("llp", 0.7, math.inf), setting("llp", 0.95, 9.0)))
    assert study.response_at(0.7, "multiplicative") == pytest.approx(2.0)
    assert math.isnan(study.response_at(0.81, "multiplicative"))
    assert study.lines == (
        "at equal utility (AUC) on data: 98% quantile of the multiplicative advantage, mean additive advantage",
        "  AUC 0.7000, llp 0.7: multiplicative inf; randomised response multiplicative 2",
        "  AUC 0.9500, llp 0.95: multiplicative 9; no randomised response with this AUC",
        "  multiplicative advantage: randomised response dominates; median difference of the others: infinite",
    )


def options(tmp_path: Path, data: Path | None = None) -> Options:
    return Options(
        tmp_path,
        data,
        run=RunOptions(runner="in-process", repeats=0),
        listeners=[lambda event: None],
        say=lambda _: None,
    )


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


SETS = 3 if nightly.on() else 2
"""By day without generated clicks, whose priors are estimated by a model that takes seconds."""


def small(monkeypatch: pytest.MonkeyPatch) -> None:
    sets = label_inference._data_sets

    def some(options: Options, *, features: bool) -> dict[str, Any]:
        return dict([*sets(options, features=features).items()][:SETS])

    monkeypatch.setattr(label_inference, "_data_sets", some)
    monkeypatch.setattr(label_inference, "ROWS", {"small": 400})
    monkeypatch.setattr(label_inference, "CLICKS", 400)
    monkeypatch.setattr(label_inference, "ESTIMATED", CalibratedModel(LogisticRegression(), folds=2))


def test_beliefs_are_drawn_of_every_mechanism_of_the_paper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small(monkeypatch)
    reproduction = label_inference.figure_2(options(tmp_path))
    table = rows(reproduction.files[1])
    data = ["Beta(2, 30) priors", "Beta(5, 5) priors", "criteo-synthetic"]
    assert [row["data"] for row in table[::4]] == data[:SETS]
    four = ["randomized-response", "llp", "llp-laplace", "llp-geometric"]
    assert [row["mechanism"].split(",")[0] for row in table] == four * SETS
    mechanisms_run: list[object] = []
    monkeypatch.setattr(
        label_inference, "_run_studies", lambda options, name, mechanisms, utility: mechanisms_run.extend(mechanisms)
    )
    monkeypatch.setattr(label_inference, "beliefs", lambda studies: None)
    monkeypatch.setattr(label_inference, "_write_figure", lambda *arguments: None)
    label_inference.figure_1(options(tmp_path))
    assert sum(isinstance(mechanism, LaplaceProportions) for mechanism in mechanisms_run) == 3
    assert len(mechanisms_run) == 12


def test_the_frontier_is_made_and_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Generated data at a small size; the tests of the figures read Adult and Criteo from their folders."""
    small(monkeypatch)
    few = [RandomizedResponse(1.0), LabelProportions(size=4), GeometricProportions(size=4, epsilon=1.0)]
    monkeypatch.setattr(label_inference, "frontier_settings", lambda *, small: few)
    reproduction = label_inference.figure_3(options(tmp_path))
    table = rows(tmp_path / "figure-3" / "figure-3.csv")
    names = [row["mechanism"] for row in table[:3]]
    assert names == ["randomized-response, ε = 1", "llp, bags of 4", "llp-geometric, bags of 4, ε = 1"]
    assert len(table) == 3 * SETS
    data = ["Beta(2, 30) priors", "gaussian-mixture", "criteo-synthetic"]
    assert [row["data"] for row in table[::3]] == data[:SETS]
    assert all(0 <= float(row["auc"]) <= 1 for row in table)
    assert {row["dominated, multiplicative"] for row in table} <= {"true", "false"}
    assert float(table[0]["multiplicative advantage"]) == pytest.approx(1.0)
    assert all(path.is_file() for path in reproduction.files)
    assert "at equal utility (AUC) on gaussian-mixture" in reproduction.text


def test_equivalent_bag_sizes_are_drawn_for_ones_own_priors(tmp_path: Path) -> None:
    (tmp_path / "priors").mkdir()
    (tmp_path / "priors" / "priors.csv").write_text("prior\n" + "\n".join(["0.1", "0.4"] * 20), encoding="utf-8")
    reproduction = label_inference.equivalence(options(tmp_path, tmp_path))
    table = rows(tmp_path / "equivalence" / "equivalence.csv")
    assert [row["size"] for row in table] == ["1", "2", "4", "8", "16", "32"]
    assert float(table[0]["infinite"]) == 1.0
    additive = [float(row["additive"]) for row in table]
    assert additive == sorted(additive, reverse=True)
    assert all(path.is_file() for path in reproduction.files)


def test_real_data_are_found_in_a_folder(tmp_path: Path) -> None:
    (tmp_path / "adult").mkdir()
    (tmp_path / "adult" / "adult.data.gz").touch()
    (tmp_path / "higgs").mkdir()
    (tmp_path / "higgs" / "higgs_sample_11k.csv.gz").touch()
    assert sorted(label_inference.real_data(tmp_path, 10)) == ["Higgs", "adult"]
    assert label_inference.real_data(tmp_path / "adult", 10) == {}
