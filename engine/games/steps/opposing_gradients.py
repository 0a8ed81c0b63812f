"""A crafted crowd: every record but one is the same, made so that its gradient is opposite to the canary's.

The sum of a step says how many of the crowd are in the batch, and a batch that is one short when the canary comes moves
it by two clips instead of one: so batches of one size and shuffled epochs, accounted for as Poisson sampling, show.
Under Poisson sampling itself the crowd adds binomial noise and tells nothing.
Source: the worst-case data of Chua et al. (2024), arXiv:2403.17673, and Annamalai et al. (2024), arXiv:2411.10614; the
learned law is ours.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from dpaudit.actors.seed import Seed
from dpaudit.actors.unit import Resources
from dpaudit.actors.work import Outcome, Work, unit
from dpaudit.claims import Relation
from dpaudit.engine.games.protocol import Capability, CheckTest, Fits, Played, Setting, require_units
from dpaudit.engine.games.steps.crowd_likelihood import CrowdSearch, CrowdSteps, CrowdView, told
from dpaudit.engine.games.trials import (
    MAX_TRIALS,
    ExampleGradients,
    TrialGame,
    failed_among,
    grouped_for_reading,
    scored_trials,
)
from dpaudit.errors import SpecError, require
from dpaudit.estimators.scores import Scores
from dpaudit.mechanisms.compute import Compute
from dpaudit.mechanisms.examples import Examples, Features
from dpaudit.mechanisms.protocols import WatchedLearner
from dpaudit.mechanisms.training.inputs import example_shape
from dpaudit.mechanisms.training.recipe import TrainingTask
from dpaudit.registry import register

if TYPE_CHECKING:
    from torch import Tensor

WATCHED_LEARNERS = Capability(
    WatchedLearner, "learners whose weights and steps may be watched (with methods `claimed_steps` and `watch`)"
)
FEW = 2
"""Records of the smallest crowd that is tried: fewer than an epoch has batches."""


@register("game", "opposing-gradients", source="Ours, after Chua et al. (2024), arXiv:2403.17673; arXiv:2411.10614")
@dataclass(frozen=True)
class OpposingGradients(TrialGame):
    """Two worlds, add/remove: a crowd of records alike, trained on with a canary of the opposite gradient or without.

    Of the data given only the shape of an example is used, one feature where it is a row of numbers; there are two
    classes. Trainings are watched step by step.

    Attributes:
        search: Trainings the attack learns from, spread evenly over the sizes of crowds that are tried, in
            4 .. 10,000,000.
        sizes: Records of the crowds that are tried, each >= 1; the one that tells most is taken. Empty: those around
            which the size of a batch may change, and a small one; where the claim is not about those, as many as the
            target part has.
        length: Of a record, in clips, > 0: long enough that its gradient is clipped, and no longer, since a crowd that
            is well told apart has no gradient left.
    """

    fits: ClassVar[Fits] = Fits(
        relation=Relation.ADD_REMOVE,
        assumes="Nothing beyond fair coins and independent trainings: both data sets and the attack were fixed before "
        "the fresh trainings. The claim is taken to hold for every data set, as it says.",
        views={WATCHED_LEARNERS: CrowdView},
        attack="crowd-likelihood",
        estimator="fair-coins",
        independent_trials=True,
        repeats_calls=True,
        helps="more `trials`",
        check_tests=(
            CheckTest(
                WATCHED_LEARNERS,
                (Relation.ADD_REMOVE,),
                "batches that are not drawn as was accounted for, noise too small, clipping that does not bind: on "
                "data made for it",
                trainings=1_536,
                cost=1 / 20,
                scales={"trials": 2 / 3, "search": 1 / 3},
                least=192,
                again={"trials": 4, "search": 2},
            ),
        ),
    )

    trials: int = 4_000
    stack: int = 256
    search: int = 1_000
    sizes: tuple[int, ...] = ()
    length: float = 2.0

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "sizes", tuple(self.sizes))
        require(4 <= self.search <= MAX_TRIALS, f"search must be in 4 .. {MAX_TRIALS:,}", search=self.search)
        require(all(size >= 1 for size in self.sizes), "sizes of crowds must be >= 1", sizes=self.sizes)
        require(self.length > 0, "length must be > 0", length=self.length)

    def play(self, setting: Setting, work: Work) -> Played:
        mechanism = setting.mechanism
        sizes = self.sizes or sizes_for(mechanism, len(setting.parts.target))
        shape = crowd_shape(setting.parts.target.features)
        each = self.search // len(sizes)
        require(each >= 4, f"search must be at least {4 * len(sizes)}", sizes=len(sizes), search=self.search)
        require_units(-(-each // self.stack))
        search = tuple(
            unit
            for number, size in enumerate(sizes)
            for unit in work.split(
                train_crowd,
                each,
                self.stack,
                mechanism,
                shape,
                self.length,
                Crowd(size),
                offset=number * each,
                seed=setting.seed.child("search"),
                label=f"crowd of {size}: trainings",
                **setting.running,
            )
        )
        chosen = work.add(take_crowd, mechanism, search, label="choice of a crowd", resources=Resources())
        fresh = work.split(
            train_crowd,
            self.trials,
            self.stack,
            mechanism,
            shape,
            self.length,
            chosen,
            seed=setting.seed.child("fresh"),
            label="the crowd taken: trainings",
            **setting.running,
        )
        scores = tuple(
            work.add(
                score_crowd,
                setting.attack,
                mechanism,
                chosen,
                search,
                trials,
                label=f"scores of {trials[0].label}",
                resources=setting.resources,
            )
            for trials in grouped_for_reading(fresh, setting)
        )
        return Played(scores, trainings=fresh, choices=(chosen,), reference=self.reference())


def crowd_shape(features: Features) -> tuple[int, ...]:
    """Of a record: that of the data's, but a single feature where these are flat, since a network takes any number."""
    shape = example_shape(features)
    return (1,) if len(shape) == 1 else shape


