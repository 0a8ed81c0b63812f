"""What a model learns from a release about bags of labels: trainings at several learning rates, as one stack."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from dpaudit.actors.seed import Seed
from dpaudit.actors.work import Outcome, unit
from dpaudit.errors import require
from dpaudit.mechanisms.compute import Compute, TrainingError
from dpaudit.mechanisms.examples import Examples
from dpaudit.mechanisms.labels.bags import LEFT_OUT, Bags
from dpaudit.mechanisms.models.networks import Mlp, Network, require_network
from dpaudit.mechanisms.models.tables import one_hot_numbers
from dpaudit.mechanisms.protocols import BagMechanism

Floats = NDArray[np.float64]
SMALL_MLP = Mlp(hidden=(32,), epochs=5, batch_size=256, optimizer="adam", standardise=True)


@dataclass(frozen=True)
class Utility:
    """How a release is learned from: minibatch Adam on the proportions of bags, over a grid of learning rates.

    Attributes:
        model: A perceptron and how it is trained; `batch_size` counts examples.
        learning_rates: Each > 0; the best one by the mean AUC on one half of the test part is reported on the other.
        runs: Releases that are trained on, >= 1, each with first weights of its own.
    """

    model: Network = field(default=SMALL_MLP, metadata={"kind": "model"})
    learning_rates: tuple[float, ...] = (0.0003, 0.001, 0.003, 0.01, 0.03)
    runs: int = 3

    def __post_init__(self) -> None:
        require_network(self.model, of="utility")
        rates = self.learning_rates
        require(len(rates) > 0, "learning_rates must hold at least one")
        require(all(rate > 0 for rate in rates), "learning_rates must be > 0", learning_rates=rates)
        require(self.runs >= 1, "runs must be >= 1", runs=self.runs)

    @property
    def trainings(self) -> int:
        return self.runs * len(self.learning_rates)


@dataclass(frozen=True, eq=False)
class Learned:
    """What each training learned, one row a training."""

    ROWS: ClassVar[bool] = True

    learning_rate: Floats  # of it, shape (trainings,)
    run: NDArray[np.int64]  # number of the release that it is trained on, shape (trainings,)
    # AUC on one half of the test part, shape (trainings,); NaN for a training that failed, as below
    choosing_auc: Floats
    test_auc: Floats  # AUC on the other half, shape (trainings,)
    test_log_loss: Floats  # mean log-loss there, shape (trainings,)


@unit
def measure_utility(
    mechanism: BagMechanism, utility: Utility, target: Examples, test: Examples, compute: Compute, *, seed: Seed
) -> Outcome[Learned]:
    """Trains on releases of the target part, and measures on the test part."""
    target, test = one_hot_numbers(target, test)
    models = _trained(mechanism, utility, target, compute, seed)
    measured = np.array([_scored(model, test) for model in models])
    rates, runs = np.array(utility.learning_rates), np.arange(utility.runs)
    learned = Learned(np.tile(rates, len(runs)), np.repeat(runs, len(rates)), *measured.T)
    return Outcome(learned, metrics=_best(learned, utility))


def _trained(
    mechanism: BagMechanism, utility: Utility, target: Examples, compute: Compute, seed: Seed
) -> Sequence[Any]:
    from dpaudit.mechanisms.training.bag_stack import BagTask, train_on_bags

    tasks = []
    for run in range(utility.runs):
        own = seed.child(run)
        bags = mechanism.bags(target, rng=own.child("bags").rng())
        counts = bags.counts(target.labels, target.classes)
        released = mechanism.release_counts(counts, rng=own.child("noise").rng())
        targets = mechanism.targets(released).astype(np.float32)
        rows, shares = padded(bags)
        tasks += [
            BagTask(rows, shares, targets, rate, own.child("training").sequence()) for rate in utility.learning_rates
        ]
    return train_on_bags(utility.model.recipe, target.features, tasks, classes=target.classes, compute=compute)


def padded(bags: Bags) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """The examples of each bag and their shares of its mean, both of shape (B, size of the largest bag)."""
    order = np.argsort(bags.of, kind="stable")[np.count_nonzero(bags.of == LEFT_OUT) :]
    first = np.cumsum(bags.sizes) - bags.sizes
    place = np.arange(int(bags.sizes.max()))
    inside = place < bags.sizes[:, None]
    rows = order[np.where(inside, first[:, None] + place, first[:, None])]
    return rows, np.where(inside, 1 / bags.sizes[:, None], 0.0).astype(np.float32)


def _scored(model: Any, test: Examples) -> tuple[float, float, float]:
    """AUC on one half of the test part; AUC and mean log-loss on the other. NaN for a training that failed."""
    if isinstance(model, TrainingError):
        return math.nan, math.nan, math.nan
    answers = model.probabilities(test.features)
    half = len(test) // 2
    at_label = answers[np.arange(len(test)), test.labels][half:]
    return (
        auc(answers[:half, 1], test.labels[:half]),
        auc(answers[half:, 1], test.labels[half:]),
        float(-np.mean(np.log(np.clip(at_label, 1e-15, 1.0)))),
    )


def auc(score: Floats, label: NDArray[np.int64]) -> float:
    """Probability that a random positive scores above a random negative, ties counted half; NaN without both."""
    positives = int(np.count_nonzero(label == 1))
    negatives = label.size - positives
    if not positives or not negatives:
        return float("nan")
    ranks = rankdata(score)
    return float((ranks[label == 1].sum() - positives * (positives + 1) / 2) / (positives * negatives))


def _best(learned: Learned, utility: Utility) -> dict[str, float]:
    """The learning rate with the best mean AUC on the choosing half, and what it shows on the other."""
    rate = learned.learning_rate
    means = {value: float(learned.choosing_auc[rate == value].mean()) for value in utility.learning_rates}
    known = {value: mean for value, mean in means.items() if not np.isnan(mean)}
    if not known:
        raise TrainingError("the loss is no finite number at any learning rate; give smaller ones")
    best = max(known, key=lambda value: known[value])
    found = {"learning_rate": best}
    for name in ("test_auc", "test_log_loss"):
        values = getattr(learned, name)[rate == best]
        found[name] = float(values.mean())
        if values.size > 1:
            found[f"{name}_error"] = float(values.std(ddof=1) / np.sqrt(values.size))
    return found
