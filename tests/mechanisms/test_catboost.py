"""CatBoost and logistic regression as trainers."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import catboost
import numpy as np
import pyarrow as pa
import pytest
from numpy.random import SeedSequence
from sklearn.metrics import log_loss

from dpaudit.errors import InputError
from dpaudit.mechanisms.compute import Compute, TrainingError
from dpaudit.mechanisms.examples import Examples
from dpaudit.mechanisms.models.tables import CatBoost, CatBoostModel, ConstantModel, LogisticRegression
from dpaudit.mechanisms.protocols import Trainer

SEED, ONE = SeedSequence(11), Compute(threads=1)
SMALL = CatBoost(iterations=8, depth=3)


def gaussians(count: int, classes: int = 2, seed: int = 0) -> Examples:
    rng = np.random.default_rng(seed)
    labels = rng.integers(classes, size=count)
    return Examples((rng.normal(size=(count, 5)) + np.eye(classes, 5)[labels]).astype(np.float32), labels, classes)


def table(examples: Examples) -> Examples:
    """Return rows with a category for the sign of the first feature; it and a number are sometimes missing."""
    columns = examples.features
    assert not isinstance(columns, pa.Table)
    signs = [None if row % 5 == 0 else "+" if value > 0.5 else "-" for row, value in enumerate(columns[:, 0])]
    gaps = np.where(np.arange(len(columns)) % 7 == 0, np.nan, columns[:, 1])
    data = pa.table({"sign": signs, "number": pa.array(gaps, from_pandas=True), "other": columns[:, 2]})
    return Examples(data, examples.labels, examples.classes, categorical=("sign",))


@pytest.mark.parametrize("trainer", [SMALL, LogisticRegression(), LogisticRegression(standardise=True)])
@pytest.mark.parametrize("classes", [2, 3])
def test_probabilities_are_rows_of_a_distribution(trainer: Trainer, classes: int) -> None:
    for examples in (gaussians(600, classes), table(gaussians(600, classes))):
        model = trainer.fit(examples, seed=SEED, compute=ONE)
        answers = model.probabilities(examples.features)
        assert answers.shape == (600, classes)
        assert answers.dtype == np.float64
        assert (answers >= 0).all()
        np.testing.assert_allclose(answers.sum(axis=1), 1, rtol=1e-9)
        assert (answers.argmax(axis=1) == examples.labels).mean() > 1.2 / classes


def test_the_best_iteration_is_part_of_the_model() -> None:
    """Best + 1 trees: the validation loss of the model is the smallest of all its stages, recomputed tree by tree."""
    examples, validation = gaussians(300), gaussians(300, seed=1)
    trainer = CatBoost(iterations=40, depth=4)
    with_best = trainer.fit(examples, seed=SEED, compute=ONE, validation=validation)
    to_the_end = trainer.fit(examples, seed=SEED, compute=ONE)
    assert isinstance(with_best, CatBoostModel)
    assert isinstance(to_the_end, CatBoostModel)
    stages = [log_loss(validation.labels, p) for p in to_the_end.classifier.staged_predict_proba(validation.features)]
    best = int(np.argmin(stages))
    assert 0 < best < 39
    assert (to_the_end.classifier.tree_count_, with_best.classifier.tree_count_) == (40, best + 1)
    loss = log_loss(validation.labels, with_best.probabilities(validation.features))
    assert loss == pytest.approx(min(stages), rel=1e-9)


def test_a_best_first_iteration_leaves_one_tree() -> None:
    """Validation labels against the training labels: each further tree is worse. The published code would take all."""
    examples = gaussians(300)
    against = examples.with_(labels=1 - examples.labels)
    model = SMALL.fit(examples, seed=SEED, compute=ONE, validation=against)
    assert isinstance(model, CatBoostModel)
    assert model.classifier.tree_count_ == 1


def test_the_seed_decides_alone() -> None:
    examples = table(gaussians(500))
    first, again, other = (
        SMALL.fit(examples, seed=seed, compute=compute).probabilities(examples.features)
        for seed, compute in ((SEED, ONE), (SEED, Compute(threads=2)), (SeedSequence(12), ONE))
    )
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()


def test_no_stray_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    SMALL.fit(gaussians(100), seed=SEED, compute=ONE, validation=gaussians(50))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("trainer", [SMALL, LogisticRegression()])
def test_labels_of_one_class_leave_a_constant(trainer: Trainer) -> None:
    """(count + 1) / (n + K), so that no label has probability 0."""
    examples = gaussians(8, classes=3).with_(labels=np.full(8, 2))
    model = trainer.fit(examples, seed=SEED, compute=ONE)
    assert model == ConstantModel((1 / 11, 1 / 11, 9 / 11))
    np.testing.assert_array_equal(model.probabilities(examples.features)[5], [1 / 11, 1 / 11, 9 / 11])


@pytest.mark.parametrize("trainer", [SMALL, LogisticRegression()])
def test_a_class_without_examples_keeps_its_column(trainer: Trainer) -> None:
    examples = Examples(gaussians(300).features, 2 * gaussians(300).labels, 4)
    validation = examples.with_(labels=(examples.labels + 1) % 4)
    answers = trainer.fit(examples, seed=SEED, compute=ONE, validation=validation).probabilities(examples.features)
    assert answers.shape == (300, 4)
    assert answers[:, [1, 3]].max() < 1e-3
    np.testing.assert_allclose(answers.sum(axis=1), 1, rtol=1e-9)


def test_pictures_are_read_as_rows_of_pixels() -> None:
    flat = gaussians(200)
    assert not isinstance(flat.features, pa.Table)
    pictures = flat.with_(features=flat.features.reshape(200, 1, 5, 1))
    first, second = (SMALL.fit(part, seed=SEED, compute=ONE).probabilities(part.features) for part in (flat, pictures))
    np.testing.assert_array_equal(first, second)


def test_dictionary_encoded_categories_are_read_as_their_values() -> None:
    plain = table(gaussians(300))
    assert isinstance(plain.features, pa.Table)
    encoded = plain.features.set_column(0, "sign", plain.features["sign"].dictionary_encode())
    model = SMALL.fit(plain, seed=SEED, compute=ONE)
    other = SMALL.fit(plain.with_(features=encoded), seed=SEED, compute=ONE)
    np.testing.assert_array_equal(model.probabilities(encoded), other.probabilities(plain.features))


def test_catboost_s_errors_are_training_errors() -> None:
    constant = Examples(np.ones((10, 2), np.float32), np.arange(10) % 2, 2)
    with pytest.raises(TrainingError, match=r"CatBoost failed: .*constant"):
        SMALL.fit(constant, seed=SEED, compute=ONE)


@pytest.mark.parametrize(
    ("device", "expected"),
    [
        ("cpu", {}),
        ("cuda", {"task_type": "GPU", "devices": "0", "gpu_ram_part": pytest.approx(0.95 / 4)}),
        ("cuda:3", {"task_type": "GPU", "devices": "3", "gpu_ram_part": pytest.approx(0.95 / 4)}),
    ],
)
def test_the_device_and_its_share_are_passed_on(
    device: str, expected: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments: dict[str, Any] = {}
    for_gpu = ("task_type", "devices", "gpu_ram_part")

    class Noted(catboost.CatBoostClassifier):  # type: ignore[misc]
        def __init__(self, **settings: Any) -> None:
            arguments.update(settings)
            super().__init__(**{key: value for key, value in settings.items() if key not in for_gpu})

    monkeypatch.setattr(catboost, "CatBoostClassifier", Noted)
    SMALL.fit(gaussians(50), seed=SEED, compute=Compute(threads=2, device=device, device_share=0.25))
    assert {key: arguments[key] for key in for_gpu if key in arguments} == expected
    assert arguments["thread_count"] == 2


@pytest.mark.parametrize(
    "settings", [{"iterations": 0}, {"learning_rate": 0.0}, {"depth": 17}, {"depth": 0}, {"learning_rate": math.nan}]
)
def test_settings_out_of_range_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="must be"):
        CatBoost(**settings)


def test_logistic_regression_finds_the_posterior_of_a_gaussian_mixture() -> None:
    """The model is right there, so its mean absolute error shrinks as 1 / sqrt(n).

    With 6 parameters on 20,000 rows the standard error of a logit is about sqrt(6 / (n p (1 - p))) <= 0.05 where
    p = .9, .5; of a probability a quarter of it. 0.02 on average is more than four of these.
    """
    train, fresh = gaussians(20_000), gaussians(2_000, seed=1)
    assert not isinstance(fresh.features, pa.Table)
    distance = ((fresh.features[:, None] - np.eye(2, 5)) ** 2).sum(axis=2)
    posterior = np.exp(-distance / 2) / np.exp(-distance / 2).sum(axis=1, keepdims=True)
    for trainer in (LogisticRegression(), LogisticRegression(standardise=True)):
        answers = trainer.fit(train, seed=SEED, compute=ONE).probabilities(fresh.features)
        assert np.abs(answers - posterior).mean() < 0.02


def test_standardising_makes_units_irrelevant() -> None:
    """Scaled columns give the same model; without it the penalty sees other coefficients."""
    plain = gaussians(300)
    assert not isinstance(plain.features, pa.Table)
    scaled = plain.with_(features=(plain.features * np.array([1000, 1, 0.01, 1, 1])).astype(np.float32))
    for standardise in (True, False):
        trainer = LogisticRegression(standardise, inverse_penalty=0.1, iterations=1000)
        first, second = (
            trainer.fit(part, seed=SEED, compute=ONE).probabilities(part.features) for part in (plain, scaled)
        )
        assert (np.abs(first - second).max() < 1e-3) == standardise
