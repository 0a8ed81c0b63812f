"""What a grid or a sweep varies: lists are gone through, all else is drawn; values of Ray Tune mean the same.

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

import numpy as np

from dpaudit.errors import SpecError, did_you_mean, shortened

MAX_AUDITS = 10_000
DISTRIBUTIONS = ("choice", "uniform", "loguniform", "randint", "lograndint")
"""How a value may be drawn; each is a function of `ray.tune`."""


def grid_points(grid: object) -> list[dict[str, Any]]:
    """The points of a grid, each from a field to its value."""
    if not isinstance(grid, Mapping) or not grid:
        raise SpecError("`grid` must be a mapping from a field, such as mechanism.epsilon, to a list of its values")
    for path, values in grid.items():
        if not isinstance(values, list) or not values:
            raise SpecError(f"grid.{path} must be a list of at least one value, got {shortened(values)}")
    return configurations(normalized_space(grid), 1, 0)


def normalized_space(space: Mapping[str, Any]) -> dict[str, Any]:
    """The space as a spec writes it: lists, and `{loguniform: [low, high]}`; values of `ray.tune` are read."""
    if not isinstance(space, Mapping) or not all(isinstance(path, str) for path in space):
        raise SpecError("a sweep's space must be a mapping from a field, such as mechanism.epsilon, to its values")
    return {path: _checked_axis(path, _normalized_axis(path, axis)) for path, axis in space.items()}


def _normalized_axis(path: str, axis: Any) -> Any:
    if isinstance(axis, Mapping) and set(axis) == {"grid_search"}:
        return list(axis["grid_search"])
    if isinstance(axis, Mapping | list):
        return axis
    if isinstance(axis, tuple):
        return list(axis)
    if type(axis).__module__ != "ray.tune.search.sample":
        raise SpecError(
            f"{path} must be a list of values, one of {', '.join(DISTRIBUTIONS)} with its arguments, or a value of "
            f"ray.tune, got {shortened(axis)}"
        )
    return _from_ray_tune(path, axis)


def _from_ray_tune(path: str, domain: Any) -> dict[str, Any]:
    from ray.tune.search.sample import Categorical, Float, Integer, LogUniform, Uniform

    sampler = domain.get_sampler()
    if isinstance(domain, Categorical) and isinstance(sampler, Uniform):
        return {"choice": list(domain.categories)}
    whole, logarithmic = isinstance(domain, Integer), isinstance(sampler, LogUniform)
    if isinstance(domain, Float | Integer) and (logarithmic or isinstance(sampler, Uniform)):
        ends = [domain.lower, domain.upper]
        return {("log" if logarithmic else "") + ("randint" if whole else "uniform"): ends}
    raise SpecError(f"{path} must be drawn by one of tune.{', tune.'.join(DISTRIBUTIONS)}, got {shortened(domain)}")


def _checked_axis(path: str, axis: Any) -> Any:
    several = len(split_fields(path)) > 1
    if isinstance(axis, list):
        if not axis:
            raise SpecError(f"{path} must have at least one value")
        for value in axis if several else ():
            if not isinstance(value, list | tuple) or len(value) != len(split_fields(path)):
                raise SpecError(f"{path} must list {len(split_fields(path))} values each, got {shortened(value)}")
        return axis
    if several:
        raise SpecError(f"{path}: fields that go together have a list of their values, got {shortened(axis)}")
    if not isinstance(axis, Mapping) or len(axis) != 1:
        raise SpecError(
            f"{path} must be a list, or a mapping with one of {', '.join(DISTRIBUTIONS)}, got {shortened(axis)}"
        )
    (how, arguments), *_ = axis.items()
    if how not in DISTRIBUTIONS:
        raise SpecError(
            f"{path} must be drawn by one of {', '.join(DISTRIBUTIONS)}, got {how!r}{did_you_mean(how, DISTRIBUTIONS)}"
        )
    if not isinstance(arguments, list | tuple) or not arguments:
        raise SpecError(f"{path}.{how} must be a list, got {shortened(arguments)}")
    if how != "choice":
        _require_range(f"{path}.{how}", list(arguments), positive=how.startswith("log"), whole=how.endswith("int"))
    return {how: list(arguments)}


def _require_range(at: str, ends: list[Any], *, positive: bool, whole: bool) -> None:
    kinds: tuple[type, ...] = (int,) if whole else (int, float)
    right = len(ends) == 2 and all(isinstance(end, kinds) and not isinstance(end, bool) for end in ends)
    if not right or not ends[0] < ends[1] or (positive and ends[0] <= 0):
        must = f"two {'whole ' if whole else ''}numbers, low < high{', both > 0' if positive else ''}"
        raise SpecError(f"{at} must be {must}, got {shortened(ends)}")


def split_fields(path: str) -> list[str]:
    """The fields that go together under one path."""
    return [name.strip() for name in path.split(",")]


def planned_count(space: Mapping[str, Any], samples: int) -> int:
    """How many configurations are planned: points of the grid times samples."""
    count = samples
    for axis in space.values():
        count *= len(axis) if isinstance(axis, list) else 1
    if count > MAX_AUDITS:
        raise SpecError(f"there must be at most {MAX_AUDITS:,} configurations, these are {count:,}")
    return count


def configurations(space: Mapping[str, Any], samples: int, seed: int) -> list[dict[str, Any]]:
    """All configurations, each from a field to its value; drawn from the seed alone, each one once."""
    planned_count(space, samples)
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(1,)))
    grids = {path: axis for path, axis in space.items() if isinstance(axis, list)}
    distinct: dict[str, dict[str, Any]] = {}
    for _ in range(samples):
        for point in itertools.product(*grids.values()):
            fixed = dict(zip(grids, point, strict=True))
            point_values = {path: fixed[path] if path in fixed else _draw(axis, rng) for path, axis in space.items()}
            configuration = single_fields(point_values)
            distinct.setdefault(repr(configuration), configuration)
    return list(distinct.values())


def single_fields(point: Mapping[str, Any]) -> dict[str, Any]:
    """A point of the space with fields that go together taken apart."""
    values: dict[str, Any] = {}
    for path, value in point.items():
        fields = split_fields(path)
        values |= {path: value} if len(fields) == 1 else dict(zip(fields, value, strict=True))
    return values


def _draw(axis: Mapping[str, Any], rng: np.random.Generator) -> Any:
    (how, arguments), *_ = axis.items()
    if how == "choice":
        return arguments[int(rng.integers(len(arguments)))]
    low, high = arguments
    if how == "randint":
        return int(rng.integers(low, high))
    if how == "uniform":
        return float(rng.uniform(low, high))
    value = float(np.exp(rng.uniform(np.log(low), np.log(high))))
    return min(int(value), high - 1) if how == "lograndint" else min(max(value, low), high)
