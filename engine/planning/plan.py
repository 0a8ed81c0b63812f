"""From a spec to a plan: every unit with its key, seed and resources. Nothing runs."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Set
from dataclasses import dataclass, field
from functools import cached_property
from types import GenericAlias
from typing import Any

import numpy as np
import pyarrow as pa

from dpaudit.actors.fingerprint import one_reading
from dpaudit.actors.seed import Seed
from dpaudit.actors.unit import Inputs, Resources, Unit
from dpaudit.actors.values import arrow_array
from dpaudit.actors.work import Call, Work, inlined, unit, value_of
from dpaudit.claims import Claim
from dpaudit.consent import endpoints
from dpaudit.engine.data.partition import Parts, loaded_rows
from dpaudit.engine.games.protocol import Played, Reading, Setting, require_units
from dpaudit.engine.planning.features import require_trainable
from dpaudit.engine.request.audit_spec import Audit, AuditSpec
from dpaudit.engine.request.describe import in_words
from dpaudit.errors import SpecError
from dpaudit.estimators.best_candidate import EachReplay, EachThreshold
from dpaudit.estimators.estimator import Estimator
from dpaudit.estimators.one_run.right_guesses import GuessRule
from dpaudit.estimators.one_run.signed_scores import OneRun, Shiftable
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
        needs = arrow_array([list(unit.needs) for unit in self.units])
        columns = {
            "key": [unit.key for unit in self.units],
            "label": [unit.label for unit in self.units],
            "task": [unit.does for unit in self.units],
            "seed": [str(_argument(unit, "seed", "")) for unit in self.units],
            "needs": needs.cast(pa.list_(pa.string())),  # where none needs any
            "cpus": [unit.resources.cpus for unit in self.units],
            "gpus": [unit.resources.gpus for unit in self.units],
            "pieces": [pieces_of(unit) for unit in self.units],
        }
        return pa.table(
            {name: arrow_array(column) if isinstance(column, list) else column for name, column in columns.items()}
        )

    def needed(self, wanted: Iterable[str]) -> tuple[Unit, ...]:
        """The units with these keys and whatever they need, in their order."""
        keys = set(wanted)
        for each in reversed(self.units):  # each comes after those it needs
            if each.key in keys:
                keys |= set(each.needs)
        return tuple(each for each in self.units if each.key in keys)

    def prices(self) -> list[str]:
        """What units that ask at a price are going to take, one line each."""
        lines = []
        for each in self.units:
            if isinstance(each.task, Call):
                words = each.task.price(Inputs({name: self.shared[name] for name in each.shared}))
                lines += [f"{each.label}: {words}"] if words else []
        return lines

    def price(self) -> str:
        """What its requests come to, in words; "" where there are none or nothing can be told."""
        runs = sum(pieces_of(each) for each in self.units if endpoints(each.task))
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
            if entry.game.trainings:
                require_trainable(entry.audit, loaded[source])
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
        if hasattr(audit.game, "fewest_units"):  # it knows before there are data
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
        first_seed=Seed(spec.seed),
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
    from dpaudit.engine.planning.asked_twice import as_given, look_for_memory  # of few games

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


WORTH_S = 1.0
"""Bounds that take less are found by the driver: a unit costs milliseconds there, and a second in the worst case."""
PART_S = 2.0  # how long one part should take
MAX_PARTS = 256


def counting(estimator: Any, evidence: Unit, *, kept: bool) -> Unit:
    """The unit that counts what another one gives."""
    return Work().add(
        count,
        estimator,
        evidence if kept else inlined(evidence),
        label=f"counting {evidence.label}" if kept else f"{evidence.label}, counted",
        resources=evidence.resources.on_cpus if kept else evidence.resources,
        gives=GenericAlias(list, estimator.tally_type),
    )


def control_estimator(estimator: Any, distinguishers: int) -> OneRun:
    """Reads the control's scores: exact at delta = 0, with the guesses of the audit's estimator, error shared."""
    error = (1 - estimator.confidence) / max(distinguishers, 1)
    guess: GuessRule = estimator.guess if isinstance(estimator, Shiftable) else "signed"
    return OneRun(confidence=1 - error, guess=guess)


@unit
def count(estimator: Estimator[Any, Any], evidence: Iterable[Any]) -> Iterator[Any]:
    """What an estimator counts of each piece of evidence: replay, query or release."""
    return (estimator.tally(piece) for piece in evidence)


@unit
def bound_replays(estimator: Any, tallies: tuple[list[Any], ...], *, replays: int) -> EachReplay:
    """The bounds of some of `replays` replays, in the order of their numbers."""
    found: EachReplay = estimator.bounds_of_replays([tally for group in tallies for tally in group], replays)
    return found


@unit
def bound_thresholds(estimator: Any, tallies: list[Any], *, part: int, parts: int) -> EachThreshold:
    """The bounds at one of several equal parts of the thresholds of the only replay."""
    (tally,) = tallies
    thresholds = tally.threshold.size
    places = np.arange(thresholds * part // parts, thresholds * (part + 1) // parts)
    found: EachThreshold = estimator.bounds_at(tally, places)
    return found


def bound_units(
    estimator: Any, game: Played, tallies: tuple[Unit, ...], reading: Reading, name: str, resources: Resources
) -> tuple[Unit, ...]:
    """The units that find an audit's bounds; none where the driver is as quick, or the game cannot say how much it is.

    `tallies` are the units that count, in the order of the evidence.
    """
    if game.reference is None or reading is Reading.IN_ORDER:
        return ()
    parts, work = min(MAX_PARTS, _parts(estimator, game.replays, game.reference.rows)), Work()
    if parts < 1:
        return ()
    by_threshold = hasattr(estimator, "bounds_at")
    if by_threshold and (len(tallies) != 1 or game.replays != 1):
        return ()
    parts = parts if by_threshold else min(parts, len(tallies))
    for part in range(parts):
        label = f"bounds of {name}, {'thresholds' if by_threshold else 'replays'} {part + 1}/{parts}"
        if by_threshold:
            work.add(bound_thresholds, estimator, tallies[0], part=part, parts=parts, label=label, resources=resources)
        else:
            some = tallies[len(tallies) * part // parts : len(tallies) * (part + 1) // parts]
            work.add(bound_replays, estimator, some, replays=game.replays, label=label, resources=resources)
    return tuple(work.units.values())


def bound_seconds(estimator: Any, replays: int, rows: int) -> float:
    """About how long so many replays of so many rows take on one core; 0 of an estimator that finds none in parts."""
    return (
        float(estimator.seconds(replays, rows))
        if hasattr(estimator, "seconds") and hasattr(estimator, "bounds_of_replays")
        else 0.0
    )


def _parts(estimator: Any, replays: int, rows: int) -> int:
    seconds = bound_seconds(estimator, replays, rows)
    return math.ceil(seconds / PART_S) if seconds >= WORTH_S else 0
