"""Generated data: a Gaussian mixture, drawn priors and phrases with a sentiment."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from scipy.special import expit, softmax

from dpaudit.errors import require
from dpaudit.mechanisms.examples import Examples, Features
from dpaudit.registry import register

MAX_NUMBERS = 2**31
"""8 GiB of 32-bit features."""
BYTES_PER_NUMBER = 12
"""Memory for each number while rows are assigned to parts: three copies of 4 bytes."""


def require_size(rows: int, columns: int) -> None:
    """Raise InputError if generated data would not fit into memory."""
    require(
        rows * columns <= MAX_NUMBERS,
        f"generated data must have at most {MAX_NUMBERS:,} numbers",
        do="ask for fewer rows, columns or classes",
        rows=rows,
        columns=columns,
    )
    needed, memory = rows * columns * BYTES_PER_NUMBER, memory_bytes()
    require(
        not memory or needed <= memory,
        f"generated data must fit into this machine's memory, {memory / 1e9:.1f} GB, these take {needed / 1e9:.1f} GB",
        do="ask for fewer rows or columns",
        rows=rows,
        columns=columns,
    )


def memory_bytes() -> int:
    """Return the total memory of this machine; 0 if unknown."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 0


@register("data", "gaussian-mixture", source="Observational auditing of label privacy (2025), section 6.6, appendix 11")
@dataclass(frozen=True)
class GaussianMixture:
    """Generated data: label y uniform over the classes, features from N(e_y, I), with the exact posterior.

    The paper has 5 dimensions for 2, 5 and 10 classes, but e_y needs one dimension for each class. So the features have
    max(dimensions, classes) dimensions.

    Attributes:
        classes: Number of classes k, >= 2.
        rows: Number of examples n, >= 1.
        dimensions: Smallest number of dimensions, >= 1.
    """

    classes: int = 2
    rows: int = 1_000_000
    dimensions: int = 5

    def __post_init__(self) -> None:
        require(self.classes >= 2, "classes must be >= 2", classes=self.classes)
        require(self.rows >= 1, "rows must be >= 1", rows=self.rows)
        require(self.dimensions >= 1, "dimensions must be >= 1", dimensions=self.dimensions)
        require_size(self.rows, max(self.dimensions, self.classes))

    def load(self, *, seed: int = 0) -> Examples:
        """Return examples determined by `seed`, with float32 features of shape (rows, max(dimensions, classes))."""
        rng = np.random.default_rng(np.random.SeedSequence(seed))
        labels = rng.integers(self.classes, size=self.rows)
        features = rng.standard_normal((self.rows, max(self.dimensions, self.classes)), dtype=np.float32)
        features[np.arange(self.rows), labels] += 1
        return Examples(features, labels, self.classes, "gaussian-mixture")

    def posterior(self, features: Features) -> NDArray[np.float64]:
        """Return the exact P(y | x), shape (n, d) to (n, classes)."""
        # All classes have weight 1/k and |x - e_y|^2 = |x|^2 - 2 x_y + 1, so log P(y | x) is x_y plus a constant.
        require(isinstance(features, np.ndarray), "features must be an array of numbers", features=type(features))
        return cast("NDArray[np.float64]", softmax(features[:, : self.classes].astype(np.float64), axis=1))


class PriorData(ABC):
    """Examples with a single feature, P[label = 1], and labels drawn from it."""

    name: str

    @abstractmethod
    def priors(self, rng: np.random.Generator) -> NDArray[np.float64]:
        """Return P[label = 1] of each example, in [0, 1], shape (n,)."""

    def load(self, *, seed: int = 0) -> Examples:
        """Return priors as features of shape (n, 1), with labels drawn from them by `seed`."""
        rng = np.random.default_rng(np.random.SeedSequence(seed))
        features = self.priors(rng).astype(np.float32)[:, None]
        # Drawn from the rounded features, so that the posterior below is exact.
        labels = (rng.random(len(features)) < features[:, 0].astype(np.float64)).astype(np.int64)
        return Examples(features, labels, 2, str(self))

    def posterior(self, features: Features) -> NDArray[np.float64]:
        """Return the exact P(y | x), shape (n, 1) to (n, 2)."""
        require(isinstance(features, np.ndarray), "features must be an array of numbers", features=type(features))
        positive = cast("NDArray[np.float64]", features)[:, 0].astype(np.float64)
        return np.stack([1 - positive, positive], axis=1)


@register("data", "beta-priors", source="Busa-Fekete et al. (2024), section 4: Beta(2, 30) and a balanced Beta")
@dataclass(frozen=True)
class BetaPriors(PriorData):
    """Generated priors P[label = 1] from Beta(a, b), with labels drawn from them. Beta(1, 1) is uniform.

    Attributes:
        a: First parameter, > 0.
        b: Second parameter, > 0.
        rows: Number of examples, >= 1.
    """

    a: float = 2.0
    b: float = 30.0
    rows: int = 100_000

    def __post_init__(self) -> None:
        require(self.a > 0, "a must be > 0", a=self.a)
        require(self.b > 0, "b must be > 0", b=self.b)
        require(self.rows >= 1, "rows must be >= 1", rows=self.rows)
        require_size(self.rows, 1)

    def priors(self, rng: np.random.Generator) -> NDArray[np.float64]:
        return rng.beta(self.a, self.b, self.rows)

    def __str__(self) -> str:
        return f"Beta({self.a:g}, {self.b:g}) priors"


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
