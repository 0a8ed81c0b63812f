"""Power of sweeps: choice of the game, maximum measured without privacy, and meaning of differences of utility."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from dpaudit import Verdict
from dpaudit.engine.answer.sweep_summary import SweepRow, SweepSummary
from dpaudit.engine.cli.main import main
from dpaudit.engine.request.plain_yaml import to_yaml
from dpaudit.engine.request.sweep import Configuration, Sweep
from dpaudit.engine.sweep.request import read_request
from dpaudit.engine.sweep.running import sweep

TABLE = {"name": "gaussian-mixture", "classes": 2, "rows": 600}


def spec(mechanism: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {
        "name": "power",
        "seed": 1,
        "data": TABLE,
        "split": {"target": 0.5, "reference": 0.2, "test": 0.3},
        "mechanism": mechanism,
        "grid": {"mechanism.epsilon": [1, 2]},
        "sweep": {"maximise": "test accuracy"},
        "run": {"runner": "in-process", "figures": False},
        **fields,
    }


LP_1ST = {"name": "lp-1st", "epsilon": 1, "model": "logistic-regression"}
PERCEPTRON = {"name": "mlp", "hidden": [4], "epochs": 1}


@pytest.mark.parametrize(
    ("content", "game"),
    [
        (spec(LP_1ST), "label-crafted"),
        (spec({"name": "lp-2st", "epsilon": 1, "model": "logistic-regression"}), "label-crafted"),
        (spec({**LP_1ST, "model": PERCEPTRON}), "label-crafted"),
        (spec({"name": "pate", "epsilon": 1, "model": "logistic-regression"}), "teacher-votes"),
        (spec({**LP_1ST, "model": "small-cnn"}, data="digits"), "label-canaries"),
        (spec({"name": "dp-sgd", "epsilon": 1, "delta": 1e-5, "model": PERCEPTRON}), "dp-sgd-training"),
        (spec(LP_1ST, game={"name": "label-inference", "replays": 2}), "label-inference"),
        (spec(LP_1ST, proxy="model"), None),
        (spec(LP_1ST, grid={"game": ["label-canaries", "label-inference"], "mechanism.epsilon": [1]}), None),
    ],
)
def test_a_game_is_chosen_by_power_unless_the_spec_names_one(content: dict[str, Any], game: str | None) -> None:
    """None is the default game of an audit."""
    request = read_request(content)
    chosen = request.base.game
    assert (chosen["name"] if isinstance(chosen, dict) else chosen) == game


def test_a_restored_sweep_keeps_its_game(tmp_path: Path) -> None:
    request = read_request(spec(LP_1ST))
    request.write(tmp_path)
    assert "label-crafted" in (tmp_path / "sweep.yaml").read_text()
    assert read_request(tmp_path / "sweep.yaml").base.game == request.base.game


def summary_of(content: dict[str, Any], folder: Path) -> SweepSummary:
    report = sweep(content, output=folder, quiet=True).report
    assert report.sweep is not None
    return report.sweep


@pytest.mark.parametrize("game", ["label-canaries", "label-inference"])
def test_a_sweep_whose_audits_cannot_see_is_inconclusive(game: str, tmp_path: Path) -> None:
    """A logistic regression of a few features remembers no labels, so even without privacy it shows nothing."""
    summary = summary_of(spec(LP_1ST, game={"name": game, "replays": 10}), tmp_path)
    assert [row.verdict for row in summary.rows] == [Verdict.INCONCLUSIVE] * 2
    assert summary.is_blind
    assert all(row.ceiling < 0.5 for row in summary.rows)
    assert "INCONCLUSIVE: no audit could have rejected its claim" in str(summary)
    assert str(summary).count("could not reject") == 2


def test_a_sweep_whose_model_remembers_labels_can_see(tmp_path: Path) -> None:
    """The honest twin: the model recalls the label of each training row, so the measured maximum exceeds the claims."""
    content = spec({**LP_1ST, "model": "recall"}, game={"name": "label-canaries", "replays": 10})
    summary = summary_of(content, tmp_path)
    assert not summary.is_blind
    assert [row.verdict for row in summary.rows] == [Verdict.NO_VIOLATION] * 2
    assert all(row.ceiling > 3 for row in summary.rows)
    assert "INCONCLUSIVE" not in str(summary)


def test_a_game_without_utility_gets_a_training_that_measures_it(tmp_path: Path) -> None:
    game = {"name": "label-crafted", "search": 12, "releases": 8, "canaries": 16}
    summary = summary_of(spec(LP_1ST, game=game, grid={"mechanism.epsilon": [8]}), tmp_path)
    (row,) = summary.rows
    assert 0.5 < row.utility <= 1
    assert row.metrics["test_accuracy_error"] > 0


def test_the_plan_says_in_one_line_what_each_audit_can_show(tmp_path: Path) -> None:
    path = tmp_path / "sweep.yaml"
    path.write_text(to_yaml(spec(LP_1ST, game={"name": "label-canaries", "canaries": 4, "replays": 2})))
    output = CliRunner().invoke(main, ["plan", str(path)], catch_exceptions=False).output
    assert "what each audit can show if the model reveals as much as its mechanism allows:" in output
    assert "  epsilon=1: claims 1; can show at most 0" in output
    assert output.count("it cannot reject its claim") == 2
    assert "trainings without privacy, to measure what these audits can show of their models: 1" in output


def test_the_plan_has_a_line_for_an_audit_that_chooses_its_data_in_the_run(tmp_path: Path) -> None:
    path, rest = tmp_path / "spec.yaml", "the run computes what it can show\n"
    content = spec(LP_1ST, game={"name": "label-crafted", "search": 12, "releases": 8, "canaries": 16})
    path.write_text(to_yaml(content))
    swept = CliRunner().invoke(main, ["plan", str(path)], catch_exceptions=False).output
    assert f"  epsilon=1: claim: epsilon <= 1 at delta=0 (label); {rest}" in swept
    assert swept.count(rest) == 2
    path.write_text(to_yaml({name: value for name, value in content.items() if name not in ("grid", "sweep")}))
    alone = CliRunner().invoke(main, ["plan", str(path)], catch_exceptions=False).output
    assert f":\n  claim: epsilon <= 1 at delta=0 (label); {rest}" in alone


# What differences of utility mean


def row(name: str, utility: float, verdict: Verdict = Verdict.NO_VIOLATION, error: float = 0.01) -> SweepRow:
    metrics = {"test_accuracy": utility, "test_accuracy_error": error, "majority_accuracy": 0.75}
    return SweepRow(
        Configuration(name, {}), utility, metrics, 0.1, 1.0, 3.0, verdict.value, "finite-sample", meets=True
    )


def summary(*rows: SweepRow) -> SweepSummary:
    return SweepSummary(Sweep(space={"mechanism.epsilon": [1]}, count=len(rows)), rows, 0.95)


def test_close_utilities_and_the_majority_are_named() -> None:
    text = " ".join(summary(row("a", 0.80), row("b", 0.79), row("c", 0.76), row("d", 0.75)).lines)
    assert "of 1 of the other 3 configurations is within two standard errors of the best" in text
    assert "Always answering the most frequent label: test accuracy 0.7500. 2 of 4 configurations are not above" in text


def test_clear_differences_are_not_called_close() -> None:
    text = " ".join(summary(row("a", 0.95), row("b", 0.85)).lines)
    assert "two standard errors of the best" not in text
    assert "0 of 2 configurations are not above it" in text


def test_unknown_errors_give_no_sentence() -> None:
    unknown = row("a", 0.9, error=math.nan)
    assert not any("standard errors" in line for line in summary(unknown, unknown).lines)


def test_some_blind_audits_do_not_make_the_sweep_inconclusive() -> None:
    mixed = summary(row("a", 0.9, Verdict.INCONCLUSIVE), row("b", 0.8))
    assert not mixed.is_blind
    assert "1 of 2 audits could not have rejected their claims" in " ".join(mixed.lines)
