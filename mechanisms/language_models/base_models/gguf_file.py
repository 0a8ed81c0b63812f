"""A base model from a GGUF file."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass, field
from typing import Any

from dpaudit.consent import PATH
from dpaudit.errors import InputError, require
from dpaudit.mechanisms.language_models.base_models.protocol import BaseModel
from dpaudit.registry import register
from dpaudit.variables import expand_path, hide_variable_values


@register("base-model", "gguf-file", source="GGUF, read by Hugging Face transformers")
@dataclass(frozen=True, kw_only=True)
class GgufFile:
    """A causal language model in a GGUF file, whose weights become numbers of 32 bits (extra `text`, package `gguf`).

    Attributes:
        path: The file, of an architecture that transformers reads, such as Llama or Qwen2.
    """

    path: str = field(metadata=PATH)

    def load(self, *, device: str = "cpu") -> BaseModel:
        """Return the model and its tokenizer. Raises: InputError if transformers cannot read the file."""
        if importlib.util.find_spec("gguf") is None:
            raise InputError("a base model in a GGUF file needs the package gguf; install it with `pip install gguf`")
        file = expand_path(self.path)
        require(file.is_file(), "path must be a GGUF file", do="set `path` to the file", path=self.path)
        place: dict[str, Any] = {"gguf_file": file.name, "local_files_only": True}
        try:
            import torch
            from transformers import AutoModelForCausalLM, AutoTokenizer

            module: Any = AutoModelForCausalLM.from_pretrained(str(file.parent), dtype=torch.float32, **place)
            tokenizer = AutoTokenizer.from_pretrained(str(file.parent), **place)
        except ImportError as err:
            raise InputError(
                "this needs the package transformers; install it with `pip install dpaudit[text]`"
            ) from err
        except (OSError, ValueError, KeyError, NotImplementedError) as err:
            reason = hide_variable_values((str(err).splitlines() or [type(err).__name__])[0], self.path)
            raise InputError(f"{self.path} must be a GGUF file that transformers can read: {reason}") from err
        return BaseModel(module.to(device).eval(), tokenizer)
