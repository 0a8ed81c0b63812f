"""Units of two-world membership games: choice of challenges, training of trials and shadow models, queries, scores."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dpaudit.actors.seed import Seed
from dpaudit.actors.work import Outcome, measuring, unit
from dpaudit.engine.games.trials import ExampleGradients, TrainingRun, failed_among, scored_trials, train_runs
from dpaudit.engine.games.two_world.canaries import Canary, GradientCanary
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
    """Return the challenge points, chosen from the pool (and shadow models) or crafted."""
    shadow_models = joined_shadows(shadows) if shadows else None
    with limited_threads(compute.threads):
        return canary.choose(pool, shadow_models, seed.rng())


@dataclass(frozen=True, eq=False)
class Trial:
    """Random choices of one trial."""

    truth: bool  # True in world 1, with the challenge in training
    challenge: int  # position of the challenge in the pool, followed by crafted points; -1 for a gradient
    rows: NDArray[np.int64]  # positions of the training rows


@dataclass(frozen=True, eq=False)
class TrialSetup:
    """Positions of rows and points from which trials are drawn."""

    pool: int  # number of rows of the pool
    challenges: NDArray[np.int64]  # challenge points, shape (k,); empty if each trial draws one
    sources: NDArray[np.int64]  # rows of the pool that are challenges or their sources, shape (k,)
    population: NDArray[np.int64]  # rows that no trial trains on, shape (P,)
    base: NDArray[np.int64]  # base set S, for games that fix it, shape (n - 1,)


@dataclass(frozen=True, eq=False)
class TrainedTrials:
    """Observations of T trials. Arrays that no attack needs are empty."""

    number: NDArray[np.int64]  # number of the trial, shape (T,)
    truth: NDArray[np.bool_]  # True in world 1, with the challenge in training, shape (T,)
    failed: NDArray[np.bool_]  # True if the training failed, shape (T,)
    # position of the challenge in the pool, followed by crafted points; -1 for a gradient; shape (T,)
    point: NDArray[np.int64]
    confidence: NDArray[np.float32]  # phi of the model at its challenge, shape (T, queries)
    population: NDArray[np.float32]  # phi of the model at points that no trial trains on, shape (T, P)
    population_points: NDArray[np.int64]  # positions of these points, shape (P,)
    gradient_products: NDArray[np.float64]  # as `ObservedTrainings.products`, shape (T, steps)
    gradient_norms: NDArray[np.float64]  # as `ObservedTrainings.norms`, shape (T, steps)

    @classmethod
    def joined(cls, stacks: Sequence[TrainedTrials]) -> TrainedTrials:
        columns = {
            field.name: np.concatenate([getattr(stack, field.name) for stack in stacks]) for field in fields(cls)
        }
        return cls(**{**columns, "population_points": stacks[0].population_points})

    def view(self, shadows: Shadows | None) -> ChallengeView:
        """Return the attacker's view of trials that did not fail."""
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
@measuring(lambda test: ("failed_share", *(() if test is None else ACCURACY_METRICS)))
def train_trials(
    game: Any,  # a TwoWorldGame
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
        # One gradient for all trials, fixed before they are drawn.
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
    """Return the scores of all trials as one replay; `shadows` may be empty."""
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
    """Train shadow models on random halves of the pool, and query them at every point.

    The membership of a model depends on its seed only, so all units and attacks agree on it.

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
    """Return a mask of a model's training points, shape (points,), without the sources of crafted points."""
    points = pool + (len(crafted.rows) if crafted is not None else 0)
    half = np.zeros(points, np.bool_)
    half[seed.child(model // 2).rng().permutation(points)[: points // 2]] = True
    half ^= bool(model % 2)
    if crafted is not None:
        half[crafted.rows[crafted.rows >= 0]] = False
    return half


@dataclass(frozen=True, eq=False)
class ObservedTrainings:
    """Models and observed steps of training runs."""

    models: list[Model | TrainingError]
    # inner product of each step's released gradient with the canary's clipped gradient, in units of the clipping norm,
    # shape (runs, steps); 0 for steps that did not run
    products: NDArray[np.float64]
    norms: NDArray[np.float64]  # squared norm of the canary's clipped gradient, in the same units, shape (runs, steps)


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
    """Train by DP-SGD and observe every step.

    Args:
        points: Positions of the canary of each run, shape (runs,); the observer uses its clipped gradient at the
            weights of each step.
        gradients: Canary gradients instead of points, shape (runs, P), of norm 1 in units of the clipping norm.
        inserted: Mask of the runs in which the gradient takes part as if it were an example's, shape (runs,).

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
    """Return the shadow models of several stacks, without failed ones."""
    confidence, member = stacks[0].confidence, stacks[0].member
    if len(stacks) > 1:
        confidence = np.concatenate([stack.confidence for stack in stacks])
        member = np.concatenate([stack.member for stack in stacks])
    trained = ~np.isnan(confidence[:, 0, 0])
    if trained.sum() < 2:
        raise RunError("at least two shadow models must train successfully")
    # No copy without failures: there may be a hundred million confidences.
    return Shadows(confidence, member) if trained.all() else Shadows(confidence[trained], member[trained])


def parameter_count(mechanism: StackLearner, examples: Examples) -> int:
    """Return the number of weights P of the mechanism's network for these examples."""
    from dpaudit.mechanisms.training.inputs import example_shape
    from dpaudit.mechanisms.training.parameters import layout_of

    return layout_of(mechanism.recipe.meta_module(example_shape(examples.features), examples.classes)).total


ACCURACY_METRICS: tuple[str, ...] = ("test_accuracy", "test_accuracy_error", "majority_accuracy")
ROWS_AT_ONCE = 4096
QUERIES = 18
"""Largest number of queries: an image and its mirror image, unshifted or shifted by a pixel in eight directions."""


def augmented_queries(features: Features, number: int) -> list[Features]:
    """Return the features, followed by augmented forms."""
    require(1 <= number <= QUERIES, f"queries must be in 1..{QUERIES}", queries=number)
    if number == 1:
        return [features]
    require(
        isinstance(features, np.ndarray) and features.ndim == 4,
        "several queries need images",
        do="set queries: 1",
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
    """Return phi of each model at each query of each point, shape (models, queries, points); NaN for failed models."""
    phi = np.full((len(models), queries, len(points)), np.nan, np.float32)
    trained = [place for place, model in enumerate(models) if not isinstance(model, TrainingError)]
    for query, features in enumerate(augmented_queries(points.features, queries)):
        for first in range(0, len(points), ROWS_AT_ONCE):
            rows = slice(first, min(first + ROWS_AT_ONCE, len(points)))
            batch = features[rows] if isinstance(features, np.ndarray) else features.slice(first, rows.stop - first)
            phi[trained, query, rows] = _phi([models[place] for place in trained], batch, points.labels[rows], compute)
    return phi


def accuracy_metrics(right: float, test: Examples) -> dict[str, float]:
    """Return an accuracy with its standard error over test rows, and the accuracy of the most frequent label."""
    error = float(np.sqrt(right * (1 - right) / len(test)))
    return dict(zip(ACCURACY_METRICS, (right, error, test.majority_share), strict=True))


def accuracy(models: Sequence[Model | TrainingError], test: Examples, compute: Compute) -> float:
    """Return the mean accuracy of models that did not fail."""
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
    """Return logits of networks, or probabilities of other models, shape (models, n, classes)."""
    if not _are_networks(models):
        return np.array([model.probabilities(writable_features(features)) for model in models])
    from dpaudit.mechanisms.training.network_model import stack_logits

    return stack_logits(models, features, compute=compute)


def _are_networks(models: list[Any]) -> bool:
    return all(isinstance(model, LogitModel) for model in models)


SMALLEST_PROBABILITY = 1e-45


def phi_of_logits(logits: NDArray[np.floating[Any]], labels: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return phi of logits, shape (..., n, classes), at labels, shape (n,); shape (..., n)."""
    logits64 = logits.astype(np.float64)
    at_label = np.broadcast_to(labels[:, None], (*logits64.shape[:-1], 1))
    label_logit = np.take_along_axis(logits64, at_label, -1)[..., 0]
    np.put_along_axis(logits64, at_label, -np.inf, -1)
    largest = logits64.max(-1)
    others = largest + np.log(np.exp(logits64 - largest[..., None]).sum(-1))
    return np.asarray(label_logit - others)


def phi_of_probabilities(probabilities: NDArray[np.floating[Any]], labels: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return phi of probabilities, shape (n, classes), raised to at least 1e-45, at labels, shape (n,); shape (n,)."""
    with np.errstate(divide="ignore"):
        return phi_of_logits(np.log(np.maximum(probabilities.astype(np.float64), SMALLEST_PROBABILITY)), labels)
