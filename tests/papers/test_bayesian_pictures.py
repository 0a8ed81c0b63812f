"""Figures of arXiv:2206.05199: their numbers, compared with printed ones if there are any, and their files."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from dpaudit.claims import SubsampledGaussian
from dpaudit.estimators.two_world.confusion import epsilon_interval
from papers import bayesian_figures as intervals
from papers import bayesian_pictures as pictures
from papers.data_files import bayesian_intervals
from papers.reproduction import Options


@pytest.fixture
def coarse(monkeypatch: pytest.MonkeyPatch) -> None:
    """A claim that need not be searched for."""
    monkeypatch.setattr(pictures, "_noise", lambda: 0.937)


def rows(folder: Path, name: str) -> list[dict[str, str]]:
    with (folder / name / f"{name}.csv").open() as lines:
        return list(csv.DictReader(lines))


def test_the_example_has_the_printed_intervals_and_masses(tmp_path: Path) -> None:
    reproduction = pictures.figure_3(Options(tmp_path))
    assert all(path.stat().st_size > 100 for path in reproduction.files)
    assert "Bayesian (0.522, 1.267), Jeffreys (0.321, 1.456)" in reproduction.text
    masses = {row["of"]: float(row["posterior mass"]) for row in rows(tmp_path, "figure-3")}
    # Two intervals of 97.5 % make a rectangle of 0.975^2; the regions around it hold far more than 95 %.
    assert masses["the rectangle"] == pytest.approx(0.975**2, abs=1e-6)
    assert masses["the regions around the rectangle"] == pytest.approx(0.998, abs=0.0015)
    assert masses["the regions of the Bayesian interval"] == pytest.approx(0.95, abs=1e-4)


def test_the_posterior_narrows_about_the_truth(tmp_path: Path) -> None:
    pictures.figure_7(Options(tmp_path))
    figure_rows = rows(tmp_path, "figure-7")
    widths = [float(row["upper"]) - float(row["lower"]) for row in figure_rows]
    assert widths == sorted(widths, reverse=True)
    assert float(figure_rows[-1]["lower"]) < 0.875 < float(figure_rows[-1]["upper"])
    # An end at 0 takes the whole mass there in.
    assert all(float(row["mass"]) == pytest.approx(0.9, abs=1e-3) for row in figure_rows if float(row["lower"]) > 0)


def test_the_posterior_of_dp_sgd_lies_below_its_accountant(tmp_path: Path, coarse: None) -> None:
    reproduction = pictures.figure_1(Options(tmp_path))
    assert "shorter than Clopper-Pearson's" in reproduction.text
    densest = max(rows(tmp_path, "figure-1"), key=lambda row: float(row["density"]))
    assert 1 < float(densest["epsilon"]) < pictures.ACCOUNTED


def test_the_whole_curve_allows_less_than_its_one_point_and_half_the_noise_crosses_it(
    tmp_path: Path, coarse: None
) -> None:
    reproduction = pictures.figure_2(Options(tmp_path))
    assert "the curve is crossed: claimed epsilon" in reproduction.text
    for row in rows(tmp_path, "figure-2"):
        assert float(row["dp-sgd"]) >= float(row["one point"]) - 1e-9
    claimed = SubsampledGaussian(noise_multiplier=0.937, sample_rate=0.1, steps=100)
    assert claimed.epsilon(1e-5) == pytest.approx(8.0, abs=0.05)


def test_intervals_are_narrower_by_what_the_paper_prints_in_the_corner_that_it_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The paper prints 20 to 32 % than Jeffreys', 36 to 52 % than Clopper-Pearson's; a square below 50 % shows less."""
    monkeypatch.setattr(intervals, "SQUARE", intervals.Region("square", range(10, 500, 40), range(10, 500, 40)))
    monkeypatch.setattr(intervals, "REGIONS", (intervals.SQUARE, intervals.BELOW_HALF, intervals.CORNER))
    reproduction = intervals.figure_5(Options(tmp_path / "bayesian"))
    assert all(path.stat().st_size > 100 for path in reproduction.files)
    assert "36% to 51% than clopper-pearson: 1 to 5 false alarms, 400 to 495 misses" in reproduction.text
    assert "24% to 38% than jeffreys: 1 to 5 false alarms, 400 to 495 misses" in reproduction.text
    intervals.figure_4(Options(tmp_path / "bayesian"))
    values = {(row.settings().get("rates", ""), row.what): row.value for row in bayesian_intervals(tmp_path)}
    assert [values["", f"samples, {name}"] for name in ("Clopper-Pearson", "Bayesian")] == ["1480", "560"]
    assert values["both rates 1 to 49 %", "narrower than Clopper-Pearson, most, %"] == "41.7"
    # The largest reduction, computed without the tables.
    ends = {
        method: epsilon_interval(11, 1, 499, 489, delta=1e-5, confidence=0.9, method=method)
        for method in ("bayesian", "clopper-pearson")
    }
    bayesian, exact = (float(end.upper) - float(end.lower) for end in ends.values())
    most = float(values["1 to 5 false alarms, 400 to 495 misses", "narrower than Clopper-Pearson, most, %"])
    assert most == pytest.approx(100 * (1 - bayesian / exact), abs=0.05)
