"""A grid of audits: one entry of a spec for each combination of values.

    grid:
      game.poisoning: [corner-flip, class-flip]
      mechanism.epsilon, game.copies: [[0.5, 8], [4, 2]]     # these two go together

makes four audits, named "poisoning=corner-flip, epsilon=0.5, copies=8" and so on. Units that several of them plan, such
as the same data sets, are run once.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from dpaudit.errors import SpecError, shortened

MOST_AUDITS = 10_000


def expanded(entry: Mapping[str, Any], grid: object) -> list[dict[str, Any]]:
    """The entry once for each combination, with a name that tells them apart.

    Args:
        entry: An audit in words; its own name, if it has one, comes first.
        grid: From one field or several, separated by commas, to the values they take.
    Raises: SpecError when the grid has another form.
    """
    if not isinstance(grid, Mapping) or not grid:
        raise SpecError("`grid` must be a mapping from a field, such as mechanism.epsilon, to a list of its values")
    axes = [_axis(str(fields), values) for fields, values in grid.items()]
    count = 1
    for axis in axes:
        count *= len(axis)
        if count > MOST_AUDITS:
            raise SpecError(f"`grid` must make at most {MOST_AUDITS:,} audits")
    return [_entry(entry, [pair for point in points for pair in point]) for points in itertools.product(*axes)]


def _axis(fields: str, values: object) -> list[list[tuple[str, Any]]]:
    """The points of one axis, each a value for each of its fields."""
    names = [name.strip() for name in fields.split(",")]
    if not isinstance(values, list) or not values:
        raise SpecError(f"grid.{fields} must be a list of at least one value, got {shortened(values)}")
    if len(names) == 1:
        return [[(names[0], value)] for value in values]
    for value in values:
        if not isinstance(value, list) or len(value) != len(names):
            raise SpecError(f"grid.{fields} must list {len(names)} values each, got {shortened(value)}")
    return [list(zip(names, value, strict=True)) for value in values]


def _entry(entry: Mapping[str, Any], pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(entry)
    for path, value in pairs:
        made = _with(made, path.split("."), value, path)
    words = [f"{path.rpartition('.')[2]}={_word(value)}" for path, value in pairs]
    made["name"] = ", ".join([entry["name"], *words] if "name" in entry else words)
    return made


def _with(within: Mapping[str, Any], steps: list[str], value: Any, path: str) -> dict[str, Any]:
    """The mapping with a value at a path; a part that is a name alone becomes a mapping with that name."""
    first, *rest = steps
    if not rest:
        return {**within, first: value}
    inner = within.get(first, {})
    if isinstance(inner, str):
        inner = {"name": inner}
    if not isinstance(inner, Mapping):
        raise SpecError(f"grid.{path}: {first} must be a name or a mapping, got {shortened(inner)}")
    return {**within, first: _with(inner, rest, value, path)}


def _word(value: Any) -> str:
    return str(value.get("name", value)) if isinstance(value, Mapping) else str(value)
