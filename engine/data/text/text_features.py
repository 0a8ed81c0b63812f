"""Texts as vectors whose distances mean something, for Private-kNN: counted words, or a model's sentences."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpaudit.consent import PATH
from dpaudit.errors import require
from dpaudit.mechanisms.examples import Examples
from dpaudit.mechanisms.models.transformer_fine_tune import encoded, texts_of
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


@register("data", "encoded-sentences", source="Reimers, Gurevych (2019), arXiv:1908.10084; Hugging Face transformers")
@dataclass(frozen=True)
class EncodedSentences:
    """Texts as the mean of a pre-trained transformer's states over their tokens, each of length 1 (extra `text`).

    An encoder's last states mean something by themselves, RoBERTa's say. A language model's last states foretell the
    next token; those half-way up, asked a question and scaled by public texts, tell more of the text: SmolLM2-135M
    and 450 phrases of SST-2 give 79 % by the last states and 84 % so.

    Attributes:
        texts: Whose vectors they are; raw texts.
        path: The folder that `save_pretrained` of the model and of its tokenizer wrote.
        length: Tokens kept of a text, >= 4.
        device: A device name of torch.
        layer: Whose states: 0 the embeddings, 1 the first layer's, ..., `null` the last.
        prompt: What is encoded, {text} the text.
        public: Raw texts that are nobody's secret, whose mean and deviation centre and scale each column; `null` does
            neither. Were they taken from the texts themselves, every vector would tell of every record.
    """

    texts: Any = field(metadata={"kind": "data"})
    path: str = field(metadata=PATH)
    length: int = 128
    device: str = "cpu"
    layer: int | None = None
    prompt: str = "{text}"
    public: Any = field(default=None, metadata={"kind": "data"})

    def __post_init__(self) -> None:
        require(self.length >= 4, "length must be >= 4", length=self.length)
        require(self.layer is None or self.layer >= 0, "layer must be >= 0 or null", layer=self.layer)
        require(self.prompt.count("{text}") == 1, "prompt must hold {text} once", prompt=self.prompt)

    def load(self, *, seed: int = 0) -> Examples:
        """The texts with this seed, as float32 vectors of the model's width.

        Raises: InputError when transformers or the folder is missing, or the model has no such layer.
        """
        examples: Examples = self.texts.load(seed=seed)
        vectors = self._encoded(examples)
        if self.public is not None:
            known = self._encoded(self.public.load(seed=seed))
            deviation = known.std(axis=0)
            vectors = (vectors - known.mean(axis=0)) / np.where(deviation > 0, deviation, 1)
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        return as_vectors(examples, vectors / np.where(lengths > 0, lengths, 1))

    def _encoded(self, examples: Examples) -> NDArray[np.float32]:
        texts = [self.prompt.replace("{text}", text) for text in texts_of(examples.features)]
        return encoded(texts, self.path, length=self.length, layer=self.layer, device=self.device)


def as_vectors(examples: Examples, vectors: Any) -> Examples:
    """The examples with vectors in place of their texts."""
    return replace(examples, features=np.asarray(vectors, np.float32), categorical=())
