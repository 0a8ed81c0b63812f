"""Made phrases with a sentiment, for where no text is at hand."""

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
"""Words of a phrase of SST-2's training part."""


@register("data", "made-phrases", source="generated: words by Zipf's law, a few of them with a sentiment")
@dataclass(frozen=True)
class MadePhrases:
    """Phrases of made words, positive or negative, as rows of word numbers (n, length) or as raw texts; generated.

    A phrase has 1 + Poisson(8.4) words; word w has a share proportional to 1 / (w + 2). A tenth of the words carry a
    sentiment, N(0, 3^2) each, the others none; the label is positive with probability 1 / (1 + e^-(their sum)).

    Attributes:
        rows: Phrases, >= 1.
        length: Words kept of a phrase, >= 1; shorter ones are padded with 0.
        vocabulary: Numbers there are, padding's 0 among them, in 2 .. 2^24; that of the model.
        raw: A table with the one text column `sentence` instead: "w17 w2".
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
        """All of it follows from `seed`."""
        rng = np.random.default_rng(np.random.SeedSequence([seed, 0x7E57]))
        words = self.vocabulary - 1
        shares = 1 / (np.arange(words) + 2.0)
        sentiment = np.where(rng.random(words) < 0.1, rng.normal(0, 3, words), 0.0)
        counts = np.minimum(1 + rng.poisson(MEAN_WORDS - 1, self.rows), self.length)
        drawn = rng.choice(words, (self.rows, self.length), p=shares / shares.sum())
        there = np.arange(self.length) < counts[:, None]
        labels = rng.random(self.rows) < expit(np.where(there, sentiment[drawn], 0.0).sum(1))
        numbers = np.where(there, drawn + 1, 0).astype(np.float32)
        features: Features = numbers
        if self.raw:
            texts = [" ".join(f"w{number:.0f}" for number in row if number) for row in numbers]
            features = pa.table({"sentence": texts})
        categorical = ("sentence",) if self.raw else ()
        names = ("negative", "positive")
        return Examples(features, labels.astype(np.int64), 2, "made-phrases", categorical, names)
