"""Combining the replays of one game into one bound, whatever their dependence.

A label game is replayed on one trained model with fresh bits and fresh proxy labels. The replays share the model and
the true labels, so they are dependent, and the mean of their 95 % bounds is not a 95 % bound. Valid under any
dependence are: the median of bounds that each take half the error; twice the mean p-value; the mean of e-values.

Source: Rüger (1978); Vovk and Wang (2020), Biometrika 107, 791 (p-values); Vovk and Wang (2021), Annals of Statistics
49, 1736 (e-values).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from dpaudit.errors import require
from dpaudit.estimators.arguments import Floats, Ints, common_shape, successes_of_trials, unboxed
from dpaudit.estimators.bisection import last_true, last_true_from

SEARCH_TOLERANCE = 1e-9
"""Width, relative to 1 + epsilon, at which a search stops; the lower end is reported."""
LARGEST_EPSILON = 1e4
"""Combined bounds end here: no count an array can hold proves more."""


def per_replay_confidence(confidence: float, replays: int | None = None) -> float:
    """The confidence at which to take each replay's bound for `median_rule`: half the error, 1 - (1 - confidence) / 2.

    Args:
        confidence: Of the combined bound, in (0, 1).
        replays: How many there are, >= 1: one alone is taken at the confidence itself. None = several.
    Raises: InputError when out of range.
    """
    require(0 < confidence < 1, "confidence must be in (0, 1)", confidence=confidence)
    return confidence if replays == 1 else 1 - (1 - confidence) / 2


def median_rule(bounds: ArrayLike, *, axis: int = -1) -> float | Floats:
    """The median over replays of lower bounds, a lower bound at confidence c when each has `per_replay_confidence(c)`.

    More than half of the bounds would have to be too large for the median to be, and on average a share
    (1 - c) / 2 of them is.

    Args:
        bounds: One bound for each replay along `axis`, at least one, in nats; any shape. inf is allowed, NaN is not.
        axis: The replays.
    Returns: The median, that axis removed; of an even number the mean of the middle two, or the lower one if that is
        infinite.
    Raises: InputError without a replay, or with NaN.
    """
    ordered = np.sort(_replays(bounds, axis), axis=-1)
    low, high = ordered[..., (ordered.shape[-1] - 1) // 2], ordered[..., ordered.shape[-1] // 2]
    median = np.where(np.isinf(high), low, 0.5 * (low + high))
    return unboxed(median)


class MeanAndDeviation(NamedTuple):
    """What papers print over replays; no bound."""

    mean: float | Floats
    deviation: float | Floats  # sample standard deviation; 0 for a single replay


def mean_and_deviation(bounds: ArrayLike, *, axis: int = -1) -> MeanAndDeviation:
    """Mean and sample standard deviation over replays. They describe; at no confidence is the mean a bound.

    Args: As for `median_rule`.
    Raises: InputError without a replay, or with NaN.
    """
    replays = _replays(bounds, axis)
    mean, squares = replays.mean(axis=-1), np.square(replays - replays.mean(axis=-1, keepdims=True)).sum(axis=-1)
    return MeanAndDeviation(unboxed(mean), unboxed(np.sqrt(squares / max(replays.shape[-1] - 1, 1))))


def twice_mean_p(p_values: Callable[[float], ArrayLike], *, confidence: float) -> float:
    """The largest epsilon at which twice the mean p-value is below 1 - confidence.

    Args:
        p_values: epsilon >= 0 -> the p-value of each replay, shape (replays,), none falling as epsilon grows:
            `lambda epsilon: one_run_p_value(guesses, correct, epsilon=epsilon, ...)`.
        confidence: Of the combined bound, in (0, 1).
    Returns: Epsilon in nats, >= 0, within 1e-9 (1 + epsilon) and never above; 0 where the replays show nothing.
    Raises: InputError for p-values outside [0, 1], none, or a confidence out of range.
    Source: Vovk and Wang (2020): twice the mean of p-values is a p-value.
    """
    require(0 < confidence < 1, "confidence must be in (0, 1)", confidence=confidence)

    def rejected(epsilon: float) -> bool:
        replays = _replays(p_values(epsilon))
        require(
            bool(np.all((replays >= 0) & (replays <= 1))),
            "p-values must be in [0, 1]",
            smallest=replays.min(),
            largest=replays.max(),
        )
        return bool(2 * replays.mean() < 1 - confidence)

    return last_true_from(rejected, largest=LARGEST_EPSILON, absolute=SEARCH_TOLERANCE, relative=SEARCH_TOLERANCE)


def mean_e_value(
    guesses: ArrayLike,
    correct: ArrayLike,
    *,
    confidence: float,
    alternative: float | Sequence[float] | Floats,
    weights: Sequence[float] | Floats | None = None,
) -> float:
    """The largest epsilon up to which the mean e-value of the replays is at least 1 / (1 - confidence); delta = 0 only.

    A replay's e-value is the likelihood ratio of an alternative accuracy q against beta = e^epsilon / (1 + e^epsilon),
    the accuracy that epsilon-DP allows at worst; 1 where q <= beta.

    Args:
        guesses: Number of bits guessed in each replay, >= 0, broadcast against `correct`.
        correct: Number of right guesses in each replay, 0 .. guesses.
        confidence: Of the combined bound, in (0, 1).
        alternative: The accuracy q expected, in (1/2, 1), or several: their mixture. Fixed before the replays are seen.
        weights: Of the mixture, >= 0, with a positive sum; equal by default.
    Returns: Epsilon in nats, >= 0, within 1e-9 (1 + epsilon) and never above; below the log-odds of the largest q.
    Raises: InputError for arguments out of range.
    Source: Vovk and Wang (2021): the mean of e-values is an e-value. Correct guesses are dominated by
        Binomial(guesses, beta), and the ratio grows with them, so its mean is at most 1.
    """
    require(0 < confidence < 1, "confidence must be in (0, 1)", confidence=confidence)
    k, n = successes_of_trials(correct, guesses, names=("correct", "guesses"), fewest=0)
    shape = common_shape(k, n)
    k, n = np.broadcast_to(k, shape), np.broadcast_to(n, shape)
    q = np.sort(np.atleast_1d(np.asarray(alternative, dtype=np.float64)))
    require(bool(np.all((q > 0.5) & (q < 1))), "alternative must be accuracies in (1/2, 1)", alternative=alternative)
    return _first_crossing(_Mixture(n.ravel(), k.ravel(), q, _shares(weights, alternative)), -np.log1p(-confidence))


def _shares(weights: Sequence[float] | Floats | None, alternative: float | Sequence[float] | Floats) -> Floats:
    """The mixture's weights in the order of ascending accuracies, with sum 1."""
    q = np.atleast_1d(np.asarray(alternative, dtype=np.float64))
    raw = np.ones(q.shape) if weights is None else np.atleast_1d(np.asarray(weights, dtype=np.float64))
    require(raw.shape == q.shape, "weights must be one for each alternative", weights=raw.shape, alternative=q.shape)
    positive = bool(np.all(np.isfinite(raw) & (raw >= 0))) and raw.sum() > 0
    require(positive, "weights must be finite and >= 0 with a positive sum", weights=weights)
    shares: Floats = raw[np.argsort(q)] / raw.sum()
    return shares


