"""Trainings that are killed at two thirds: the next attempt goes on from the checkpoint and gives the same numbers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.random import SeedSequence
from numpy.typing import NDArray
from sklearn.datasets import load_digits

from dpaudit.mechanisms.compute import Compute, TrainingError, collected_notes
from dpaudit.mechanisms.examples import Examples
from dpaudit.mechanisms.learners.dp_sgd import DpSgd
from dpaudit.mechanisms.learners.pate import PATE
from dpaudit.mechanisms.models.networks import Mlp, SmallCnn
from dpaudit.mechanisms.models.tables import LogisticRegression
from dpaudit.mechanisms.models.transformer_fine_tune import FineTuning, TransformerFineTune
from dpaudit.mechanisms.predictors.ensemble import PatePredictor
from dpaudit.mechanisms.predictors.protocol import AddedRecords
from dpaudit.mechanisms.training import checkpoint
from dpaudit.mechanisms.training.fixmatch import FixMatch
from dpaudit.mechanisms.training.optimizers import Optimizer
from dpaudit.mechanisms.training.private.private_stack import train_private_stack
from dpaudit.mechanisms.training.recipe import TrainingTask
from dpaudit.mechanisms.training.train import train_stack
from tests.mechanisms.test_fine_tune import phrases, pretrained

__all__ = ["pretrained"]

DATA = load_digits()
IMAGES = (DATA.images[:120, None] / 16).astype(np.float32)
LABELS = DATA.target[:120].astype(np.int64)
DIGITS = Examples(IMAGES.reshape(120, 64), LABELS, 10, "digits")
SEED = SeedSequence(4)


def parameters_of(outcomes: Any) -> NDArray[np.float32]:
    (model,) = outcomes
    assert not isinstance(model, TrainingError)
    return np.asarray(model.parameters)


def task(rows: int = 90) -> TrainingTask:
    return TrainingTask(np.arange(rows), LABELS[:rows], SEED)


def mixed_network(compute: Compute) -> NDArray[np.float32]:
    """Two epochs of 6 steps with momentum, augmentation and mixup, whose draws follow each other within an epoch."""
    network = SmallCnn(epochs=2, batch_size=16, augment="crop-flip", mixup=0.5, schedule="cosine")
    return parameters_of(train_stack(network, IMAGES, [task()], classes=10, compute=compute))


def private_network(compute: Compute) -> NDArray[np.float32]:
    """Two epochs of DP-SGD, whose noise follows one generator within an epoch."""
    learner = DpSgd(epsilon=4.0, sample_rate=0.1, model=SmallCnn(epochs=2, batch_size=9, optimizer="adam"))
    steps = learner.private_steps()
    outcomes = train_private_stack(learner.model, steps, IMAGES, [task()], classes=10, compute=compute)
    return parameters_of(outcomes)


def fix_match(compute: Compute) -> NDArray[np.float32]:
    """FixMatch, whose order of images crosses several passes."""
    network = SmallCnn(batch_size=16, augment="crop", nesterov=True)
    rows = np.arange(20)
    training = FixMatch(
        network, IMAGES[:60], rows, LABELS[rows], classes=10, steps=12, ratio=2, seed=SEED, compute=compute
    )
    return np.asarray(training.train().parameters)


class Killed(BaseException):
    """End of the process, as the training sees it."""


def killed_at(monkeypatch: pytest.MonkeyPatch, owner: type, method: str, calls: int) -> list[int]:
    """Make a method raise `Killed` at its call number `calls`; return the list in which its calls are noted."""
    noted: list[int] = []
    honest = getattr(owner, method)

    def cut_off(self: Any, *arguments: Any, **settings: Any) -> Any:
        if len(noted) == calls:
            raise Killed
        noted.append(1)
        return honest(self, *arguments, **settings)

    monkeypatch.setattr(owner, method, cut_off)
    return noted


@pytest.mark.parametrize("train", [mixed_network, private_network, fix_match])
def test_a_training_killed_within_an_epoch_goes_on_from_its_checkpoint(
    train: Callable[[Compute], NDArray[np.float32]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "CHECKPOINT_EVERY_S", 0.0)
    with monkeypatch.context() as patch:
        every = killed_at(patch, Optimizer, "step", 10**6)
        expected = train(Compute())
    assert len(every) >= 12
    with monkeypatch.context() as patch:
        killed_at(patch, Optimizer, "step", 2 * len(every) // 3)
        with pytest.raises(Killed):
            train(Compute(scratch=tmp_path))
    with monkeypatch.context() as patch:
        again = killed_at(patch, Optimizer, "step", 10**6)
        np.testing.assert_array_equal(train(Compute(scratch=tmp_path)), expected)
    assert len(again) == len(every) - 2 * len(every) // 3


def test_fine_tuning_killed_within_an_epoch_goes_on_from_its_checkpoint(
    pretrained: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "CHECKPOINT_EVERY_S", 0.0)
    trainer = TransformerFineTune(path=pretrained, epochs=3, learning_rate=1e-2, batch_size=8, length=8)
    train, test = phrases(40, 0), phrases(10, 1)

    def answers(compute: Compute) -> NDArray[np.float64]:
        return trainer.fit(train, seed=SEED, compute=compute).probabilities(test.features)

    expected = answers(Compute())
    with monkeypatch.context() as patch:
        killed_at(patch, FineTuning, "step", 8)  # of 15, in the second epoch
        with pytest.raises(Killed):
            answers(Compute(scratch=tmp_path))
    with monkeypatch.context() as patch:
        again = killed_at(patch, FineTuning, "step", 10**6)
        np.testing.assert_array_equal(answers(Compute(scratch=tmp_path)), expected)
    assert len(again) == 7


def test_an_observed_training_starts_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A resumed one would show its later steps alone, and the others would count as zeros."""
    monkeypatch.setattr(checkpoint, "CHECKPOINT_EVERY_S", 0.0)
    learner = DpSgd(epsilon=4.0, sample_rate=0.1, model=Mlp(epochs=2, batch_size=9))

    def observed(compute: Compute) -> list[int]:
        steps: list[int] = []
        learner.watch(
            DIGITS.features,
            [task()],
            classes=10,
            compute=compute,
            observer=lambda places, step, parameters, released: steps.append(step),
        )
        return steps

    first = observed(Compute(scratch=tmp_path))
    assert not list(tmp_path.iterdir())
    assert observed(Compute(scratch=tmp_path)) == first == list(range(20))


