"""Audits as trials of Ray Tune, and a sweep as Ray Tune's `ResultGrid`."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import pytest

from dpaudit import AuditSpec, objective, sweep
from dpaudit.engine.planning.plan import make_plan
from dpaudit.engine.sweep.objective import _number
from dpaudit.engine.sweep.request import read_request
from dpaudit.errors import InputError, RunError, SpecError
from tests.engine.test_sweep import base

SPACE = {"mechanism.sharpness": [1.0, 3.0]}


class Context:
    """The context of a trial."""

    def __init__(self, number: int, folder: Path, filesystem: Any = None) -> None:
        from pyarrow import fs

        self.number, self.trial_fs_path = number, str(folder)
        self.storage_filesystem = filesystem or fs.LocalFileSystem()

    def get_trial_id(self) -> str:
        return f"a1b2_{self.number:05d}"

    def get_trial_dir(self) -> str:
        return self.trial_fs_path

    def get_storage(self) -> Context:
        return self


@pytest.fixture
def reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[dict[str, Any]]:
    """Run trials in this process, numbered in order; return what they report."""
    metrics: list[dict[str, Any]] = []

    def context() -> Context:
        return Context(len(metrics), tmp_path / str(len(metrics)))

    monkeypatch.setattr("ray.tune.get_context", context)
    monkeypatch.setattr("ray.tune.report", metrics.append)
    return metrics


def test_a_trial_audits_its_config_and_shares_the_error(reported: list[dict[str, Any]], tmp_path: Path) -> None:
    trial = objective(base(run={"figures": False}), trials=2)
    for sharpness in (1.0, 3.0):
        trial({"mechanism.sharpness": sharpness})
    for number, metrics in enumerate(reported):
        assert metrics["verdict"] in ("INCONCLUSIVE", "NO VIOLATION FOUND", "NO CLAIM")
        assert metrics["audited_epsilon"] >= 0
        assert 0 < metrics["test_accuracy"] <= 1
        assert metrics["confidence"] == pytest.approx(0.975)
        content = json.loads((tmp_path / str(number) / "audit" / "bounds.json").read_text())
        assert content["results"][0]["finding"]["lower"] == metrics["audited_epsilon"]
    with pytest.raises(InputError, match="shared by 2 trials, this is number 3"):
        trial({"mechanism.sharpness": 1.0})


def test_trials_with_equal_configs_draw_from_other_seeds(reported: list[dict[str, Any]], tmp_path: Path) -> None:
    """Else a search could choose by the randomness of earlier trials."""
    trial = objective(base(), trials=2, output=tmp_path / "output")
    for _ in range(2):
        trial({"mechanism.sharpness": 2.0})
    seeds = {json.loads((tmp_path / f"output/trial-0000{n}/bounds.json").read_text())["seed"] for n in range(2)}
    assert len(seeds) == 2


def test_the_number_of_a_trial_of_a_search_algorithm_is_in_its_folder(tmp_path: Path) -> None:
    class Searched(Context):
        def get_trial_id(self) -> str:
            return "38d8b22f"

    for name, number in (("trial_38d8b22f_1_epochs=2,rate=0.5_2026-11-29", 0), ("trial_38d8b22f_12", 11)):
        assert _number(Searched(0, tmp_path / name)) == number
    with pytest.raises(InputError, match="Leave `trial_dirname_creator` out"):
        _number(Searched(0, tmp_path / "mine"))


def test_a_wrong_objective_is_refused(
    reported: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InputError, match="trials must be >= 1"):
        objective(base(), trials=0)
    with pytest.raises(SpecError, match="has no field 'sharpnes'"):
        objective(base(), trials=1)({"mechanism.sharpnes": 1.0})
    with pytest.raises(RunError, match="the loss is no finite number"):
        objective(base(), trials=1)({"mechanism.sharpness": -1.0})
    monkeypatch.setattr("ray.tune.get_context", lambda: Context(0, tmp_path, object()))
    with pytest.raises(InputError, match="Give `output`"):
        objective(base(), trials=1)({"mechanism.sharpness": 1.0})


def test_a_sweep_as_a_result_grid(tmp_path: Path) -> None:
    from ray.tune import ResultGrid

    values = {"mechanism.sharpness": [1.0, 3.0, -1.0]}
    result = sweep(base(grid=values), output=tmp_path, quiet=True)
    grid = result.result_grid
    assert isinstance(grid, ResultGrid)
    assert (len(grid), grid.num_errors, grid.num_terminated) == (3, 1, 2)
    assert "sharpness" in str(grid.errors[0])
    assert grid.experiment_path == result.experiment_path
    assert [each.config for each in grid] == [trial.config for trial in result]
    best = grid.get_best_result()
    assert best.config == result.get_best_result().config
    assert best.metrics["audited_epsilon"] == result.get_best_result().audited
    assert grid.get_best_result("audited_epsilon", "min").metrics["audited_epsilon"] == min(
        trial.audited for trial in result if trial.is_audited
    )
    assert list(grid.get_dataframe()["config/mechanism.sharpness"]) == [1.0, 3.0, -1.0]


def test_the_spec_of_the_example_and_its_space_can_be_planned() -> None:
    program = runpy.run_path("examples/tune/optuna_search.py")
    request = read_request(program["SPEC"])
    values = {"mechanism.epsilon": 1.5, "mechanism.model.epochs": 3}
    (entry,) = make_plan(AuditSpec((request.audit(request.configuration(values)),))).audits
    assert (entry.audit.mechanism.epsilon, entry.audit.mechanism.model.epochs) == (1.5, 3)


@pytest.mark.nightly
@pytest.mark.ray
def test_the_example_searches_with_optuna(
    ray_cluster: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("optuna")
    monkeypatch.setattr("sys.argv", ["optuna_search.py", "--trials", "2", "--output", str(tmp_path)])
    runpy.run_path("examples/tune/optuna_search.py", run_name="__main__")
    printed = capsys.readouterr().out
    assert sum(printed.count(verdict) for verdict in ("NO VIOLATION FOUND", "INCONCLUSIVE")) == 2
    assert len([*tmp_path.glob("*/*/audit/bounds.json")]) == 2


@pytest.mark.nightly  # by day trials run without a Tuner
@pytest.mark.ray
def test_a_tuner_runs_audits_next_to_each_other_and_with_workers_of_their_own(
    ray_cluster: None, tmp_path: Path
) -> None:
    """Two trials at a time in their processes; then trials that hold little and start actors, with a scheduler."""
    from ray import tune
    from ray.tune.schedulers import ASHAScheduler

    def results(runner: str, **config: Any) -> Any:
        run = {"runner": runner, "workers": 1, "figures": False, "repeats": 0}
        trial = tune.with_resources(objective(base(run=run), trials=2), {"cpu": 0.5})
        return tune.Tuner(
            trial,
            param_space={"mechanism.sharpness": tune.grid_search([1.0, 3.0])},
            tune_config=tune.TuneConfig(metric="test_accuracy", mode="max", **config),
            run_config=tune.RunConfig(name=runner, storage_path=str(tmp_path), verbose=0),
        ).fit()

    inside = results("auto", max_concurrent_trials=2)
    nested = results("ray", scheduler=ASHAScheduler(), max_concurrent_trials=1)
    assert (inside.num_errors, nested.num_errors) == (0, 0)
    for first, second in zip(inside, nested, strict=True):
        assert first.metrics["audited_epsilon"] == second.metrics["audited_epsilon"]
        assert first.metrics["test_accuracy"] == second.metrics["test_accuracy"]
    assert inside.get_best_result().metrics["verdict"]
    assert len([*tmp_path.glob("*/*/audit/bounds.json")]) == 4
