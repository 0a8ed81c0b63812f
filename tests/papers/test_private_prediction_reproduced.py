"""Figures 2 to 6 of the paper on private prediction, made small: every file, and the orders that must hold."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from dpaudit.engine.spec.audit_spec import RunOptions
from papers import noisy_argmax_figures, private_prediction
from papers.making import Made, Options


def options(folder: Path) -> Options:
    return Options(folder, run=RunOptions("in-process"), say=lambda text: None)


def rows_of(made: Made) -> list[dict[str, str]]:
    assert all(path.stat().st_size > 0 for path in made.files)
    table = next(path for path in made.files if path.suffix == ".csv")
    with table.open() as file:
        return list(csv.DictReader(file))


def test_the_noisy_argmax_by_itself(tmp_path: Path) -> None:
    second = rows_of(noisy_argmax_figures.figure_2(options(tmp_path)))
    for row in second:
        assert 0 <= float(row["2-cut"]) <= float(row["exact"]) <= float(row["data-dependent"])
        assert float(row["data-dependent"]) <= float(row["data-independent"])
    sixth = {float(row["order"]): row for row in rows_of(noisy_argmax_figures.figure_6(options(tmp_path)))}
    assert float(sixth[2]["exact"]) == pytest.approx(0.23956, abs=5e-6)
    for row in sixth.values():
        for method in ("2-cut", "2-cut, as published", "k-cut", "k-cut, Goodman"):
            assert 0.9 * float(row["exact"]) < float(row[method]) <= float(row["exact"])


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(private_prediction.SIZES, "small", private_prediction.Size(300, 6, 2, 4, 3))


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize(
    ("figure", "bars"),
    [
        pytest.param(private_prediction.figure_3, {"PATE": 2, "CaPC": 2, "PromptPATE": 2}, marks=pytest.mark.nightly),
        pytest.param(private_prediction.figure_4, {"PATE": 1, "CaPC": 1, "PromptPATE": 1}, marks=pytest.mark.nightly),
        (private_prediction.figure_5, {"Private-kNN": 5}),
    ],
)
def test_leaks_by_algorithm_and_adversary(figure: object, bars: dict[str, int], tmp_path: Path) -> None:
    made = figure(options(tmp_path))  # type: ignore[operator]
    rows = rows_of(made)
    assert {name: sum(row["algorithm"] == name for row in rows) for name in bars} == bars
    for row in rows:
        found = {name: float(row[name]) for name in ("2-cut", "exact", "claim")}
        assert 0 <= found["2-cut"] <= found["exact"] <= found["claim"]
        if row["algorithm"] != "Private-kNN":
            assert found["exact"] <= float(row["data-dependent"]) <= found["claim"] + 1e-12
    assert ("stand-in" in made.text) == ("PromptPATE" in bars)
