"""The comparison of label mechanisms at equal utility, and the paper's figures end to end at a tiny size."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.container import ErrorbarContainer
from scipy.stats import beta, binom

from dpaudit.engine.games.proxies import CalibratedModel
from dpaudit.engine.request.audit_spec import AuditSpec, RunOptions
from dpaudit.engine.run.driver import audit
from dpaudit.mechanisms.labels.proportions import GeometricProportions, LabelProportions, LaplaceProportions
from dpaudit.mechanisms.labels.randomized_response import RandomizedResponse
from dpaudit.mechanisms.models.tables import LogisticRegression
from papers import label_inference
from papers.advantages_compared import frontier
from papers.label_comparison import RANDOMIZED_RESPONSE, LabelStudy, MechanismSetting
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


def test_the_frontier_names_each_curve_once_and_below_its_panels() -> None:
    """Eight curves in a panel leave no room for a legend; a curve has the same colour in every panel."""
    first = LabelStudy("data", (*RESPONSES, setting("llp", 0.7, 2.0)))
    second = LabelStudy("other", (setting("llp", 0.65, 1.5), *RESPONSES))
    figure = frontier([first, second]).figure
    assert all(axes.get_legend() is None for axes in figure.axes)
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [RANDOMIZED_RESPONSE, "llp"]
    colours = [
        {bars.get_label(): bars.lines[0].get_color() for bars in axes.containers if isinstance(bars, ErrorbarContainer)}
        for axes in figure.axes[:2]
    ]
    assert colours[0] == colours[1]
    assert len(set(colours[0].values())) == 2


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
    monkeypatch.setattr(label_inference, "ESTIMATED", CalibratedModel(LogisticRegression()))


def test_beliefs_are_drawn_of_every_mechanism_of_the_paper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small(monkeypatch)
    reproduction = label_inference.figure_2(options(tmp_path))
    table = rows(reproduction.files[1])
    data = ["Beta(2, 30) priors", "Beta(5, 5) priors", "criteo-synthetic"]
    assert [row["data"] for row in table[::4]] == data[:SETS]
    four = ["randomized-response", "llp", "llp-laplace", "llp-geometric"]
    assert [row["mechanism"].split(",")[0] for row in table] == four * SETS


def test_figure_1_has_its_releases_of_a_part_of_the_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other rows are for the model of the priors; the text has the paper's one number and ours."""
    small(monkeypatch)
    monkeypatch.setattr(label_inference, "RUNS", 3)
    monkeypatch.setattr(label_inference, "RUN_ROWS", {"small": 100})
    specs: list[AuditSpec] = []

    def recorded(spec: AuditSpec, **settings: Any) -> Any:
        specs.append(spec)
        return audit(spec, **settings)

    monkeypatch.setattr(label_inference, "audit", recorded)
    reproduction = label_inference.figure_1(options(tmp_path))
    mechanisms = [entry.mechanism for entry in specs[0].audits]
    assert len(mechanisms) == 12 * SETS
    assert sum(isinstance(mechanism, LaplaceProportions) for mechanism in mechanisms) == 3 * SETS
    assert {entry.game.releases for entry in specs[0].audits} == {3}
    assert {entry.split.target for entry in specs[0].audits} == {0.25}
    table = rows(reproduction.files[1])
    (response,) = [row for row in table if row["mechanism"] == "randomized-response, ε = 1" and "5, 5" in row["data"]]
    line = reproduction.text.splitlines()[-1]
    assert line.startswith("Response at ε = 1: 0.00095 on one data set of the paper; ")
    assert f"{float(response['additive advantage']):.5f} on Beta(5, 5) priors" in line


def test_rates_of_the_theorems_are_slopes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Theorem 3.2 in closed form: a fair label's advantage is E|S/k - 1/2|, about 0.4 k^-0.5."""
    monkeypatch.setattr(label_inference, "RATE_SIZES", (2, 8, 32, 128))
    monkeypatch.setattr(label_inference, "RATE_BAGS", 20)
    reproduction = label_inference.rates(options(tmp_path))
    assert all(path.stat().st_size > 100 for path in reproduction.files)
    table = rows(reproduction.files[1])
    slopes = {(row["theorem"], row["priors"]): float(row["slope"]) for row in table if row["slope"] not in ("", "nan")}
    assert slopes["3.3", "all 0.5"] == pytest.approx(-0.5, abs=0.02)
    assert slopes["3.4", "0.5 among Beta(5, 5)"] == pytest.approx(-0.5, abs=0.05)
    assert slopes["3.7", "all 0.5"] == pytest.approx(-0.5, abs=0.1)
    # The theorems are upper limits.
    assert all(value < -0.45 for value in slopes.values())
    (last,) = [row for row in table if (row["priors"], row["size"]) == ("all 0.5", "128") and row["theorem"] == "3.3"]
    sums = np.arange(129)
    exact = float(binom.pmf(sums, 128, 0.5) @ np.abs(sums / 128 - 0.5))
    assert float(last["advantage"]) == pytest.approx(exact)


def test_a_slope_leaves_small_bags_and_infinite_advantages_out() -> None:
    sizes = np.array(label_inference.RATE_SIZES, np.float64)
    advantages = 3.0 * sizes**-0.75
    advantages[sizes < label_inference.FITTED_FROM] = 100.0
    advantages[-1] = math.inf
    assert label_inference.slope(advantages) == pytest.approx(-0.75)
    assert math.isnan(label_inference.slope(np.full(len(sizes), math.inf)))


@pytest.mark.parametrize(("share", "size", "level"), [(0.5, 4, 0.5), (0.2, 16, 0.9), (0.5, 2, 0.98)])
def test_the_quantile_of_belief_shifts_is_that_of_many_bags(share: float, size: int, level: float) -> None:
    positives = np.random.default_rng(0).binomial(size, share, 20_001)
    with np.errstate(divide="ignore"):
        shifts = np.abs(np.log(positives / (size - positives)) - math.log(share / (1 - share)))
    expected = np.sort(shifts)[math.ceil(level * len(shifts)) - 1]
    assert label_inference.shift_quantile(share, size, level) == pytest.approx(expected)


def test_the_frontier_is_made_and_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Generated data at a small size; the tests of the figures read Adult and Criteo from their folders."""
    small(monkeypatch)
    settings = label_inference.frontier_settings()
    assert len(settings) == len(set(settings)) == 30
    few = [RandomizedResponse(1.0), LabelProportions(size=4), GeometricProportions(size=4, epsilon=1.0)]
    monkeypatch.setattr(label_inference, "frontier_settings", lambda: few)
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


def test_the_advantage_of_response_is_exact_where_no_sample_finds_it() -> None:
    """Compare with a sum over a fine grid of priors; 0.00095 is printed for another data set."""
    prior = (np.arange(2_000_000) + 0.5) / 2_000_000
    for epsilon in (0.5, 1.0):
        flip = 1 / (1 + math.exp(epsilon))
        gain = np.maximum(0.0, np.minimum(prior, 1 - prior) - flip)
        expected = float(np.mean(beta.pdf(prior, 2, 30) * gain))
        assert label_inference.response_advantage(epsilon, 2, 30) == pytest.approx(expected, rel=1e-4)
    assert label_inference.response_advantage(1.0, 2, 30) < 2e-5
