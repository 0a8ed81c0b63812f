"""Load specs from YAML files or mappings; expand grids; change one field of an audit at any depth."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from dpaudit.engine.request.audit_spec import Audit, AuditSpec, default_game, with_stored_rows
from dpaudit.engine.request.build import build_dataclass, checked_value, init_fields, named_part
from dpaudit.engine.request.plain_yaml import YamlFile
from dpaudit.engine.request.sweep import configuration_name
from dpaudit.errors import SpecError, did_you_mean, shortened
from dpaudit.field_checks import checked_path, require_yaml_values
from dpaudit.registry import PACKAGES


def load_spec(source: str | Path | Mapping[Any, Any]) -> AuditSpec:
    """Load a spec from a YAML file or a mapping.

    Top-level `mechanism`, `data`, `game`, `proxy`, `attack`, `estimator`, `split`, `claim` and `stop` are defaults for
    every entry of `audits`. Without `audits` they are the only audit. `grid` turns each entry into one audit for every
    combination of its values (`grid_points`). In a spec with `check`, dpaudit chooses the audits. Paths may
    use `~` and `$VARIABLES`, which are expanded when a file is read and never stored.

    Raises: SpecError naming the field.
    """
    if isinstance(source, Mapping):
        return _from_mapping(source)
    return spec_from_file(YamlFile.read(Path(checked_path("a spec", source))))


def spec_from_file(file: YamlFile) -> AuditSpec:
    """Build the spec of a YAML file; raises as `load_spec`."""
    spec = _from_mapping(spec_content(file))
    # A run folder holds its spec and the rows that the user passed in memory.
    audits = tuple(replace(audit, data=with_stored_rows(audit.data, file.path.parent)) for audit in spec.audits)
    return replace(spec, audits=audits)


def spec_content(file: YamlFile) -> dict[str, Any]:
    """Return the fields of a spec file, with a name, without building anything."""
    content = file.value()
    if not isinstance(content, Mapping):
        raise SpecError(f"{file.path} must hold a mapping with `mechanism` or `audits`, got {type(content).__name__}")
    return {"name": file.path.stem, **content}


def is_sweep_spec(path: str | Path) -> bool:
    """True if a YAML file describes a sweep that has not run yet, which only `dpaudit sweep` runs."""
    return _is_open_sweep(spec_content(YamlFile.read(Path(checked_path("a spec", path)))))


def _is_open_sweep(content: Mapping[str, Any]) -> bool:
    sweep = content.get("sweep")
    return sweep is not None and not (isinstance(sweep, Mapping) and sweep.get("configurations"))


def _from_mapping(content: Mapping[str, Any]) -> AuditSpec:
    require_yaml_values(content, "a spec")
    if "check" in content:
        return _check_from_mapping(content)
    if _is_open_sweep(content):
        raise SpecError(
            "a spec with `sweep` is not one run: use `dpaudit sweep` (dpaudit.sweep in Python); `dpaudit plan` "
            "estimates its cost"
        )
    audits, options = spec_parts(content)
    spec: AuditSpec = build_dataclass(AuditSpec, {"audits": tuple(audits), **options}, location="spec")
    return spec


def spec_parts(content: Mapping[str, Any]) -> tuple[list[Audit], dict[str, Any]]:
    """Return the audits of a spec without defaults filled in, and the other fields of the spec."""
    of_spec = {field.name for field in fields(AuditSpec)} - {"audits"}
    of_audit = {field.name for field in fields(Audit)} - {"name"}
    unknown = sorted(content.keys() - of_spec - of_audit - {"audits", "grid"})
    if unknown:
        allowed = sorted(of_spec | of_audit | {"audits", "grid", "check"})
        raise SpecError(
            f"a spec has no field {unknown[0]!r}; it has {', '.join(allowed)}{did_you_mean(unknown[0], allowed)}"
        )
    shared = {name: value for name, value in content.items() if name in of_audit}
    entries = content.get("audits", [{}] if "mechanism" in shared or "grid" in content else [])
    if not isinstance(entries, list) or not all(isinstance(entry, Mapping) for entry in entries):
        raise SpecError("`audits` must be a list of mappings")
    points: list[dict[str, Any]] = [{}]
    if "grid" in content:
        points = grid_points(content["grid"])
    audits = [
        _audit_from_entry({**shared, **entry}, values, index * len(points) + place)
        for index, entry in enumerate(entries)
        for place, values in enumerate(points)
    ]
    return audits, {name: value for name, value in content.items() if name in of_spec}


def _check_from_mapping(content: Mapping[str, Any]) -> AuditSpec:
    """Build the spec of a check from a mapping with `check` and fields of `CheckOptions`."""
    # Imports mechanisms, which other specs do not need.
    from dpaudit.engine.request.check import CheckOptions, CheckRequest, check_spec

    option_names = ("name", "seed", "confidence", "strict", "effort", "run")
    unknown = sorted(content.keys() - {"check", *option_names})
    if unknown:
        raise SpecError(f"next to `check` a spec may have {', '.join(option_names)}, got {unknown[0]!r}")
    if not isinstance(content["check"], Mapping):
        raise SpecError(f"`check` must be a mapping with `mechanism`, got {shortened(content['check'])}")
    request: CheckRequest = build_dataclass(CheckRequest, content["check"], location="check")
    options: CheckOptions = build_dataclass(
        CheckOptions, {name: content[name] for name in option_names if name in content}, location="spec"
    )
    return check_spec(request, options)


def _audit_from_entry(entry: Mapping[str, Any], values: Mapping[str, Any], index: int) -> Audit:
    """Return an audit from its entry, with `values` of a grid point in its fields."""
    parts = {field.name for field in fields(Audit) if "kind" in field.metadata}
    names = [str(entry["name"])] if "name" in entry else []
    name = ", ".join([*names, configuration_name(values)] if values else names)
    if not name:
        mechanism = entry.get("mechanism")
        of_mechanism = mechanism.get("name") if isinstance(mechanism, Mapping) else mechanism
        if of_mechanism is not None and not isinstance(of_mechanism, str):
            of_mechanism = type(of_mechanism).__name__
        name = f"{index + 1} {of_mechanism or ''}".strip()
    at = f"audits[{index}] ({name})"
    checked = {
        field: value if field in parts else checked_value(Audit, field, value, at=at) for field, value in entry.items()
    }
    audit = Audit(**{"mechanism": None, "data": None, **checked})
    if values:
        for path, value in values.items():
            audit = overridden(audit, path, value)
    for needed in ("mechanism", "data"):
        if getattr(audit, needed) is None:
            raise SpecError(f"{at} needs `{needed}`")
    return replace(audit, name=name)


def overridden(audit: Audit, path: str, value: Any) -> Audit:
    """Return the audit with another value in one field: `overridden(audit, "mechanism.model.epochs", 20)`.

    Names and mappings become mappings with one more field, and are built later: errors in their fields are raised when
    the spec is completed. If a nested part is absent, its default is changed.
    """
    first, _, rest = path.partition(".")
    kind = _field(audit, first, "an audit").metadata.get("kind")
    if kind is None:
        changed: Audit = _changed(audit, None, path, value, "")
        return changed
    part = getattr(audit, first)
    if first == "game" and part is None:
        part = default_game(audit)
    if rest and part is None:
        raise SpecError(f"{path}: {first} is not set, so the game chooses it; set it to vary its fields")
    return dataclasses.replace(audit, **{first: _changed(part, kind, rest, value, first) if rest else value})


def _changed(part: Any, kind: str | None, path: str, value: Any, at: str) -> Any:
    """Return a part, a name or a mapping with another value at a path below it."""
    first, _, rest = path.partition(".")
    if isinstance(part, str | Mapping):
        mapping = {"name": part} if isinstance(part, str) else dict(part)
        if rest:
            class_name = mapping.get("name")
            if kind is None or not isinstance(class_name, str):
                raise SpecError(f"{at} must have a `name`, got {shortened(mapping)}")
            field = _field(named_part(kind, class_name), first, at)
            default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
            inner = mapping.get(first, None if default is dataclasses.MISSING else default)
            value = _changed_field(inner, field, rest, value, f"{at}.{first}")
        return {**mapping, first: value}
    field, place = _field(part, first, at), f"{at}.{first}" if at else first
    if rest:
        value = _changed_field(getattr(part, first), field, rest, value, place)
    value = checked_value(type(part), first, value, at=at)
    try:
        return dataclasses.replace(part, **{first: value})
    except ValueError as err:
        raise SpecError(f"{at or 'audit'}: {err}") from err


def _changed_field(inner: Any, field: dataclasses.Field[Any], path: str, value: Any, at: str) -> Any:
    kind = field.metadata.get("kind")
    if inner is None and (kind in PACKAGES or "." in path):
        raise SpecError(f"{at} is not set; set it to vary its fields")
    return {path: value} if inner is None else _changed(inner, kind, path, value, at)


def _field(part: Any, name: str, at: str) -> dataclasses.Field[Any]:
    if not dataclasses.is_dataclass(part):
        raise SpecError(
            f"{at} must be a dataclass for its field {name!r} to be varied, got {shortened(part)}; vary {at} itself"
        )
    fields = init_fields(part)
    if name not in fields:
        names = ", ".join(fields) or "none"
        raise SpecError(f"{at} has no field {name!r}; it has {names}{did_you_mean(name, fields)}")
    return fields[name]


MAX_AUDITS = 10_000
DISTRIBUTIONS = ("choice", "uniform", "loguniform", "randint", "lograndint")
"""Distributions of a value; each is a function of `ray.tune`."""


def grid_points(grid: object) -> list[dict[str, Any]]:
    """Return the points of a grid, each a mapping from fields to values.

        grid:
          game.poisoning: [corner-flip, class-flip]
          mechanism.epsilon, game.copies: [[0.5, 8], [4, 2]]     # paired values

    defines four audits, named "poisoning=corner-flip, epsilon=0.5, copies=8" and so on. Units that several audits share
    run once.
    """
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
