"""Language models before fine-tuning: from local files, from a module of torch, or made where they are needed."""

from __future__ import annotations

import copy
import os
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np

from dpaudit.consent import PATH
from dpaudit.errors import InputError, require
from dpaudit.locations import Packages, imported
from dpaudit.mechanisms.models.pretrained import load_pretrained
from dpaudit.mechanisms.ranges import require_at_least
from dpaudit.registry import register


@dataclass(frozen=True, eq=False)
class BaseModel:
    """A language model before fine-tuning, with its tokenizer.

    Attributes:
        module: A causal language model of transformers, in evaluation mode.
        tokenizer: Its tokenizer, of transformers.
    """

    module: Any
    tokenizer: Any


@runtime_checkable
class BaseModelSource(Protocol):
    """A description of a base model, which loads it where a unit runs."""

    def load(self, *, device: str = "cpu") -> BaseModel:
        """Return a new copy of the model with its tokenizer, which the caller may change.

        Raises: InputError if it cannot be loaded.
        """


@register("base-model", "pretrained", source="Hugging Face transformers")
@dataclass(frozen=True, kw_only=True)
class PretrainedModel:
    """A causal language model from local files, with its tokenizer (extra `text`). Nothing is downloaded.

    Attributes:
        path: Folder to which `save_pretrained` wrote the model and its tokenizer; or a GGUF file, which becomes numbers
            of the type `dtype` (package `gguf`).
        dtype: torch's name of the weights' type, such as "float32" or "bfloat16".
    """

    packages: ClassVar[Packages] = {"transformers": "text"}
    path: str = field(metadata=PATH)
    dtype: str = "float32"

    def load(self, *, device: str = "cpu") -> BaseModel:
        """Return the model and its tokenizer. Raises: InputError if the path does not hold both."""
        import torch

        kind = getattr(torch, self.dtype, None)
        require(isinstance(kind, torch.dtype), "dtype must be one of torch's", dtype=self.dtype)
        module = load_pretrained("AutoModelForCausalLM", self.path, dtype=kind)
        return BaseModel(module.to(device).eval(), load_pretrained("AutoTokenizer", self.path))


def own_copy(base: Any, *, device: str) -> Any:
    """Return a causal language model on a device that shares no weight with `base`.

    Args:
        base: Folder that `save_pretrained` wrote, path of a GGUF file, or a module of torch.
    Raises: InputError for another kind of base model.
    """
    if isinstance(base, str | os.PathLike):
        return load_base(base, device=device)
    _require_module(base)
    return copy.deepcopy(base).to(device)


def frozen_copy(base: Any, *, device: str) -> Any:
    """Return a causal language model on a device, for adapters: it shares the weights of a module, which stay frozen.

    Arguments and errors as for `own_copy`.
    """
    if isinstance(base, str | os.PathLike):
        return load_base(base, device=device).requires_grad_(False)
    _require_module(base)
    from torch.nn import Parameter

    shared: dict[int, Any] = {id(value): Parameter(value.detach(), requires_grad=False) for value in base.parameters()}
    shared |= {id(value): value for value in base.buffers()}
    return copy.deepcopy(base, shared).to(device)


def load_base(path: str | os.PathLike[str], *, device: str = "cpu") -> Any:
    """Return the model of a folder or GGUF file in float32; a GGUF file is dequantised (package gguf)."""
    import torch

    return load_pretrained("AutoModelForCausalLM", os.fspath(path), dtype=torch.float32).to(device).eval()


def _require_module(base: Any) -> None:
    from torch.nn import Module

    if not isinstance(base, Module):
        raise InputError(
            "a base model must be the path of a folder or of a GGUF file, or a module of torch, got "
            f"{type(base).__name__}"
        )


DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"]
MONTHS = ["January", "March", "April", "June", "August", "October", "December"]
TOWNS = ["Leeds", "Bonn", "Porto", "Lyon", "Graz", "Turin", "Ghent", "Malmo", "Cork", "Brno"]
PEOPLE = ["nurse", "doctor", "patient", "teacher", "driver", "baker", "clerk", "farmer", "pilot", "student"]
ACTIONS = ["called about", "wrote about", "complained of", "asked about", "described", "reported"]
PLACES = ["knee", "shoulder", "back", "wrist", "ankle", "neck", "hip", "elbow"]
FEELINGS = ["painful", "swollen", "stiff", "weak", "broken", "numb"]
CHANGES = ["raised", "lowered", "stopped", "changed", "repeated"]
MEDICINES = ["aspirin", "ibuprofen", "insulin", "morphine", "iron", "zinc"]
ENDS = ["before the visit", "after the visit", "during the night", "in the morning", "without delay", "for two weeks"]


def made_sentences(count: int, rng: np.random.Generator) -> list[str]:
    """Return `count` random sentences of some 25 words, such as notes of a clinic."""

    def word(words: list[str]) -> str:
        return words[int(rng.integers(len(words)))]

    return [
        f"On {word(DAYS)} the {word(PEOPLE)} from {word(TOWNS)} {word(ACTIONS)} a {word(FEELINGS)} {word(PLACES)}, "
        f"and the {word(PEOPLE)} {word(CHANGES)} the dose of {word(MEDICINES)} to {10 * rng.integers(1, 20)} mg "
        f"{word(ENDS)} in {word(MONTHS)}."
        for _ in range(count)
    ]


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
