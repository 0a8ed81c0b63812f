"""Units of two-world membership games: choice of challenges, training of trials and shadow models, queries, scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dpaudit.actors.seed import Seed
from dpaudit.actors.work import unit
from dpaudit.engine.games.trials import ExampleGradients, TrainingRun, train_runs
from dpaudit.engine.games.two_world.views import Challenges, Shadows
from dpaudit.errors import RunError, require
from dpaudit.mechanisms.compute import Compute, TrainingError
from dpaudit.mechanisms.examples import Examples, Features, writable_features
from dpaudit.mechanisms.protocols import LogitModel, Model, ObservableLearner, StackLearner

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, eq=False)
class TrialSetup:
    """Rows and points from which trials are drawn."""

    pool: int  # number of rows of the pool
    challenges: Challenges | None  # None if each trial draws one, or if the canary is a gradient
    population: NDArray[np.int64]  # rows that no trial trains on, shape (P,)
    base: NDArray[np.int64]  # base set, for games that fix it, or rows from which a trial draws it; shape (n,)
    initial: NDArray[np.float32] | None = None  # weights from which trials start, shape (P,); None for random ones
    name: str = ""  # description of challenge and initial weights, for games that choose among several


def at_challenges(
    models: Sequence[Model | TrainingError],
    points: Examples,
    challenge: NDArray[np.int64],
    queries: int,
    compute: Compute,
) -> NDArray[np.float32]:
    """Return phi of each model at its challenge, shape (models, queries); no columns if challenges are gradients."""
    if challenge.min() < 0:
        return np.zeros((len(challenge), 0), np.float32)
    distinct, place = np.unique(challenge, return_inverse=True)
    phi = confidences(models, points.take(distinct), queries=queries, compute=compute)
    return phi[np.arange(len(challenge)), :, place]


@unit
def train_shadows(
    mechanism: Any,
    pool: Examples,
    setups: Sequence[TrialSetup] | None,
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
    challenges = setups[0].challenges if setups else None
    points, numbers = with_crafted(pool, challenges), range(first, last)
    member = np.array([members(seed, model, len(pool), challenges) for model in numbers])
    runs = [
        TrainingRun(np.flatnonzero(row), seed.child(model // 2, model % 2))
        for model, row in zip(numbers, member, strict=True)
    ]
    models = train_runs(mechanism, points, runs, compute=compute)
    if isinstance(models[0], TrainingError) and all(isinstance(model, TrainingError) for model in models):
        raise models[0]
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
    from dpaudit.mechanisms.training.kernels import layout_of

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
    if not trained:
        return phi
    for query, features in enumerate(augmented_queries(points.features, queries)):
        for first in range(0, len(points), ROWS_AT_ONCE):
            rows = slice(first, min(first + ROWS_AT_ONCE, len(points)))
            batch = features[rows] if isinstance(features, np.ndarray) else features.slice(first, rows.stop - first)
            some, labels = [models[place] for place in trained], points.labels[rows]
            outputs = _outputs(some, batch, compute)
            of_outputs = phi_of_logits if _are_networks(some) else phi_of_probabilities
            phi[trained, query, rows] = of_outputs(outputs, labels)
    return phi


def accuracy_metrics(right: float, test: Examples) -> dict[str, float]:
    """Return an accuracy with its standard error over test rows, and the accuracy of the most frequent label."""
    error = float(np.sqrt(right * (1 - right) / len(test)))
    return dict(zip(ACCURACY_METRICS, (right, error, test.majority_share), strict=True))


def accuracies(models: Sequence[Model | TrainingError], test: Examples | None, compute: Compute) -> NDArray[np.float64]:
    """Return the accuracy of each model, shape (models,); 0 for failed ones and without test rows."""
    trained = [place for place, model in enumerate(models) if not isinstance(model, TrainingError)]
    hits = np.zeros(len(models))
    for first in range(0, 0 if test is None or not trained else len(test), ROWS_AT_ONCE):
        assert test is not None
        batch = test.take(np.arange(first, min(first + ROWS_AT_ONCE, len(test))))
        guesses = _outputs([models[place] for place in trained], batch.features, compute).argmax(-1)
        hits[trained] += np.count_nonzero(guesses == batch.labels, axis=-1)
    return hits if test is None else hits / len(test)


def _outputs(models: list[Any], features: Features, compute: Compute) -> NDArray[np.float64]:
    """Return logits of networks, or probabilities of other models, shape (models, n, classes)."""
    if not _are_networks(models):
        return np.array([model.probabilities(writable_features(features)) for model in models])
    from dpaudit.mechanisms.training.stack import stack_logits

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
