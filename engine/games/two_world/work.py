"""What the units of a two-world membership game do: choose the challenges, train the trials and shadow models, ask them
how sure they are of labels, score."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dpaudit.actors.seed import Seed
from dpaudit.actors.work import Outcome, unit
from dpaudit.engine.games.trials import ExampleGradients, TrainingRun, failed_among, scored_trials, train_runs
from dpaudit.engine.games.two_world.canaries import Canary, GradientCanary
from dpaudit.engine.games.two_world.rules import TrialSetup, TwoWorldRules
from dpaudit.engine.games.two_world.views import Challenges, ChallengeView, Shadows
from dpaudit.errors import RunError, require
from dpaudit.estimators.scores import Scores
from dpaudit.mechanisms.compute import Compute, TrainingError
from dpaudit.mechanisms.examples import Examples, Features, writable_features
from dpaudit.mechanisms.protocols import LogitModel, Model, ObservableLearner, StackLearner
from dpaudit.mechanisms.threads import limited_threads

if TYPE_CHECKING:
    from torch import Tensor


@unit
def choose_challenges(
    canary: Canary, shadows: tuple[Shadows, ...], pool: Examples, compute: Compute, *, seed: Seed
) -> Challenges:
    """Chooses or makes the challenge points, from the pool and the shadow models when it looks at them."""
    shadow_models = joined_shadows(shadows) if shadows else None
    with limited_threads(compute.threads):
        return canary.choose(pool, shadow_models, seed.rng())


@dataclass(frozen=True, eq=False)
class TrainedTrials:
    """What T trials leave behind. What is not asked for is empty."""

    number: NDArray[np.int64]  # of each trial, shape (T,)
    truth: NDArray[np.bool_]  # world 1: the challenge was trained on, shape (T,)
    failed: NDArray[np.bool_]  # whether the training failed, shape (T,)
    # the challenge, in the pool with the crafted points behind it; -1 = a gradient; shape (T,)
    point: NDArray[np.int64]
    confidence: NDArray[np.float32]  # phi of the model at its challenge, shape (T, queries)
    population: NDArray[np.float32]  # phi of the model at points that no trial trains on, shape (T, P)
    population_points: NDArray[np.int64]  # which points those are, shape (P,)
    gradient_products: NDArray[np.float64]  # as `ObservedTrainings.products`, shape (T, steps)
    gradient_norms: NDArray[np.float64]  # as `ObservedTrainings.norms`, shape (T, steps)

    @classmethod
    def joined(cls, stacks: Sequence[TrainedTrials]) -> TrainedTrials:
        columns = {
            field.name: np.concatenate([getattr(stack, field.name) for stack in stacks]) for field in fields(cls)
        }
        return cls(**{**columns, "population_points": stacks[0].population_points})

    def view(self, shadows: Shadows | None) -> ChallengeView:
        """What the attack sees of the trials that did not fail; nothing of the truth."""
        trained = ~self.failed
        return ChallengeView(
            target=self.confidence[trained],
            point=self.point[trained],
            population=self.population[trained],
            population_points=self.population_points,
            shadows=shadows,
            gradient_products=self.gradient_products[trained],
            gradient_norms=self.gradient_norms[trained],
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
    failed = failed_among(trained.models)
    trained_trials = TrainedTrials(
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
    metrics = {} if test is None else accuracy_metrics(accuracy(trained.models, test, compute), test)
    return Outcome(trained_trials, metrics={**metrics, "failed_share": float(failed.mean())})


def _at_challenge(
    trained: ObservedTrainings, points: Examples, challenge: NDArray[np.int64], queries: int, compute: Compute
) -> NDArray[np.float32]:
    if challenge.min() < 0:
        return np.zeros((len(challenge), 0), np.float32)
    distinct, place = np.unique(challenge, return_inverse=True)
    phi = confidences(trained.models, points.take(distinct), queries=queries, compute=compute)
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


@unit
def train_shadows(
    mechanism: Any,
    pool: Examples,
    challenges: Challenges | None,
    compute: Compute,
    *,
    queries: int,
    first: int,
    last: int,
    seed: Seed,
) -> Shadows:
    """Trains shadow models on random halves of the pool and asks them about every point.

    A model's membership follows from its own seed, so every unit and every attack agrees on it.

    Source: Shokri et al. (2017), arXiv:1610.05820; Carlini et al. (2022), arXiv:2112.03570, section V.
    """
    points = with_crafted(pool, challenges)
    numbers = range(first, last)
    member = np.array([members(seed, model, len(pool), challenges) for model in numbers])
    runs = [
        TrainingRun(np.flatnonzero(row), seed.child(model // 2, model % 2))
        for model, row in zip(numbers, member, strict=True)
    ]
    models = train_runs(mechanism, points, runs, compute=compute)
    failed_among(models)
    return Shadows(confidences(models, points, queries=queries, compute=compute), member)


def members(seed: Seed, model: int, pool: int, crafted: Challenges | None = None) -> NDArray[np.bool_]:
    """Which points a model is trained on, shape (points,); never the rows that crafted points are made from."""
    points = pool + (len(crafted.rows) if crafted is not None else 0)
    half = np.zeros(points, np.bool_)
    half[seed.child(model // 2).rng().permutation(points)[: points // 2]] = True
    half ^= bool(model % 2)
    if crafted is not None:
        half[crafted.rows[crafted.rows >= 0]] = False
    return half


@dataclass(frozen=True, eq=False)
class ObservedTrainings:
    """What an attacker of the training itself gathers of each run."""

    models: list[Model | TrainingError]
    # inner product of each step's released gradient with the canary's clipped one, in units of the clip norm; shape
    # (runs, steps). 0 for steps that were not made, as where a training failed.
    products: NDArray[np.float64]
    # squared norm of the canary's clipped gradient at each step, in the same units; shape (runs, steps)
    norms: NDArray[np.float64]


def train_observed(
    mechanism: ObservableLearner,
    examples: Examples,
    runs: Sequence[TrainingRun],
    *,
    compute: Compute,
    points: NDArray[np.int64] | None = None,
    gradients: NDArray[np.float32] | None = None,
    inserted: NDArray[np.bool_] | None = None,
) -> ObservedTrainings:
    """Trains by DP-SGD and observes every step.

    Looked for is the challenge of each run, one of the `points` of shape (runs,), by its own clipped gradient at the
    weights of the step; or one of the `gradients` of shape (runs, P), of norm 1 in units of the clip norm, which those
    that are `inserted` are given as if it were an example's.

    Source: Nasr et al. (2023), arXiv:2302.07956: white-box audits of DP-SGD.
    """
    private, batch = mechanism.private_steps(), mechanism.recipe.batch_size
    clip = private.clip
    products, norms = np.zeros((2, len(runs), private.steps(mechanism.recipe.epochs)))
    example_gradients = (
        None if points is None else ExampleGradients(mechanism.recipe, clip, examples.take(points), compute)
    )

    def direction(places: NDArray[np.int64], parameters: Tensor) -> Tensor:
        import torch

        if example_gradients is not None:
            return example_gradients(places, parameters)
        assert gradients is not None
        return torch.from_numpy(gradients[places]).to(parameters.device).double()

    def observe(places: NDArray[np.int64], step: int, parameters: Tensor, released: Tensor) -> None:
        canary_gradient = direction(places, parameters)
        products[places, step] = (released.double() * canary_gradient).sum(1).cpu().numpy() * (batch / clip)
        norms[places, step] = canary_gradient.square().sum(1).cpu().numpy()

    canaries = None
    if gradients is not None and inserted is not None:
        canaries = [
            clip * gradient if is_inserted else None for gradient, is_inserted in zip(gradients, inserted, strict=True)
        ]
    models = mechanism.fit_stack(
        examples.features,
        [run.task(examples) for run in runs],
        classes=examples.classes,
        compute=compute,
        canaries=canaries,
        observer=observe,
    )
    return ObservedTrainings(list(models), products, norms)


def with_crafted(pool: Examples, challenges: Challenges | None) -> Examples:
    if challenges is None or not challenges.crafted:
        return pool
    added = challenges.examples
    features: Features
    if isinstance(pool.features, pa.Table):
        features = pa.concat_tables([pool.features, added.features])
    else:
        features = np.concatenate([pool.features, added.features])
    return pool.with_(features=features, labels=np.concatenate([pool.labels, added.labels]))


def joined_shadows(stacks: Sequence[Shadows]) -> Shadows:
    """The shadow models of several stacks; those whose training failed are left out."""
    confidence, member = stacks[0].confidence, stacks[0].member
    if len(stacks) > 1:
        confidence = np.concatenate([stack.confidence for stack in stacks])
        member = np.concatenate([stack.member for stack in stacks])
    trained = ~np.isnan(confidence[:, 0, 0])
    if trained.sum() < 2:
        raise RunError("at least two shadow models must have been trained")
    # No copy when all is well: there may be a hundred million confidences.
    return Shadows(confidence, member) if trained.all() else Shadows(confidence[trained], member[trained])


def parameter_count(mechanism: StackLearner, examples: Examples) -> int:
    """Number of weights P of the mechanism's network for these examples."""
    from dpaudit.mechanisms.training.inputs import example_shape
    from dpaudit.mechanisms.training.parameters import layout_of

    return layout_of(mechanism.recipe.meta_module(example_shape(examples.features), examples.classes)).total


