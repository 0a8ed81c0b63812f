"""Canaries from the user's file."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dpaudit.consent import PATH
from dpaudit.errors import DataError, printable, require, shortened
from dpaudit.language_models.canary_texts.canary_text import CanaryText
from dpaudit.language_models.canary_texts.source import TextSource
from dpaudit.plain_files import read_named_file
from dpaudit.registry import register
from dpaudit.variables import expand_path


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
