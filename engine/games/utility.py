"""What a model learns from a release about bags of labels: trainings at several learning rates, as one stack."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from scipy.stats import rankdata

from dpaudit.actors.seed import Seed
from dpaudit.actors.unit import Inputs
from dpaudit.engine.spec.partition import required_part
from dpaudit.errors import require
from dpaudit.mechanisms.examples import Examples
from dpaudit.mechanisms.labels.bags import LEFT_OUT, Bags
from dpaudit.mechanisms.models.networks import Mlp, Network, require_network
from dpaudit.mechanisms.models.one_hot import one_hot_numbers
from dpaudit.mechanisms.protocols import BagMechanism, Compute, TrainingError

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
        """How many models are trained."""
        return self.runs * len(self.learning_rates)


@dataclass(frozen=True)
class MeasureUtility:
    """Trains on releases of the target part, and measures on the test part.

    Attributes:
        mechanism: What releases.
        utility: How it is learned from.
        seed: Of releases and trainings.
    """

    mechanism: BagMechanism
    utility: Utility
    seed: Seed

    def run(self, inputs: Inputs, compute: Compute) -> pa.Table:
        """One row a training; the best learning rate's means and standard errors beside them as metrics.

        Raises: TrainingError when no learning rate has a training whose loss stayed a number.
        """
        target, test = required_part(inputs, "target"), required_part(inputs, "test")
        target, test = one_hot_numbers(target, test)
        models = self._trained(target, compute)
        rows = [
            {"learning_rate": rate, "run": run, **_scored(model, test)}
            for (run, rate), model in zip(self._grid(), models, strict=True)
        ]
        table = pa.Table.from_pylist(rows)
        metrics = self._best(table)
        return table.replace_schema_metadata({f"metric:{name}": repr(value) for name, value in metrics.items()})

    def _grid(self) -> list[tuple[int, float]]:
        return [(run, rate) for run in range(self.utility.runs) for rate in self.utility.learning_rates]

    def _trained(self, target: Examples, compute: Compute) -> Sequence[Any]:
        from dpaudit.mechanisms.training.bag_stack import BagTask, train_on_bags

        tasks = []
        for run in range(self.utility.runs):
            seed = self.seed.child(run)
            bags = self.mechanism.bags(target, rng=seed.child("bags").rng())
            counts = bags.counts(target.labels, target.classes)
            released = self.mechanism.release_counts(counts, rng=seed.child("noise").rng())
            targets = self.mechanism.targets(released).astype(np.float32)
            rows, shares = padded(bags)
            tasks += [
                BagTask(rows, shares, targets, rate, seed.child("training").sequence())
                for rate in self.utility.learning_rates
            ]
        recipe = self.utility.model.recipe
        return train_on_bags(recipe, target.features, tasks, classes=target.classes, compute=compute)

    def _best(self, table: pa.Table) -> dict[str, float]:
        rate, auc = table["learning_rate"].to_numpy(), table["choosing_auc"].to_numpy()
        means = {value: float(auc[rate == value].mean()) for value in self.utility.learning_rates}
        known = {value: mean for value, mean in means.items() if not np.isnan(mean)}
        if not known:
            raise TrainingError("the loss is no finite number at any learning rate; give smaller ones")
        best = max(known, key=lambda value: known[value])
        found = {"learning_rate": best}
        for name in ("test_auc", "test_log_loss"):
            values = table[name].to_numpy()[rate == best]
            found[name] = float(values.mean())
            if values.size > 1:
                found[f"{name}_error"] = float(values.std(ddof=1) / np.sqrt(values.size))
        return found


def padded(bags: Bags) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """The examples of each bag and their shares of its mean, both of shape (B, size of the largest bag)."""
    order = np.argsort(bags.of, kind="stable")[np.count_nonzero(bags.of == LEFT_OUT) :]
    first = np.cumsum(bags.sizes) - bags.sizes
    place = np.arange(int(bags.sizes.max()))
    inside = place < bags.sizes[:, None]
    rows = order[np.where(inside, first[:, None] + place, first[:, None])]
    return rows, np.where(inside, 1 / bags.sizes[:, None], 0.0).astype(np.float32)


def _scored(model: Any, test: Examples) -> dict[str, float]:
    """AUC on one half of the test part; AUC and mean log-loss on the other. NaN for a training that failed."""
    if isinstance(model, TrainingError):
        return dict.fromkeys(("choosing_auc", "test_auc", "test_log_loss"), float("nan"))
    answers = model.probabilities(test.features)
    half = len(test) // 2
    at_label = answers[np.arange(len(test)), test.labels][half:]
    return {
        "choosing_auc": auc(answers[:half, 1], test.labels[:half]),
        "test_auc": auc(answers[half:, 1], test.labels[half:]),
        "test_log_loss": float(-np.mean(np.log(np.clip(at_label, 1e-15, 1.0)))),
    }


def auc(score: Floats, label: NDArray[np.int64]) -> float:
    """Probability that a random positive scores above a random negative, ties counted half; NaN without both."""
    positives = int(np.count_nonzero(label == 1))
    negatives = label.size - positives
    if not positives or not negatives:
        return float("nan")
    ranks = rankdata(score)
    return float((ranks[label == 1].sum() - positives * (positives + 1) / 2) / (positives * negatives))
