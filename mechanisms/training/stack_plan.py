"""How models are grouped for training, as a value."""

from __future__ import annotations

from dataclasses import dataclass

from dpaudit.errors import require

METHODS = ("looped", "batched", "vmapped")


@dataclass(frozen=True)
class StackPlan:
    """How models are grouped."""

    method: str  # "looped", "batched" (perceptrons, bags of embeddings) or "vmapped"
    size: int = 1  # models in a stack, >= 1; 1 when looped

    def __post_init__(self) -> None:
        require(self.method in METHODS, f"method must be one of {', '.join(METHODS)}", method=self.method)
        require(self.size >= 1, "size must be >= 1", size=self.size)
        require(self.method != "looped" or self.size == 1, "looped models are trained one at a time", size=self.size)
