"""A language model from a local folder, run in this process by the package transformers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, ClassVar

from dpaudit.consent import PATH
from dpaudit.errors import require
from dpaudit.mechanisms.models.chat_templates import written_chats
from dpaudit.mechanisms.models.pretrained import load_pretrained
from dpaudit.mechanisms.predictors.language_model import CHARACTERS_PER_TOKEN, Completion, Expected
from dpaudit.mechanisms.ranges import require_at_least
from dpaudit.packages import Packages
from dpaudit.registry import register


@register("language-model", "local-transformer", source="Hugging Face transformers, greedy decoding")
@dataclass(frozen=True, kw_only=True)
class LocalTransformer:
    """A causal language model from a local folder, such as Mistral-7B, decoded greedily (extra `text`).

    Nothing is downloaded: the folder must hold the weights and the tokenizer. Each batch holds prompts of one length
    in tokens, so no prompt is padded and no answer depends on the other prompts.

    Attributes:
        path: Folder to which `save_pretrained` wrote the model and its tokenizer.
        max_tokens: Most tokens of an answer, >= 1.
        batch: Prompts in a batch, >= 1.
        chat: True to wrap each prompt as a user message by the tokenizer's chat template.
        device: Device name of torch, such as "cpu" or "cuda:0".
        dtype: torch's name of the weights' type, such as "float32" or "bfloat16".
    """

    packages: ClassVar[Packages] = {"transformers": "text"}
    path: str = field(metadata=PATH)
    max_tokens: int = 8
    batch: int = 16
    chat: bool = False
    device: str = "cpu"
    dtype: str = "float32"

    def __post_init__(self) -> None:
        require_at_least(1, self, "max_tokens", "batch")

    def complete(self, prompts: Sequence[str]) -> list[Completion]:
        """Return one completion for each prompt. Raises: InputError if a prompt exceeds the model's context length."""
        import torch

        tokenizer, module = _tokenizer_and_model(self.path, self.device, self.dtype)
        written: Sequence[str] = prompts
        if self.chat:
            chats = [[{"role": "user", "content": prompt}] for prompt in prompts]
            written = written_chats(tokenizer, chats, add_generation_prompt=True)
        # A chat template adds the special tokens itself.
        encoded = [list(tokenizer(text, add_special_tokens=not self.chat)["input_ids"]) for text in written]
        tokens = dict(zip(prompts, encoded, strict=True))
        longest = getattr(module.config, "max_position_embeddings", None) or math.inf
        most = max(map(len, tokens.values()), default=0) + self.max_tokens
        require(most <= longest, f"prompt and answer must fit in {longest} tokens", do="shorten the texts", tokens=most)
        texts: dict[str, str] = {}
        by_length: dict[int, list[str]] = {}
        for prompt, numbers in tokens.items():
            by_length.setdefault(len(numbers), []).append(prompt)
        with torch.inference_mode():
            for same_length in by_length.values():
                for first in range(0, len(same_length), self.batch):
                    batch = same_length[first : first + self.batch]
                    input_ids = torch.tensor([tokens[prompt] for prompt in batch], device=self.device)
                    output = module.generate(
                        input_ids=input_ids,
                        attention_mask=torch.ones_like(input_ids),
                        max_new_tokens=self.max_tokens,
                        do_sample=False,
                        num_beams=1,
                        pad_token_id=tokenizer.pad_token_id or tokenizer.eos_token_id or 0,
                    )[:, input_ids.shape[1] :]
                    texts |= dict(zip(batch, tokenizer.batch_decode(output, skip_special_tokens=True), strict=True))
        return [Completion(texts[prompt]) for prompt in prompts]

    def expected(self, prompts: Sequence[str]) -> Expected:
        different = dict.fromkeys(prompts)
        tokens_in = sum(math.ceil(len(prompt) / CHARACTERS_PER_TOKEN) for prompt in different)
        return Expected(len(different), 0, len(different), tokens_in, len(different) * self.max_tokens, None, 0.0)


@lru_cache(maxsize=1)
def _tokenizer_and_model(path: str, device: str, dtype: str) -> tuple[Any, Any]:
    """Load the tokenizer and the model; a process holds one model at a time."""
    import torch

    kind = getattr(torch, dtype, None)
    require(isinstance(kind, torch.dtype), "dtype must be one of torch's", dtype=dtype)
    module = load_pretrained("AutoModelForCausalLM", path, dtype=kind)
    return load_pretrained("AutoTokenizer", path), module.to(device).eval()
