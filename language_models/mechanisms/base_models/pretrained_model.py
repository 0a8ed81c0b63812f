"""A base model from a local folder of transformers, or from a GGUF file."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from dpaudit.consent import PATH
from dpaudit.errors import require
from dpaudit.language_models.mechanisms.base_models.protocol import BaseModel
from dpaudit.mechanisms.models.pretrained import load_pretrained
from dpaudit.packages import Packages
from dpaudit.registry import register


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
