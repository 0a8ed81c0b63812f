"""One text of a canary, and the place of its secret."""

from __future__ import annotations

from dataclasses import dataclass

from dpaudit.mechanisms.language_models.token_statistics import TokenSpan


@dataclass(frozen=True)
class CanaryText:
    """One text of a canary.

    Attributes:
        text: The whole text.
        tokens: Tokens of the text, with those that the tokenizer puts in front of a text.
        start, stop: The secret is `tokens[start:stop]`; 1 <= start < stop.
        context: The text before the secret.
        secret: The text of the secret.
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
