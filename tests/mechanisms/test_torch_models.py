"""Networks as trainers: accepted and rejected inputs, determinism, accuracy."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest
import torch
from numpy.random import SeedSequence
from sklearn.datasets import load_digits

from dpaudit.errors import InputError
from dpaudit.mechanisms.compute import Compute, TrainingError
from dpaudit.mechanisms.examples import Examples
from dpaudit.mechanisms.models.networks import (
    LeNet5,
    Mlp,
    Network,
    ResNet18,
    SmallCnn,
    TanhCnn,
    WideResNet16x4,
    WideResNet28x4,
)
from dpaudit.mechanisms.protocols import Trainer
from dpaudit.mechanisms.training.kernels import layout_of
from dpaudit.registry import catalogue, load

CPU = Compute()


@pytest.fixture(scope="module")
def digits() -> Examples:
    data = load_digits()
    return Examples((data.data / 16).astype(np.float32), data.target.astype(np.int64), 10, "digits")


def as_images(flat: Examples) -> Examples:
    features = flat.features
    assert isinstance(features, np.ndarray)
    return flat.with_(features=features.reshape(-1, 1, 8, 8))


def accuracy(trainer: Network, train: Examples, test: Examples) -> float:
    model = trainer.fit(train, seed=SeedSequence(1), compute=CPU)
    answers = model.probabilities(test.features)
    assert answers.dtype == np.float64
    assert answers.shape == (len(test), test.classes)
    np.testing.assert_allclose(answers.sum(1), 1)
    return float((answers.argmax(1) == test.labels).mean())


@pytest.mark.parametrize("standardise", [False, True])
def test_mlp_learns_digits(digits: Examples, standardise: bool) -> None:
    trainer = Mlp(epochs=10, batch_size=32, learning_rate=0.05, standardise=standardise)
    assert accuracy(trainer, digits.take(np.arange(1200)), digits.take(np.arange(1200, 1797))) > 0.88


def test_small_cnn_learns_digits(digits: Examples) -> None:
    """At this step size 0.87 to 0.95, by seed and by how the machine rounds; guessing gives 0.1."""
    images, trainer = as_images(digits), SmallCnn(epochs=4, batch_size=32)
    assert accuracy(trainer, images.take(np.arange(1200)), images.take(np.arange(1200, 1797))) > 0.8


def test_a_training_is_decided_by_its_seed_alone(digits: Examples) -> None:
    train = digits.take(np.arange(200))
    trainer = Mlp(epochs=2)
    torch.manual_seed(1)
    first = trainer.fit(train, seed=SeedSequence(5), compute=CPU).probabilities(train.features)
    torch.manual_seed(2)
    state = torch.get_rng_state()
    np.random.seed(3)
    again = trainer.fit(train, seed=SeedSequence(5), compute=CPU).probabilities(train.features)
    other = trainer.fit(train, seed=SeedSequence(6), compute=CPU).probabilities(train.features)
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).max() > 0.01
    assert torch.equal(state, torch.get_rng_state())  # the global generator is not touched


def test_tables_of_numbers_are_taken_and_missing_ones_become_the_mean() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 2)) * [1000, 0.1]
    labels = (x[:, 0] > 0).astype(np.int64)
    holes: list[float | None] = x[:, 1].tolist()
    holes[3] = None
    train = Examples(pa.table({"wide": x[:, 0], "narrow": holes, "whole": [1, 2, 3] * 100}), labels, 2)
    model = Mlp(epochs=5, standardise=True).fit(train, seed=SeedSequence(0), compute=CPU)
    assert (model.probabilities(train.features).argmax(1) == labels).mean() > 0.95


def test_columns_of_words_are_refused_by_name() -> None:
    train = Examples(pa.table({"a": [1.0, 2.0], "site": ["x", "y"]}), np.array([0, 1]), 2, categorical=("site",))
    with pytest.raises(InputError, match="column 'site' has type string; use catboost"):
        Mlp().fit(train, seed=SeedSequence(0), compute=CPU)


def test_an_infinite_loss_is_a_training_error(digits: Examples) -> None:
    with pytest.raises(TrainingError, match="no longer finite"):
        Mlp(epochs=3, learning_rate=1e9).fit(digits.take(np.arange(100)), seed=SeedSequence(0), compute=CPU)


@pytest.mark.parametrize(
    ("field", "value"),
    [("optimizer", "lion"), ("epochs", 0), ("learning_rate", 0.0), ("hidden", (0,)), ("momentum", 1.0)],
)
def test_bad_settings_are_refused(field: str, value: object) -> None:
    with pytest.raises(InputError, match=field):
        Mlp(**{field: value})  # type: ignore[arg-type]


def test_a_convolutional_network_refuses_flat_features(digits: Examples) -> None:
    with pytest.raises(InputError, match="takes images of shape"):
        SmallCnn().fit(digits, seed=SeedSequence(0), compute=CPU)


def parameters(trainer: Network, shape: tuple[int, ...]) -> int:
    with torch.device("meta"):
        return layout_of(trainer.module(shape, 10)).total


@pytest.mark.parametrize(
    ("trainer", "shape", "count"),
    [
        # Counted by hand: weights and biases of each layer.
        (Mlp(), (64,), 64 * 64 + 64 + 64 * 64 + 64 + 64 * 10 + 10),
        (SmallCnn(), (3, 32, 32), 3 * 9 * 16 + 16 + 16 * 9 * 32 + 32 + 32 * 64 * 10 + 10),
        (TanhCnn(), (3, 32, 32), 974_250),  # "974 K"
        (LeNet5(), (1, 28, 28), 61_706),  # LeCun's network with full connections to C3
        (ResNet18(), (3, 32, 32), 11_173_962),  # the usual count for CIFAR-10
        (WideResNet16x4(), (3, 32, 32), 2_748_890),  # 2.7 M, 5.8 M: Zagoruyko and Komodakis, table 5 and text
        (WideResNet28x4(), (3, 32, 32), 5_849_050),
    ],
)
def test_networks_have_their_known_sizes(trainer: Network, shape: tuple[int, ...], count: int) -> None:
    assert parameters(trainer, shape) == count


@pytest.mark.parametrize("norm", ["group", "batch", "none"])
def test_every_kind_of_normalisation_trains(digits: Examples, norm: str) -> None:
    train = as_images(digits.take(np.arange(64)))
    model = ResNet18(epochs=1, width=4, norm=norm, learning_rate=0.01).fit(train, seed=SeedSequence(0), compute=CPU)
    whole = model.probabilities(train.features)
    np.testing.assert_allclose(model.probabilities(train.features[:5]), whole[:5], atol=1e-5)


def test_every_name_is_registered() -> None:
    names = {"mlp", "small-cnn", "tanh-cnn", "lenet-5", "resnet-18", "wrn-16-4", "wrn-28-4"}
    assert names <= set(catalogue("model"))
    assert all(isinstance(load("model", name)(), Trainer) for name in names)


def test_describing_a_training_imports_no_torch() -> None:
    modules = [
        "models.networks",
        "learners.alibi",
        "learners.dp_sgd",
        "learners.pate",
        "planted.dp_sgd",
        "planted.learners",
    ]
    imports = ";".join(f"import dpaudit.mechanisms.{module}" for module in modules)
    subprocess.run([sys.executable, "-c", f"{imports}; import sys; assert 'torch' not in sys.modules"], check=True)
