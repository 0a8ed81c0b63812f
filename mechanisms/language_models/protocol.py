"""What is asked of a language model, whatever runs it: answers to prompts, and what asking is going to cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable


@dataclass(frozen=True)
class Completion:
    """What came back for one prompt.

    Attributes:
        text: The model's words, as they came; None when there was no answer.
        missing: Why there was none, in words; "" when there was one.
    """

    text: str | None
    missing: str = ""


@dataclass(frozen=True)
class Expected:
    """What asking is going to take, before anything is asked.

    Attributes:
        prompts: Different prompts.
        known: Of these, how many were answered before and are not asked again.
        requests: To be sent, when none fails.
        tokens_in: To be read by the model, estimated from the length of the prompts.
        tokens_out: To be written by it at most.
        cost: In the currency of the stated prices; None where no price is stated.
        minutes: The least it takes under the stated limits; 0 without limits.
    """

    prompts: int
    known: int
    requests: int
    tokens_in: int
    tokens_out: int
    cost: float | None
    minutes: float

    def __str__(self) -> str:
        words = (
            f"{self.prompts:,} different prompts, {self.known:,} of them answered before: {self.requests:,} requests"
        )
        if not self.requests:
            return words
        words += f", about {self.tokens_in:,} tokens to read and at most {self.tokens_out:,} to write"
        words += "" if self.cost is None else f", cost about {self.cost:,.2f}"
        return words + (f", at least {self.minutes:,.1f} minutes by the limits" if self.minutes else "")


@runtime_checkable
class LanguageModel(Protocol):
    """Completes prompts, the same words for the same prompt (registered as "language-model")."""

    def complete(self, prompts: Sequence[str]) -> list[Completion]:
        """One completion for each prompt, in their order; equal prompts are asked once.

        Raises: AuditError when none of them can be asked at all.
        """
        ...

    def expected(self, prompts: Sequence[str]) -> Expected:
        """What `complete` is going to take."""
        ...
