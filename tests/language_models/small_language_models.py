"""A word-level tokenizer and a transformer of a million parameters, trained in seconds."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

SUBJECTS, VERBS, OBJECTS = 20, 12, 24
WORDS = 220  # words that no text of the domain has


def small_tokenizer() -> Any:
    """Return a tokenizer of transformers with 284 ordinary words and special tokens for padding and unknown words."""
    names = ["[PAD]", "[UNK]", *(f"s{i}" for i in range(SUBJECTS)), *(f"v{i}" for i in range(VERBS))]
    names += [f"o{i}" for i in range(OBJECTS)] + ["the", "and", "then", "quickly", "of", "with", "a", "."]
    names += [f"w{i}" for i in range(WORDS)]
    tokenizer = Tokenizer(models.WordLevel({name: number for number, name in enumerate(names)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]")


def domain_texts(count: int, seed: int = 0) -> list[str]:
    """Return texts of a small grammar, 12 words each."""
    rng = np.random.default_rng(seed)

    def clause() -> str:
        return f"the s{rng.integers(SUBJECTS)} v{rng.integers(VERBS)} a o{rng.integers(OBJECTS)}"

    return [f"{clause()} and {clause()} ." for _ in range(count)]


def small_model(tokenizer: Any, *, hidden: int = 128, layers: int = 4, seed: int = 0) -> Any:
    """Return an untrained Llama; of 1.1 million parameters by default."""
    torch.set_num_threads(1)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        config = LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=hidden,
            intermediate_size=4 * hidden,
            num_hidden_layers=layers,
            num_attention_heads=4,
            max_position_embeddings=128,
            pad_token_id=tokenizer.pad_token_id,
        )
        return LlamaForCausalLM(config)


def collated(tokenizer: Any, texts: Sequence[str], *, max_length: int = 64) -> dict[str, Any]:
    """Return a batch with labels, as the collator of transformers for language models makes it."""
    batch = tokenizer(list(texts), padding=True, truncation=True, max_length=max_length, return_tensors="pt")
    labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    return {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"], "labels": labels}


def trained(
    model: Any, tokenizer: Any, texts: Sequence[str], *, epochs: int, batch: int = 32, rate: float = 2e-3, seed: int = 0
) -> Any:
    """Return a copy of the model trained on all texts in random order."""
    model = copy.deepcopy(model).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    rng = np.random.default_rng(seed)
    for _ in range(epochs):
        order = rng.permutation(len(texts))
        for first in range(0, len(texts), batch):
            optimizer.zero_grad()
            model(**collated(tokenizer, [texts[row] for row in order[first : first + batch]])).loss.backward()
            optimizer.step()
    return model.eval()
