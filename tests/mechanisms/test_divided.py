"""Trainings whose batches several processes divide: the scores of one process, also after one of them was killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.random import SeedSequence
from numpy.typing import NDArray
from torch import Tensor, distributed

from dpaudit import ResourceRequest, RunOptions, audit, load_spec
from dpaudit.actors.audited.signals import child_processes
from dpaudit.actors.events import Event, EventKind
from dpaudit.actors.unit import Resources
from dpaudit.engine.planning.plan import make_plan
from dpaudit.engine.run.driver import Report
from dpaudit.errors import SpecError
from dpaudit.mechanisms.compute import Compute, TrainingError, spawned
from dpaudit.mechanisms.examples import Examples, Features
from dpaudit.mechanisms.learners.dp_sgd import DpSgd
from dpaudit.mechanisms.models.networks import Mlp, SmallCnn
from dpaudit.mechanisms.training import checkpoint
from dpaudit.mechanisms.training.private.private_stack import PrivateStack
from dpaudit.mechanisms.training.recipe import TrainingTask

SEED = SeedSequence(3)
DIGITS = 1e-5
"""Stated difference of scores of one and of several processes, relative to the largest."""


def same(scores: NDArray[Any], others: NDArray[Any]) -> bool:
    return bool(np.abs(scores - others).max() <= DIGITS * np.abs(others).max())


class KilledOnce(PrivateStack):
    """Training whose second process is killed in its sixth step, unless `mark` exists."""

    def __init__(self, *arguments: Any, mark: str, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.mark = Path(mark)

    def add_noise(self, noises: list[Any], deviation: float) -> None:
        super().add_noise(noises, deviation)
        if self.steps_done == 5 and self.group is not None and self.group.rank == 1 and not self.mark.exists():
            self.mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)


@dataclass(frozen=True)
class OnCpus(DpSgd):
    """DP-SGD that trains on CPUs in place of GPUs, and loses one of its processes once."""

    processes: int = 1
    mark: str = ""

    def stack_type(self) -> Any:
        return partial(KilledOnce, mark=self.mark)

    def fit_stack(self, features: Features, tasks: Sequence[TrainingTask], **settings: Any) -> Any:
        compute = settings.pop("compute")
        processes = max(compute.processes, self.processes)
        return super().fit_stack(
            features, tasks, compute=replace(compute, device="cpu", processes=processes), **settings
        )


def run(folder: Path, learner: OnCpus, gpus: float, runner: Any = "in-process") -> tuple[Report, list[Event]]:
    """Audit the learner by one training, whose unit requests `gpus`; return the report and the events."""
    words = {"name": "divided", "seed": 4, "data": {"name": "digits", "flat": True}, "game": "dp-sgd-steps"}
    spec = load_spec({**words, "mechanism": {"name": "dp-sgd", "epsilon": 8}})
    entry = replace(spec.audits[0], mechanism=learner, resources=ResourceRequest(gpus=gpus) if gpus else None)
    events: list[Event] = []
    options = RunOptions(runner=runner, repeats=0, figures=False)
    return audit(replace(spec, audits=(entry,), run=options), output=folder, listeners=[events.append]), events


def images(shape: tuple[int, ...], rows: int) -> Examples:
    features = np.random.default_rng(0).normal(size=(rows, *shape)).astype(np.float32)
    return Examples(features, (features.reshape(rows, -1)[:, 0] > 0).astype(np.int64), 2)


def watched(learner: DpSgd, processes: int, sums: list[NDArray[Any]]) -> None:
    """Train two models together, and note the noisy sums of each step."""
    data = images((20,), 300)
    tasks = [TrainingTask(np.arange(300), data.labels, seed) for seed in spawned(SEED, 2)]

    def note(places: NDArray[np.int64], step: int, weights: Tensor, noisy: Tensor) -> None:
        sums.append(noisy.numpy().copy())

    learner.watch(data.features, tasks, classes=2, compute=Compute(processes=processes), observer=note)


def test_the_steps_are_those_of_one_process_until_one_of_two_is_killed(tmp_path: Path) -> None:
    """The observer of the unit's process sees the noisy sum of the whole batch; noise is added once."""
    learner = OnCpus(2.0, model=Mlp(epochs=1), mark=str(tmp_path / "killed"))
    alone, divided = list[NDArray[Any]](), list[NDArray[Any]]()
    children = child_processes()  # of other tests of this process
    watched(learner, 1, alone)
    with pytest.raises(TrainingError, match="one of the 2 processes of the training ended by SIGKILL"):
        watched(learner, 2, divided)
    assert len(divided) in (5, 6)  # the last sum may be sent to a process that is ended already
    assert len(alone) == learner.steps()
    assert same(np.stack(divided), np.stack(alone[: len(divided)]))
    assert child_processes() <= children
    assert not distributed.is_initialized()


@pytest.mark.nightly
def test_a_killed_process_fails_the_unit_which_gives_the_same_scores_when_retried(tmp_path: Path) -> None:
    learner = OnCpus(8.0, model=Mlp(hidden=(8,), epochs=1), mark=str(tmp_path / "killed"))
    alone, _ = run(tmp_path / "one", learner, 1.0)
    assert not (tmp_path / "killed").exists()
    divided, events = run(tmp_path / "two", learner, 2.0)
    (retried,) = (event for event in events if event.kind is EventKind.UNIT_RETRIED)
    assert "one of the 2 processes of the training ended by SIGKILL" in retried.detail
    assert not divided.remarks
    scores, others = (report.results[0].scores() for report in (divided, alone))
    assert same(scores["score"].to_numpy(), others["score"].to_numpy())
    assert (scores.drop(columns="score") == others.drop(columns="score")).all(axis=None)


