"""FixMatch and PATE-FM on small data."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.random import SeedSequence
from sklearn.datasets import load_digits

from dpaudit.errors import InputError
from dpaudit.mechanisms.compute import Compute, TrainingError
from dpaudit.mechanisms.examples import Examples
from dpaudit.mechanisms.learners.pate import PateFm
from dpaudit.mechanisms.models.networks import ResNet18, SmallCnn
from dpaudit.mechanisms.protocols import Learner
from dpaudit.mechanisms.training.fixmatch import FixMatch

CPU = Compute()
DATA = load_digits()
IMAGES = (DATA.images[:, None] / 16).astype(np.float32)
DIGITS = Examples(IMAGES, DATA.target.astype(np.int64), 10, "digits")
NETWORK = SmallCnn(
    learning_rate=0.05, nesterov=True, batch_size=16, weight_decay=5e-4, schedule="cosine-7-16", augment="crop"
)
TINY = PateFm(
    epsilon=math.inf,
    teachers=3,
    queries=300,
    answers=150,
    threshold=1,
    threshold_noise=2,
    vote_noise=1,
    teacher_steps=120,
    student_steps=150,
    ratio=1,
    confidence=0.8,
    model=NETWORK,
)


def test_fixmatch_learns_from_few_labels() -> None:
    rows = np.arange(60)
    settings = {"classes": 10, "steps": 100, "ratio": 3, "threshold": 0.8, "seed": SeedSequence(0), "compute": CPU}
    model = FixMatch(NETWORK, IMAGES[:1200], rows, DIGITS.labels[rows], **settings).train()
    assert (model.probabilities(IMAGES[1200:]).argmax(1) == DIGITS.labels[1200:]).mean() > 0.6


def test_fixmatch_is_decided_by_its_seed() -> None:
    rows = np.arange(20)
    data = NETWORK, IMAGES[:100], rows, DIGITS.labels[rows]
    models = [
        FixMatch(*data, classes=10, steps=3, ratio=2, seed=SeedSequence(seed), compute=CPU).train()
        for seed in (1, 1, 2)
    ]
    np.testing.assert_array_equal(models[0].parameters, models[1].parameters)
    assert np.abs(models[0].parameters - models[2].parameters).max() > 1e-3


@pytest.mark.nightly
def test_pate_fm_learns_without_ever_seeing_all_labels() -> None:
    assert isinstance(TINY, Learner)
    model = TINY.fit(DIGITS.take(np.arange(800)), seed=SeedSequence(0), compute=CPU)
    test = DIGITS.take(np.arange(1200, 1797))
    assert (model.probabilities(test.features).argmax(1) == test.labels).mean() > 0.6


class Trainings:
    """Stand-in for FixMatch: records the arguments of each training; its models know every digit."""

    def __init__(self) -> None:
        self.given: list[tuple[Any, Any, dict[str, Any]]] = []

    def __call__(self, network: Any, images: Any, rows: Any, labels: Any, **settings: Any) -> Trainings:
        self.given.append((rows, labels, settings))
        return self

    def train(self) -> Trainings:
        return self

    def logits(self, images: Any) -> Any:
        label_of = {image.tobytes(): label for image, label in zip(IMAGES, DIGITS.labels, strict=True)}
        return np.eye(10)[[label_of[image.tobytes()] for image in images]]


def test_teachers_share_the_labels_and_the_student_has_their_answers_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three teachers have 267 of 801 labels each, none twice; their votes without noise are the true labels."""
    trainings = Trainings()
    monkeypatch.setattr("dpaudit.mechanisms.training.fixmatch.FixMatch", trainings)
    train = DIGITS.take(np.arange(801))
    TINY.fit(train, seed=SeedSequence(0), compute=CPU)
    *teachers, (rows, labels, settings) = trainings.given
    assert [len(rows) for rows, *_ in teachers] == [267] * 3
    assert sorted(np.concatenate([rows for rows, *_ in teachers])) == list(range(801))
    assert all((labels == train.labels[rows]).all() for rows, labels, _ in teachers)
    assert len(rows) == len(set(rows)) == 150
    np.testing.assert_array_equal(labels, train.labels[rows])
    assert [settings["steps"] for *_, settings in trainings.given] == [120, 120, 120, 150]
    assert len({settings["seed"].generate_state(1)[0] for *_, settings in trainings.given}) == 4
    assert (settings["ratio"], settings["threshold"], settings["classes"]) == (1, 0.8, 10)
    TINY.fit(train, seed=SeedSequence(0), compute=CPU)
    np.testing.assert_array_equal(trainings.given[-1][0], rows)


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 8.0])
def test_the_noise_meets_the_claim(epsilon: float) -> None:
    learner = PateFm(epsilon=epsilon)
    assert learner.claim().epsilon == epsilon
    assert learner.claim().delta == 1e-5
    assert epsilon * (1 - 1e-6) < learner.claim().curve.epsilon(1e-5) <= epsilon


def test_no_answer_is_a_training_error() -> None:
    unreachable = replace(TINY, threshold=1e9, teacher_steps=1)
    with pytest.raises(TrainingError, match="answered no query"):
        unreachable.fit(DIGITS.take(np.arange(100)), seed=SeedSequence(0), compute=CPU)


def test_bad_settings_are_refused() -> None:
    with pytest.raises(InputError, match="queries must be >= answers"):
        PateFm(epsilon=1.0, queries=10, answers=20)
    flat = DIGITS.with_(features=IMAGES.reshape(-1, 64))
    with pytest.raises(InputError, match="takes images"):
        TINY.fit(flat, seed=SeedSequence(0), compute=CPU)
    data = IMAGES[:20], np.arange(20), DIGITS.labels[:20]
    with pytest.raises(InputError, match="does not support batch norm"):
        FixMatch(ResNet18(norm="batch"), *data, classes=10, steps=1, seed=SeedSequence(0), compute=CPU)
