"""From a spec to a plan: every unit with its key, seed and resources. Nothing runs."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Iterable, Iterator, Set
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pyarrow as pa

from dpaudit.actors.fingerprint import one_reading
from dpaudit.actors.seed import Seed
from dpaudit.actors.unit import Inputs, Resources, Unit
from dpaudit.actors.work import Call, Work, value_of
from dpaudit.claims import Claim
from dpaudit.consent import contacts
from dpaudit.engine.data.partition import Parts, loaded_rows
from dpaudit.engine.games.protocol import Foreseen, Played, Reading, Setting, require_units
from dpaudit.engine.planning.asked_twice import as_given, look_for_memory
from dpaudit.engine.planning.counting import bound_units, control_estimator, counting
from dpaudit.engine.spec.audit_spec import Audit, AuditSpec
from dpaudit.engine.spec.build import in_words
from dpaudit.errors import SpecError
from dpaudit.mechanisms.examples import Rows

KEPT_ROWS_PER_UNIT = 2_000_000  # score rows of one unit whose table is kept: tens of megabytes
WORTH_SAYING = 1_000_000  # generated rows from which on it is said beforehand that they are made: a second of planning
COUNTED_ROWS_PER_UNIT = 25_000_000  # score rows of one unit that counts them at once, one replay in memory at a time


@dataclass(frozen=True)
class PlannedAudit:
    """One audit and its units."""

    audit: Audit  # what was asked for
    game: Played  # what its game planned, and what reading it needs to know
    units: tuple[Unit, ...]  # all that play and count, each after those it needs; without those that find bounds
    scores: tuple[str, ...]  # keys of the units whose evidence is kept, in the order of its rows
    tallies: tuple[str, ...]  # keys of the units that count, in the order of the evidence
    controls: tuple[str, ...]  # of those that count the game on rows the mechanism never saw, one a distinguisher
    ceilings: tuple[str, ...]  # of those that count the game against a mechanism without privacy
    reading: Reading  # how the evidence is read
    rows: tuple[tuple[str, int], ...]  # how many rows each part of the data has
    data_name: str  # what the data are, in words
    confirms: str = ""  # name of the audit that this one confirms; "" for those of the spec
    confirmatory: bool = False  # whether it confirms by the same test once more
    bounds: tuple[Unit, ...] = ()  # the units that find its bounds, where that takes long
    first_confidence: float | None = None  # of a confirmatory run: that of the bound of the first pass
    last_confidence: float | None = None  # of a test that is played again where it refutes: that of the second bound
    # the unit that looks for memory between calls, run where the claim is refuted by calls made again and again; it is
    # no part of the plan's units
    memory: Unit | None = None

    @property
    def effective_claim(self) -> Claim:
        """The claim the bound is compared with: the spec's, the game's, or the mechanism's."""
        stated: Any = self.audit.claim
        return stated or self.game.claim or self.audit.effective_claim()

    @property
    def choices(self) -> tuple[str, ...]:
        """Keys of the units that chose something, and say so."""
        return keys_of(self.game.choices)

    @property
    def trainings(self) -> tuple[str, ...]:
        """Keys of the units that ran the mechanism."""
        return keys_of(self.game.trainings)

    @cached_property
    def keys(self) -> frozenset[str]:
        return frozenset(keys_of((*self.units, *self.bounds)))

    def bound_parts(self, finished: Set[str], counted: Set[str], read: Callable[[str], pa.Table]) -> list[Any]:
        """What finished units found of its bounds, where all that they read was counted."""
        units = (unit for unit in self.bounds if unit.key in finished and counted >= set(unit.needs))
        return [value_of(unit, read(unit.key)) for unit in units]


