"""Two-world membership games: a fixed base set with or without the challenge ("ind-mia"), or fresh data ("mia").

Source: Zanella-Beguelin et al. (2022), arXiv:2206.05199, Experiments 1 and 2, section 4.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dpaudit.actors.seed import Seed
from dpaudit.actors.unit import Unit
from dpaudit.actors.work import Work
from dpaudit.claims import Relation
from dpaudit.engine.games.outcomes import Observed, Outcomes, Runs
from dpaudit.engine.games.protocol import (
    LEARNERS,
    Capability,
    CheckTest,
    Played,
    Setting,
    StopRule,
)
from dpaudit.engine.games.trials import TrainingRun, train_runs
from dpaudit.engine.games.two_world.canaries import Canary, GivenRow, GradientCanary
from dpaudit.engine.games.two_world.views import Challenges, ChallengeView
from dpaudit.engine.games.two_world.work import (
    ACCURACY_METRICS,
    ObservedTrainings,
    TrialSetup,
    accuracies,
    accuracy_metrics,
    at_challenges,
    confidences,
    joined_shadows,
    parameter_count,
    train_observed,
    train_shadows,
    with_crafted,
)
from dpaudit.engine.games.two_worlds import PairTraits, TwoWorlds
from dpaudit.errors import SpecError, require
from dpaudit.mechanisms.compute import TrainingError
from dpaudit.mechanisms.protocols import ObservableLearner
from dpaudit.mechanisms.queries.row_function import CallOutcome
from dpaudit.registry import register

OBSERVABLE_LEARNERS = Capability(ObservableLearner, "learners with observable steps (of the DP-SGD family)")


PARTS = 4
"""Number of the inputs of a run: three parts of the data, and whether the attack observes gradients."""
MAX_SHADOWS = 2**15 - 1
ON_STEPS = "gradient-likelihood"
"""Default attack on the steps of a learner that states their sampling and noise."""


@dataclass(frozen=True)
class MembershipOfAPoint(TwoWorlds, ABC):
    """Base of two-world membership games.

    The target part of the data is the pool. A trial trains on about half of it, and so does a shadow model.

    Attributes:
        shadows: Number of shadow models, even, >= 2; trained only if the canary or the attack needs them.
        queries: Number of queries of each point; 1 for the point itself, more for augmented images.
        population: Number of points of the pool that no trial trains on, always queried, for rmia, >= 0.
        shadow_mechanism: Mechanism of the shadow models; None for the audited one. A cheaper one may suffice.
    """

    optional_parts: ClassVar[tuple[str, ...]] = ("test", "validation")
    learns_once: ClassVar[bool] = False
    plays_without_noise: ClassVar[bool] = False
    measures_failures: ClassVar[bool] = True

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
    def setup(self, pool: int, challenges: Challenges | None, rng: np.random.Generator) -> TrialSetup:
        """Return the rows and points from which all trials are drawn.

        Raises: SpecError if there is no room for training rows.
        """

    @abstractmethod
    def trial(self, setup: TrialSetup, truth: bool, rng: np.random.Generator) -> tuple[int, NDArray[np.int64]]:
        """Return the challenge of a trial in a world, -1 for a gradient, and the positions of its training rows."""

    @property
    def _counts(self) -> tuple[str, ...]:
        return (*super()._counts, "shadows", "shadow_mechanism")

    def _source(self, setting: Setting) -> tuple[TwoWorlds, Any, tuple[Any, ...]]:
        """Return what units have in common; the last of the rows tells if the attack observes gradients."""
        game, mechanism, rows = super()._source(setting)
        return game, mechanism, (*rows, "gradients" in setting.attack.needs)

    def play(self, setting: Setting, work: Work) -> Played:
        self.setup(len(setting.parts.target), None, np.random.default_rng(0))
        is_gradient, needs = isinstance(self.challenge_canary, GradientCanary), setting.attack.needs
        if is_gradient and needs != {"gradients"}:
            raise SpecError(
                "a gradient canary is not a point at which a model has a confidence. Use attack: gradient-likelihood, "
                "which knows sampling and noise, or gradient-dot"
            )
        if (is_gradient or "gradients" in needs) and not isinstance(setting.mechanism, ObservableLearner):
            raise SpecError(
                "a white-box attack or a gradient canary needs a learner of the DP-SGD family (dp-sgd). "
                "Use a black-box attack and an example as canary"
            )
        return super().play(setting, work)

    @property
    def pairs_need_shadows(self) -> bool:
        return getattr(self.challenge_canary, "needs_shadows", False)

    def shadow_models(self, setting: Setting, work: Work, seed: Seed, pairs: Unit | None) -> tuple[Unit, ...]:
        """Return units of shadow models: with crafted challenges once they are made, else before the choice."""
        crafted = getattr(self.challenge_canary, "crafted", False)
        wanted = "shadows" in setting.attack.needs or self.pairs_need_shadows
        if not wanted or crafted != (pairs is not None):
            return ()
        mechanism = setting.mechanism if self.shadow_mechanism is None else self.shadow_mechanism
        return work.split(
            train_shadows,
            self.shadows,
            2 * -(-self.runs_per_unit(mechanism) // 2),  # two models of a pair stay together
            mechanism,
            setting.required_part("target"),
            pairs,
            queries=self.queries,
            seed=seed.child("shadows"),
            label="shadow models",
            **setting.unit_options,
        )

    def pairs(self, mechanism: Any, rows: tuple[Any, ...], rng: np.random.Generator) -> Iterator[TrialSetup]:
        """Yield the challenge points, chosen from the pool (and by shadow models) or crafted, and a setup of trials."""
        pool, canary, shadows = rows[0], self.challenge_canary, rows[PARTS:]
        challenges = None
        if isinstance(canary, Canary):
            challenges = canary.choose(pool, joined_shadows(shadows) if shadows else None, rng)
        yield self.setup(len(pool), challenges, rng)

    def run(self, mechanism: Any, pair: TrialSetup, runs: Runs) -> Outcomes:
        """Return the accuracy of each model, its confidences at its challenge and population, and observed steps."""
        pool, test, validation, watched = runs.rows
        points, seeds = with_crafted(pool, pair.challenges), runs.seeds()
        trials = [
            self.trial(pair, truth, seed.child("rows").rng())
            for truth, seed in zip(runs.truth.tolist(), seeds, strict=True)
        ]
        challenge = np.array([place for place, _ in trials])
        trainings = [TrainingRun(places, seed, pair.initial) for (_, places), seed in zip(trials, seeds, strict=True)]
        canary = self.challenge_canary
        if isinstance(canary, GradientCanary):
            # One gradient for all trials, fixed before they are drawn.
            gradient = canary.gradient(parameter_count(mechanism, points), runs.seed.child("gradient").rng())
            gradients = np.broadcast_to(gradient, (len(trainings), len(gradient)))
            observed = train_observed(
                mechanism, points, trainings, compute=runs.compute, gradients=gradients, inserted=runs.truth
            )
        elif watched:
            observed = train_observed(mechanism, points, trainings, compute=runs.compute, points=challenge)
        else:
            models = train_runs(mechanism, points, trainings, compute=runs.compute, validation=validation)
            observed = ObservedTrainings(models, np.zeros((len(models), 0)), np.zeros((len(models), 0)))
        columns = (
            accuracies(observed.models, test, runs.compute),
            at_challenges(observed.models, points, challenge, self.queries, runs.compute),
            confidences(observed.models, points.take(pair.population), queries=1, compute=runs.compute)[:, 0],
            observed.products,
            observed.norms,
        )
        results = [
            model if isinstance(model, TrainingError) else CallOutcome("a model", row)
            for model, row in zip(observed.models, np.column_stack(columns), strict=True)
        ]
        return replace(runs.gave(results), subject=challenge)

    def scores(self, attack: Any, observed: Observed) -> NDArray[np.float64]:
        shadows, pair = observed.shadows, observed.pair
        joined = joined_shadows(shadows) if shadows and "shadows" in attack.needs else None
        queries = self.queries if isinstance(self.challenge_canary, Canary | None) else 0

        def view(runs: Outcomes) -> ChallengeView:
            ends = np.cumsum([1, queries, len(pair.population)])
            _, target, population, steps = np.split(runs.matrix(), ends, axis=1)
            products, norms = np.split(steps, 2, axis=1)
            phi = (target.astype(np.float32), runs.subject, population.astype(np.float32), pair.population)
            return ChallengeView(*phi, joined, products, norms)

        return self.scores_by_view(attack, observed, view)

    def metric_names(self, rows: tuple[Any, ...]) -> tuple[str, ...]:
        return (*super().metric_names(rows), *(() if rows[1] is None else ACCURACY_METRICS))

    def metrics(self, outcomes: Outcomes, rows: tuple[Any, ...]) -> Mapping[str, float]:
        share, trained = super().metrics(outcomes, rows), outcomes.where(outcomes.fault == "")
        if rows[1] is None or not len(trained.truth):
            return share
        return {**share, **accuracy_metrics(float(trained.matrix()[:, 0].mean()), rows[1])}


@dataclass(frozen=True)
class FixedBase(MembershipOfAPoint, ABC):
    """Base of games in which all trials train on one base set, with or without a challenge."""

    def setup(self, pool: int, challenges: Challenges | None, rng: np.random.Generator) -> TrialSetup:
        """Return a setup with a random half of the pool as base set, without challenges and their sources."""
        order, population = rng.permutation(pool), self.population
        sources = np.empty(0, np.int64) if challenges is None else challenges.rows
        order = order[~np.isin(order, sources)]
        size = min(pool // 2, len(order) - population)
        _require_room(size, pool, population)
        return TrialSetup(pool, challenges, order[size : size + population], order[:size])

    def trial(self, setup: TrialSetup, truth: bool, rng: np.random.Generator) -> tuple[int, NDArray[np.int64]]:
        if setup.challenges is None:  # the canary is a gradient
            return -1, setup.base
        challenge = int(rng.choice(setup.challenges.points(setup.pool)))
        return challenge, np.append(setup.base, challenge) if truth else setup.base


def half_of_the_pool(game: MembershipOfAPoint, rows: int) -> tuple[int, int]:
    """Return the number of training rows twice: half of the pool, or fewer if population and challenges need more."""
    canary = game.challenge_canary
    points = len(canary.rows) if isinstance(canary, GivenRow) else getattr(canary, "count", 1)
    fewest = max(1, min(rows // 2, rows - game.population - points))
    return fewest, fewest


@register("game", "ind-mia", source="arXiv:2206.05199, Experiment 2 (IND-MIA)")
@dataclass(frozen=True)
class IndMia(FixedBase):
    """Two-world game under add/remove: a model trains on a fixed base set with or without the challenge point.

    Attributes:
        canary: Choice of the challenge points; each trial draws one of them at random.
    """

    traits: ClassVar[PairTraits] = PairTraits(
        relation=Relation.ADD_REMOVE,
        assumes="Nothing beyond fair coins and independent trainings: challenge points and attack were fixed before "
        "the audited models were trained.",
        views={LEARNERS: ChallengeView},
        attack="lira-online",
        run_on=half_of_the_pool,
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


@register("game", "mia", source="arXiv:2206.05199, Experiment 1 (MIA)")
@dataclass(frozen=True)
class Mia(MembershipOfAPoint):
    """Two-world game under replace: a model trains on a fresh base set and one of two points; the first is shown."""

    traits: ClassVar[PairTraits] = PairTraits(
        relation=Relation.REPLACE,
        assumes="Nothing beyond fair coins and independent trainings: each trial draws new data from the pool.",
        views={LEARNERS: ChallengeView},
        attack="lira-online",
        run_on=half_of_the_pool,
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

    def setup(self, pool: int, challenges: Challenges | None, rng: np.random.Generator) -> TrialSetup:
        _require_room(pool - self.population - 2, pool, self.population)
        order = rng.permutation(pool)
        return TrialSetup(pool, None, order[: self.population], order[self.population :])

    def trial(self, setup: TrialSetup, truth: bool, rng: np.random.Generator) -> tuple[int, NDArray[np.int64]]:
        size = min(setup.pool // 2, len(setup.base) - 1)
        rows = rng.choice(setup.base, size + 1, replace=False)
        challenge, other, base = rows[0], rows[1], rows[2:]
        return int(challenge), np.append(base, challenge if truth else other)


def _require_room(rows: int, pool: int, population: int) -> None:
    if rows < 1:
        raise SpecError(
            f"the target part must have training rows besides challenges and population. It has {pool} rows, and the "
            f"population takes {population}. Lower `population` or increase `split.target`"
        )
