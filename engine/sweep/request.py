"""A sweep that can run, and its file `sweep.yaml`. The specs of its runs are derived from it.

If the file names no game, the one with the most power for its learner is chosen.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from dpaudit.actors.seed import Seed
from dpaudit.engine.answer.sensitivity import planned_outlook
from dpaudit.engine.answer.sweep_summary import reaudit_name
from dpaudit.engine.planning.plan import make_plan
from dpaudit.engine.request.audit_spec import (
    MAX_SEED,
    Audit,
    AuditSpec,
    RunOptions,
    as_data_source,
    default_game,
    slug,
    store_rows,
    with_stored_rows,
)
from dpaudit.engine.request.build import build, build_dataclass, describe, with_absolute_paths
from dpaudit.engine.request.check import matching_tests
from dpaudit.engine.request.loading import configurations, normalized_space, overridden, spec_content, spec_parts
from dpaudit.engine.request.plain_yaml import YamlFile, to_yaml
from dpaudit.engine.request.sweep import Configuration, Sweep, configuration_name
from dpaudit.engine.run.run_folder import note_as_own
from dpaudit.errors import AuditError, SpecError, shortened
from dpaudit.field_checks import check_fields, checked_path, require_yaml_values
from dpaudit.mechanisms.learners.pate import PATE
from dpaudit.mechanisms.models.networks import Mlp, Network
from dpaudit.plain_files import write_atomically

FILE = "sweep.yaml"
PARTS_OF_A_GAME = frozenset({"game", "attack", "estimator", "proxy", "audits"})
"""Fields of a spec that only fit a named game; without them, the game is chosen by its power."""
CRAFTED = "label-crafted"
"""Game that searches training data whose model gives single labels away: the strongest for a claim about labels, as a
model of ordinary rows remembers few of them. It trains hundreds of times on few rows, which takes seconds except for
large networks and for many teachers.
"""
WHOLE_RELEASES = ("teacher-votes", "dp-sgd-training")
"""Games of PATE, which sees all noisy votes, and of DP-SGD, whose data records with worst-case gradients join: the
strongest for claims of whole trainings.
"""
ONE_TRAINING = ("label-canaries", "label-inference", "membership", "observational-membership")
"""Games with one training."""
_SEAL = "# SHA-256 of all lines above: "


@dataclass(frozen=True)
class Request:
    """A sweep that can run."""

    base: Audit  # the audit to vary
    sweep: Sweep  # space, goal, and the number of configurations over which the error is split
    name: str  # for reports and the default folder
    seed: int = 0  # seed of all randomness
    confidence: float = 0.95  # of all bounds together
    run: RunOptions = RunOptions()

    def __post_init__(self) -> None:
        check_fields(self)
        space = normalized_space(self.sweep.space)
        count = self.sweep.count if self.sweep.adaptive else len(configurations(space, self.sweep.samples, self.seed))
        object.__setattr__(self, "sweep", replace(self.sweep, space=space, count=count))
        data = build("data", as_data_source(self.base.data), location="data")
        object.__setattr__(self, "base", replace(self.base, data=with_absolute_paths(data)))

    @property
    def folder(self) -> Path:
        """Default folder of the sweep."""
        return Path("runs") / slug(self.name)

    @property
    def configurations(self) -> tuple[Configuration, ...]:
        """All configurations; () if a search algorithm chooses them."""
        if self.sweep.adaptive:
            return ()
        all_values = configurations(self.sweep.space, self.sweep.samples, self.seed)
        return tuple(self.configuration(values) for values in all_values)

    def configuration(self, values: Mapping[str, Any]) -> Configuration:
        """Return a configuration with its name."""
        return Configuration(configuration_name(values), dict(values))

    def audit(self, configuration: Configuration, rung: Any = None) -> Audit:
        """Return the audit of a configuration, with the field of the rungs at `rung` or at its last value."""
        audit, values = self.base, dict(configuration.values)
        if self.sweep.rungs is not None:
            values[self.sweep.rungs.field] = self.sweep.rungs.values[-1] if rung is None else rung
        try:
            for path, value in values.items():
                audit = overridden(audit, path, value)
        except SpecError as err:
            raise SpecError(f"{configuration.name}: {err}") from err
        return replace(audit, name=configuration.name)

    def spec(self, configurations: Sequence[Configuration]) -> AuditSpec:
        """Return the spec that audits the remaining configurations; the error is split over all planned ones."""
        audits = tuple(
            self.audit(configuration) for configuration in configurations if configuration.state == "audited"
        )
        sweep = replace(self.sweep, configurations=tuple(configurations))
        return AuditSpec(audits, self.name, self.seed, self.confidence, self.run, sweep=sweep)

    def rung_spec(self, configurations: Sequence[Configuration], rung: Any, *, seed: int) -> AuditSpec:
        """Return the spec of configurations at a rung; only the utility of its trainings is used."""
        audits = tuple(self.audit(configuration, rung) for configuration in configurations)
        return AuditSpec(audits, self.name, seed, self.confidence, self.run)

    def reaudit_spec(self, configuration: Configuration) -> AuditSpec:
        """Return the spec of one configuration at full confidence, with a seed that the sweep has not used."""
        audit = replace(self.audit(configuration), name=reaudit_name(configuration.name))
        seed = self.derived_seed("reaudit")
        return AuditSpec((audit,), f"{self.name}, re-audit", seed, self.confidence, self.run)

    def derived_seed(self, what: str) -> int:
        """Return a seed for work other than the sweep's audits."""
        words = Seed(self.seed).child("sweep", what).sequence().generate_state(2)
        return int.from_bytes(words.tobytes(), "little") % MAX_SEED

    def write(self, folder: Path) -> None:
        """Write `sweep.yaml`, and save data given in memory.

        Record that this user wrote the file, so resuming needs no consent.
        """
        store_rows(self.base.data, folder)
        values = {field.name: describe(getattr(self, field.name)) for field in fields(self) if field.name != "base"}
        file = YamlFile(folder / FILE, sealed(to_yaml({**values, **describe(replace(self.base, name="audit"))})))
        write_atomically(file.path, lambda stream: stream.write(file.content))
        note_as_own(file)