class _Mixture(NamedTuple):
    n: Ints
    k: Ints
    q: Floats  # ascending
    shares: Floats

    def log_mean(self, epsilon: float) -> float:
        """Log of the mean over replays of the mixture of likelihood ratios."""
        open_ = self.q > special.expit(epsilon)
        n, k = self.n[:, None], self.k[:, None]
        odds = special.logit(self.q)
        # log (q / beta)^k ((1 - q) / (1 - beta))^(n - k), without losing the digits of 1 - beta
        ratio = k * (odds - epsilon) + n * (np.logaddexp(0.0, epsilon) - np.logaddexp(0.0, odds))
        mixture = special.logsumexp(np.where(open_, ratio, 0.0), b=np.broadcast_to(self.shares, ratio.shape))
        return float(mixture - np.log(len(self.n)))


def _first_crossing(mixture: _Mixture, log_limit: float) -> float:
    """Where the mean e-value first falls below its limit.

    It need not fall all the way: a replay with few right guesses pulls it up again. A bound must lie before the first
    crossing, so that being too large means that the truth itself was rejected. Between the log-odds of two neighbouring
    alternatives the mean is convex in epsilon, so its one minimum there shows whether it crosses.
    """

    def rejected(epsilon: float) -> bool:
        return mixture.log_mean(epsilon) >= log_limit

    if not rejected(0.0):
        return 0.0
    from scipy import optimize  # slow to import

    low = 0.0
    for high in special.logit(mixture.q).tolist():
        lowest = optimize.minimize_scalar(
            mixture.log_mean, bounds=(low, high), method="bounded", options={"xatol": 1e-9}
        )
        for end in (float(lowest.x), high):
            if not rejected(end):
                return last_true(rejected, low, end, absolute=SEARCH_TOLERANCE, relative=SEARCH_TOLERANCE)
        low = high
    return low


def _replays(values: ArrayLike, axis: int = -1) -> Floats:
    """The values with the replays along the last axis."""
    replays = np.asarray(values, dtype=np.float64)
    require(replays.ndim > 0 and replays.shape[axis] > 0, "there must be at least one replay", shape=replays.shape)
    finite = not np.isnan(replays).any()
    require(finite, "a replay must have a number, not NaN", do="leave failed replays out and say so")
    return np.moveaxis(replays, axis, -1)
