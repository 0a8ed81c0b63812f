"""A language model from a local folder, run here through the package transformers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from dpaudit.consent import PATH
from dpaudit.errors import require
from dpaudit.mechanisms.language_models.protocol import CHARACTERS_PER_TOKEN, Completion, Expected
from dpaudit.mechanisms.models.transformer_fine_tune import loaded
from dpaudit.mechanisms.ranges import require_at_least
from dpaudit.registry import register


@register("language-model", "local-transformer", source="Hugging Face transformers, greedy decoding")
@dataclass(frozen=True, kw_only=True)
class LocalTransformer:
    """A causal language model from a local folder, such as Mistral-7B, decoded greedily (extra `text`).

    Nothing is fetched: the weights and the tokenizer must be in the folder. Only prompts of as many tokens go through
    the model together, so nothing is padded and no answer depends on what else is asked.

    Attributes:
        path: The folder that `save_pretrained` of a model and of its tokenizer wrote.
        max_tokens: Of an answer, >= 1.
        batch: Prompts at once, >= 1.
        chat: Whether a prompt is wrapped as a user's message, by the tokenizer's own template.
        device: A device name of torch, "cpu" or "cuda:0".
        dtype: Of the weights, as torch calls it: "float32", "bfloat16".
    """

    path: str = field(metadata=PATH)
    max_tokens: int = 8
    batch: int = 16
    chat: bool = False
    device: str = "cpu"
    dtype: str = "float32"

    def __post_init__(self) -> None:
        require_at_least(1, self, "max_tokens", "batch")

    def complete(self, prompts: Sequence[str]) -> list[Completion]:
        """See `LanguageModel`; refuses a prompt that is longer than the model reads."""
        import torch

        tokenizer, module = _held(self.path, self.device, self.dtype)
        tokens = {prompt: self._tokens(tokenizer, prompt) for prompt in prompts}
        longest = getattr(module.config, "max_position_embeddings", None) or math.inf
        most = max((len(found) for found in tokens.values()), default=0) + self.max_tokens
        require(most <= longest, f"prompt and answer must fit in {longest} tokens", do="shorten the texts", tokens=most)
        texts: dict[str, str] = {}
        by_length: dict[int, list[str]] = {}
        for prompt, found in tokens.items():
            by_length.setdefault(len(found), []).append(prompt)
        with torch.inference_mode():
            for alike in by_length.values():
                for first in range(0, len(alike), self.batch):
                    together = alike[first : first + self.batch]
                    numbers = torch.tensor([tokens[prompt] for prompt in together], device=self.device)
                    written = module.generate(
                        input_ids=numbers,
                        attention_mask=torch.ones_like(numbers),
                        max_new_tokens=self.max_tokens,
                        do_sample=False,
                        num_beams=1,
                        pad_token_id=tokenizer.pad_token_id or tokenizer.eos_token_id or 0,
                    )[:, numbers.shape[1] :]
                    words = tokenizer.batch_decode(written, skip_special_tokens=True)
                    texts |= dict(zip(together, words, strict=True))
        return [Completion(texts[prompt]) for prompt in prompts]

    def expected(self, prompts: Sequence[str]) -> Expected:
        different = dict.fromkeys(prompts)
        read = sum(math.ceil(len(prompt) / CHARACTERS_PER_TOKEN) for prompt in different)
        return Expected(len(different), 0, len(different), read, len(different) * self.max_tokens, None, 0.0)

    def _tokens(self, tokenizer: Any, prompt: str) -> list[int]:
        if self.chat:
            message = [{"role": "user", "content": prompt}]
            prompt = tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True)
        # A template writes its own beginning.
        return list(tokenizer(prompt, add_special_tokens=not self.chat)["input_ids"])


@lru_cache(maxsize=1)
def _held(path: str, device: str, dtype: str) -> tuple[Any, Any]:
    """The tokenizer and the model: one at a time is held in a process."""
    import torch

    kind = getattr(torch, dtype, None)
    require(isinstance(kind, torch.dtype), "dtype must be one of torch's", dtype=dtype)
    module = loaded("AutoModelForCausalLM", path, dtype=kind)
    return loaded("AutoTokenizer", path), module.to(device).eval()