class TrainedTeachers:
    """Counts the trainings of the teachers of a kind."""

    def __init__(self, patch: pytest.MonkeyPatch, stop_at: int = 10**6) -> None:
        self.count, honest = 0, LogisticRegression.fit

        def fit(model: LogisticRegression, train: Examples, **settings: Any) -> Any:
            if self.count == stop_at:
                raise Killed
            self.count += 1
            return honest(model, train, **settings)

        patch.setattr(LogisticRegression, "fit", fit)


def taught(compute: Compute) -> NDArray[np.float64]:
    learner = PATE(4.0, teachers=6, queries=30, model=LogisticRegression())
    return learner.fit(DIGITS, seed=SEED, compute=compute).probabilities(DIGITS.features)


def votes(compute: Compute) -> NDArray[np.int64]:
    predictor = PatePredictor(teachers=6, model=LogisticRegression())
    return predictor.votes(DIGITS, DIGITS.features[:9], seed=SEED, compute=compute)


def votes_with_records(compute: Compute) -> NDArray[np.int64]:
    predictor = PatePredictor(teachers=3, model=LogisticRegression())
    added = AddedRecords.alone(DIGITS, DIGITS.take(np.arange(6)))
    return predictor.votes_with_canary(added, DIGITS.features[:9], seed=SEED, compute=compute)


@pytest.mark.parametrize(("train", "remaining"), [(taught, 3), (votes, 2), (votes_with_records, 2)])
def test_teachers_that_were_trained_are_not_trained_again(
    train: Callable[[Compute], NDArray[Any]], remaining: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dpaudit.mechanisms.teachers.KEEP_FROM_S", 0.0)
    expected = train(Compute())
    with monkeypatch.context() as patch:
        TrainedTeachers(patch, stop_at=4)
        with pytest.raises(Killed):
            train(Compute(scratch=tmp_path))
    with monkeypatch.context() as patch:
        again = TrainedTeachers(patch)
        np.testing.assert_array_equal(train(Compute(scratch=tmp_path)), expected)
    assert again.count == remaining


def test_votes_of_other_data_are_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpaudit.mechanisms.teachers.KEEP_FROM_S", 0.0)
    predictor = PatePredictor(teachers=4, model=LogisticRegression())
    other = DIGITS.with_(labels=(LABELS + 1) % 10)
    queries = DIGITS.features[:9]
    pair = [predictor.votes(data, queries, seed=SEED, compute=Compute(scratch=tmp_path)) for data in (DIGITS, other)]
    np.testing.assert_array_equal((pair[0] + 1) % 10, pair[1])


def flipped(content: bytes) -> bytes:
    """Return the content with one bit changed, in the middle, where weights are."""
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


def without_checksum(content: bytes) -> bytes:
    return content[: content.rindex(b"dpaudit-sha256:")]


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "flipped": flipped,
    "truncated": lambda content: content[: 2 * len(content) // 3],
    "empty": lambda content: b"",
    "without checksum": without_checksum,
    "longer": lambda content: content + b"0",
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
@pytest.mark.parametrize(
    ("train", "owner", "method", "calls", "note"),
    [
        (fix_match, Optimizer, "step", 8, "cannot use a checkpoint, so its training started from scratch"),
        (votes, LogisticRegression, "fit", 4, "cannot use stored votes of teachers, so these were trained again"),
    ],
)
def test_damaged_files_are_noted_and_computed_again(
    train: Callable[[Compute], NDArray[Any]],
    owner: type,
    method: str,
    calls: int,
    note: str,
    damage: Callable[[bytes], bytes],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(checkpoint, "CHECKPOINT_EVERY_S", 0.0)
    monkeypatch.setattr("dpaudit.mechanisms.teachers.KEEP_FROM_S", 0.0)
    expected = train(Compute())
    with monkeypatch.context() as patch:
        killed_at(patch, owner, method, calls)
        with pytest.raises(Killed):
            train(Compute(scratch=tmp_path))
    stored = sorted(tmp_path.iterdir())
    assert stored
    for path in stored:
        path.write_bytes(damage(path.read_bytes()))
    with collected_notes() as notes:
        np.testing.assert_array_equal(train(Compute(scratch=tmp_path)), expected)
    assert [sentence.partition(":")[0] for sentence in notes] == [note]


def test_files_of_other_trainings_are_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole files under each other's names, as if copied by hand."""
    monkeypatch.setattr("dpaudit.mechanisms.teachers.KEEP_FROM_S", 0.0)
    expected = votes(Compute(scratch=tmp_path))
    first, second, *_ = sorted(tmp_path.iterdir())
    content = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(content)
    with collected_notes() as notes:
        np.testing.assert_array_equal(votes(Compute(scratch=tmp_path)), expected)
    assert len(notes) == 1