@dataclass(frozen=True)
class Plan:
    """All units of a run."""

    spec: AuditSpec  # what it was made from
    units: tuple[Unit, ...]  # each after those it needs; a unit two audits share is listed once
    audits: tuple[PlannedAudit, ...]  # what belongs to which audit
    shared: dict[str, Rows] = field(repr=False)  # the large inputs by name
    apart: bool = False  # whether units that run without Ray get a process of their own: nobody here wrote their code

    def table(self) -> pa.Table:
        """One row a unit: key, label, task, seed, needs, CPUs, GPUs, pieces."""
        return pa.table(
            {
                "key": [unit.key for unit in self.units],
                "label": [unit.label for unit in self.units],
                "task": [unit.does for unit in self.units],
                "seed": [str(_argument(unit, "seed", "")) for unit in self.units],
                "needs": pa.array([list(unit.needs) for unit in self.units], pa.list_(pa.string())),
                "cpus": [unit.resources.cpus for unit in self.units],
                "gpus": [unit.resources.gpus for unit in self.units],
                "pieces": [pieces_of(unit) for unit in self.units],
            }
        )

    def needed(self, wanted: Iterable[str]) -> tuple[Unit, ...]:
        """The units with these keys and whatever they need, in their order."""
        keys = set(wanted)
        for unit in reversed(self.units):  # each comes after those it needs
            if unit.key in keys:
                keys |= set(unit.needs)
        return tuple(unit for unit in self.units if unit.key in keys)

    def prices(self) -> list[str]:
        """What units that ask at a price are going to take, one line each."""
        lines = []
        for unit in self.units:
            if isinstance(unit.task, Call):
                words = unit.task.price(Inputs({name: self.shared[name] for name in unit.shared}))
                lines += [f"{unit.label}: {words}"] if words else []
        return lines

    def price(self) -> str:
        """What its requests come to, in words; "" where there are none or nothing can be told."""
        runs = sum(pieces_of(unit) for unit in self.units if contacts(unit.task))
        return "; ".join(self.prices()) or (f"about {runs:,} requests or more" if runs else "")


def pieces_of(unit: Unit) -> int:
    """How many models, replays or releases a unit makes: `first` to before `last`; 1 where it does not say."""
    return max(1, int(_argument(unit, "last", 1)) - int(_argument(unit, "first", 0)))


def _argument(unit: Unit, name: str, default: Any) -> Any:
    return unit.task.argument(name, default) if isinstance(unit.task, Call) else default


def keys_of(units: Iterable[Unit]) -> tuple[str, ...]:
    return tuple(unit.key for unit in units)


def trainings_of(plan: Plan) -> dict[str, int]:
    """How many models each unit trains, of the mechanism or of shadows, by key; those that train none are left out."""
    trains = {unit.key for entry in plan.audits for unit in (*entry.game.trainings, *entry.game.shadows)}
    return {unit.key: pieces_of(unit) for unit in plan.units if unit.key in trains}


@one_reading()
def make_plan(spec: AuditSpec) -> Plan:
    """Loads the data (its content is part of every key) and plans every audit."""
    require_units(_fewest_units(spec))
    loaded: dict[str, Rows] = {}
    divided: dict[str, Parts] = {}
    shared: dict[str, Rows] = {}
    units: dict[str, Unit] = {}
    planned = []
    for audit in spec.audits:
        source = repr(audit.data)
        if source not in loaded:
            loaded[source] = loaded_rows(audit.data, spec.seed)
        _require_rows(audit, loaded[source])
        division = f"{source} {audit.split}"
        if division not in divided:  # audits of one division share its rows, its reference model and its digests
            divided[division] = audit.split.divide(loaded[source], Seed(spec.seed).child("split").rng())
        parts = divided[division]
        shared |= parts.shared()
        for entry, inputs in _planned(spec, audit, parts):
            units |= {unit.key: unit for unit in (*entry.units, *entry.bounds)}
            shared |= inputs
            planned.append(entry)
    require_units(len(units))
    return Plan(spec, tuple(units.values()), tuple(planned), shared)


def what_it_takes(spec: AuditSpec) -> str:
    """What planning is going to make, before it does; "" where that is nothing to wait for."""
    made = {repr(audit.data): rows for audit in spec.audits if (rows := _generated_rows(audit.data)) >= WORTH_SAYING}
    if not made:
        return ""
    units, rows = _fewest_units(spec), sum(made.values())
    return f"planning at least {units:,} units on {rows:,} generated rows, which are made first"


def _generated_rows(data: Any) -> int:
    return 0 if hasattr(data, "path") else getattr(data, "rows", None) or 0


def _fewest_units(spec: AuditSpec) -> int:
    """How many units a spec leads to at least, found before data are made or any unit is."""
    fewest: dict[str, int] = {}
    for audit in spec.audits:
        if isinstance(audit.game, Foreseen):
            # Audits of one mechanism on the same data may share units; a file may hold fewer rows than are asked for.
            own = f"{audit.mechanism!r} {audit.data!r} {audit.split}"
            target = max(1, int(audit.split.target * (_generated_rows(audit.data) or 1)))
            units, with_scores = audit.game.fewest_units(target, _rows_per_unit(spec))
            counting = with_scores if spec.run.keep_scores else 0
            fewest[own] = max(fewest.get(own, 0), units + counting)
    return sum(fewest.values())


