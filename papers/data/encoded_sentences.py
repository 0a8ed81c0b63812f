"""Texts as the states of a pre-trained language model (Reimers and Gurevych, 2019)."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpaudit.consent import PATH
from dpaudit.engine.data.texts import as_vectors
from dpaudit.errors import require
from dpaudit.mechanisms.examples import Examples
from dpaudit.mechanisms.models.pretrained import encode_sentences, texts_of


@dataclass(frozen=True)
class EncodedSentences:
    """Texts as the mean of a pre-trained transformer's states over their tokens, each of length 1 (extra `text`).

    The last states of an encoder, such as RoBERTa, represent the text directly. A language model's last states predict
    the next token. Its middle states, with a question as prompt and scaled by public texts, represent the text better:
    SmolLM2-135M and 450 phrases of SST-2 give 79 % accuracy with the last states and 84 % with the middle states.

    Attributes:
        texts: Raw texts to encode.
        path: The folder that `save_pretrained` of the model and of its tokenizer wrote.
        length: Maximum number of tokens of a text, >= 4.
        device: A device name of torch.
        layer: Layer of the states: 0 for the embeddings, 1 for the first layer, ..., `null` for the last.
        prompt: Prompt to encode; {text} stands for the text.
        public: Public raw texts whose mean and deviation centre and scale each column; `null` does neither. Statistics
            of the private texts would make every vector depend on every record.
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
        """Return the texts of this seed as float32 vectors of the model's width.

        Raises: InputError if transformers or the folder is missing, or the model has no such layer.
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


def middle_layer(model: Path) -> int:
    """Return the middle layer of a language model's folder; its states carry the most information about a text."""
    layers: int = json.loads((model / "config.json").read_bytes())["num_hidden_layers"]
    return layers // 2