def read_request(source: str | Path | Mapping[str, Any] | Audit | AuditSpec) -> Request:
    """Return the sweep in a YAML file or a mapping, or the sweep of an audit whose space is still empty."""
    if isinstance(source, AuditSpec):
        if len(source.audits) != 1:
            raise SpecError(f"a sweep varies one audit, the spec has {len(source.audits)}")
        audit = source.audits[0]
        return _request([audit], {"name": source.name, "seed": source.seed, "run": source.run}, {}, {})
    if isinstance(source, Audit):
        return _request([source], {"name": source.name}, {}, {})
    if isinstance(source, Mapping):
        return _from_content(source)
    return request_in(YamlFile.read(Path(checked_path("a sweep", source))))


def request_in(file: YamlFile) -> Request:
    """Build the sweep that a YAML file holds."""
    request = _from_content(spec_content(file))
    # Data that were given in memory are in files next to the spec.
    return replace(request, base=replace(request.base, data=with_stored_rows(request.base.data, file.path.parent)))


def require_intact(file: YamlFile) -> None:
    """Refuse a sweep's file that was changed: in a truncated file, missing settings would become defaults."""
    path = file.path
    text, _, seal = file.text.rpartition(_SEAL)
    if seal != _seal(text):
        raise SpecError(
            f"{shortened(path)} was truncated, damaged or edited. Restore it, or check it and run "
            f"`dpaudit sweep {shortened(path)} --output {shortened(path.parent)}`"
        )


def sealed(text: str) -> bytes:
    """Return the content of a sweep's file: its text and a line with the hash of the text."""
    return f"{text}{_SEAL}{_seal(text)}".encode()


def _seal(text: str) -> str:
    return f"{hashlib.sha256(text.encode()).hexdigest()}\n"


