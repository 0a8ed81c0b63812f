"""Combination of the replays of one game into one bound, under any dependence between them.

A label game is replayed on one trained model with fresh bits and fresh proxy labels. The replays share the model and
the true labels, so they are dependent, and the mean of their 95 % bounds is not a 95 % bound. The median of bounds that
each use half the error is valid under any dependence (Rüger, 1978).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from dpaudit.errors import require
from dpaudit.estimators.arguments import Floats, unboxed


def per_replay_confidence(confidence: float, replays: int | None = None) -> float:
    """Return the confidence of each replay's bound for `median_rule`: half the error, 1 - (1 - confidence) / 2.

    Args:
        confidence: Confidence of the combined bound, in (0, 1).
        replays: Number of replays, >= 1; a single replay keeps `confidence`. None means several.
    Raises: InputError if `confidence` is out of range.
    """
    require(0 < confidence < 1, "confidence must be in (0, 1)", confidence=confidence)
    return confidence if replays == 1 else 1 - (1 - confidence) / 2


def median_rule(bounds: ArrayLike, *, axis: int = -1) -> float | Floats:
    """Return the median of lower bounds: a bound at confidence c if each has confidence `per_replay_confidence(c)`.

    The median is too large only if more than half of the bounds are, and the expected share of such bounds is at most
    (1 - c) / 2. By Markov's inequality that event has probability at most 1 - c.

    Args:
        bounds: One bound for each replay along `axis`, at least one, in nats; any shape. inf is allowed, NaN is not.
        axis: Axis of the replays.
    Returns: The median, without that axis. For an even number of replays it is the mean of the middle two, or the lower
        one if the upper is infinite.
    Raises: InputError without a replay, or with NaN.
    """
    ordered = np.sort(_replays_last(bounds, axis), axis=-1)
    low, high = ordered[..., (ordered.shape[-1] - 1) // 2], ordered[..., ordered.shape[-1] // 2]
    median = np.where(np.isinf(high), low, 0.5 * (low + high))
    return unboxed(median)


class MeanAndDeviation(NamedTuple):
    """Mean and standard deviation over replays, as papers print them; not a bound."""

    mean: float | Floats
    deviation: float | Floats  # sample standard deviation; 0 for a single replay


def mean_and_deviation(bounds: ArrayLike, *, axis: int = -1) -> MeanAndDeviation:
    """Return the mean and sample standard deviation over replays, which are not a bound at any confidence.

    Args: As for `median_rule`.
    Raises: InputError without a replay, or with NaN.
    """
    replays = _replays_last(bounds, axis)
    mean, squares = replays.mean(axis=-1), np.square(replays - replays.mean(axis=-1, keepdims=True)).sum(axis=-1)
    return MeanAndDeviation(unboxed(mean), unboxed(np.sqrt(squares / max(replays.shape[-1] - 1, 1))))


def _replays_last(values: ArrayLike, axis: int = -1) -> Floats:
    """Return the values with the replays along the last axis."""
    replays = np.asarray(values, dtype=np.float64)
    require(replays.ndim > 0 and replays.shape[axis] > 0, "there must be at least one replay", shape=replays.shape)
    finite = not np.isnan(replays).any()
    require(finite, "a replay must have a number, not NaN", do="leave failed replays out and say so")
    return np.moveaxis(replays, axis, -1)


def replay_note(alone: Floats, confidence: float, published: bool = False) -> tuple[str, ...]:
    """Return a sentence on the spread of the replays' bounds; none for a single replay."""
    if alone.size == 1:
        return ()
    mean, deviation = mean_and_deviation(alone)
    spread = f"mean {mean:.3f}, standard deviation {deviation:.3f} ({alone.size} replays)"
    summary = f"bounds of single replays at {confidence:g}: {spread}"
    if published:
        return (f"{summary}; a mean of dependent bounds is not a bound at that confidence",)
    return (f"{summary}; the bound is the median of replays at {per_replay_confidence(confidence):g}",)