def sizes_for(mechanism: WatchedLearner, rows: int) -> tuple[int, ...]:
    """Sizes of crowds to try, of which the mechanism claims the same with and without one record more.

    A batch of q n records, rounded in whichever way, holds one more from some n on: the last n before that are tried
    for every way of rounding. Where the claim depends on the number of rows, as many as there are are taken, or the
    next number of which the same is claimed.
    """
    rate = mechanism.claimed_steps(rows).private.sample_rate
    steps = mechanism.claimed_steps(rows)
    wanted = (FEW, math.floor(1 / rate), math.ceil(1.5 / rate) - 1, math.ceil(2 / rate) - 1)
    alike = [
        n for n in sorted({max(1, n) for n in wanted}) if _alike(mechanism, n) and mechanism.claimed_steps(n) == steps
    ]
    if alike:
        return tuple(alike)
    near = next((n for n in range(rows, 2 * rows + 2) if _alike(mechanism, n)), None)
    if near is None:
        raise SpecError(
            f"what {type(mechanism).__name__} claims of its steps changes with every record; give `sizes` by hand"
        )
    return (near,)


def _alike(mechanism: WatchedLearner, rows: int) -> bool:
    """Whether the same is claimed of the steps with one record more."""
    return mechanism.claimed_steps(rows) == mechanism.claimed_steps(rows + 1)


CANARY, CROWD = 0, 1
"""Rows of the crowd's examples, and their labels."""
COLUMNS = ("released", "canary", "crowd")
"""The fields of `CrowdSteps`."""


def crowd_examples(shape: tuple[int, ...], length: float) -> Examples:
    """The canary and a record of the crowd: the same features with one label or the other, so that their gradients are
    opposite in a network of two classes, whatever its weights.
    """
    point = np.full(shape, length / np.sqrt(np.prod(shape)), np.float32)
    return Examples(np.stack([point, point]), np.array([CANARY, CROWD]), 2, "crafted crowd")


@dataclass(frozen=True)
class Crowd:
    """A crowd."""

    size: int  # its records, without the canary


@dataclass(frozen=True, eq=False)
class CrowdTrainings:
    """Trainings on a crowd."""

    number: NDArray[np.int64] = field(metadata={"stored": "int32"})  # of each, shape (T,)
    truth: NDArray[np.bool_]  # which had the canary, shape (T,)
    failed: NDArray[np.bool_]  # which left nothing to look at, shape (T,)
    size: int  # records of the crowd
    steps: CrowdSteps  # what was seen of all of them


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
    """Trainings `first` to `last` - 1 on a crowd, each with the canary or without it by its own coin."""
    truth = np.array([seed.child(number).rng().random() < 0.5 for number in range(first, last)])
    examples = crowd_examples(shape, length * mechanism.claimed_steps(crowd.size).private.clip)
    tasks = [
        _task(crowd, there, seed.child(number, 0)) for number, there in zip(range(first, last), truth, strict=True)
    ]
    watched = WatchedCrowd(mechanism, examples, len(tasks), crowd.size, compute)
    with threadpool_limits(compute.threads):
        models = mechanism.watch(examples.features, tasks, classes=examples.classes, compute=compute, observer=watched)
    failed = failed_among(models) | ~np.all(
        [np.isfinite(getattr(watched.seen, name)).all(1) for name in COLUMNS], axis=0
    )
    made = CrowdTrainings(np.arange(first, last), truth, failed, crowd.size, watched.seen)
    return Outcome(made, metrics={"failed_share": float(failed.mean())})


def _task(crowd: Crowd, there: bool, seed: Seed) -> TrainingTask:
    rows = np.full(crowd.size + there, CROWD, np.int64)
    if there:
        rows[-1] = CANARY
    return TrainingTask(rows, rows.copy(), seed.sequence())


class WatchedCrowd:
    """An observer of trainings on a crowd: keeps what each step has along the canary's gradient at its weights."""

    def __init__(
        self, mechanism: WatchedLearner, examples: Examples, trainings: int, size: int, compute: Compute
    ) -> None:
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
    parts = [part.steps.of(~part.failed) for part in trainings]
    return CrowdSteps(*(np.concatenate([getattr(part, name) for part in parts]) for name in COLUMNS))
