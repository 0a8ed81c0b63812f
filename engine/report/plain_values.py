"""Results as plain values for other programs."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Mapping
from typing import Any


def in_json(value: Any) -> str:
    """Return a value in JSON, by its `to_dict` or its fields; infinite numbers and NaN are strings."""
    return json.dumps(plain_values(value), indent=1, allow_nan=False)


def plain_values(value: Any) -> Any:
    """Return numbers, booleans, text, lists and mappings with text keys; objects by their `to_dict`, else by fields."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {key: plain_values(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain_values(item) for item in value]
    if hasattr(value, "to_dict"):
        return plain_values(value.to_dict())
    if dataclasses.is_dataclass(value):
        return attributes(value, (field.name for field in dataclasses.fields(value)))
    return value


def attributes(value: Any, names: Iterable[str]) -> dict[str, Any]:
    """Return some of an object's attributes as plain values, by name."""
    return {name: plain_values(getattr(value, name)) for name in names}
