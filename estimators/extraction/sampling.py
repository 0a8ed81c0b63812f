"""Exact probability that a language model writes a text, from its logits under teacher forcing.

A sampler draws one token after another from the model's distribution, filtered and renormalised at each step. So the
probability of a text is the product over its tokens of the filtered distribution at that step, given the text before.
That is exact for plain sampling, temperature, top-k and top-p, which filter each step by its own logits. It is not
defined for beam search, contrastive search or repetition penalties, which depend on more than that.

Filters are applied in the order of Hugging Face's `generate`: temperature, then top-k, then top-p. Ties at the k-th
logit are all kept, as there.

(n, p)-discoverable extraction (Hayes et al. 2024, arXiv:2410.19482): a text of probability P is extractable by n
samples with probability p if 1 - (1 - P)^n >= p.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import log_softmax

from dpaudit.errors import require
from dpaudit.estimators.arguments import Floats, as_reals, unboxed


@dataclass(frozen=True)
class Sampling:
    """Rule that draws the next token.

    Attributes:
        temperature: Divisor of the logits, >= 0; at 0 the most likely token is always chosen.
        top_k: Number of most likely tokens that are kept, >= 1; None keeps all.
        top_p: Smallest probability of the most likely tokens that are kept, in (0, 1]; 1 keeps all.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0

    def __post_init__(self) -> None:
        temperature_allowed = math.isfinite(self.temperature) and self.temperature >= 0
        require(temperature_allowed, "temperature must be finite and >= 0", temperature=self.temperature)
        require(self.top_k is None or self.top_k >= 1, "top_k must be >= 1, or None", top_k=self.top_k)
        require(0 < self.top_p <= 1, "top_p must be in (0, 1]", top_p=self.top_p)

    def log_probabilities(self, logits: ArrayLike) -> Floats:
        """Return the logarithm of each token's probability of being drawn, shape (..., vocabulary) as `logits`.

        Filtered tokens have -inf. Equally likely tokens share the draw at temperature 0.

        Raises: InputError for NaN or +inf logits, or if a position has no finite logit.
        """
        values = as_reals("logits", logits)
        require(
            values.ndim >= 1 and bool(np.all(values < np.inf)) and bool(np.all(values.max(axis=-1) > -np.inf)),
            "logits must be numbers below inf, with a finite one at each position",
            shape=values.shape,
        )
        if self.temperature == 0:
            return _renormalised(np.where(values == values.max(axis=-1, keepdims=True), 0.0, -np.inf))
        scaled = values / self.temperature
        if self.top_k is not None and self.top_k < scaled.shape[-1]:
            weakest = -np.partition(-scaled, self.top_k - 1, axis=-1)[..., self.top_k - 1, None]
            scaled = np.where(scaled < weakest, -np.inf, scaled)
        if self.top_p < 1:
            scaled = np.where(_beyond_top_p(scaled, self.top_p), -np.inf, scaled)
        return _renormalised(scaled)

    def text_log_probability(self, logits: ArrayLike, tokens: ArrayLike) -> float | Floats:
        """Return the logarithm of the probability that exactly these tokens are drawn; -inf if a filter excludes one.

        Args:
            logits: Logits before each token, given the text before it, shape (..., tokens, vocabulary).
            tokens: The tokens, integers in [0, vocabulary), shape (..., tokens).
        """
        steps, token_ids = self.log_probabilities(logits), np.asarray(tokens)
        require(
            token_ids.dtype.kind in "iu" and token_ids.shape == steps.shape[:-1] and token_ids.ndim >= 1,
            "tokens must be integers, one for each row of logits",
            tokens=token_ids.shape,
            logits=steps.shape,
        )
        require(
            bool(np.all((token_ids >= 0) & (token_ids < steps.shape[-1]))),
            "tokens must be in [0, vocabulary)",
            vocabulary=steps.shape[-1],
        )
        return unboxed(np.take_along_axis(steps, token_ids[..., None], axis=-1)[..., 0].sum(axis=-1))


def extraction_probability(log_probability: ArrayLike, queries: ArrayLike) -> float | Floats:
    """Return 1 - (1 - P)^n, the probability that n samples contain the text; accurate for the smallest P.

    Args:
        log_probability: log P, <= 0.
        queries: Number n of samples, >= 0.
    """
    log_miss, n = _log_miss(log_probability), as_reals("queries", queries)
    require(bool(np.all(n >= 0)), "queries must be >= 0", queries=queries)
    with np.errstate(invalid="ignore"):
        return unboxed(np.where(n == 0, 0.0, -np.expm1(n * log_miss)))


def queries_needed(log_probability: ArrayLike, probability: ArrayLike) -> float | Floats:
    """Return the smallest whole number n with 1 - (1 - P)^n >= probability; inf if P is 0 as a float.

    Args:
        log_probability: log P, <= 0.
        probability: Wanted probability that one of the samples is the text, in (0, 1).
    """
    log_miss, wanted = _log_miss(log_probability), as_reals("probability", probability)
    require(bool(np.all((wanted > 0) & (wanted < 1))), "probability must be in (0, 1)", probability=probability)
    with np.errstate(divide="ignore"):
        exact = np.log1p(-wanted) / log_miss
    # A quotient that is whole but for rounding is that whole number: 1 - (1 - 0.5)^2 reaches 0.75 with two samples.
    needed = np.where(np.isclose(exact, np.rint(exact), rtol=1e-12, atol=0.0), np.rint(exact), np.ceil(exact))
    return unboxed(np.maximum(needed, 1.0))


def _log_miss(log_probability: ArrayLike) -> Floats:
    """Return log(1 - P), -inf at P = 1."""
    logs = as_reals("log_probability", log_probability)
    require(bool(np.all(logs <= 0)), "log_probability must be <= 0", log_probability=log_probability)
    with np.errstate(divide="ignore"):
        return np.where(logs > -math.log(2), np.log(-np.expm1(logs)), np.log1p(-np.exp(logs)))


def _beyond_top_p(logits: Floats, top_p: float) -> NDArray[np.bool_]:
    """Return True for tokens beyond the smallest set of most likely ones that has probability `top_p`."""
    ascending = np.argsort(logits, axis=-1, kind="stable")
    probabilities = np.exp(log_softmax(np.take_along_axis(logits, ascending, axis=-1), axis=-1))
    beyond = np.cumsum(probabilities, axis=-1) <= 1 - top_p
    beyond[..., -1] = False  # the most likely token always stays
    result = np.empty_like(beyond)
    np.put_along_axis(result, ascending, beyond, axis=-1)
    return result


def _renormalised(logits: Floats) -> Floats:
    result: Floats = log_softmax(logits, axis=-1)
    return result
