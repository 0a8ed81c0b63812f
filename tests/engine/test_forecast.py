"""The forecast of a plan, compared with arithmetic by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from dpaudit import audit, load_spec
from dpaudit.actors.events import Event, EventKind, EventLog
from dpaudit.engine.cli.main import main
from dpaudit.engine.cli.planned_run import forecast, times_of_run
from dpaudit.engine.planning.plan import make_plan

SPEC = {
    "name": "cost",
    "data": {"name": "gaussian-mixture", "rows": 400},
    "split": {"target": 0.5, "reference": 0.3, "test": 0.2},
    "mechanism": {"name": "gaussian-naive-bayes", "epsilon": 1.0},
    "game": {"name": "membership", "trainings": 3, "replays": 1},
    "attack": "calibrated-loss",
    "run": {"runner": "in-process", "figures": False, "repeats": 0},
}
MORE = {**SPEC, "game": {"name": "membership", "trainings": 6, "replays": 1}}
STACKS = {
    **SPEC,
    "mechanism": {"name": "non-private", "model": "mlp"},
    "attack": "lira-online",
    "game": {"name": "ind-mia", "trials": 64, "shadows": 32, "stack": 16, "population": 20},
    "run": {"runner": "ray", "resources": {"gpus": 0.5}, "workers": 4},
}


def test_the_forecast_counts_unfinished_units(monkeypatch: pytest.MonkeyPatch) -> None:
    """32 shadow models of 0.5 s and 64 trials in stacks of 16, of which one stack is finished."""
    plan = make_plan(load_spec(STACKS))
    trials = [unit for unit in plan.units if unit.function_name == "make_runs"]
    times = ({trials[0].key}, {"train_shadows": 0.5, "make_runs": 0.5})
    monkeypatch.setattr("dpaudit.engine.cli.planned_run.times_of_run", lambda folder: times)
    estimate = forecast(plan, Path("runs/small"))
    assert (len(trials), estimate.trainings) == (4, 96)
    assert estimate.seconds == 32 * 0.5 + 48 * 0.5
    assert estimate.unfinished == len(plan.units) - 1
    assert estimate.untimed == sum(unit.function_name not in times[1] for unit in plan.units) > 0
    assert estimate.lines[1:] == (
        f"40 s of work left, without {estimate.untimed} units that cannot be estimated, by the times of runs/small",
    )


def test_an_earlier_run_times_the_units(tmp_path: Path) -> None:
    audit(load_spec(SPEC), output=tmp_path / "run", quiet=True)
    plan, (finished, seconds) = make_plan(load_spec(SPEC)), times_of_run(tmp_path / "run")
    assert seconds.keys() == {unit.function_name for unit in plan.units}
    estimate = forecast(plan, tmp_path / "run")
    assert (estimate.unfinished, estimate.untimed, estimate.seconds, estimate.trainings) == (0, 0, 0, 3)
    more = make_plan(load_spec(MORE))
    before = forecast(more, tmp_path / "run")
    key = next(unit.key for unit in plan.units if unit.function_name == "train_model")
    log = EventLog(tmp_path / "run" / "events.jsonl")
    for _ in range(9):
        log(Event(EventKind.UNIT_DONE, key, seconds=1000.0))
    log.close()
    after = forecast(more, tmp_path / "run")
    untrained = sum(unit.function_name == "train_model" and unit.key not in finished for unit in more.units)
    assert untrained >= 3
    assert after.seconds - before.seconds == pytest.approx(untrained * (1000.0 - seconds["train_model"]))
    assert times_of_run(tmp_path) == (set(), {})


def test_plan_prints_the_forecast_as_text_and_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("spec.yaml").write_text(json.dumps(SPEC))
    text = CliRunner().invoke(main, ["plan", "spec.yaml"], catch_exceptions=False).output
    assert "3 trainings; --timings RUN estimates the time from an earlier run" in text
    plan = json.loads(CliRunner().invoke(main, ["plan", "spec.yaml", "--json"], catch_exceptions=False).output)
    assert plan["cost"]["trainings"] == 3
    assert {"key", "label", "task", "seed", "needs", "cpus", "gpus", "memory", "custom", "pieces"} == plan["units"][
        0
    ].keys()