def _rows_per_unit(spec: AuditSpec) -> int:
    return KEPT_ROWS_PER_UNIT if spec.run.keep_scores else COUNTED_ROWS_PER_UNIT


def _require_rows(audit: Audit, rows: Rows) -> None:
    """Refuses data that the game of an audit does not play with."""
    wanted = audit.game.fits.rows
    if not isinstance(rows, wanted):
        played = f"{audit.name}: the game plays with rows of the class {wanted.__name__}"
        raise SpecError(f"{played}, the data have {type(rows).__name__}")


def _planned(spec: AuditSpec, audit: Audit, parts: Parts) -> Iterator[tuple[PlannedAudit, dict[str, Any]]]:
    """An audit, and the one that confirms it, if there is one: that one's work waits until the first one is read."""
    entry, shared = _plan_audit(spec, audit, parts, Seed(spec.seed))
    again = spec.together is not None and not entry.game.conditional
    last = spec.confirmatory(audit).estimator.confidence if again else None
    yield dataclasses.replace(entry, last_confidence=last), shared
    if again or (audit.confirm and entry.game.conditional):
        # Tests may stop early, so that no unit of theirs can be waited for: their reader holds back what follows.
        after = () if spec.together is not None else (*entry.tallies, *entry.controls)
        asked = spec.confirmatory(audit) if again else spec.confirmation(audit)
        seed = Seed(spec.seed).child("confirm", *([audit.name] if spec.together is not None else []))
        follows, shared = _plan_audit(spec, asked, parts, seed, after)
        first = audit.estimator.confidence if again else None
        follows = dataclasses.replace(follows, confirms=audit.name, confirmatory=again, first_confidence=first)
        yield follows, shared


def _plan_audit(
    spec: AuditSpec, audit: Audit, parts: Parts, seed: Seed, after: tuple[str, ...] = ()
) -> tuple[PlannedAudit, dict[str, Any]]:
    resources = Resources(spec.run.cpus_per_worker, spec.run.gpus_per_worker)
    setting = Setting(
        audit.mechanism,
        audit.proxy,
        audit.attack,
        audit.data,
        parts,
        audit.split.order == "random",
        seed,
        resources,
        _rows_per_unit(spec),
        reading=audit.game.fits.reading(stops_early=audit.stop is not None),
        after=after,
    )
    work = Work()
    game: Played = audit.game.play(setting, work)
    counts = {unit.key: audit.estimator for unit in (*game.evidence, *game.ceiling)}
    counts |= {unit.key: control_estimator(audit.estimator, len(game.control)) for unit in game.control}
    kept = spec.run.keep_scores
    units = [unit for unit in work.units.values() if kept or unit.key not in counts]
    counted = {key: counting(counts[key], unit, kept=kept) for key, unit in work.units.items() if key in counts}
    units += counted.values()
    evidence, controls, ceilings = (
        tuple(counted[unit.key] for unit in several) for several in (game.evidence, game.control, game.ceiling)
    )
    bounds = bound_units(audit.estimator, game, evidence, setting.reading, audit.name, resources.on_cpus)
    entry = PlannedAudit(
        audit,
        game,
        tuple(units),
        keys_of(game.evidence) if kept else (),
        keys_of(evidence),
        keys_of(controls),
        keys_of(ceilings),
        setting.reading,
        tuple((part, len(getattr(parts, part))) for part in ("target", "reference", "test", "validation")),
        parts.target.name,
        bounds=bounds,
        memory=_memory(setting, work, Seed(spec.seed)) if audit.game.fits.repeats_calls else None,
    )
    return entry, work.shared


def _memory(setting: Setting, work: Work, seed: Seed) -> Unit | None:
    """The unit that looks for memory between calls; the mechanism goes along as it is before any."""
    if not len(setting.parts.target):
        return None
    words = hashlib.sha256(in_words(setting.mechanism).encode()).hexdigest()[:16]
    given = work.share(f"as given: {words}", as_given(setting.mechanism))
    return work.add(
        look_for_memory,
        setting.mechanism,
        given,
        setting.required("target"),
        seed=seed.child("memory"),
        label="the same data given twice",
        resources=setting.resources,
    )
