"""Figures 2 to 6 of the paper on private prediction, made small: every file, and the orders that must hold."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest

from dpaudit.engine.request.audit_spec import RunOptions
from dpaudit.errors import InputError
from papers import noisy_argmax_figures, private_prediction
from papers.reproduction import Options, Reproduction
from tests import nightly


def options(folder: Path) -> Options:
    return Options(folder, run=RunOptions("in-process"), say=lambda text: None)


def rows_of(reproduction: Reproduction) -> list[dict[str, str]]:
    assert all(path.stat().st_size > 0 for path in reproduction.files)
    table = next(path for path in reproduction.files if path.suffix == ".csv")
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


def test_a_two_cut_loses_half_where_six_classes_are_tied(tmp_path: Path) -> None:
    reproduction = noisy_argmax_figures.cuts(options(tmp_path))
    rows = {(row["votes"], int(row["answers"]), row["order"]): row for row in rows_of(reproduction)}
    assert len(rows) == 18
    for row in rows.values():
        assert 0 <= float(row["2-cut, as published"]) <= float(row["2-cut"]) <= float(row["exact"])
        assert float(row["k-cut"]) <= float(row["exact"])
    tied = rows["all tied", 10**8, "2"]
    assert float(tied["2-cut"]) < 0.5 * float(tied["exact"]) < 0.99 * float(tied["k-cut"])


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(private_prediction.SIZES, "small", private_prediction.Size(300, 6, 2, 4, 3))


@pytest.mark.nightly
@pytest.mark.usefixtures("tiny")
def test_leaks_of_votes_by_algorithm_and_adversary(tmp_path: Path) -> None:
    """Figure 4 trains nothing: its adversaries are in the runs of figure 3."""
    for figure, bars in ((private_prediction.figure_3, 2), (private_prediction.figure_4, 1)):
        check_bars(figure(options(tmp_path)), dict.fromkeys(("PATE", "CaPC", "PromptPATE"), bars))


def check_bars(reproduction: Reproduction, bars: Mapping[str, int]) -> None:
    rows = rows_of(reproduction)
    assert {name: sum(row["algorithm"] == name for row in rows) for name in bars} == bars
    for row in rows:
        values = {name: float(row[name]) for name in ("2-cut", "exact", "claim")}
        assert 0 <= values["2-cut"] <= values["exact"] <= values["claim"]
        if row["algorithm"] != "Private-kNN":
            assert values["exact"] <= float(row["data-dependent"]) <= values["claim"] + 1e-12
    assert ("stand-in" in reproduction.text) == ("PromptPATE" in bars)


@pytest.mark.parametrize("scale", ["small", "paper"])
def test_no_more_is_asked_than_the_test_part_has(scale: Literal["small", "paper"], tmp_path: Path) -> None:
    requested = replace(options(tmp_path), scale=scale)
    subjects = private_prediction.voting_subjects(requested) + private_prediction.neighbour_subjects(requested)
    assert {subject.algorithm for subject in subjects} == {"PATE", "CaPC", "PromptPATE", "Private-kNN"}
    for subject in subjects:
        assert private_prediction._queries(subject, requested) <= len(subject.data.load(seed=0)) // 10


@pytest.mark.usefixtures("tiny")
def test_figures_by_order_are_read_off_the_runs_of_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not nightly.on():  # a dozen pictures take three seconds
        monkeypatch.setattr(private_prediction, "_lines_by_order", lambda *_: None)
        monkeypatch.setattr(private_prediction.style, "save", _not_drawn)
    requested = replace(options(tmp_path), only=("Private-kNN",))
    reproduction = private_prediction.figures_7_to_31(requested)
    rows = rows_of(reproduction)
    assert {int(row["figure"]) for row in rows} == set(range(25, 32))
    assert {row["query"] for row in rows if row["figure"] in ("25", "27")} == {"worst"}
    for row in rows:
        assert 0 <= float(row["2-cut"]) <= float(row["exact"]) <= float(row["claim"])
    units = {path.name: path.stat().st_mtime_ns for path in tmp_path.rglob("units/*")}
    check_bars(private_prediction.figure_5(requested), {"Private-kNN": 5})
    assert {path.name: path.stat().st_mtime_ns for path in tmp_path.rglob("units/*")} == units


def _not_drawn(figure: object, folder: Path, name: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.png").write_bytes(b"not drawn")


def test_figures_7_to_31_are_as_many_as_the_papers() -> None:
    numbers = [
        first + place
        for first, (_, adversaries) in private_prediction.SERIES.items()
        for place in range(sum(map(len, adversaries.values())))
    ]
    assert numbers == list(range(7, 32))


def test_only_must_name_something(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--only must name"):
        private_prediction.figure_5(replace(options(tmp_path), only=("nothing",)))


def test_data_must_hold_what_the_figures_take(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--data must hold a folder such as mnist or sst2"):
        private_prediction.figure_3(replace(options(tmp_path / "out"), data=tmp_path))
