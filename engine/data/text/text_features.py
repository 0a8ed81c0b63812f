"""Texts as vectors with meaningful distances, for Private-kNN."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from dpaudit.errors import require
from dpaudit.mechanisms.compute import limited_threads
from dpaudit.mechanisms.examples import Examples
from dpaudit.mechanisms.models.pretrained import texts_of
from dpaudit.registry import register


@register("data", "counted-words", source="Deerwester et al. (1990), latent semantic analysis; scikit-learn")
@dataclass(frozen=True)
class CountedWords:
    """Texts as unit vectors of their leading singular directions of weighted word counts (TF-IDF, SVD).

    Weights and directions are learned from `public` texts. If they were learned from the texts themselves, each vector
    would depend on all records, which no predictor's claim covers.

    Attributes:
        texts: Raw texts to convert.
        public: Raw public texts from which weights and directions are learned.
        dimensions: Number of directions, >= 2.
        words: Number of most frequent words and pairs of words, > dimensions.
    """

    texts: Any = field(metadata={"kind": "data"})
    public: Any = field(metadata={"kind": "data"})
    dimensions: int = 64
    words: int = 20_000

    def __post_init__(self) -> None:
        require(self.dimensions >= 2, "dimensions must be >= 2", dimensions=self.dimensions)
        require(self.words > self.dimensions, "words must be > dimensions", words=self.words)

    def load(self, *, seed: int = 0) -> Examples:
        """Return the texts, loaded with this seed, as float32 vectors of shape (n, dimensions).

        Raises: InputError if there are too few public words or texts.
        """
        from sklearn.decomposition import TruncatedSVD
        from sklearn.feature_extraction.text import TfidfVectorizer

        examples: Examples = self.texts.load(seed=seed)
        words = TfidfVectorizer(max_features=self.words, ngram_range=(1, 2), sublinear_tf=True, token_pattern=r"\w+")
        counts = words.fit_transform(texts_of(self.public.load(seed=seed).features))
        enough = min(counts.shape) > self.dimensions
        require(enough, "dimensions must be < the words and texts of public", dimensions=self.dimensions)
        with limited_threads(1):  # a fixed order of summation on all machines
            directions = TruncatedSVD(self.dimensions, random_state=0).fit(counts)
            vectors = directions.transform(words.transform(texts_of(examples.features)))
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        return as_vectors(examples, vectors / np.where(lengths > 0, lengths, 1))


def as_vectors(examples: Examples, vectors: Any) -> Examples:
    """Return the examples with vectors instead of their texts."""
    return replace(examples, features=np.asarray(vectors, np.float32), categorical=())
