"""Scope of a test: the claim itself, or behaviour that a privacy claim does not cover."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from dpaudit.errors import InputError, shortened


class Scope(StrEnum):
    """Subject of a test. Scopes other than `CLAIM` lead to side findings, which count only if `strict` names them."""

    CLAIM = "claim"
    """Rows that the schema or the relation allows, with outputs as real numbers."""
    FLOATING_POINT = "floating-point"
    """Digits of an output far below the scale of its noise."""
    BEYOND_SCHEMA = "beyond-schema"
    """Rows that the schema does not allow: out of range, NaN, missing values, new categories."""
    AVERAGE_RECORD = "average-record"
    """An ordinary record among ordinary ones, in place of the worst one."""
    STATED_NOISE = "stated-noise"
    """Noise that does not follow the stated distribution."""


NO_FRACTIONS = "No result has a fraction, so the test on unrounded results tests the claim itself."
"""Reported for a leak in the full digits when the digits cannot explain it."""
STRICT_SCOPES = (Scope.FLOATING_POINT, Scope.BEYOND_SCHEMA)
"""Scopes that `strict` can make part of the verdict."""
SIDE_SCOPES = (*STRICT_SCOPES, Scope.AVERAGE_RECORD)
"""Scopes of tests that do not share the error of the verdict."""
ALL = "all"


def strict_scopes(strict: str | Iterable[str]) -> tuple[Scope, ...]:
    """Return the scopes that `strict` names, in the order of `STRICT_SCOPES`.

    Args:
        strict: Scopes as a comma-separated text or a sequence; "all" names every scope, "" none.
    Raises: InputError for any other name.
    """
    texts = [strict] if isinstance(strict, str) else [str(text) for text in strict]
    names = [name for text in texts for part in text.split(",") if (name := part.strip())]
    allowed = [scope.value for scope in STRICT_SCOPES]
    for name in names:
        if name not in (*allowed, ALL):
            raise InputError(f"strict must name {', '.join(allowed)} or {ALL}, got {shortened(name)!r}")
    return tuple(scope for scope in STRICT_SCOPES if ALL in names or scope.value in names)
