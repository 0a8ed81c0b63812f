"""What the units of a two-world membership game do: choose the challenges, train the trials, score them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpaudit.actors.seed import Seed
from dpaudit.actors.work import Outcome, unit
from dpaudit.engine.games.stacks import ObservedTrainings, TrainingRun, parameter_count, train_observed, train_runs
from dpaudit.engine.games.trials import scored_trials
from dpaudit.engine.games.two_world.asking import accuracy, confidences
from dpaudit.engine.games.two_world.canaries.protocol import Canary, GradientCanary
from dpaudit.engine.games.two_world.rules import TrialSetup, TwoWorldRules
from dpaudit.engine.games.two_world.views.challenge_view import ChallengeView
from dpaudit.engine.games.two_world.views.challenges import Challenges, with_crafted
from dpaudit.engine.games.two_world.views.shadows import Shadows, joined_shadows
from dpaudit.estimators.scores import Scores
from dpaudit.mechanisms.compute import Compute, TrainingError
from dpaudit.mechanisms.examples import Examples


@unit
def choose_challenges(
    canary: Canary, shadows: tuple[Shadows, ...], pool: Examples, compute: Compute, *, seed: Seed
) -> Challenges:
    """Chooses or makes the challenge points, from the pool and the shadow models when it looks at them."""
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    known = joined_shadows(shadows) if shadows else None
    with threadpool_limits(compute.threads):
        return canary.choose(pool, known, seed.rng())


@dataclass(frozen=True, eq=False)
class TrainedTrials:
    """What T trials leave behind. What is not asked for is empty.

    Attributes:
        number: Of each trial, shape (T,).
        truth: World 1: the challenge was trained on, shape (T,).
        failed: Whether the training failed, shape (T,).
        point: The challenge, in the pool with the crafted points behind it; -1 = a gradient; shape (T,).
        confidence: phi of the model at its challenge, shape (T, queries).
        population: phi of the model at points that no trial trains on, shape (T, P).
        population_points: Which points those are, shape (P,).
        gradient_products: As `ObservedTrainings.products`, shape (T, steps).
        gradient_norms: As `ObservedTrainings.norms`, shape (T, steps).
    """

    number: NDArray[np.int64]
    truth: NDArray[np.bool_]
    failed: NDArray[np.bool_]
    point: NDArray[np.int64]
    confidence: NDArray[np.float32]
    population: NDArray[np.float32]
    population_points: NDArray[np.int64]
    gradient_products: NDArray[np.float64]
    gradient_norms: NDArray[np.float64]

    @classmethod
    def joined(cls, stacks: Sequence[TrainedTrials]) -> TrainedTrials:
        """The trials of several stacks."""
        whole = {field.name: np.concatenate([getattr(stack, field.name) for stack in stacks]) for field in fields(cls)}
        return cls(**{**whole, "population_points": stacks[0].population_points})

    def view(self, shadows: Shadows | None) -> ChallengeView:
        """What the attack sees of the trials that did not fail; nothing of the truth."""
        kept = ~self.failed
        return ChallengeView(
            target=self.confidence[kept],
            point=self.point[kept],
            population=self.population[kept],
            population_points=self.population_points,
            shadows=shadows,
            gradient_products=self.gradient_products[kept],
            gradient_norms=self.gradient_norms[kept],
        )


@unit
def train_trials(
    game: TwoWorldRules,
    mechanism: Any,
    pool: Examples,
    test: Examples | None,
    validation: Examples | None,
    challenges: Challenges | None,
    compute: Compute,
    *,
    population: int,
    watched: bool,
    first: int,
    last: int,
    seed: Seed,
) -> Outcome[TrainedTrials]:
    """Trains the models of trials and asks each about its challenge.

    Args:
        game: Decides each trial.
        mechanism: What is audited.
        pool: What trials draw from.
        test: What the models' accuracy is measured on, if there is such.
        validation: What learners may stop by, if there is such.
        challenges: The challenge points; None = the trials draw their own.
        compute: Where it runs.
        population: How many points no trial trains on are asked about as well.
        watched: Whether the steps are watched, for white-box attacks.
        first: First trial.
        last: One past the last trial.
        seed: Trial t draws from `seed.child(t)`, its model trains with `seed.child(t, 0)`.
    Raises: TrainingError when no model could be trained.
    """
    points = with_crafted(pool, challenges)
    setup = game.setup(len(pool), challenges, population, seed)
    numbers = range(first, last)
    trials = [game.trial(setup, seed.child(number).rng()) for number in numbers]
    runs = [TrainingRun(trial.rows, seed.child(number, 0)) for number, trial in zip(numbers, trials, strict=True)]
    truth = np.array([trial.truth for trial in trials])
    challenge = np.array([trial.challenge for trial in trials])
    canary = game.challenge_canary
    if isinstance(canary, GradientCanary):
        # One gradient for all trials: what comes or goes is fixed before they are drawn.
        gradient = canary.gradient(parameter_count(mechanism, points), seed.child("gradient").rng())
        gradients = np.broadcast_to(gradient, (len(runs), len(gradient)))
        trained = train_observed(mechanism, points, runs, compute=compute, gradients=gradients, inserted=truth)
    elif watched:
        trained = train_observed(mechanism, points, runs, compute=compute, points=challenge)
    else:
        models = train_runs(mechanism, points, runs, compute=compute, validation=validation)
        trained = ObservedTrainings(models, np.zeros((len(runs), 0)), np.zeros((len(runs), 0)))
    errors = [model for model in trained.models if isinstance(model, TrainingError)]
    if len(errors) == len(trials):
        raise errors[0]
    failed = np.array([isinstance(model, TrainingError) for model in trained.models])
    left = TrainedTrials(
        number=np.array(numbers),
        truth=truth,
        failed=failed,
        point=challenge,
        confidence=_at_challenge(trained, points, challenge, game.queries, compute),
        population=_at_population(trained, points, setup, compute),
        population_points=setup.population,
        gradient_products=trained.products,
        gradient_norms=trained.norms,
    )
    found = {"test_accuracy": accuracy(trained.models, test, compute)} if test is not None else {}
    return Outcome(left, metrics={**found, "failed_share": float(failed.mean())})


def _at_challenge(
    trained: ObservedTrainings, points: Examples, challenge: NDArray[np.int64], queries: int, compute: Compute
) -> NDArray[np.float32]:
    if challenge.min() < 0:
        return np.zeros((len(challenge), 0), np.float32)
    different, place = np.unique(challenge, return_inverse=True)
    phi = confidences(trained.models, points.take(different), queries=queries, compute=compute)
    return phi[np.arange(len(challenge)), :, place]


def _at_population(
    trained: ObservedTrainings, points: Examples, setup: TrialSetup, compute: Compute
) -> NDArray[np.float32]:
    if not len(setup.population):
        return np.zeros((len(trained.models), 0), np.float32)
    return confidences(trained.models, points.take(setup.population), queries=1, compute=compute)[:, 0]


@unit
def score_challenges(attack: Any, stacks: tuple[TrainedTrials, ...], shadows: tuple[Shadows, ...]) -> Iterator[Scores]:
    """Scores the trials of all stacks by what shadow models, if there are any, say of the same points: one replay."""
    trials = TrainedTrials.joined(stacks)
    view = trials.view(joined_shadows(shadows) if shadows else None)
    yield scored_trials(attack, view, number=trials.number, truth=trials.truth, failed=trials.failed)
