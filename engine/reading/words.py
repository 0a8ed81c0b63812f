"""Parts of an audit in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dpaudit.engine.spec.build import describe


def in_words(value: Any) -> str:
    """A part of an audit as `name(field=value, ...)`, defaults left out."""
    words = describe(value)
    return _call(words) if isinstance(words, Mapping) else str(words)


def _call(words: Mapping[str, Any]) -> str:
    fields = ", ".join(
        f"{key}={_call(value) if isinstance(value, Mapping) else value}"
        for key, value in words.items()
        if key != "name"
    )
    name = words.get("name", "")
    return f"{name}({fields})" if fields else str(name)
