"""Load specs from YAML files or mappings."""

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


def load_spec(source: str | Path | Mapping[Any, Any]) -> AuditSpec:
    """Load a spec from a YAML file or a mapping.

    Top-level `mechanism`, `data`, `game`, `proxy`, `attack`, `estimator`, `split`, `claim` and `stop` are defaults for
    every entry of `audits`. Without `audits` they are the only audit. `grid` turns each entry into one audit for every
    combination of its values (`engine.request.space`). In a spec with `check`, dpaudit chooses the audits. Paths may
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
        from dpaudit.engine.request.space import grid_points

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
        from dpaudit.engine.request.override import overridden

        for path, value in values.items():
            audit = overridden(audit, path, value)
    for needed in ("mechanism", "data"):
        if getattr(audit, needed) is None:
            raise SpecError(f"{at} needs `{needed}`")
    return replace(audit, name=name)
