"""The units of the game of a crafted crowd: trainings watched step by step, the choice of a crowd, scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dpaudit.actors.seed import Seed
from dpaudit.actors.unit import Inputs
from dpaudit.engine.attacks.crowd_likelihood import told
from dpaudit.engine.games.stacks import ExampleGradients
from dpaudit.engine.games.trials import ScoreTrials, vector_column, vectors_in
from dpaudit.engine.views.crowd_view import CrowdSearch, CrowdSteps, CrowdView
from dpaudit.errors import require
from dpaudit.mechanisms.examples import Examples
from dpaudit.mechanisms.protocols import Compute, TrainingError, WatchedLearner
from dpaudit.mechanisms.training.task import TrainingTask

if TYPE_CHECKING:
    from torch import Tensor

CANARY, CROWD = 0, 1
"""Rows of the crowd's examples, and their labels."""
COLUMNS = ("released", "canary", "crowd")


def crowd_examples(shape: tuple[int, ...], length: float) -> Examples:
    """The canary and a record of the crowd: the same features with one label or the other, so that their gradients are
    opposite in a network of two classes, whatever its weights.

    Args:
        shape: Of an example.
        length: Of the features.
    """
    point = np.full(shape, length / np.sqrt(np.prod(shape)), np.float32)
    return Examples(np.stack([point, point]), np.array([CANARY, CROWD]), 2, "crafted crowd")


@dataclass(frozen=True)
class TrainCrowd:
    """Trainings `first` to `last` - 1 on a crowd, each with the canary or without it by its own coin.

    Attributes:
        mechanism: What is audited.
        shape: Of an example.
        length: Of a record's features, in clips.
        seed: Training t draws its coin from `seed.child(t)`, and trains with `seed.child(t, 0)`.
        size: Records of the crowd; 0 takes the chosen number.
        choice: Key of the unit that chose it; "" where `size` says it.
        first: First training.
        last: One past the last one.
    """

    mechanism: WatchedLearner
    shape: tuple[int, ...]
    length: float
    seed: Seed
    size: int
    choice: str = ""
    first: int = 0
    last: int = 1

    def run(self, inputs: Inputs, compute: Compute) -> pa.Table:
        """One row a training: trial, truth, size, failed; lists released, canary, crowd, one number a step.

        Raises: TrainingError when no model could be trained.
        """
        from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

        size = self.size or int(inputs.tables[self.choice]["size"][0].as_py())
        numbers = range(self.first, self.last)
        truth = np.array([self.seed.child(number).rng().random() < 0.5 for number in numbers])
        claimed = self.mechanism.claimed_steps(size)
        examples = crowd_examples(self.shape, self.length * claimed.private.clip)
        tasks = [self._task(size, number, there) for number, there in zip(numbers, truth, strict=True)]
        steps = WatchedCrowd(self.mechanism, examples, len(tasks), size, compute)
        with threadpool_limits(compute.threads):
            models = self.mechanism.watch(
                examples.features, tasks, classes=examples.classes, compute=compute, observer=steps
            )
        errors = [model for model in models if isinstance(model, TrainingError)]
        if len(errors) == len(models):
            raise errors[0]
        failed = np.array([isinstance(model, TrainingError) for model in models])
        seen = [steps.seen.released, steps.seen.canary, steps.seen.crowd]
        failed |= ~np.all([np.isfinite(values).all(1) for values in seen], axis=0)
        table = pa.table(
            {
                "trial": pa.array(list(numbers), pa.int32()),
                "truth": truth,
                "size": pa.array([size] * len(tasks), pa.int64()),
                "failed": failed,
                **{name: vector_column(values) for name, values in zip(COLUMNS, seen, strict=True)},
            }
        )
        return table.replace_schema_metadata({"metric:failed_share": repr(float(failed.mean()))})

    def _task(self, size: int, number: int, there: bool) -> TrainingTask:
        rows = np.full(size + there, CROWD, np.int64)
        if there:
            rows[-1] = CANARY
        return TrainingTask(rows, rows.copy(), self.seed.child(number, 0).sequence())


