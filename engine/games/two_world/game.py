"""Two-world membership games: a fixed base set with or without the challenge ("ind-mia"), or fresh data ("mia").

Source: Zanella-Beguelin et al. (2022), arXiv:2206.05199, Experiments 1 and 2, section 4.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from dpaudit.actors.seed import Seed
from dpaudit.actors.unit import Unit
from dpaudit.actors.work import Work
from dpaudit.claims import Relation
from dpaudit.engine.games.protocol import (
    LEARNERS,
    Capability,
    CheckTest,
    GameTraits,
    Played,
    Reading,
    Setting,
    StopRule,
)
from dpaudit.engine.games.trials import TrialGame, grouped_for_reading
from dpaudit.engine.games.two_world.canaries import Canary, GivenRow, GradientCanary
from dpaudit.engine.games.two_world.views import Challenges, ChallengeView
from dpaudit.engine.games.two_world.work import (
    Trial,
    TrialSetup,
    choose_challenges,
    score_challenges,
    train_shadows,
    train_trials,
)
from dpaudit.errors import SpecError, require
from dpaudit.mechanisms.protocols import ObservableLearner
from dpaudit.registry import register

OBSERVABLE_LEARNERS = Capability(ObservableLearner, "learners with observable steps (of the DP-SGD family)")


MAX_SHADOWS = 2**15 - 1
ON_STEPS = "gradient-likelihood"
"""Default attack on the steps of a learner that states their sampling and noise."""


@dataclass(frozen=True)
class TwoWorldGame(TrialGame, ABC):
    """Base of two-world membership games.

    The target part of the data is the pool. A trial trains on about half of it, and so does a shadow model.

    Attributes:
        shadows: Number of shadow models, even, >= 2; trained only if the canary or the attack needs them.
        queries: Number of queries of each point; 1 for the point itself, more for augmented images.
        population: Number of points of the pool that no trial trains on, always queried, for rmia, >= 0.
        shadow_mechanism: Mechanism of the shadow models; None for the audited one. A cheaper one may suffice.
    """

    shadows: int = 64
    queries: int = 1
    population: int = 200
    shadow_mechanism: Any = field(default=None, metadata={"kind": "mechanism"})

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            self.shadows % 2 == 0 and 2 <= self.shadows <= MAX_SHADOWS,
            f"shadows must be even (they come in pairs) and in 2..{MAX_SHADOWS}",
            shadows=self.shadows,
        )
        require(self.queries >= 1, "queries must be >= 1", queries=self.queries)
        require(self.population >= 0, "population must be >= 0", population=self.population)

    @property
    @abstractmethod
    def challenge_canary(self) -> Canary | GradientCanary | None:
        """Canary that fixes the challenge points; None if each trial draws one."""

    @property
    def usual_attack(self) -> str:
        """Name of the default attack; gradient canaries need one that observes steps."""
        return ON_STEPS if isinstance(self.challenge_canary, GradientCanary) else self.traits.attack

    @abstractmethod
    def setup(self, pool: int, challenges: Challenges | None, population: int, seed: Seed) -> TrialSetup:
        """Return the setup that all trials share."""

    @abstractmethod
    def trial(self, setup: TrialSetup, rng: np.random.Generator) -> Trial:
        """Return the random choices of one trial."""

    def play(self, setting: Setting, work: Work) -> Played:
        self.setup(len(setting.parts.target), None, self.population, setting.seed)
        needs: frozenset[str] = setting.attack.needs
        canary = self.challenge_canary
        if isinstance(canary, GradientCanary) and needs != {"gradients"}:
            raise SpecError(
                "a gradient canary is not a point at which a model has a confidence. Use attack: gradient-likelihood, "
                "which knows sampling and noise, or gradient-dot"
            )
        if isinstance(canary, GradientCanary) or "gradients" in needs:
            _require_observable(setting.mechanism)
        shadows, challenges = self._prepared(setting, work, attack_needs_shadows="shadows" in needs)
        trials = work.split(
            train_trials,
            self.trials,
            self.runs_per_unit(setting.mechanism),
            # Only fields that affect a trial, so that an audit with more trials or other shadows reuses finished units.
            replace(self, trials=2, stack=1, shadows=2, shadow_mechanism=None, population=0),
            setting.mechanism,
            setting.required_part("target"),
            setting.part_argument("test"),
            setting.part_argument("validation"),
            challenges,
            population=self.population,
            watched="gradients" in needs,
            seed=setting.seed.child("trials"),
            label="training trials",
            **setting.unit_options,
        )
        in_order = setting.reading is Reading.IN_ORDER
        scores = tuple(
            work.add(
                score_challenges,
                setting.informed_attack,
                stacks,
                shadows if "shadows" in needs else (),
                label=f"scores of {stacks[0].label.removeprefix('training ') if in_order else f'{self.trials} trials'}",
                resources=setting.resources.without_gpu,
            )
            for stacks in grouped_for_reading(trials, setting)
        )
        return Played(scores, trainings=trials, shadows=shadows, reference=self.reference())

    def _prepared(
        self, setting: Setting, work: Work, *, attack_needs_shadows: bool
    ) -> tuple[tuple[Unit, ...], Unit | None]:
        canary = self.challenge_canary
        if not isinstance(canary, Canary):
            return (self._shadows(setting, work, None) if attack_needs_shadows else ()), None
        if canary.crafted:
            challenges = self._chosen(setting, work, canary, ())
            return (self._shadows(setting, work, challenges) if attack_needs_shadows else ()), challenges
        shadows = self._shadows(setting, work, None) if attack_needs_shadows or canary.needs_shadows else ()
        return shadows, self._chosen(setting, work, canary, shadows if canary.needs_shadows else ())

    def _chosen(self, setting: Setting, work: Work, canary: Canary, shadows: tuple[Unit, ...]) -> Unit:
        return work.add(
            choose_challenges,
            canary,
            shadows,
            setting.required_part("target"),
            seed=setting.seed.child("canary"),
            label="challenge points",
            resources=setting.resources.without_gpu,
        )

    def _shadows(self, setting: Setting, work: Work, crafted: Unit | None) -> tuple[Unit, ...]:
        mechanism = setting.mechanism if self.shadow_mechanism is None else self.shadow_mechanism
        return work.split(
            train_shadows,
            self.shadows,
            2 * -(-self.runs_per_unit(mechanism) // 2),  # pairs stay together
            mechanism,
            setting.required_part("target"),
            crafted,
            queries=self.queries,
            seed=setting.seed.child("shadows"),
            label="shadow models",
            **setting.unit_options,
        )


def half_of_the_pool(game: TwoWorldGame, rows: int) -> tuple[int, int]:
    """Return the number of training rows twice: half of the pool, or fewer if population and challenges need more."""
    canary = game.challenge_canary
    points = len(canary.rows) if isinstance(canary, GivenRow) else getattr(canary, "count", 1)
    fewest = max(1, min(rows // 2, rows - game.population - points))
    return fewest, fewest


@register("game", "ind-mia", source="arXiv:2206.05199, Experiment 2 (IND-MIA)")
@dataclass(frozen=True)
class IndMia(TwoWorldGame):
    """Two-world game under add/remove: a model trains on a fixed base set with or without the challenge point.

    Attributes:
        canary: Choice of the challenge points; each trial draws one of them at random.
    """

    traits: ClassVar[GameTraits] = GameTraits(
        relation=Relation.ADD_REMOVE,
        assumes="Nothing beyond fair coins and independent trainings: challenge points and attack were fixed before "
        "the audited models were trained.",
        views={LEARNERS: ChallengeView},
        attack="lira-online",
        estimator="fair-coins",
        independent_trials=True,
        repeats_calls=True,
        run_on=half_of_the_pool,
        helps="more `trials`",
        check_tests=(
            CheckTest(
                OBSERVABLE_LEARNERS,
                (Relation.ADD_REMOVE,),
                "too little noise for a gradient at the clipping norm, over all steps of a training",
                trainings=1024,
                scales={"trials": 1.0},
                variant="gradient",
                game={"canary": {"name": "dirac-gradient", "weight": 0}, "population": 0, "stack": 128},
                attack="gradient-likelihood",
                estimator="betting",
                stop=StopRule(hopeless=True),
                growth_on_repeat={"trials": 2},
            ),
            CheckTest(
                LEARNERS,
                (Relation.ADD_REMOVE,),
                "membership of a point far from the data, from the loss of the trained model",
                trainings=512,
                scales={"trials": 1.0},
                variant="far point",
                game={"canary": {"name": "blank", "value": 5.0}, "population": 0},
                attack="loss",
                estimator="betting",
                stop=StopRule(hopeless=True),
                growth_on_repeat={"trials": 2},
            ),
        ),
    )

    canary: Canary | GradientCanary = field(default=GivenRow(), metadata={"kind": "canary"})

    @property
    def challenge_canary(self) -> Canary | GradientCanary:
        return self.canary

    def setup(self, pool: int, challenges: Challenges | None, population: int, seed: Seed) -> TrialSetup:
        """Return a setup with a random half of the pool as base set, without challenges and their sources."""
        order = seed.child("base").rng().permutation(pool)
        sources = np.empty(0, np.int64) if challenges is None else challenges.rows
        places = np.empty(0, np.int64) if challenges is None else challenges.points(pool)
        order = order[~np.isin(order, sources)]
        size = min(pool // 2, len(order) - population)
        _require_room(size, pool, population)
        return TrialSetup(pool, places, sources, order[size : size + population], order[:size])

    def trial(self, setup: TrialSetup, rng: np.random.Generator) -> Trial:
        truth = bool(rng.random() < 0.5)
        if not len(setup.challenges):  # the canary is a gradient
            return Trial(truth, -1, setup.base)
        challenge = int(setup.challenges[rng.integers(len(setup.challenges))])
        return Trial(truth, challenge, np.append(setup.base, challenge) if truth else setup.base)


@register("game", "mia", source="arXiv:2206.05199, Experiment 1 (MIA)")
@dataclass(frozen=True)
class Mia(TwoWorldGame):
    """Two-world game under replace: a model trains on a fresh base set and one of two points; the first is shown."""

    traits: ClassVar[GameTraits] = GameTraits(
        relation=Relation.REPLACE,
        assumes="Nothing beyond fair coins and independent trainings: each trial draws new data from the pool.",
        views={LEARNERS: ChallengeView},
        attack="lira-online",
        estimator="fair-coins",
        independent_trials=True,
        repeats_calls=True,
        run_on=half_of_the_pool,
        helps="more `trials`",
        check_tests=(
            CheckTest(
                LEARNERS,
                (Relation.REPLACE,),
                "membership of a record that may have replaced another one, from the loss of the trained model",
                trainings=512,
                scales={"trials": 1.0},
                game={"population": 0},
                attack="loss",
                estimator="betting",
                stop=StopRule(hopeless=True),
                growth_on_repeat={"trials": 2},
            ),
        ),
    )

    @property
    def challenge_canary(self) -> None:
        return None

    def setup(self, pool: int, challenges: Challenges | None, population: int, seed: Seed) -> TrialSetup:
        _require_room(pool - population - 2, pool, population)
        none = np.empty(0, np.int64)
        order = seed.child("population").rng().permutation(pool)
        return TrialSetup(pool, none, none, order[:population], order[population:])

    def trial(self, setup: TrialSetup, rng: np.random.Generator) -> Trial:
        truth = bool(rng.random() < 0.5)
        size = min(setup.pool // 2, len(setup.base) - 1)
        rows = rng.choice(setup.base, size + 1, replace=False)
        challenge, other, base = rows[0], rows[1], rows[2:]
        return Trial(truth, int(challenge), np.append(base, challenge if truth else other))


def _require_room(rows: int, pool: int, population: int) -> None:
    if rows < 1:
        raise SpecError(
            f"the target part must have training rows besides challenges and population. It has {pool} rows, and the "
            f"population takes {population}. Lower `population` or increase `split.target`"
        )


def _require_observable(mechanism: object) -> None:
    if not isinstance(mechanism, ObservableLearner):
        raise SpecError(
            "a white-box attack or a gradient canary needs a learner of the DP-SGD family (dp-sgd). "
            "Use a black-box attack and an example as canary"
        )
