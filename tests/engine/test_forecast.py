"""What a plan is said to cost: from timed units, by arithmetic that can be done by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from dpaudit import audit, load_spec
from dpaudit.actors.events import Event, EventKind, EventLog
from dpaudit.engine.cli.main import main
from dpaudit.engine.planning.plan import make_plan
from dpaudit.engine.run.forecast import Kind, Timed, forecast, times_of_run, times_of_some

SPEC = {
    "name": "cost",
    "data": {"name": "gaussian-mixture", "rows": 400},
    "split": {"target": 0.5, "reference": 0.3, "test": 0.2},
    "mechanism": {"name": "gaussian-naive-bayes", "epsilon": 1.0},
    "game": {"name": "membership", "trainings": 3, "replays": 1},
    "run": {"runner": "in-process", "figures": False, "repeats": 0},
}
STACKS = {
    **SPEC,
    "mechanism": {"name": "non-private", "model": "mlp"},
    "game": {"name": "ind-mia", "trials": 64, "shadows": 32, "stack": 16, "population": 20},
    "run": {"runner": "ray", "gpus_per_worker": 0.5, "workers": 4},
}


def test_gpu_hours_are_what_is_held_times_how_long() -> None:
    """32 shadow models and 64 trials: 0.5 s a model on half a GPU, 2 s on a CPU."""
    plan = make_plan(load_spec(STACKS))
    timed = {
        Kind("train_shadows", 1, 0.5): Timed(1, 0.5, 100.0),
        Kind("train_trials", 1, 0.5): Timed(1, 0.5, 900.0),
        Kind("train_trials", 1, 0.0): Timed(1, 2.0, 900.0),
    }
    found = forecast(plan, timed, "by hand")
    costs = {cost.kind.task: cost for cost in found.kinds}
    assert (costs["train_shadows"].units, costs["train_shadows"].trainings, costs["train_shadows"].seconds) == (
        2,
        32,
        16,
    )
    assert (costs["train_trials"].units, costs["train_trials"].trainings, costs["train_trials"].seconds) == (4, 64, 32)
    assert costs["train_trials"].on_cpus_s == 128
    assert found.trainings == 96
    assert found.gpu_hours == pytest.approx(48 * 0.5 / 3600)
    assert found.cpu_hours == pytest.approx(48 / 3600)
    assert found.untimed_units == sum(cost.units for cost in found.kinds if "train" not in cost.kind.task) > 0
    assert {cost.kind.gpus for cost in found.kinds if "train" not in cost.kind.task} == {0.0}, "scores need no GPU"
    assert "on 4 workers 12 s at the least" in found.lines[-1]
    assert "32 s (8 s each, 900 MB); 3 min on CPUs" in "\n".join(found.lines)


def test_two_units_of_each_kind_tell_the_time_of_all(tmp_path: Path) -> None:
    plan = make_plan(load_spec(SPEC))
    timed = times_of_some(plan)
    kinds = {Kind.of(unit) for unit in plan.units}
    assert timed.keys() == {kind for kind in kinds if kind.task != "bound_replays"}
    assert timed[Kind("train_model", 1, 0.0)].units == 2
    assert all(one.seconds > 0 and 50 < one.memory_mb < 50_000 for one in timed.values())


def test_an_earlier_run_tells_the_time(tmp_path: Path) -> None:
    audit(load_spec(SPEC), output=tmp_path / "run", quiet=True)
    timed = times_of_run(tmp_path / "run")
    plan = make_plan(load_spec(SPEC))
    assert timed.keys() == {Kind.of(unit) for unit in plan.units}
    found = forecast(plan, timed, "")
    assert (found.untimed_units, found.trainings) == (0, 3)
    (trained,) = (cost for cost in found.kinds if cost.kind.task == "train_model")
    before = trained.seconds
    log = EventLog(tmp_path / "run" / "events.jsonl")
    key = next(unit.key for unit in plan.units if Kind.of(unit) == trained.kind)
    for _ in range(9):
        log(Event(EventKind.UNIT_DONE, key, seconds=1000.0))
    log.close()
    (trained,) = (c for c in forecast(plan, times_of_run(tmp_path / "run"), "").kinds if c.kind == trained.kind)
    assert (before or 0) < 60 < (trained.seconds or 0) == 3000.0
    assert times_of_run(tmp_path) == {}


def test_the_command_prints_it_and_as_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("spec.yaml").write_text(json.dumps(SPEC))
    shown = CliRunner().invoke(main, ["plan", "spec.yaml"], catch_exceptions=False).output
    assert "3 trainings; --calibrate or --timings RUN tells how long they take" in shown
    assert "train_model on 1 CPU: 3 units, 3 trainings, not timed" in shown
    made = json.loads(CliRunner().invoke(main, ["plan", "spec.yaml", "--json"], catch_exceptions=False).output)
    assert made["cost"]["trainings"] == 3
    assert made["cost"]["gpu_hours"] == 0
    assert {"key", "label", "task", "seed", "needs", "cpus", "gpus", "pieces"} == made["units"][0].keys()
