"""What is asked of a language model, whatever runs it: answers to prompts, and what asking is going to cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from dpaudit.mechanisms.examples import Examples

CHARACTERS_PER_TOKEN = 3.5  # On the high side of what English takes; a server's own count is kept with each answer


class PublicData(Protocol):
    """Data that are nobody's secret; any data set."""

    def load(self, *, seed: int = 0) -> Examples:
        """The labelled records."""

    def __hash__(self) -> int: ...


@dataclass(frozen=True)
class Completion:
    """What came back for one prompt."""

    text: str | None  # the model's words, as they came; None when there was no answer
    missing: str = ""  # why there was none, in words; "" when there was one


@dataclass(frozen=True)
class Expected:
    """What asking is going to take, before anything is asked."""

    prompts: int  # different prompts
    known: int  # of these, how many were answered before and are not asked again
    requests: int  # to be sent, when none fails
    tokens_in: int  # to be read by the model, estimated from the length of the prompts
    tokens_out: int  # to be written by it at most
    cost: float | None  # in the currency of the stated prices; None where no price is stated
    minutes: float  # the least it takes under the stated limits; 0 without limits

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

    def expected(self, prompts: Sequence[str]) -> Expected:
        """What `complete` is going to take."""
