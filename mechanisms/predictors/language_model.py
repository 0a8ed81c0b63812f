"""The interface of language models: completions of prompts, and their expected cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from dpaudit.mechanisms.examples import Examples

CHARACTERS_PER_TOKEN = 3.5  # fewer than in English text, so that token counts are overestimated


class PublicData(Protocol):
    """Any data set, used as public data."""

    def load(self, *, seed: int = 0) -> Examples:
        """Return the labelled records."""

    def __hash__(self) -> int: ...


@dataclass(frozen=True)
class Completion:
    """The answer to one prompt, or the reason why there is none."""

    text: str | None  # the model's answer, unchanged; None: no answer
    missing: str = ""  # why there is no answer; "" if there is one


@dataclass(frozen=True)
class Expected:
    """Expected requests, tokens, cost and time of completing some prompts."""

    prompts: int  # different prompts
    answered: int  # of these, prompts with a stored answer, which are not sent
    requests: int  # without retries
    tokens_in: int  # of the prompts to send, estimated from their length
    tokens_out: int  # of their answers, at most
    cost: float | None  # in the currency of the prices; None: no price is stated
    minutes: float  # least duration under the rate limits; 0 without limits

    def __str__(self) -> str:
        words = (
            f"{self.prompts:,} different prompts, {self.answered:,} of them answered before: {self.requests:,} requests"
        )
        if not self.requests:
            return words
        words += f", about {self.tokens_in:,} tokens to read and at most {self.tokens_out:,} to write"
        words += "" if self.cost is None else f", cost about {self.cost:,.2f}"
        return words + (f", at least {self.minutes:,.1f} minutes by the limits" if self.minutes else "")


@runtime_checkable
class LanguageModel(Protocol):
    """A deterministic language model: equal prompts get equal answers (registered as "language-model")."""

    def complete(self, prompts: Sequence[str]) -> list[Completion]:
        """Return one completion for each prompt, in their order; equal prompts are sent once.

        Raises: AuditError if no prompt can be sent.
        """

    def expected(self, prompts: Sequence[str]) -> Expected:
        """Return the expected cost of `complete`."""
