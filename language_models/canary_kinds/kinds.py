"""Kinds of canary: drawn from the vocabulary, from texts of the domain or from the base model, and from a file."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from dpaudit.consent import PATH, expand_path
from dpaudit.errors import DataError, InputError, printable, require, shortened
from dpaudit.language_models.canary_texts.source import CanaryText, DrawnTexts, Pieces, TextSource
from dpaudit.language_models.mechanisms.token_statistics import sampled_tokens
from dpaudit.mechanisms.ranges import require_at_least, require_positive
from dpaudit.plain_files import read_named_file
from dpaudit.registry import register


@register("text-canary", "random-tokens", source="Carlini et al. (2019), arXiv:1802.08232")
@dataclass(frozen=True, kw_only=True)
class RandomTokens(DrawnTexts):
    """Uniform ordinary tokens, the first few of which are the context of the others.

    Attributes:
        length: Tokens of the secret, >= 1.
        context: Tokens before the secret, >= 1: the first token of a text receives no loss.
    """

    length: int = 16
    context: int = 4

    def __post_init__(self) -> None:
        require_at_least(1, self, "length", "context")

    def pieces(self, source: TextSource, count: int, rng: np.random.Generator) -> Pieces:
        tokens = source.random_tokens(count, self.context + self.length, rng)
        return [(text[: self.context], text[self.context :]) for text in tokens]


@register("text-canary", "rare-suffix", source="Meeus et al. (2025), arXiv:2502.14921")
@dataclass(frozen=True, kw_only=True)
class RareSuffix(DrawnTexts):
    """Beginning of a text of the domain, continued by uniform ordinary tokens.

    The beginning makes the text look like its neighbours, the suffix has a perplexity near the size of the vocabulary.
    `canaries` needs `texts`.

    Attributes:
        length: Tokens of the suffix, which is the secret, >= 1.
        context: Tokens of the beginning, >= 1.
    """

    length: int = 8
    context: int = 16

    continues_texts: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_at_least(1, self, "length", "context")

    def pieces(self, source: TextSource, count: int, rng: np.random.Generator) -> Pieces:
        prefixes = source.prefixes(count, self.context, rng)
        return list(zip(prefixes, source.random_tokens(count, self.length, rng), strict=True))


@register("text-canary", "new-token", source="Panda et al. (2025), arXiv:2503.06808")
@dataclass(frozen=True, kw_only=True)
class NewToken(DrawnTexts):
    """Beginning of a text of the domain, followed by a token of its own that is added to the tokenizer.

    Nothing else trains the new token, so its loss shows the canary alone. The tokenizer is changed: call
    `model.resize_token_embeddings(len(tokenizer))` on the model before training, keep a copy of it as the base model,
    and train the embeddings. `canaries` needs `texts`.

    For DP-SGD take `context=1`. Each token of the context has a gradient that other texts share, and clipping takes
    that share from the gradient of the new token. If the embeddings of inputs and outputs are two matrices, take
    `length=4` too: the input of a new token has a gradient only if a token follows it.

    Attributes:
        context: Tokens of the beginning, >= 1.
        length: Times that the new token stands in the text, >= 1.
    """

    context: int = 16
    length: int = 1

    continues_texts: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_at_least(1, self, "context", "length")

    def pieces(self, source: TextSource, count: int, rng: np.random.Generator) -> Pieces:
        prefixes = source.prefixes(count, self.context, rng)
        names = [f"<canary-{rng.integers(2**48):012x}>" for _ in range(count)]
        add_tokens = getattr(source.tokenizer, "add_tokens", None)
        if add_tokens is None or add_tokens(names) != count:
            raise InputError(
                "canaries of the kind new-token need a tokenizer of transformers, to which tokens can be added; choose "
                "the kind rare-suffix"
            )
        tokens = ([int(source.tokenizer.convert_tokens_to_ids(name))] * self.length for name in names)
        return list(zip(prefixes, tokens, strict=True))


@register("text-canary", "high-temperature", source="arXiv:2606.10481; Meeus et al. (2025), arXiv:2502.14921")
@dataclass(frozen=True, kw_only=True)
class HighTemperature(DrawnTexts):
    """Samples of the base model at a high temperature: rare texts that still resemble language.

    `canaries` needs `base`, and continues `texts` if they are given, else one random token.

    Attributes:
        length: Tokens of the sample, which is the secret, >= 1.
        context: Tokens of a text of the domain before the sample, >= 1; 1 without `texts`.
        temperature: Divisor of the logits, > 0.
    """

    length: int = 16
    context: int = 8
    temperature: float = 3.0

    def __post_init__(self) -> None:
        require_at_least(1, self, "length", "context")
        require_positive(self, "temperature")

    def pieces(self, source: TextSource, count: int, rng: np.random.Generator) -> Pieces:
        require(source.base is not None, "canaries of the kind high-temperature are sampled from `base`", do="pass it")
        if source.texts:
            contexts = source.prefixes(count, self.context, rng)
        else:
            contexts = source.random_tokens(count, 1, rng)
        opening = list(source.opening)
        samples = sampled_tokens(
            source.base,
            [[*opening, *context] for context in contexts],
            self.length,
            temperature=self.temperature,
            seed=int(rng.integers(2**62)),
            allowed=source.ordinary.tolist(),
        )
        return list(zip(contexts, samples, strict=True))


@register("text-canary", "file", source="JSON lines: text, secret, user")
@dataclass(frozen=True, kw_only=True)
class OwnFile:
    """Texts from a file of JSON lines such as {"text": "My code is 1234", "secret": "1234", "user": "ann"}.

    `secret` stands at the end of `text`; without it, all of the text but its first token is the secret. Lines with the
    same `user` are one canary; without `user`, each line is one.

    Attributes:
        path: The file.
    """

    path: str = field(metadata=PATH)

    def draw(
        self, source: TextSource, *, canaries: int | None, records: int, rng: np.random.Generator
    ) -> list[tuple[CanaryText, ...]]:
        """Return the canaries of the file in their order; `records` must be 1, since the file names the users."""
        require(records == 1, "`records` must be left out for a file, whose lines name their `user`", records=records)
        where = printable(shortened(self.path))
        lines = read_named_file(expand_path(self.path)).splitlines()
        by_user: dict[object, list[CanaryText]] = {}
        for number, line in enumerate(lines, 1):
            values = _values(line, f"line {number} of {where}")
            text = _text(source, values, f"line {number} of {where}")
            by_user.setdefault(values.get("user", number), []).append(text)
        require(bool(by_user), f"{where} must hold at least one canary")
        require(
            canaries in (None, len(by_user)),
            f"the canaries of {where} are {len(by_user)}",
            do="leave out `n`",
            n=canaries,
        )
        return [tuple(texts) for texts in by_user.values()]


def _values(line: bytes, where: str) -> dict[str, Any]:
    try:
        values = json.loads(line)
    except (ValueError, RecursionError):
        values = None
    words = values if isinstance(values, dict) else {}
    if not isinstance(words.get("text"), str) or not all(isinstance(word, str) for word in words.values()):
        raise DataError(f'{where} must be a JSON object with words, such as {{"text": "...", "secret": "..."}}')
    return words


def _text(source: TextSource, values: dict[str, str], where: str) -> CanaryText:
    """Return the canary text of one line. Raises: DataError if the tokenizer cannot tell its secret apart."""
    text = values["text"]
    tokens = source.encode(text)
    secret = values.get("secret", "")
    if not text.endswith(secret):
        raise DataError(f"{where} must end with its secret, got {shortened(repr(secret))}; leave out what follows it")
    context = source.encode(text[: len(text) - len(secret)]) if secret else tokens[:1]
    canary = source.divided(text, context)
    if canary is None:
        raise DataError(
            f"{where} must have at least one token before the secret, and tokens that the tokenizer reads back as the "
            "same text"
        )
    written = source.written(canary)
    if written is None:
        raise DataError(f"{where} must stand unchanged in the chat template; leave chat out, or change the template")
    return written
