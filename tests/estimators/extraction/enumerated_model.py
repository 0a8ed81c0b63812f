"""A language model small enough to enumerate: every text of four tokens out of five has a known probability."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

VOCABULARY, LENGTH = 5, 4
TEXTS = list(itertools.product(range(VOCABULARY), repeat=LENGTH))


class EnumeratedModel:
    """Independent normal logits after each prefix; the seed is the model."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        prefixes = itertools.chain.from_iterable(itertools.product(range(VOCABULARY), repeat=n) for n in range(LENGTH))
        self.logits = {prefix: rng.normal(scale=1.5, size=VOCABULARY) for prefix in prefixes}

    def teacher_forced(self, texts: Sequence[tuple[int, ...]]) -> NDArray[np.float64]:
        """Return the logits before each token, shape (texts, tokens, vocabulary)."""
        return np.array([[self.logits[text[:place]] for place in range(LENGTH)] for text in texts])

    def probabilities(self, temperature: float, top_k: int | None, top_p: float) -> dict[tuple[int, ...], float]:
        """Return the probability of every text, by filtering each step with plain loops."""
        result = {}
        for text in TEXTS:
            probability = 1.0
            for place, token in enumerate(text):
                probability *= self._step(text[:place], temperature, top_k, top_p).get(token, 0.0)
            result[text] = probability
        return result

    def _step(self, prefix: tuple[int, ...], temperature: float, top_k: int | None, top_p: float) -> dict[int, float]:
        """Return the probability of each token that the filters keep."""
        weights = {token: math.exp(logit / temperature) for token, logit in enumerate(self.logits[prefix].tolist())}
        by_weight = sorted(weights, key=lambda token: -weights[token])[:top_k]
        total = sum(weights[token] for token in by_weight)
        kept_tokens, mass = [], 0.0
        for token in by_weight:
            if mass >= top_p * total:
                break
            kept_tokens.append(token)
            mass += weights[token]
        return {token: weights[token] / mass for token in kept_tokens}
