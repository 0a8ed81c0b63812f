"""A tiny transformer that is made and pre-trained on bundled sentences where it is needed."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np

from dpaudit.errors import require
from dpaudit.language_models.mechanisms.base_models.made_sentences import made_sentences
from dpaudit.language_models.mechanisms.base_models.protocol import BaseModel
from dpaudit.mechanisms.ranges import require_at_least
from dpaudit.packages import Packages, imported
from dpaudit.registry import register

SENTENCES = 1_000
"""Number of sentences for the tokenizer and the pre-training."""
BATCH, LEARNING_RATE = 32, 3e-3
"""Sentences in a batch of the pre-training, and its learning rate."""
PADDING = "<pad>"


@register("base-model", "tiny-transformer", source="Ours; architecture by Touvron et al. (2023), arXiv:2302.13971")
@dataclass(frozen=True, kw_only=True)
class TinyTransformer:
    """A Llama of some 100,000 parameters, pre-trained on bundled sentences in seconds (extra `text`).

    It needs no download. The sentences are of the grammar of the data set `made-sentences`, drawn by `seed`. The
    tokenizer encodes the bytes of any text.

    Attributes:
        hidden: Width of the hidden states, a multiple of `heads`.
        layers: Number of layers, >= 1.
        heads: Number of attention heads, >= 1.
        vocabulary: Number of tokens of the tokenizer, >= 300.
        context: Largest number of tokens of a text, >= 16.
        steps: Steps of pre-training, >= 0.
        seed: Seed of sentences, weights and pre-training, >= 0.
    """

    packages: ClassVar[Packages] = {"transformers": "text"}
    hidden: int = 64
    layers: int = 2
    heads: int = 4
    vocabulary: int = 512
    context: int = 256
    steps: int = 60
    seed: int = 0

    def __post_init__(self) -> None:
        require_at_least(1, self, "hidden", "layers", "heads")
        require_at_least(300, self, "vocabulary")
        require_at_least(16, self, "context")
        require_at_least(0, self, "steps", "seed")
        require(
            self.hidden % (2 * self.heads) == 0,
            "hidden must be a multiple of twice the number of heads",
            hidden=self.hidden,
            heads=self.heads,
        )

    def load(self, *, device: str = "cpu") -> BaseModel:
        """Return a copy of the model, which each process makes once. Raises: InputError without transformers."""
        module, tokenizer = _pretrained(self)
        return BaseModel(copy.deepcopy(module).to(device), copy.deepcopy(tokenizer))


@lru_cache(maxsize=4)
def _pretrained(source: TinyTransformer) -> tuple[Any, Any]:
    """Return the pre-trained module and its tokenizer. They are made by one thread, so that all machines agree."""
    import torch

    transformers = imported("transformers", "text")
    rng = np.random.default_rng(np.random.SeedSequence([source.seed, 0xBA5E]))
    sentences = made_sentences(SENTENCES, rng)
    tokenizer = _tokenizer(sentences, source)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(rng.integers(2**62)))
            module: Any = transformers.LlamaForCausalLM(
                transformers.LlamaConfig(
                    vocab_size=len(tokenizer),
                    hidden_size=source.hidden,
                    intermediate_size=4 * source.hidden,
                    num_hidden_layers=source.layers,
                    num_attention_heads=source.heads,
                    max_position_embeddings=source.context,
                    pad_token_id=tokenizer.pad_token_id,
                    bos_token_id=None,
                    eos_token_id=None,
                )
            )
        _pretrain(module, tokenizer, sentences, source.steps, rng)
    finally:
        torch.set_num_threads(threads)
    return module.eval(), tokenizer


def _tokenizer(sentences: list[str], source: TinyTransformer) -> Any:
    """Return a byte-level tokenizer whose merges come from the sentences."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=source.vocabulary,
        special_tokens=[PADDING],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    inner.train_from_iterator(sentences, trainer)
    fast: Any = PreTrainedTokenizerFast
    return fast(tokenizer_object=inner, pad_token=PADDING, model_max_length=source.context)


def _pretrain(module: Any, tokenizer: Any, sentences: list[str], steps: int, rng: np.random.Generator) -> None:
    import torch

    module.train()
    optimizer = torch.optim.AdamW(module.parameters(), lr=LEARNING_RATE)
    for _ in range(steps):
        some = [sentences[row] for row in rng.integers(len(sentences), size=BATCH)]
        batch = tokenizer(some, padding=True, return_tensors="pt")
        labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
        optimizer.zero_grad()
        module(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], labels=labels).loss.backward()
        optimizer.step()
    module.zero_grad()
