"""Interface of base models: language models that a fine-tuning starts from (registered as "base-model")."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable


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
