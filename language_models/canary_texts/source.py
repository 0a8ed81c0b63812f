"""Texts of canaries, and what their kinds draw from: texts that a tokenizer reads back as their own tokens."""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dpaudit.errors import InputError, require
from dpaudit.field_checks import refused_if_failing
from dpaudit.language_models.mechanisms.token_statistics import TokenSpan
from dpaudit.mechanisms.models.pretrained import written_chats


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


MAX_VOCABULARY = 10_000_000
ROUNDS = 30
"""Rounds of draws after which texts that the tokenizer changes end in an error."""
Pieces: TypeAlias = list[tuple[Sequence[int], Sequence[int]]]
"""Context and secret of texts, in tokens."""
UNREADABLE = "\ufffd"
"""Character in place of bytes that are no text."""


@dataclass(frozen=True, eq=False)
class TextSource:
    """Everything that kinds of canary draw from.

    Attributes:
        tokenizer: A tokenizer of transformers; or an object with `encode(text)`, `decode(tokens)` and `len()`.
        texts: Texts of the domain, for kinds with a natural prefix.
        base: The model before training, for kinds that sample from it.
        chat: True to write each text in the chat template of the tokenizer: the context as the user's message, the
            secret as the answer.
    """

    tokenizer: Any
    texts: tuple[str, ...] = ()
    base: Any = None
    chat: bool = False

    def __post_init__(self) -> None:
        require(
            not self.chat or (self._of_transformers and bool(getattr(self.tokenizer, "chat_template", None))),
            "chat=True needs a tokenizer of transformers with a chat template",
            do="set `tokenizer.chat_template`, or leave chat out",
        )
        require(
            not self.chat or self.tokenizer.is_fast,
            "chat=True needs a fast tokenizer, which tells the place of each token in a text",
            do="load the tokenizer with use_fast=True",
        )
        if self.chat:
            written_chats(self.tokenizer, [chat_of("question", "answer")])  # a template without end is refused here

    @property
    def _of_transformers(self) -> bool:
        return hasattr(self.tokenizer, "all_special_ids")

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text, without special tokens around it."""
        settings = {"add_special_tokens": False} if self._of_transformers else {}
        with refused_if_failing("`encode` of the tokenizer"):
            return list(map(operator.index, self.tokenizer.encode(text, **settings)))

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens, without changes to blanks."""
        settings = {"clean_up_tokenization_spaces": False} if self._of_transformers else {}
        with refused_if_failing("`decode` of the tokenizer"):
            return str(self.tokenizer.decode([int(token) for token in tokens], **settings))

    @cached_property
    def opening(self) -> tuple[int, ...]:
        """Special tokens that the tokenizer puts in front of a text."""
        if not self._of_transformers:
            return ()
        text = self.decode(self.ordinary[:1].tolist())
        whole, inner = list(self.tokenizer.encode(text)), self.encode(text)
        places = [first for first in range(len(whole)) if whole[first : first + len(inner)] == inner]
        return tuple(whole[: places[0]]) if places else ()

    @cached_property
    def special(self) -> frozenset[int]:
        """Special and added tokens, which no random secret has."""
        added = getattr(self.tokenizer, "added_tokens_decoder", {})
        return frozenset([*getattr(self.tokenizer, "all_special_ids", ()), *added])

    @cached_property
    def ordinary(self) -> NDArray[np.int64]:
        """Tokens of the vocabulary that are not special and are text alone, not a part of a character."""
        with refused_if_failing("`len` of the tokenizer"):
            size = len(self.tokenizer)
        require(size <= MAX_VOCABULARY, f"the tokenizer must have at most {MAX_VOCABULARY:,} tokens", tokens=size)
        every = (token for token in range(size) if token not in self.special)
        numbers = np.array([token for token in every if UNREADABLE not in self.decode([token])], dtype=np.int64)
        require(numbers.size >= 2, "the tokenizer must have at least 2 ordinary tokens", tokens=numbers.size)
        return numbers

    @cached_property
    def _domain_tokens(self) -> list[list[int]]:
        return [self.encode(text) for text in self.texts]

    def prefixes(self, count: int, length: int, rng: np.random.Generator) -> list[list[int]]:
        """Return the first `length` tokens of `count` texts of the domain, with as few repetitions as possible."""
        long_enough = [tokens[:length] for tokens in self._domain_tokens if len(tokens) >= length]
        require(
            bool(long_enough),
            f"this kind of canary continues texts of the domain: `texts` must hold at least one of {length} tokens",
            do="pass texts of the domain, or a smaller `context`",
            texts=len(self.texts),
        )
        rounds = -(-count // len(long_enough))
        order = np.concatenate([rng.permutation(len(long_enough)) for _ in range(rounds)])[:count]
        return [long_enough[place] for place in order]

    def random_tokens(self, count: int, length: int, rng: np.random.Generator) -> list[list[int]]:
        """Return `count` lists of `length` uniform ordinary tokens."""
        tokens: list[list[int]] = rng.choice(self.ordinary, size=(count, length)).tolist()
        return tokens

    def canary_text(self, context: Sequence[int], secret: Sequence[int]) -> CanaryText | None:
        """Return the text of a secret after its context; None if the tokenizer does not read the text back."""
        canary = self.divided(self.decode([*context, *secret]), context)
        if canary is None or canary.start - len(self.opening) < len(context) - 1:
            return None
        return None if self.special & ({*canary.secret_tokens} - {*secret}) else self.written(canary)

    def written(self, canary: CanaryText) -> CanaryText | None:
        """Return the text as it is trained on: itself, or in the chat template; None if the template changes it."""
        if not self.chat:
            return canary
        question, answer = canary.context.strip(), canary.secret.strip()
        text = self.tokenizer.apply_chat_template(chat_of(question, answer), tokenize=False)
        place = text.rfind(answer)
        if place < 0 or question not in text[:place]:
            return None
        encoding = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        end = place + len(answer)
        rows = [row for row, (first, last) in enumerate(encoding["offset_mapping"]) if first < end and last > place]
        return CanaryText(text, tuple(encoding["input_ids"]), rows[0], rows[-1] + 1, question, answer)

    def divided(self, text: str, context: Sequence[int]) -> CanaryText | None:
        """Return a text whose first tokens are the context; None if its tokens do not give the text back.

        Texts travel to the model as text, so the tokens are those that the tokenizer reads from it. Near the border the
        tokenizer may join tokens: the secret then begins with the first token that is not one of the context.
        """
        tokens = self.encode(text)
        same = [before == after for before, after in zip(context, tokens, strict=False)]
        start = same.index(False) if False in same else len(same)
        if UNREADABLE in text or self.decode(tokens) != text or not 1 <= start < len(tokens):
            return None
        before, first = self.decode(tokens[:start]), len(self.opening)
        if not text.startswith(before):
            return None
        return CanaryText(
            text, (*self.opening, *tokens), first + start, first + len(tokens), before, text[len(before) :]
        )


class CanaryKind(Protocol):
    """A kind of canary, registered as "text-canary"."""

    def draw(
        self, source: TextSource, *, canaries: int | None, records: int, rng: np.random.Generator
    ) -> list[tuple[CanaryText, ...]]:
        """Return the texts of each canary, `records` of them each; the secrets of all texts differ.

        `canaries` is None for the usual number.
        """
        ...


class DrawnTexts(ABC):
    """A kind of canary whose texts are drawn one by one."""

    continues_texts: ClassVar[bool] = False
    """True if it needs texts of the domain."""

    @abstractmethod
    def pieces(self, source: TextSource, count: int, rng: np.random.Generator) -> Pieces:
        """Return context and secret of `count` texts, in tokens."""

    def draw(
        self, source: TextSource, *, canaries: int | None, records: int, rng: np.random.Generator
    ) -> list[tuple[CanaryText, ...]]:
        """Return texts that the tokenizer reads back, with secrets that differ."""
        wanted = (1000 if canaries is None else canaries) * records
        texts: dict[tuple[int, ...], CanaryText] = {}
        for _ in range(ROUNDS):
            for context, secret in self.pieces(source, wanted - len(texts), rng):
                text = source.canary_text(context, secret)
                if text is not None:
                    texts.setdefault(text.secret_tokens, text)
            if len(texts) == wanted:
                every = list(texts.values())
                return [tuple(every[first : first + records]) for first in range(0, wanted, records)]
        raise InputError(
            f"only {len(texts)} of {wanted} secrets could be written as text and read back as different tokens; ask "
            "for fewer canaries, longer secrets or another kind"
        )
