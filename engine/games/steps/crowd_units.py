"""The units of the game of a crafted crowd: trainings watched step by step, the choice of a crowd, scores."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dpaudit.actors.seed import Seed
from dpaudit.actors.work import Outcome, unit
from dpaudit.engine.games.stacks import ExampleGradients
from dpaudit.engine.games.steps.crowd_likelihood import told
from dpaudit.engine.games.steps.crowd_view import CrowdSearch, CrowdSteps, CrowdView, Flags
from dpaudit.engine.games.trials import scored_trials
from dpaudit.errors import require
from dpaudit.estimators.scores import Scores
from dpaudit.mechanisms.compute import Compute, TrainingError
from dpaudit.mechanisms.examples import Examples
from dpaudit.mechanisms.protocols import WatchedLearner
from dpaudit.mechanisms.training.recipe import TrainingTask

if TYPE_CHECKING:
    from torch import Tensor

CANARY, CROWD = 0, 1
"""Rows of the crowd's examples, and their labels."""
COLUMNS = ("released", "canary", "crowd")
"""The fields of `CrowdSteps`."""


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
class Crowd:
    """A crowd.

    Attributes:
        size: Its records, without the canary.
    """

    size: int


@dataclass(frozen=True, eq=False)
class CrowdTrainings:
    """Trainings on a crowd.

    Attributes:
        number: Of each, shape (T,).
        truth: Which had the canary, shape (T,).
        failed: Which left nothing to look at, shape (T,).
        size: Records of the crowd.
        steps: What was seen of all of them.
    """

    number: NDArray[np.int64] = field(metadata={"stored": "int32"})
    truth: Flags
    failed: Flags
    size: int
    steps: CrowdSteps


@unit
def train_crowd(
    mechanism: WatchedLearner,
    shape: tuple[int, ...],
    length: float,
    crowd: Crowd,
    compute: Compute,
    *,
    first: int,
    last: int,
    seed: Seed,
) -> Outcome[CrowdTrainings]:
    """Trainings `first` to `last` - 1 on a crowd, each with the canary or without it by its own coin.

    Args:
        mechanism: What is audited.
        shape: Of an example.
        length: Of a record's features, in clips.
        crowd: How many are trained on.
        compute: Where it runs.
        first: First training.
        last: One past the last one.
        seed: Training t draws its coin from `seed.child(t)`, and trains with `seed.child(t, 0)`.
    Raises: TrainingError when no model could be trained.
    """
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    truth = np.array([seed.child(number).rng().random() < 0.5 for number in range(first, last)])
    examples = crowd_examples(shape, length * mechanism.claimed_steps(crowd.size).private.clip)
    tasks = [
        _task(crowd, there, seed.child(number, 0)) for number, there in zip(range(first, last), truth, strict=True)
    ]
    watched = WatchedCrowd(mechanism, examples, len(tasks), crowd.size, compute)
    with threadpool_limits(compute.threads):
        models = mechanism.watch(examples.features, tasks, classes=examples.classes, compute=compute, observer=watched)
    errors = [model for model in models if isinstance(model, TrainingError)]
    if len(errors) == len(models):
        raise errors[0]
    failed = np.array([isinstance(model, TrainingError) for model in models])
    failed |= ~np.all([np.isfinite(getattr(watched.seen, name)).all(1) for name in COLUMNS], axis=0)
    made = CrowdTrainings(np.arange(first, last), truth, failed, crowd.size, watched.seen)
    return Outcome(made, metrics={"failed_share": float(failed.mean())})


def _task(crowd: Crowd, there: bool, seed: Seed) -> TrainingTask:
    """One training, with the canary as the last record or without it."""
    rows = np.full(crowd.size + there, CROWD, np.int64)
    if there:
        rows[-1] = CANARY
    return TrainingTask(rows, rows.copy(), seed.sequence())


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


@unit
def take_crowd(mechanism: WatchedLearner, search: tuple[CrowdTrainings, ...]) -> Outcome[Crowd]:
    """The crowd on which held-out search trainings are told apart best; its notes say what was tried."""
    found = {}
    for size in sorted({part.size for part in search}):
        gains = told(_search_of(search, size, mechanism))
        found[size] = max((gain, hypothesis.words) for hypothesis, gain in gains.items())
    best = max(found, key=lambda size: found[size][0])
    tried = ", ".join(f"{size} records {max(0.0, gain):.4f}" for size, (gain, _) in found.items())
    words = (
        f"crowds of {len(found)} sizes were tried, each training of which told so many nats: {tried}; of {best} "
        f"records it was learned that the canary {found[best][1]}"
    )
    return Outcome(Crowd(best), notes=(words,))


@unit
def score_crowd(
    attack: Any,
    mechanism: WatchedLearner,
    crowd: Crowd,
    search: tuple[CrowdTrainings, ...],
    fresh: tuple[CrowdTrainings, ...],
) -> Iterator[Scores]:
    """The attack learns on the search trainings of the chosen crowd and scores the fresh ones: one replay."""
    number, truth, failed = (
        np.concatenate([getattr(part, name) for part in fresh]) for name in ("number", "truth", "failed")
    )
    view = CrowdView(_search_of(search, crowd.size, mechanism), _finished(fresh))
    yield scored_trials(attack, view, number=number, truth=truth, failed=failed)


def _search_of(search: Sequence[CrowdTrainings], size: int, mechanism: WatchedLearner) -> CrowdSearch:
    """Search trainings on a crowd that did not fail, and their worlds."""
    own = [part for part in search if part.size == size]
    require(any((~part.failed).any() for part in own), "some search training on each crowd must be finished", size=size)
    truth = np.concatenate([part.truth[~part.failed] for part in own])
    return CrowdSearch(_finished(own), truth, mechanism.claimed_steps(size).private, size)


def _finished(trainings: Sequence[CrowdTrainings]) -> CrowdSteps:
    """The steps of those that did not fail."""
    parts = [part.steps.of(~part.failed) for part in trainings]
    return CrowdSteps(*(np.concatenate([getattr(part, name) for part in parts]) for name in COLUMNS))
