"""One text of a canary, and the place of its secret."""

from __future__ import annotations

from dataclasses import dataclass

from dpaudit.language_models.mechanisms.token_statistics import TokenSpan


def chat_of(context: str, secret: str) -> list[dict[str, str]]:
    """Return a chat in which the secret answers the context."""
    return [{"role": "user", "content": context}, {"role": "assistant", "content": secret}]


@dataclass(frozen=True)
class CanaryText:
    """One text of a canary.

    Attributes:
        text: The whole text.
        tokens: Tokens of the text, with those that the tokenizer puts in front of a text.
        start, stop: The secret is `tokens[start:stop]`; 1 <= start < stop.
        context: The text before the secret; in a chat, the user's message.
        secret: The text of the secret; in a chat, the answer.
    """

    text: str
    tokens: tuple[int, ...]
    start: int
    stop: int
    context: str
    secret: str

    def __post_init__(self) -> None:
        self.span  # noqa: B018  # it checks the places

    @property
    def span(self) -> TokenSpan:
        """The text and its secret as a span."""
        return TokenSpan(self.tokens, self.start, self.stop)

    @property
    def secret_tokens(self) -> tuple[int, ...]:
        """Tokens of the secret."""
        return self.tokens[self.start : self.stop]
