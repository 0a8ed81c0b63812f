"""Asking trained models how sure they are of labels, and how often they are right."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpaudit.errors import require
from dpaudit.mechanisms.compute import Compute, TrainingError
from dpaudit.mechanisms.examples import Examples, Features, own_features
from dpaudit.mechanisms.protocols import LogitModel, Model

ROWS_AT_ONCE = 4096
QUERIES = 18
"""An image as it is, its mirror image, and both of them shifted by one pixel in eight directions."""


def queries_of(features: Features, number: int) -> list[Features]:
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
    for query, features in enumerate(queries_of(points.features, queries)):
        for first in range(0, len(points), ROWS_AT_ONCE):
            rows = slice(first, min(first + ROWS_AT_ONCE, len(points)))
            batch = features[rows] if isinstance(features, np.ndarray) else features.slice(first, rows.stop - first)
            phi[trained, query, rows] = _phi([models[place] for place in trained], batch, points.labels[rows], compute)
    return phi


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
    return np.array([phi_of_probabilities(model.probabilities(own_features(features)), labels) for model in models])


def _outputs(models: list[Any], features: Features, compute: Compute) -> NDArray[np.float64]:
    """Logits of networks, probabilities of others; shape (models, n, classes)."""
    if not _are_networks(models):
        return np.array([model.probabilities(own_features(features)) for model in models])
    from dpaudit.mechanisms.training.network_model import stack_logits

    return stack_logits(models, features, compute=compute)


def _are_networks(models: list[Any]) -> bool:
    return all(isinstance(model, LogitModel) for model in models)


SMALLEST_PROBABILITY = 1e-45


def phi_of_logits(logits: NDArray[np.floating[Any]], labels: NDArray[np.int64]) -> NDArray[np.float64]:
    """phi from logits of shape (..., n, classes) and labels (n,); shape (..., n)."""
    wide = logits.astype(np.float64)
    at_label = np.broadcast_to(labels[:, None], (*wide.shape[:-1], 1))
    own = np.take_along_axis(wide, at_label, -1)[..., 0]
    np.put_along_axis(wide, at_label, -np.inf, -1)
    largest = wide.max(-1)
    others = largest + np.log(np.exp(wide - largest[..., None]).sum(-1))
    phi: NDArray[np.float64] = own - others
    return phi


def phi_of_probabilities(probabilities: NDArray[np.floating[Any]], labels: NDArray[np.int64]) -> NDArray[np.float64]:
    """phi from probabilities of shape (n, classes) and labels (n,), those below 1e-45 raised to it; shape (n,)."""
    with np.errstate(divide="ignore"):
        return phi_of_logits(np.log(np.maximum(probabilities.astype(np.float64), SMALLEST_PROBABILITY)), labels)
