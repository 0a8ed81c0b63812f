"""What a finding speaks about: the claim itself, or something beside it that a claim does not cover."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from dpaudit.errors import InputError, shortened


class Scope(StrEnum):
    """What a test is about. Every scope but `CLAIM` leads to side findings, which count only if `strict` names them."""

    CLAIM = "claim"
    """Rows that the schema or the relation allows, and numbers as numbers."""
    FLOATING_POINT = "floating-point"
    """Digits far below the noise of a number."""
    BEYOND_SCHEMA = "beyond-schema"
    """Rows that the schema does not allow: out of range, NaN, missing values, new categories."""
    STATED_NOISE = "stated-noise"
    """Noise that does not follow the stated distribution."""


NO_FRACTIONS = "No result has a fraction, so its digits tell nothing: the claim itself may be broken."
"""Said of a leak at full digits of results whose digits cannot explain it."""
STRICT_SCOPES = (Scope.FLOATING_POINT, Scope.BEYOND_SCHEMA)
"""Scopes whose tests can be made part of the verdict."""
ALL = "all"


def strict_scopes(given: str | Iterable[str]) -> tuple[Scope, ...]:
    """Return the scopes that `strict` names, in their order.

    Args:
        given: Scopes in a text, separated by commas, or a sequence of them; "all" names every one, "" none.
    Raises: InputError for any other name.
    """
    texts = [given] if isinstance(given, str) else [str(text) for text in given]
    names = [name for text in texts for part in text.split(",") if (name := part.strip())]
    known = [scope.value for scope in STRICT_SCOPES]
    for name in names:
        if name not in (*known, ALL):
            raise InputError(f"strict must name {', '.join(known)} or {ALL}, got {shortened(name)!r}")
    return tuple(scope for scope in STRICT_SCOPES if ALL in names or scope.value in names)