def _from_content(content: Mapping[str, Any]) -> Request:
    require_yaml_values(content, "a spec")
    sweep_keys = {"sweep", "grid"}
    if "check" in content or "together" in content:
        raise SpecError("a sweep varies one audit. Leave `check` out")
    audits, options = spec_parts({name: value for name, value in content.items() if name not in sweep_keys})
    request = _request(audits, options, content.get("sweep") or {}, content.get("grid") or {})
    varied = {path.partition(".")[0] for paths in request.sweep.space for path in paths.split(",")}
    if not PARTS_OF_A_GAME.isdisjoint({*content, *varied}) or not request.sweep.space:
        return request
    first = configurations(request.sweep.space, request.sweep.count, request.seed)[0]
    audit = request.audit(request.configuration(first))
    return replace(request, base=replace(request.base, game=_most_powerful_game(audit, request.seed)))


def _request(audits: list[Audit], options: Mapping[str, Any], sweep: Any, grid: Any) -> Request:
    if len(audits) != 1:
        raise SpecError(f"a sweep varies one audit, the spec has {len(audits)}; leave `audits` out")
    if not isinstance(sweep, Mapping) or not isinstance(grid, Mapping):
        raise SpecError(f"`sweep` and `grid` must be mappings, got {shortened(sweep if grid else grid)}")
    settings: Sweep = build_dataclass(Sweep, sweep, location="sweep")
    duplicates = sorted(grid.keys() & settings.space.keys())
    if duplicates:
        raise SpecError(f"{duplicates[0]} must be in `grid` or in `space`, not in both")
    settings = replace(settings, space={**grid, **settings.space})
    request: Request = build_dataclass(Request, {"base": audits[0], "sweep": settings, **options}, location="sweep")
    return request


def _most_powerful_game(audit: Audit, seed: int) -> str:
    """Return the game with the most power for this mechanism, claim and data.

    `label-crafted` comes first if it fits and each training is quick, then `teacher-votes` and `dp-sgd-training` if
    they fit. Then come games with one training, by the smallest reduction of the noise that they detect. Those with
    another relation than the claim's, and those that assume a proxy, come last. Returns the default game of an audit if
    no game can be planned: planning it reports the error.
    """
    for strongest in (*([CRAFTED] if _is_quick(audit) else []), *WHOLE_RELEASES):
        if _rank(audit, strongest, seed) is not None:
            return strongest
    ranks = {name: rank for name in ONE_TRAINING if (rank := _rank(audit, name, seed)) is not None}
    return min(ranks, key=lambda name: ranks[name], default=default_game(audit))


def _is_quick(audit: Audit) -> bool:
    """Return True if `check` would play `label-crafted` on the mechanism, and it trains one model, no large network."""
    try:
        mechanism = build("mechanism", audit.mechanism, location="mechanism")
    except AuditError:
        return False
    model, claim = getattr(mechanism, "model", None), audit.claim
    is_large = isinstance(model, Network) and not isinstance(model, Mlp)
    if model is None or is_large or isinstance(mechanism, PATE) or isinstance(claim, str):
        return False
    tests = matching_tests(mechanism, mechanism.claim() if claim is None else claim)[0]
    return any(test.game == CRAFTED for test in tests)


def _rank(audit: Audit, game: str, seed: int) -> tuple[bool, bool, bool, float] | None:
    """Return a sort key, smaller for a stronger game; None if the game does not fit."""
    try:
        (entry,) = make_plan(AuditSpec((replace(audit, game=game),), seed=seed)).audits
        outlook = planned_outlook(entry)
    except AuditError:
        return None
    if outlook is None:
        return False, False, entry.game.conditional, 1.0
    is_blind = outlook.ceiling <= outlook.claimed < math.inf
    converted = entry.audit.game.traits.compared(entry.effective_claim).steps > 1
    return is_blind, converted, entry.game.conditional, 1.0 if outlook.factor is None else outlook.factor
