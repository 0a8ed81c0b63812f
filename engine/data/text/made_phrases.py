"""Generated phrases with a sentiment, for runs without real texts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from scipy.special import expit

from dpaudit.engine.data.size import require_size
from dpaudit.errors import require
from dpaudit.mechanisms.examples import Examples, Features
from dpaudit.registry import register

MEAN_WORDS = 9.4
"""Mean number of words of a phrase in the training part of SST-2."""


@register("data", "made-phrases", source="generated: words by Zipf's law, a few of them with a sentiment")
@dataclass(frozen=True)
class MadePhrases:
    """Generated phrases, positive or negative, as rows of word numbers (n, length) or as raw texts.

    A phrase has 1 + Poisson(8.4) words, and word w has a share proportional to 1 / (w + 2). A tenth of the words have a
    sentiment from N(0, 3^2). The label is positive with probability 1 / (1 + e^-s), with s the sum of sentiments.

    Attributes:
        rows: Number of phrases, >= 1.
        length: Largest number of words of a phrase, >= 1; shorter ones are padded with 0.
        vocabulary: Number of word numbers including 0 for padding, in 2 .. 2^24; must be that of the model.
        raw: True for a table with a single text column `sentence`, such as "w17 w2".
    """

    rows: int = 2000
    length: int = 32
    vocabulary: int = 4096
    raw: bool = False

    def __post_init__(self) -> None:
        require(self.rows >= 1, "rows must be >= 1", rows=self.rows)
        require(self.length >= 1, "length must be >= 1", length=self.length)
        require_size(self.rows, self.length)
        require(2 <= self.vocabulary <= 2**24, "vocabulary must be in 2..2^24", vocabulary=self.vocabulary)

    def load(self, *, seed: int = 0) -> Examples:
        """Return the phrases that `seed` determines."""
        rng = np.random.default_rng(np.random.SeedSequence([seed, 0x7E57]))
        words = self.vocabulary - 1
        shares = 1 / (np.arange(words) + 2.0)
        sentiment = np.where(rng.random(words) < 0.1, rng.normal(0, 3, words), 0.0)
        counts = np.minimum(1 + rng.poisson(MEAN_WORDS - 1, self.rows), self.length)
        word_indices = rng.choice(words, (self.rows, self.length), p=shares / shares.sum())
        is_word = np.arange(self.length) < counts[:, None]
        labels = rng.random(self.rows) < expit(np.where(is_word, sentiment[word_indices], 0.0).sum(1))
        numbers = np.where(is_word, word_indices + 1, 0).astype(np.float32)
        features: Features = numbers
        if self.raw:
            texts = [" ".join(f"w{number:.0f}" for number in row if number) for row in numbers]
            features = pa.table({"sentence": texts})
        categorical = ("sentence",) if self.raw else ()
        names = ("negative", "positive")
        return Examples(features, labels.astype(np.int64), 2, "made-phrases", categorical, names)
