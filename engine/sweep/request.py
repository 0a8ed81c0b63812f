"""What a sweep is asked for, and the specs that follow from it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from dpaudit import given
from dpaudit.actors.seed import Seed
from dpaudit.engine.reading.sweep_summary import fresh_name
from dpaudit.engine.spec.audit_spec import (
    MAX_SEED,
    Audit,
    AuditSpec,
    RunOptions,
    found_data,
    given_data,
    keep_data,
    slug,
)
from dpaudit.engine.spec.build import anchored, build, build_dataclass, describe
from dpaudit.engine.spec.loading import read_content, spec_parts
from dpaudit.engine.spec.override import overridden
from dpaudit.engine.spec.plain_yaml import in_yaml, read_text
from dpaudit.engine.spec.space import configurations, in_words
from dpaudit.engine.spec.sweep import Configuration, Sweep, described_values
from dpaudit.errors import SpecError, shortened
from dpaudit.given import check_fields
from dpaudit.plain_files import write_whole

FILE = "sweep.yaml"


@dataclass(frozen=True)
class Request:
    """A sweep that can be carried out."""

    base: Audit  # the audit that is varied, as it was written
    sweep: Sweep  # what is varied, its space in words, and over how many configurations the error is split
    name: str  # for reports and the default folder
    seed: int = 0  # everything random follows from it
    confidence: float = 0.95  # of all bounds together
    run: RunOptions = RunOptions()  # where the work runs

    def __post_init__(self) -> None:
        check_fields(self)
        space = in_words(self.sweep.space)
        count = self.sweep.count if self.sweep.adaptive else len(configurations(space, self.sweep.samples, self.seed))
        object.__setattr__(self, "sweep", replace(self.sweep, space=space, count=count))
        data = build("data", given_data(self.base.data), location="data")
        object.__setattr__(self, "base", replace(self.base, data=anchored(data)))

    @property
    def folder(self) -> Path:
        """Where the sweep goes when nothing else is said."""
        return Path("runs") / slug(self.name)

    @property
    def known(self) -> tuple[Configuration, ...]:
        """All configurations, where they are known beforehand; none where a search algorithm chooses them."""
        if self.sweep.adaptive:
            return ()
        found = configurations(self.sweep.space, self.sweep.samples, self.seed)
        return tuple(self.configuration(values) for values in found)

    def configuration(self, values: Mapping[str, Any]) -> Configuration:
        """A configuration with its name; the field that rungs raise stands at its last value."""
        return Configuration(described_values(values), dict(values))

    def audit(self, one: Configuration, rung: Any = None) -> Audit:
        """The audit of a configuration; the field of the rungs at `rung`, or at what is audited."""
        audit, values = self.base, dict(one.values)
        if self.sweep.rungs is not None:
            values[self.sweep.rungs.field] = self.sweep.rungs.values[-1] if rung is None else rung
        try:
            for path, value in values.items():
                audit = overridden(audit, path, value)
        except SpecError as err:
            raise SpecError(f"{one.name}: {err}") from err
        return replace(audit, name=one.name)

    def spec(self, ones: Sequence[Configuration]) -> AuditSpec:
        """The spec of some configurations: each audited one is an audit, and the error is split over all planned."""
        audits = tuple(self.audit(one) for one in ones if one.state == "audited")
        sweep = replace(self.sweep, configurations=tuple(ones))
        return AuditSpec(audits, self.name, self.seed, self.confidence, self.run, sweep=sweep)

    def rung_spec(self, ones: Sequence[Configuration], rung: Any, *, seed: int) -> AuditSpec:
        """The spec of some configurations at a rung; nothing is concluded from their audits but utility."""
        audits = tuple(self.audit(one, rung) for one in ones)
        return AuditSpec(audits, self.name, seed, self.confidence, self.run)

    def again(self, one: Configuration) -> AuditSpec:
        """The spec of one configuration with a seed that no trial of the sweep used, at full confidence."""
        audit = replace(self.audit(one), name=fresh_name(one.name))
        seed = self.other_seed("reaudit")
        return AuditSpec((audit,), f"{self.name}, re-audit", seed, self.confidence, self.run)

    def other_seed(self, what: str) -> int:
        """A seed for something else than the sweep's audits."""
        words = Seed(self.seed).child("sweep", what).sequence().generate_state(2)
        return int.from_bytes(words.tobytes(), "little") % MAX_SEED

    def to_words(self) -> dict[str, Any]:
        """The request as `read_request` takes it."""
        about = {field.name: describe(getattr(self, field.name)) for field in fields(self) if field.name != "base"}
        return {**about, **describe(replace(self.base, name="audit"))}

    def write(self, folder: Path) -> None:
        """`sweep.yaml`, and beside it the rows that have no file of their own."""
        keep_data(self.base.data, folder)
        text = in_yaml(self.to_words())
        write_whole(folder / FILE, lambda file: file.write(f"{text}{_SEAL}{_seal(text)}".encode()))


def read_request(source: str | Path | Mapping[str, Any] | Audit | AuditSpec) -> Request:
    """A sweep from a YAML file, a mapping like its content, or an audit without anything that is varied yet."""
    if isinstance(source, AuditSpec):
        if len(source.audits) != 1:
            raise SpecError(f"a sweep varies one audit, the spec has {len(source.audits)}")
        audit = source.audits[0]
        return _request([audit], {"name": source.name, "seed": source.seed, "run": source.run}, {}, {})
    if isinstance(source, Audit):
        return _request([source], {"name": source.name}, {}, {})
    if isinstance(source, Mapping):
        return _from_content(source)
    path = Path(given.path("a sweep", source))
    request = _from_content(read_content(path))
    # The rows of a folder's sweep that were given in memory lie beside it.
    return replace(request, base=replace(request.base, data=found_data(request.base.data, path.parent)))


def require_whole(path: Path) -> None:
    """Refuses a sweep's file of a folder that is not what was written: what was cut off would count as left out."""
    text, _, seal = read_text(path).rpartition(_SEAL)
    if seal != _seal(text):
        raise SpecError(
            f"{shortened(path)} must be as it was written, it was cut, damaged or edited; put back what was there, or "
            f"read it, then `dpaudit sweep {shortened(path)} --output {shortened(path.parent)}` goes on with it"
        )


_SEAL = "# SHA-256 of all lines above: "


def _seal(text: str) -> str:
    return f"{hashlib.sha256(text.encode()).hexdigest()}\n"


def _from_content(content: Mapping[str, Any]) -> Request:
    given.require_words(content, "a spec")
    own = {"sweep", "grid"}
    if "check" in content or "together" in content:
        raise SpecError("a sweep varies one audit: leave `check` out")
    audits, options = spec_parts({name: value for name, value in content.items() if name not in own})
    return _request(audits, options, content.get("sweep") or {}, content.get("grid") or {})


def _request(audits: list[Audit], options: Mapping[str, Any], sweep: Any, grid: Any) -> Request:
    if len(audits) != 1:
        raise SpecError(f"a sweep varies one audit, the spec has {len(audits)}; leave `audits` out")
    if not isinstance(sweep, Mapping) or not isinstance(grid, Mapping):
        raise SpecError(f"`sweep` and `grid` must be mappings, got {shortened(sweep if grid else grid)}")
    made: Sweep = build_dataclass(Sweep, sweep, location="sweep")
    twice = sorted(grid.keys() & made.space.keys())
    if twice:
        raise SpecError(f"{twice[0]} must stand in `grid` or in `space`, not in both")
    made = replace(made, space={**grid, **made.space})
    request: Request = build_dataclass(Request, {"base": audits[0], "sweep": made, **options}, location="sweep")
    return request
