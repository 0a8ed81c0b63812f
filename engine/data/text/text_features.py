"""Texts as vectors whose distances mean something, for Private-kNN."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from dpaudit.errors import require
from dpaudit.mechanisms.examples import Examples
from dpaudit.mechanisms.models.transformer_fine_tune import texts_of
from dpaudit.mechanisms.threads import limited_threads
from dpaudit.registry import register


@register("data", "counted-words", source="Deerwester et al. (1990), latent semantic analysis; scikit-learn")
@dataclass(frozen=True)
class CountedWords:
    """Texts as leading singular directions of their weighted word counts (TF-IDF, SVD), each of length 1.

    Weights and directions are learned from `public` texts: were they learned from the texts themselves, every vector
    would tell of every record, which no predictor's claim covers.

    Attributes:
        texts: Whose vectors they are; raw texts.
        public: What the weights are learned from; raw texts that are nobody's secret.
        dimensions: Directions, >= 2.
        words: Most frequent words and pairs of words kept, > dimensions.
    """

    texts: Any = field(metadata={"kind": "data"})
    public: Any = field(metadata={"kind": "data"})
    dimensions: int = 64
    words: int = 20_000

    def __post_init__(self) -> None:
        require(self.dimensions >= 2, "dimensions must be >= 2", dimensions=self.dimensions)
        require(self.words > self.dimensions, "words must be > dimensions", words=self.words)

    def load(self, *, seed: int = 0) -> Examples:
        """The texts with this seed, as float32 vectors of shape (n, dimensions).

        Raises: InputError when the public texts hold too few words.
        """
        from sklearn.decomposition import TruncatedSVD
        from sklearn.feature_extraction.text import TfidfVectorizer

        examples: Examples = self.texts.load(seed=seed)
        words = TfidfVectorizer(max_features=self.words, ngram_range=(1, 2), sublinear_tf=True, token_pattern=r"\w+")
        known = words.fit_transform(texts_of(self.public.load(seed=seed).features))
        enough = min(known.shape) > self.dimensions
        require(enough, "dimensions must be < the words and texts of public", dimensions=self.dimensions)
        with limited_threads(1):  # sums in one order, whatever machine this runs on
            directions = TruncatedSVD(self.dimensions, random_state=0).fit(known)
            vectors = directions.transform(words.transform(texts_of(examples.features)))
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        return as_vectors(examples, vectors / np.where(lengths > 0, lengths, 1))


def as_vectors(examples: Examples, vectors: Any) -> Examples:
    """The examples with vectors in place of their texts."""
    return replace(examples, features=np.asarray(vectors, np.float32), categorical=())
