"""Reads a spec from YAML or from mappings like its content."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from dpaudit.engine.request.audit_spec import Audit, AuditSpec, with_stored_rows
from dpaudit.engine.request.build import build_dataclass, checked_value
from dpaudit.engine.request.plain_yaml import YamlFile
from dpaudit.engine.request.sweep import configuration_name
from dpaudit.errors import SpecError, did_you_mean, shortened
from dpaudit.field_checks import checked_path, require_yaml_values


def load_spec(source: str | Path | Mapping[str, Any]) -> AuditSpec:
    """Reads a spec from a YAML file or a mapping.

    Top-level `mechanism`, `data`, `game`, `proxy`, `attack`, `estimator`, `split`, `claim` and `stop` are defaults for
    every entry of `audits`; without `audits` they are the one audit. `grid` makes one of each entry for every
    combination of its values (`engine.request.space`). A spec with `check` leaves the choice of audits to dpaudit.
    Paths in it may use `~` and `$VARIABLES`, which are looked up when a file is read and written nowhere.

    Raises: SpecError naming the field.
    """
    if isinstance(source, Mapping):
        return _from_mapping(source)
    return spec_from_file(YamlFile.read(Path(checked_path("a spec", source))))


def spec_from_file(file: YamlFile) -> AuditSpec:
    """Build the spec that a YAML file holds; raises as `load_spec`."""
    spec = _from_mapping(spec_content(file))
    # The spec of a run folder lies beside the rows that were given in memory.
    audits = tuple(replace(audit, data=with_stored_rows(audit.data, file.path.parent)) for audit in spec.audits)
    return replace(spec, audits=audits)


def spec_content(file: YamlFile) -> dict[str, Any]:
    """Return the fields of a spec file, with a name; nothing of it is built."""
    content = file.value()
    if not isinstance(content, Mapping):
        raise SpecError(f"{file.path} must hold a mapping with `mechanism` or `audits`, got {type(content).__name__}")
    return {"name": file.path.stem, **content}


def is_sweep_spec(path: str | Path) -> bool:
    """True if a YAML file asks for a sweep that was not carried out yet, which only `dpaudit sweep` runs."""
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
            "a spec with `sweep` is not one run: use `dpaudit sweep` (dpaudit.sweep in Python); `dpaudit plan` says "
            "what it takes"
        )
    audits, options = spec_parts(content)
    spec: AuditSpec = build_dataclass(AuditSpec, {"audits": tuple(audits), **options}, location="spec")
    return spec


def spec_parts(content: Mapping[str, Any]) -> tuple[list[Audit], dict[str, Any]]:
    """The audits of a spec as they are written, what they leave open still open, and the other fields of the spec."""
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
        from dpaudit.engine.request.space import grid_points

        points = grid_points(content["grid"])
    audits = [
        _audit_from_entry({**shared, **entry}, values, index * len(points) + place)
        for index, entry in enumerate(entries)
        for place, values in enumerate(points)
    ]
    return audits, {name: value for name, value in content.items() if name in of_spec}


def _check_from_mapping(content: Mapping[str, Any]) -> AuditSpec:
    """The audits that `check` leads to; beside it stand the run's name, seed, confidence and place."""
    from dpaudit.engine.request.check import CheckOptions, CheckRequest, check_spec  # knows mechanisms, for this alone

    option_names = ("name", "seed", "confidence", "strict", "effort", "run")
    unknown = sorted(content.keys() - {"check", *option_names})
    if unknown:
        raise SpecError(f"beside `check` a spec has {', '.join(option_names)}, got {unknown[0]!r}")
    if not isinstance(content["check"], Mapping):
        raise SpecError(f"`check` must be a mapping with `mechanism`, got {shortened(content['check'])}")
    request: CheckRequest = build_dataclass(CheckRequest, content["check"], location="check")
    options: CheckOptions = build_dataclass(
        CheckOptions, {name: content[name] for name in option_names if name in content}, location="spec"
    )
    return check_spec(request, options)


def _audit_from_entry(entry: Mapping[str, Any], values: Mapping[str, Any], index: int) -> Audit:
    """An audit as it is written, with a point of the grid in its fields."""
    parts = {field.name for field in fields(Audit) if "kind" in field.metadata}
    words = [str(entry["name"])] if "name" in entry else []
    name = ", ".join([*words, configuration_name(values)] if values else words) or _default_name(entry, index)
    at = f"audits[{index}] ({name})"
    checked = {
        field: value if field in parts else checked_value(Audit, field, value, at=at) for field, value in entry.items()
    }
    audit = Audit(**{"mechanism": None, "data": None, **checked})
    if values:
        from dpaudit.engine.request.override import overridden

        for path, value in values.items():
            audit = overridden(audit, path, value)
    for needed in ("mechanism", "data"):
        if getattr(audit, needed) is None:
            raise SpecError(f"{at} needs `{needed}`")
    return replace(audit, name=name)


def _default_name(entry: Mapping[str, Any], index: int) -> str:
    mechanism = entry.get("mechanism")
    name = mechanism.get("name") if isinstance(mechanism, Mapping) else mechanism
    if not isinstance(name, str):
        name = "" if name is None else type(name).__name__
    return f"{index + 1} {name}".strip()