class WatchedCrowd:
    """An observer of trainings on a crowd: keeps what each step has along the canary's gradient at its weights."""

    def __init__(
        self, mechanism: WatchedLearner, examples: Examples, trainings: int, size: int, compute: Compute
    ) -> None:
        """Before the trainings.

        Args:
            mechanism: What trains.
            examples: Canary and crowd, as `crowd_examples` makes them.
            trainings: How many there will be.
            size: Of the crowd, for what the claim says of so many records.
            compute: Threads and device.
        """
        claimed = mechanism.claimed_steps(size)
        clip = claimed.private.clip
        self._unit = claimed.divisor / clip
        self._gradients = [
            ExampleGradients(mechanism.recipe, clip, examples.take(np.full(trainings, row)), compute)
            for row in (CANARY, CROWD)
        ]
        self.seen = CrowdSteps(*np.zeros((3, trainings, claimed.count)))

    def __call__(self, places: NDArray[np.int64], step: int, parameters: Tensor, released: Tensor) -> None:
        """One step, as an `Observer` is shown it."""
        canary, crowd = (gradient(places, parameters) for gradient in self._gradients)
        length = canary.norm(dim=1, keepdim=True)
        along = canary / length.clamp(min=1e-30) * (length > 1e-6)
        self.seen.released[places, step] = (released.double() * along).sum(1).cpu().numpy() * self._unit
        self.seen.canary[places, step] = (canary * along).sum(1).cpu().numpy()
        self.seen.crowd[places, step] = (crowd * along).sum(1).cpu().numpy()


@dataclass(frozen=True)
class TakeCrowd:
    """The crowd on which held-out search trainings are told apart best.

    Attributes:
        mechanism: What is audited.
        search: Keys of the units with the search trainings.
    """

    mechanism: WatchedLearner
    search: tuple[str, ...]

    def run(self, inputs: Inputs, compute: Compute) -> pa.Table:
        """Its size; what was tried, in words, in the metadata."""
        searched = _searched(inputs, self.search)
        found = {}
        for size in sorted(set(searched["size"].to_pylist())):
            gains = told(_search_of(searched, size, self.mechanism))
            found[size] = max((gain, hypothesis.words) for hypothesis, gain in gains.items())
        best = max(found, key=lambda size: found[size][0])
        tried = ", ".join(f"{size} records {max(0.0, gain):.4f}" for size, (gain, _) in found.items())
        words = (
            f"crowds of {len(found)} sizes were tried, each training of which told so many nats: {tried}; of {best} "
            f"records it was learned that the canary {found[best][1]}"
        )
        return pa.table({"size": pa.array([best], pa.int64())}).replace_schema_metadata({"told": words})


@dataclass(frozen=True)
class ScoreCrowd(ScoreTrials):
    """The attack learns on the search trainings of the chosen crowd and scores the fresh ones.

    Attributes:
        mechanism: What is audited.
        searched: Keys of the unit that chose the crowd, and of those with the search trainings.
    """

    mechanism: WatchedLearner
    searched: tuple[str, ...] = ()

    def view(self, trials: pa.Table, inputs: Inputs) -> CrowdView:
        """Steps of both; worlds of the search trainings alone."""
        choice, *search = self.searched
        size = int(inputs.tables[choice]["size"][0].as_py())
        return CrowdView(_search_of(_searched(inputs, search), size, self.mechanism), _steps_in(trials))


def _searched(inputs: Inputs, keys: Sequence[str]) -> pa.Table:
    return pa.concat_tables([inputs.tables[key] for key in keys]).combine_chunks()


def _search_of(searched: pa.Table, size: int, mechanism: WatchedLearner) -> CrowdSearch:
    """Search trainings on a crowd that did not fail, and their worlds."""
    there = (searched["size"].to_numpy() == size) & ~searched["failed"].to_numpy()
    require(bool(there.any()), "some search training on each crowd must be finished", size=size)
    table = searched.filter(pa.array(there))
    return CrowdSearch(_steps_in(table), table["truth"].to_numpy(), mechanism.claimed_steps(size).private, size)


def _steps_in(table: pa.Table) -> CrowdSteps:
    return CrowdSteps(*(vectors_in(table, name).astype(np.float64) for name in COLUMNS))
