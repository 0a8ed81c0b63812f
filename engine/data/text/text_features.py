"""Texts as vectors whose distances mean something, for Private-kNN: counted words, or a model's sentences."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from dpaudit.consent import PATH
from dpaudit.errors import require
from dpaudit.mechanisms.examples import Examples
from dpaudit.mechanisms.models.transformer_fine_tune import encoded, texts_of
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
        from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

        examples: Examples = self.texts.load(seed=seed)
        words = TfidfVectorizer(max_features=self.words, ngram_range=(1, 2), sublinear_tf=True, token_pattern=r"\w+")
        known = words.fit_transform(texts_of(self.public.load(seed=seed).features))
        enough = min(known.shape) > self.dimensions
        require(enough, "dimensions must be < the words and texts of public", dimensions=self.dimensions)
        with threadpool_limits(1):  # sums in one order, whatever machine this runs on
            directions = TruncatedSVD(self.dimensions, random_state=0).fit(known)
            vectors = directions.transform(words.transform(texts_of(examples.features)))
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        return as_vectors(examples, vectors / np.where(lengths > 0, lengths, 1))


@register("data", "encoded-sentences", source="Reimers, Gurevych (2019), arXiv:1908.10084; Hugging Face transformers")
@dataclass(frozen=True)
class EncodedSentences:
    """Texts as the mean of a pre-trained encoder's last states, such as RoBERTa's, each of length 1 (extra `text`).

    Attributes:
        texts: Whose vectors they are; raw texts.
        path: The folder that `save_pretrained` of the encoder and of its tokenizer wrote.
        length: Tokens kept of a text, >= 4.
        device: A device name of torch.
    """

    texts: Any = field(metadata={"kind": "data"})
    path: str = field(metadata=PATH)
    length: int = 128
    device: str = "cpu"

    def __post_init__(self) -> None:
        require(self.length >= 4, "length must be >= 4", length=self.length)

    def load(self, *, seed: int = 0) -> Examples:
        """The texts with this seed, as float32 vectors of the encoder's width.

        Raises: InputError when transformers or the folder is missing.
        """
        examples: Examples = self.texts.load(seed=seed)
        found = encoded(texts_of(examples.features), self.path, length=self.length, device=self.device)
        return as_vectors(examples, found)


def as_vectors(examples: Examples, vectors: Any) -> Examples:
    """The examples with vectors in place of their texts."""
    return replace(examples, features=np.asarray(vectors, np.float32), categorical=())
