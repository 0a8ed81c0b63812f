"""Texts as the states of a pre-trained language model (Reimers and Gurevych, 2019)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpaudit.consent import PATH
from dpaudit.engine.data.text.text_features import as_vectors
from dpaudit.errors import require
from dpaudit.mechanisms.examples import Examples
from dpaudit.mechanisms.models.transformer_fine_tune import encode_sentences, texts_of


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
            public = self._encoded(self.public.load(seed=seed))
            deviation = public.std(axis=0)
            vectors = (vectors - public.mean(axis=0)) / np.where(deviation > 0, deviation, 1)
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        return as_vectors(examples, vectors / np.where(lengths > 0, lengths, 1))

    def _encoded(self, examples: Examples) -> NDArray[np.float32]:
        texts = [self.prompt.replace("{text}", text) for text in texts_of(examples.features)]
        return encode_sentences(texts, self.path, length=self.length, layer=self.layer, device=self.device)
