"""Teachers as units: the scores are those of one training, on workers that are killed too."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from dpaudit import AuditSpec, audit, load_spec
from dpaudit.actors.backend import Deadlines
from dpaudit.actors.events import Event, EventKind, read_events
from dpaudit.actors.seed import Seed
from dpaudit.actors.unit import Unit
from dpaudit.actors.work import make_call
from dpaudit.engine.data.bundled import Digits
from dpaudit.engine.games import taught
from dpaudit.engine.planning.plan import Plan, make_plan
from dpaudit.mechanisms.labels.randomized_response import RandomizedResponse
from dpaudit.mechanisms.learners.pate import PATE, PateFm
from dpaudit.mechanisms.models.networks import SmallCnn
from dpaudit.mechanisms.models.tables import LogisticRegression
from dpaudit.mechanisms.predictors import ensemble
from dpaudit.mechanisms.teachers import has_separate_teachers

TEACHERS = 64
LOGISTIC = {"name": "logistic-regression"}


def learner_spec(model: Any, run: dict[str, Any] | None = None, game: str = "label-inference") -> AuditSpec:
    shares = {"target": 0.5, "reference": 0.4, "test": 0.1}
    return load_spec(
        {
            "name": "taught",
            "seed": 5,
            "data": {"name": "gaussian-mixture", "rows": 1600, "classes": 3},
            "game": {"name": game, "replays": 2} if game == "label-inference" else {"name": game, "shadows": 2},
            "split": shares,
            "audits": [
                {
                    "mechanism": {"name": "pate", "epsilon": 4.0, "teachers": TEACHERS, "queries": 60, "model": model},
                    **(
                        {"claim": {"epsilon": 4.0, "delta": 1e-5, "relation": "add-remove"}}
                        if game == "membership"
                        else {}
                    ),
                }
            ],
            "run": run or {"runner": "in-process"},
        }
    )


def predictor_spec() -> AuditSpec:
    return load_spec(
        {
            "name": "predicts",
            "seed": 5,
            "data": {"name": "gaussian-mixture", "rows": 600, "classes": 3},
            "game": {"name": "private-prediction", "queries": 3, "runs": 2, "moved_runs": 2, "answers": 1000},
            "split": {"target": 0.8, "reference": 0.0, "test": 0.2},
            "audits": [{"mechanism": {"name": "pate-predictor", "teachers": 10, "model": LOGISTIC}}],
            "run": {"runner": "in-process"},
        }
    )


def scores(folder: Path) -> list[str]:
    """Return the score tables as text, in which NaN equals NaN."""
    files = sorted((folder / "scores").rglob("*.parquet"))
    assert files
    return [str(pq.read_table(path).to_pydict()) for path in files]


def labels(plan: Plan, containing: str) -> list[str]:
    return [unit.label for unit in plan.units if containing in unit.label]


def test_the_plan_has_teachers_answers_and_student() -> None:
    plan = make_plan(learner_spec(LOGISTIC))
    teachers = labels(plan, "training 1 of 1, teachers")
    assert len(teachers) == TEACHERS
    assert teachers[-1] == f"training 1 of 1, teachers {TEACHERS}-{TEACHERS}"
    by_label = {unit.label: unit for unit in plan.units}
    answers, student = by_label["training 1 of 1, answers"], by_label["training 1 of 1"]
    assert set(answers.needs) == {by_label[label].key for label in teachers}
    assert answers.key in student.needs
    assert not set(student.needs) & set(answers.needs)


def test_small_networks_are_trained_in_stacks_and_large_ones_alone() -> None:
    small = make_plan(learner_spec({"name": "mlp", "hidden": [16]}))
    groups = [f"training 1 of 1, teachers {first + 1}-{first + 16}" for first in range(0, TEACHERS, 16)]
    assert labels(small, ", teachers") == groups
    large = make_plan(learner_spec({"name": "mlp", "hidden": [1200, 1200]}))
    assert len(labels(large, ", teachers")) == TEACHERS


def test_fix_match_teachers_are_trained_one_by_one() -> None:
    """A stack of them would be trained one after another in one unit."""
    assert PateFm(1.0, model=SmallCnn()).together(Digits().load()) == 1


def test_only_trainings_hold_a_gpu() -> None:
    plan = make_plan(learner_spec(LOGISTIC, {"runner": "ray", "resources": {"gpus": 0.5}}))
    gpus = {unit.label: unit.resources.gpus for unit in plan.units}
    assert gpus["training 1 of 1, teachers 1-1"] == gpus["training 1 of 1"] == 0.5
    assert gpus["training 1 of 1, answers"] == 0


def test_shadow_models_have_teachers_too() -> None:
    plan = make_plan(learner_spec(LOGISTIC, game="membership"))
    assert len(labels(plan, "shadow model 2 of 2, teachers")) == TEACHERS


def test_each_trial_of_two_worlds_is_a_unit() -> None:
    """A stack of 64 trainings of 64 teachers each would be one unit of 4,096 trainings."""
    trials = {"name": "ind-mia", "trials": 6, "shadows": 4}
    spec = load_spec(
        {
            "data": {"name": "gaussian-mixture", "rows": 800, "classes": 3},
            "game": trials,
            "split": {"target": 0.9, "reference": 0.0, "test": 0.1},
            "audits": [
                {
                    "mechanism": {
                        "name": "pate",
                        "epsilon": 4.0,
                        "teachers": TEACHERS,
                        "queries": 60,
                        "model": LOGISTIC,
                    },
                    "claim": {"epsilon": 4.0, "delta": 1e-5, "relation": "add-remove"},
                }
            ],
            "run": {"runner": "in-process"},
        }
    )
    plan = make_plan(spec)
    assert sum(label.startswith("fresh runs") for label in labels(plan, "fresh runs")) == 6
    assert len(labels(plan, "shadow models")) == 2


@pytest.mark.parametrize("model", [LOGISTIC, {"name": "mlp", "hidden": [8], "epochs": 2}], ids=["logistic", "network"])
def test_the_scores_are_those_of_one_training(
    model: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    audit(learner_spec(model), output=tmp_path / "units")
    monkeypatch.setattr(taught, "has_separate_teachers", lambda mechanism: False)
    audit(learner_spec(model), output=tmp_path / "one")
    assert scores(tmp_path / "units") == scores(tmp_path / "one")


def test_a_predictor_s_answers_are_those_of_one_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(labels(make_plan(predictor_spec()), "training 2 of 2, teachers")) == 10
    audit(predictor_spec(), output=tmp_path / "units")
    monkeypatch.setattr("dpaudit.engine.games.predictions.game.has_separate_teachers", lambda predictor: False)
    audit(predictor_spec(), output=tmp_path / "one")
    assert scores(tmp_path / "units") == scores(tmp_path / "one")


def test_a_learner_that_trains_in_another_way_stays_whole() -> None:
    """Its `fit`, or its votes, would not be what the units do."""

    class OwnFit(PATE):
        fit = None  # type: ignore[assignment]

    class OwnVotes(ensemble.PatePredictor):
        votes = None  # type: ignore[assignment]

    assert has_separate_teachers(PATE(1.0))
    assert not has_separate_teachers(OwnFit(1.0))
    assert not ensemble.has_separate_teachers(OwnVotes())
    assert ensemble.has_separate_teachers(ensemble.PatePredictor())


class KillsTwice:
    """Kills the worker that has just finished a group of teachers, after the 10th and after the 30th."""

    def __init__(self) -> None:
        self.finished = self.kills = 0

    def __call__(self, event: Event) -> None:
        if event.kind is EventKind.UNIT_DONE and ", teachers" in event.label:
            self.finished += 1
            if self.finished in (10, 30):
                self.kills += 1
                os.kill(int(event.worker.rpartition(":")[2]), signal.SIGKILL)


def test_killed_workers_cost_only_the_teachers_that_they_trained(tmp_path: Path) -> None:
    """Two of four workers are killed."""
    audit(learner_spec(LOGISTIC), output=tmp_path / "in-process")
    kill = KillsTwice()
    run = {"runner": "processes", "workers": 4, "repeats": 0}
    audit(learner_spec(LOGISTIC, run), output=tmp_path / "killed", listeners=[kill])
    assert kill.kills == 2
    assert scores(tmp_path / "killed") == scores(tmp_path / "in-process")
    events = list(read_events(tmp_path / "killed" / "events.jsonl"))
    finished = [event.unit for event in events if event.kind is EventKind.UNIT_DONE]
    assert len(finished) == len(set(finished))
    interrupted = {event.unit for event in events if event.kind is EventKind.WORKER_LOST}
    started = [event.unit for event in events if event.kind is EventKind.UNIT_STARTED]
    assert {unit for unit in started if started.count(unit) > 1} <= interrupted


def teaching(mechanism: Any) -> Unit:
    """Return a unit that trains a teacher of the mechanism."""
    call = make_call(taught.train_teachers, mechanism, None, None, seed=Seed(0), first=0, last=1)
    return Unit(call, "")


def test_units_of_one_kind_train_the_same_kind_of_mechanism() -> None:
    """The derived time limit of a long training must not come from those of another learner."""
    pate, logistic = PATE(1.0), PATE(2.0, model=LogisticRegression())
    assert teaching(pate).kind_of_work == teaching(PATE(8.0)).kind_of_work == "train_teachers: PATE of CatBoost"
    assert teaching(logistic).kind_of_work == "train_teachers: PATE of LogisticRegression"
    assert teaching(RandomizedResponse(1.0)).kind_of_work == "train_teachers: RandomizedResponse"
    limits = Deadlines()
    limits.learn(teaching(pate), 1000.0)
    assert limits.limit_s(teaching(PATE(8.0))) == 30_000
    assert limits.limit_s(teaching(PateFm(1.0))) is None
