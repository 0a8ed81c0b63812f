"""A crafted crowd: every record but one is the same, made so that its gradient is opposite to the canary's.

DP-SGD's claim holds for every two neighbouring data sets, so the adversary may choose all of the data. In a crowd the
sum of a step says how many records are in the batch, and a batch that is one short when the canary comes moves the sum
by two clips instead of one. What sampling gets wrong is seen there: batches of one size, or shuffled epochs, that were
accounted for as Poisson sampling. Under Poisson sampling itself the crowd adds binomial noise and tells nothing.

Source: Chua et al. (2024), arXiv:2403.17673, and Annamalai et al. (2024), arXiv:2411.10614, whose worst-case data these
are after; the learned law is ours.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from dpaudit.actors.unit import Resources
from dpaudit.actors.work import Work
from dpaudit.claims import Relation
from dpaudit.engine.games.fits import WATCHED_LEARNERS, CheckTest, Fits
from dpaudit.engine.games.protocol import Played, Setting, require_units
from dpaudit.engine.games.steps.crowd_units import Crowd, score_crowd, take_crowd, train_crowd
from dpaudit.engine.games.steps.crowd_view import CrowdView
from dpaudit.engine.games.trials import MOST_TRIALS, TrialGame, grouped_for_reading
from dpaudit.errors import SpecError, require
from dpaudit.mechanisms.examples import Features
from dpaudit.mechanisms.protocols import WatchedLearner
from dpaudit.mechanisms.training.inputs import example_shape
from dpaudit.registry import register

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
        require(4 <= self.search <= MOST_TRIALS, f"search must be in 4 .. {MOST_TRIALS:,}", search=self.search)
        require(all(size >= 1 for size in self.sizes), "sizes of crowds must be >= 1", sizes=self.sizes)
        require(self.length > 0, "length must be > 0", length=self.length)

    def play(self, setting: Setting, work: Work) -> Played:
        """Search trainings on each crowd, the choice of one, fresh trainings on it, scores.

        Raises: SpecError when the claim says something else of one record more, at all the sizes that may be tried.
        """
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
                resources=setting.resources,
                after=setting.after,
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
            resources=setting.resources,
            after=setting.after,
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

    Raises: SpecError when there is none.
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