@pytest.mark.nightly
def test_a_retried_training_goes_on_from_its_checkpoint_in_all_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "CHECKPOINT_EVERY_S", 0.0)
    learner, data = OnCpus(2.0, model=Mlp(epochs=1), mark=str(tmp_path / "killed")), images((20,), 300)
    compute, positions = Compute(processes=2, scratch=tmp_path / "checkpoints"), list[int]()
    restore = checkpoint.TrainingCheckpoint.restore

    def noted(self: checkpoint.TrainingCheckpoint, training: PrivateStack) -> int:
        position = restore(self, training)
        positions.append(training.steps_done)
        return position

    monkeypatch.setattr(checkpoint.TrainingCheckpoint, "restore", noted)
    with pytest.raises(TrainingError, match="ended by SIGKILL"):
        learner.fit(data, seed=SEED, compute=compute)
    resumed = learner.fit(data, seed=SEED, compute=compute).logits(data.features)
    assert positions[0] == 0 < positions[1] <= 6
    assert same(resumed, learner.fit(data, seed=SEED, compute=Compute()).logits(data.features))


@pytest.mark.nightly
@pytest.mark.parametrize("processes", [2, 3])
@pytest.mark.parametrize(
    ("trainer", "data"),
    [
        (DpSgd(4.0, model=Mlp(epochs=3)), images((20,), 400)),
        (DpSgd(4.0, model=SmallCnn(epochs=1)), images((3, 8, 8), 100)),
        (Mlp(epochs=2, mixup=0.3, standardise=True), images((20,), 400)),
        (SmallCnn(epochs=2, augment="crop-flip"), images((3, 8, 8), 100)),
        (Mlp(epochs=1, learning_rate=0.01, batch_size=1), images((20,), 50)),
    ],
    ids=["dp-sgd of a perceptron", "dp-sgd of a cnn", "a perceptron", "a cnn", "batches of one"],
)
def test_several_processes_give_the_scores_of_one(trainer: Any, data: Examples, processes: int) -> None:
    alone, divided = (
        trainer.fit(data, seed=SEED, compute=Compute(processes=count)).logits(data.features) for count in (1, processes)
    )
    assert same(divided, alone)


@pytest.mark.nightly
@pytest.mark.ray
def test_a_unit_on_ray_loses_a_process_and_is_retried(ray_cluster: None, tmp_path: Path) -> None:
    learner = OnCpus(8.0, model=Mlp(hidden=(8,), epochs=1), mark=str(tmp_path / "killed"))
    alone, _ = run(tmp_path / "one", learner, 0.0)
    divided, events = run(tmp_path / "two", replace(learner, processes=2), 0.0, "ray")
    (retried,) = (event for event in events if event.kind is EventKind.UNIT_RETRIED)
    assert "ended by SIGKILL" in retried.detail
    assert same(divided.results[0].scores()["score"].to_numpy(), alone.results[0].scores()["score"].to_numpy())


def test_what_trains_on_one_gpu_is_refused_two() -> None:
    """Both the mechanism and the attacker's reference model; a label mechanism trains nothing."""
    data, game = {"name": "digits", "flat": True}, {"name": "label-inference", "replays": 2}
    on_two = {"name": "refused", "data": data, "game": game, "run": {"resources": {"gpus": 2}}}
    mlp = {"name": "mlp", "epochs": 1}
    forest, divisible = {"name": "model", "model": "recall"}, {"name": "model", "model": mlp}
    randomised, plain = {"name": "randomized-response", "epsilon": 1}, {"name": "non-private", "model": mlp}
    plan = make_plan(load_spec({**on_two, "mechanism": randomised, "proxy": divisible}))
    assert max(unit.resources.gpus for unit in plan.units) == 2
    with pytest.raises(SpecError, match=r"proxy: recall trains on one GPU, and `resources` request 2 for each"):
        make_plan(load_spec({**on_two, "mechanism": randomised, "proxy": forest}))
    with pytest.raises(SpecError, match="mechanism: non-private trains on one GPU"):
        make_plan(load_spec({**on_two, "mechanism": plain, "proxy": divisible}))
    batch_norm = {"name": "model", "model": {"name": "resnet-18", "norm": "batch"}}
    normed = load_spec({**on_two, "data": "digits", "mechanism": randomised, "proxy": batch_norm})
    with pytest.raises(SpecError, match="proxy: resnet-18 cannot be trained on 2 GPUs: batch norm couples"):
        make_plan(normed)


def test_a_unit_with_several_gpus_has_a_process_for_each() -> None:
    compute = Resources(4, 2.0).compute()
    assert (compute.processes, compute.device, compute.device_share) == (2, "cuda:0", 1.0)
    assert Resources(4, 0.5).compute().processes == Resources(4).compute().processes == 1


def test_a_process_that_cannot_start_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpaudit.mechanisms.training.divided.START", "raise SystemExit(3)")
    with pytest.raises(TrainingError, match="one of the 2 processes of the training ended with exit code 3"):
        Mlp(epochs=1).fit(images((4,), 20), seed=SEED, compute=Compute(processes=2))
