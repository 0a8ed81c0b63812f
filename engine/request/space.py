"""Configurations of a grid or a sweep: lists are enumerated, other values are sampled, as in Ray Tune.

    grid:
      game.poisoning: [corner-flip, class-flip]
      mechanism.epsilon, game.copies: [[0.5, 8], [4, 2]]     # paired values

defines four audits, named "poisoning=corner-flip, epsilon=0.5, copies=8" and so on. Units that several audits share run
once.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np

from dpaudit.errors import SpecError, did_you_mean, shortened

MAX_AUDITS = 10_000
DISTRIBUTIONS = ("choice", "uniform", "loguniform", "randint", "lograndint")
"""Distributions of a value; each is a function of `ray.tune`."""


def grid_points(grid: object) -> list[dict[str, Any]]:
    """Return the points of a grid, each a mapping from fields to values."""
    if not isinstance(grid, Mapping) or not grid:
        raise SpecError("`grid` must be a mapping from a field, such as mechanism.epsilon, to a list of its values")
    for path, values in grid.items():
        if not isinstance(values, list) or not values:
            raise SpecError(f"grid.{path} must be a list of at least one value, got {shortened(values)}")
    return configurations(normalized_space(grid), 1, 0)


def normalized_space(space: Mapping[str, Any]) -> dict[str, Any]:
    """Return the space as in a spec: lists and `{loguniform: [low, high]}` instead of values of `ray.tune`."""
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
    from ray.tune.search.sample import Categorical, Float, Integer, LogUniform, Uniform

    sampler = axis.get_sampler()
    if isinstance(axis, Categorical) and isinstance(sampler, Uniform):
        return {"choice": list(axis.categories)}
    whole, logarithmic = isinstance(axis, Integer), isinstance(sampler, LogUniform)
    if isinstance(axis, Float | Integer) and (logarithmic or isinstance(sampler, Uniform)):
        ends = [axis.lower, axis.upper]
        return {("log" if logarithmic else "") + ("randint" if whole else "uniform"): ends}
    raise SpecError(
        f"{path} must have one of the distributions tune.{', tune.'.join(DISTRIBUTIONS)}, got {shortened(axis)}"
    )


def _checked_axis(path: str, axis: Any) -> Any:
    several = len(split_fields(path)) > 1
    if isinstance(axis, list):
        if not axis:
            raise SpecError(f"{path} must have at least one value")
        for value in axis if several else ():
            if not isinstance(value, list | tuple) or len(value) != len(split_fields(path)):
                raise SpecError(
                    f"{path} must be a list of {len(split_fields(path))} values each, got {shortened(value)}"
                )
        return axis
    if several:
        raise SpecError(f"{path}: paired fields must have a list of values, got {shortened(axis)}")
    if not isinstance(axis, Mapping) or len(axis) != 1:
        raise SpecError(
            f"{path} must be a list, or a mapping with one of {', '.join(DISTRIBUTIONS)}, got {shortened(axis)}"
        )
    (distribution, arguments), *_ = axis.items()
    if distribution not in DISTRIBUTIONS:
        names = ", ".join(DISTRIBUTIONS)
        hint = did_you_mean(distribution, DISTRIBUTIONS)
        raise SpecError(f"{path} must have one of the distributions {names}, got {distribution!r}{hint}")
    if not isinstance(arguments, list | tuple) or not arguments:
        raise SpecError(f"{path}.{distribution} must be a list, got {shortened(arguments)}")
    if distribution != "choice":
        ends, positive, whole = list(arguments), distribution.startswith("log"), distribution.endswith("int")
        kinds: tuple[type, ...] = (int,) if whole else (int, float)
        right = len(ends) == 2 and all(isinstance(end, kinds) and not isinstance(end, bool) for end in ends)
        if not right or not ends[0] < ends[1] or (positive and ends[0] <= 0):
            must = f"two {'whole ' if whole else ''}numbers, low < high{', both > 0' if positive else ''}"
            raise SpecError(f"{path}.{distribution} must be {must}, got {shortened(ends)}")
    return {distribution: list(arguments)}


def split_fields(path: str) -> list[str]:
    """Return the fields that one path with commas names."""
    return [name.strip() for name in path.split(",")]


def planned_count(space: Mapping[str, Any], samples: int) -> int:
    """Number of planned configurations: points of the grid times samples."""
    count = samples
    for axis in space.values():
        count *= len(axis) if isinstance(axis, list) else 1
    if count > MAX_AUDITS:
        raise SpecError(f"there must be at most {MAX_AUDITS:,} configurations, these are {count:,}")
    return count


def configurations(space: Mapping[str, Any], samples: int, seed: int) -> list[dict[str, Any]]:
    """Return the distinct configurations, each a mapping from fields to values; only the seed determines them."""
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
    """Return a point of the space with paired fields split."""
    values: dict[str, Any] = {}
    for path, value in point.items():
        fields = split_fields(path)
        values |= {path: value} if len(fields) == 1 else dict(zip(fields, value, strict=True))
    return values


def _draw(axis: Mapping[str, Any], rng: np.random.Generator) -> Any:
    (distribution, arguments), *_ = axis.items()
    if distribution == "choice":
        return arguments[int(rng.integers(len(arguments)))]
    low, high = arguments
    if distribution == "randint":
        return int(rng.integers(low, high))
    if distribution == "uniform":
        return float(rng.uniform(low, high))
    value = float(np.exp(rng.uniform(np.log(low), np.log(high))))
    return min(int(value), high - 1) if distribution == "lograndint" else min(max(value, low), high)
