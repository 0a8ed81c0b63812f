"""A key that is read from the environment where a request is made, and taken out of whatever is kept or shown."""

from __future__ import annotations

import base64
import json
import os
import re
from urllib.parse import quote

from dpaudit.errors import InputError, require

VARIABLE = re.compile(r"[A-Z][A-Z0-9_]{0,39}")
SHORTEST = 8
"""Characters from which on a key is looked for in texts: "EMPTY" or "none", as local servers want, are no secrets."""


def require_variable(name: str, *, field: str) -> None:
    """Refuses what is no name of an environment variable, without showing it: it may be the key itself.

    Raises: InputError.
    """
    must = f"{field} must be the name of an environment variable, capitals such as OPENAI_API_KEY, never the key itself"
    require(not name or VARIABLE.fullmatch(name) is not None, must)


def key_in(variable: str) -> str:
    """The key; "" where no variable is named.

    Raises: InputError, without the key, when the variable is not set or cannot be sent.
    """
    if not variable:
        return ""
    key = os.environ.get(variable, "").strip()
    require(bool(key), f"the environment variable {variable} must hold the key on every machine that asks; it is empty")
    if not (key.isascii() and key.isprintable()):
        raise InputError(f"the key in {variable} must be one line of printable ASCII characters")
    return key


def without_key(text: str, key: str, variable: str) -> str:
    """The text with `$VARIABLE` in place of the key, as it is or as a URL, JSON or base64 would write it."""
    if len(key) < SHORTEST:
        return text
    encoded = base64.b64encode(key.encode()).decode()
    for form in sorted({key, quote(key, safe=""), json.dumps(key)[1:-1], encoded}, key=len, reverse=True):
        text = text.replace(form, f"${variable}")
    return text