ROWS_AT_ONCE = 4096
QUERIES = 18
"""An image as it is, its mirror image, and both of them shifted by one pixel in eight directions."""


def augmented_queries(features: Features, number: int) -> list[Features]:
    """A point as it is and its augmented forms."""
    require(1 <= number <= QUERIES, f"queries must be in 1..{QUERIES}", queries=number)
    if number == 1:
        return [features]
    require(
        isinstance(features, np.ndarray) and features.ndim == 4,
        "several queries are augmented images",
        do="ask for queries: 1",
        queries=number,
    )
    assert isinstance(features, np.ndarray)
    height, width = features.shape[2:]
    padded = np.pad(features, ((0, 0), (0, 0), (1, 1), (1, 1)), mode="edge")
    augmented: list[Features] = []
    for down, right in SHIFTS[: -(-number // 2)]:
        shifted = padded[:, :, 1 + down : 1 + down + height, 1 + right : 1 + right + width]
        augmented += [np.ascontiguousarray(shifted), np.ascontiguousarray(shifted[..., ::-1])]
    return augmented[:number]


SHIFTS = ((0, 0), (0, 1), (0, -1), (1, 0), (-1, 0), (1, 1), (1, -1), (-1, 1), (-1, -1))


def confidences(
    models: Sequence[Model | TrainingError], points: Examples, *, queries: int, compute: Compute
) -> NDArray[np.float32]:
    """phi of each model for each query of each point, shape (models, queries, points); NaN where training failed."""
    phi = np.full((len(models), queries, len(points)), np.nan, np.float32)
    trained = [place for place, model in enumerate(models) if not isinstance(model, TrainingError)]
    for query, features in enumerate(augmented_queries(points.features, queries)):
        for first in range(0, len(points), ROWS_AT_ONCE):
            rows = slice(first, min(first + ROWS_AT_ONCE, len(points)))
            batch = features[rows] if isinstance(features, np.ndarray) else features.slice(first, rows.stop - first)
            phi[trained, query, rows] = _phi([models[place] for place in trained], batch, points.labels[rows], compute)
    return phi


def accuracy_metrics(right: float, test: Examples) -> dict[str, float]:
    """Return an accuracy with its standard error over the test rows, and that of always the most frequent label."""
    error = float(np.sqrt(right * (1 - right) / len(test)))
    return {"test_accuracy": right, "test_accuracy_error": error, "majority_accuracy": test.majority_share}


def accuracy(models: Sequence[Model | TrainingError], test: Examples, compute: Compute) -> float:
    """Mean accuracy of those models whose training did not fail."""
    trained = [model for model in models if not isinstance(model, TrainingError)]
    hits = 0
    for first in range(0, len(test), ROWS_AT_ONCE):
        batch = test.take(np.arange(first, min(first + ROWS_AT_ONCE, len(test))))
        guesses = _outputs(trained, batch.features, compute).argmax(-1)
        hits += int(np.count_nonzero(guesses == batch.labels))
    return hits / (len(trained) * len(test))


def _phi(models: list[Any], features: Features, labels: NDArray[np.int64], compute: Compute) -> NDArray[np.float64]:
    if _are_networks(models):
        return phi_of_logits(_outputs(models, features, compute), labels)
    return np.array(
        [phi_of_probabilities(model.probabilities(writable_features(features)), labels) for model in models]
    )


def _outputs(models: list[Any], features: Features, compute: Compute) -> NDArray[np.float64]:
    """Logits of networks, probabilities of others; shape (models, n, classes)."""
    if not _are_networks(models):
        return np.array([model.probabilities(writable_features(features)) for model in models])
    from dpaudit.mechanisms.training.network_model import stack_logits

    return stack_logits(models, features, compute=compute)


def _are_networks(models: list[Any]) -> bool:
    return all(isinstance(model, LogitModel) for model in models)


SMALLEST_PROBABILITY = 1e-45


def phi_of_logits(logits: NDArray[np.floating[Any]], labels: NDArray[np.int64]) -> NDArray[np.float64]:
    """phi from logits of shape (..., n, classes) and labels (n,); shape (..., n)."""
    logits64 = logits.astype(np.float64)
    at_label = np.broadcast_to(labels[:, None], (*logits64.shape[:-1], 1))
    label_logit = np.take_along_axis(logits64, at_label, -1)[..., 0]
    np.put_along_axis(logits64, at_label, -np.inf, -1)
    largest = logits64.max(-1)
    others = largest + np.log(np.exp(logits64 - largest[..., None]).sum(-1))
    return np.asarray(label_logit - others)


def phi_of_probabilities(probabilities: NDArray[np.floating[Any]], labels: NDArray[np.int64]) -> NDArray[np.float64]:
    """phi from probabilities of shape (n, classes) and labels (n,), those below 1e-45 raised to it; shape (n,)."""
    with np.errstate(divide="ignore"):
        return phi_of_logits(np.log(np.maximum(probabilities.astype(np.float64), SMALLEST_PROBABILITY)), labels)
