"""The membership games of two worlds: a fixed base set with the challenge or without it, and fresh data each time.

Source: Zanella-Beguelin et al. (2022), arXiv:2206.05199, Experiments 1 and 2, section 4.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from dpaudit.actors.seed import Seed
from dpaudit.claims import Relation
from dpaudit.engine.games.fits import LEARNERS, OBSERVABLE_LEARNERS, CheckTest, Fits
from dpaudit.engine.games.stop_rule import StopRule
from dpaudit.engine.games.two_world.canaries.points import GivenRow
from dpaudit.engine.games.two_world.canaries.protocol import Canary, GradientCanary
from dpaudit.engine.games.two_world.plan import TwoWorldGame
from dpaudit.engine.games.two_world.rules import Trial, TrialSetup
from dpaudit.engine.games.two_world.views.challenge_view import ChallengeView
from dpaudit.engine.games.two_world.views.challenges import Challenges
from dpaudit.errors import SpecError
from dpaudit.registry import register


@register("game", "ind-mia", source="arXiv:2206.05199, Experiment 2 (IND-MIA)")
@dataclass(frozen=True)
class IndMia(TwoWorldGame):
    """Two worlds, add/remove: a fixed base set, trained on with the challenge point or without it.

    Attributes:
        canary: Which challenge points; a trial is about one of them, drawn at random.
    """

    fits: ClassVar[Fits] = Fits(
        relation=Relation.ADD_REMOVE,
        assumes="Nothing beyond fair coins and independent trainings: challenge points and attack were fixed before "
        "the audited models were trained.",
        views={LEARNERS: ChallengeView},
        attack="lira-online",
        estimator="fair-coins",
        independent_trials=True,
        helps="more `trials`",
        check_tests=(
            CheckTest(
                OBSERVABLE_LEARNERS,
                (Relation.ADD_REMOVE,),
                "noise too small for a gradient at the clip, step by step of whole trainings",
                trainings=1024,
                scales={"trials": 1.0},
                variant="gradient",
                game={"canary": {"name": "dirac-gradient", "weight": 0}, "population": 0, "stack": 128},
                attack="gradient-likelihood",
                estimator="betting",
                stop=StopRule(),
                again={"trials": 2},
            ),
            CheckTest(
                LEARNERS,
                (Relation.ADD_REMOVE,),
                "a point far from the data that the trained model gives away",
                trainings=512,
                scales={"trials": 1.0},
                variant="far point",
                game={"canary": {"name": "blank", "value": 5.0}, "population": 0},
                attack="loss",
                estimator="betting",
                stop=StopRule(),
                again={"trials": 2},
            ),
        ),
    )

    canary: Canary | GradientCanary = field(default=GivenRow(), metadata={"kind": "canary"})

    @property
    def challenge_canary(self) -> Canary | GradientCanary:
        """The canary."""
        return self.canary

    def setup(self, pool: int, challenges: Challenges | None, population: int, seed: Seed) -> TrialSetup:
        """A random half of the pool as base set, without the rows that challenges are or are made from."""
        order = seed.child("base").rng().permutation(pool)
        sources = np.empty(0, np.int64) if challenges is None else challenges.rows
        places = np.empty(0, np.int64) if challenges is None else challenges.points(pool)
        order = order[~np.isin(order, sources)]
        size = min(pool // 2, len(order) - population)
        _require_room(size, pool, population)
        return TrialSetup(pool, places, sources, order[size : size + population], order[:size])

    def trial(self, setup: TrialSetup, rng: np.random.Generator) -> Trial:
        """The coin, and which of the challenges."""
        truth = bool(rng.random() < 0.5)
        if not len(setup.challenges):  # the canary is a gradient
            return Trial(truth, -1, setup.base)
        challenge = int(setup.challenges[rng.integers(len(setup.challenges))])
        return Trial(truth, challenge, np.append(setup.base, challenge) if truth else setup.base)


@register("game", "mia", source="arXiv:2206.05199, Experiment 1 (MIA)")
@dataclass(frozen=True)
class Mia(TwoWorldGame):
    """Two worlds, replace: a fresh base set and two fresh points; one is trained on, and the first one is shown."""

    fits: ClassVar[Fits] = Fits(
        relation=Relation.REPLACE,
        assumes="Nothing beyond fair coins and independent trainings: each trial draws its data from the pool anew.",
        views={LEARNERS: ChallengeView},
        attack="lira-online",
        estimator="fair-coins",
        independent_trials=True,
        helps="more `trials`",
        check_tests=(
            CheckTest(
                LEARNERS,
                (Relation.REPLACE,),
                "whether a record was trained on or another in its place, from the trained model's loss",
                trainings=512,
                scales={"trials": 1.0},
                game={"population": 0},
                attack="loss",
                estimator="betting",
                stop=StopRule(),
                again={"trials": 2},
            ),
        ),
    )

    @property
    def challenge_canary(self) -> None:
        """None: points are drawn by the trials."""
        return None

    def setup(self, pool: int, challenges: Challenges | None, population: int, seed: Seed) -> TrialSetup:
        """The population is set aside; the rest is drawn from."""
        _require_room(pool - population - 2, pool, population)
        none = np.empty(0, np.int64)
        order = seed.child("population").rng().permutation(pool)
        return TrialSetup(pool, none, none, order[:population], order[population:])

    def trial(self, setup: TrialSetup, rng: np.random.Generator) -> Trial:
        """The coin, the base set, the point shown and the point in its place."""
        truth = bool(rng.random() < 0.5)
        size = min(setup.pool // 2, len(setup.base) - 1)
        drawn = rng.choice(setup.base, size + 1, replace=False)
        shown, other, base = drawn[0], drawn[1], drawn[2:]
        return Trial(truth, int(shown), np.append(base, shown if truth else other))


def _require_room(rows: int, pool: int, population: int) -> None:
    if rows < 1:
        raise SpecError(
            f"the target part must have rows to train on beside challenges and population, it has {pool} and the "
            f"population takes {population}; lower `population` or give `split.target` a larger share"
        )
