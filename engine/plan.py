"""From a spec to a plan: every unit with its key, seed and resources. Nothing runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import pyarrow as pa

from dpaudit.actors.fingerprint import one_reading
from dpaudit.actors.seed import Seed
from dpaudit.actors.unit import Inputs, Resources, Unit
from dpaudit.actors.values import encode
from dpaudit.actors.work import Call, inlined
from dpaudit.claims import Claim
from dpaudit.engine.findings.counting import counting
from dpaudit.engine.findings.divided import bound_units
from dpaudit.engine.findings.evidence import CODECS
from dpaudit.engine.findings.shift import control_estimator
from dpaudit.engine.games.protocol import Foreseen, GamePlan, Setting, planned, require_units
from dpaudit.engine.spec.audit_spec import Audit, AuditSpec
from dpaudit.engine.spec.partition import Parts
from dpaudit.errors import DataError, SpecError, shortened
from dpaudit.estimators.estimator import Estimator
from dpaudit.mechanisms.examples import Examples
from dpaudit.mechanisms.protocols import Compute
from dpaudit.variables import without_values

KEPT_ROWS_PER_UNIT = 2_000_000
"""Score rows of one unit whose table is kept: tens of megabytes."""
COUNTED_ROWS_PER_UNIT = 25_000_000
"""Score rows of one unit that counts them at once, one replay in memory at a time."""


@dataclass(frozen=True)
class PlannedAudit:
    """One audit and the keys of its units.

    Attributes:
        audit: What was asked for.
        game: The game's units.
        tallies: Keys of the units that count, in the order of the score table.
        controls: Keys of the units that count the game on rows the mechanism never saw, one for each distinguisher.
        ceilings: Keys of the units that count the game against a mechanism that hides nothing.
        rows: How many rows each part of the data has.
        data_name: What the data are, in words.
        confirms: Name of the audit that this one confirms; "" for those of the spec.
        played_again: Whether it confirms by the same look once more.
        bounds: The units that find its bounds, where that takes long.
    """

    audit: Audit
    game: GamePlan
    tallies: tuple[str, ...]
    controls: tuple[str, ...]
    ceilings: tuple[str, ...]
    rows: tuple[tuple[str, int], ...]
    data_name: str
    confirms: str = ""
    played_again: bool = False
    bounds: tuple[Unit, ...] = ()

    @property
    def effective_claim(self) -> Claim:
        """The claim the bound is compared with: the spec's, the game's, or the mechanism's."""
        return self.audit.claim or self.game.claim or self.audit.effective_claim()

    @property
    def keys(self) -> frozenset[str]:
        """Of all its units."""
        planned = (*self.game.units, *self.bounds)
        return frozenset((*(unit.key for unit in planned), *self.tallies, *self.controls, *self.ceilings))


@dataclass(frozen=True)
class Plan:
    """All units of a run.

    Attributes:
        spec: What it was made from.
        units: Each after those it needs; a unit two audits share is listed once.
        audits: What belongs to which audit.
        shared: The large inputs by name.
        apart: Whether units that run without Ray get a process of their own: nobody here wrote their code.
    """

    spec: AuditSpec
    units: tuple[Unit, ...]
    audits: tuple[PlannedAudit, ...]
    shared: dict[str, Examples] = field(repr=False)
    apart: bool = False

    def table(self) -> pa.Table:
        """One row a unit: key, label, task, seed, needs, CPUs, GPUs, pieces."""
        seeds = [str(_argument(unit, "seed", "")) for unit in self.units]
        return pa.table(
            {
                "key": [unit.key for unit in self.units],
                "label": [unit.label for unit in self.units],
                "task": [unit.does for unit in self.units],
                "seed": seeds,
                "needs": pa.array([list(unit.needs) for unit in self.units], pa.list_(pa.string())),
                "cpus": [unit.resources.cpus for unit in self.units],
                "gpus": [unit.resources.gpus for unit in self.units],
                "pieces": [pieces_of(unit) for unit in self.units],
            }
        )

    def prices(self) -> list[str]:
        """What units that ask at a price are going to take, one line each."""
        lines = []
        for unit in self.units:
            price = getattr(unit.task, "price", None)
            words = price(Inputs({name: self.shared[name] for name in unit.shared})) if price is not None else ""
            lines += [f"{unit.label}: {words}"] if words else []
        return lines


def pieces_of(unit: Unit) -> int:
    """How many models, replays or releases a unit makes: `first` to before `last`; 1 where it does not say."""
    return max(1, int(_argument(unit, "last", 1)) - int(_argument(unit, "first", 0)))


def _argument(unit: Unit, name: str, default: Any) -> Any:
    if isinstance(unit.task, Call):
        return unit.task.argument(name, default)
    return getattr(unit.task, name, default)


def trainings_of(plan: Plan) -> dict[str, int]:
    """How many models each unit trains, of the mechanism or of shadows, by key; those that train none are left out."""
    trains = {key for entry in plan.audits for key in (*entry.game.trainings, *entry.game.shadows)}
    return {unit.key: pieces_of(unit) for unit in plan.units if unit.key in trains}


@one_reading()
def make_plan(spec: AuditSpec) -> Plan:
    """Loads the data (its content is part of every key) and plans every audit.

    Raises: DataError, SpecError.
    """
    require_units(_fewest_units(spec))
    loaded: dict[str, Examples] = {}
    divided: dict[str, Parts] = {}
    shared: dict[str, Examples] = {}
    units: dict[str, Unit] = {}
    planned = []
    for audit in spec.audits:
        source = repr(audit.data)
        if source not in loaded:
            loaded[source] = _loaded(audit.data, spec.seed)
        division = f"{source} {audit.split}"
        if division not in divided:  # audits of one division share its rows, its reference model and its digests
            divided[division] = audit.split.divide(loaded[source], Seed(spec.seed).child("split").rng())
        parts = divided[division]
        shared |= parts.shared()
        for entry, own in _planned(spec, audit, parts):
            units |= {unit.key: unit for unit in own}
            shared |= entry.game.shared
            planned.append(entry)
    require_units(len(units))
    return Plan(spec, tuple(units.values()), tuple(planned), shared)


def _fewest_units(spec: AuditSpec) -> int:
    """How many units a spec leads to at least, found before data are made or any unit is."""
    fewest: dict[str, int] = {}
    for audit in spec.audits:
        if isinstance(audit.game, Foreseen):
            # Audits of one mechanism on the same data may share units; a file may hold fewer rows than are asked for.
            own = f"{audit.mechanism!r} {audit.data!r} {audit.split}"
            rows = 1 if hasattr(audit.data, "path") else getattr(audit.data, "rows", None) or 1
            target = max(1, int(audit.split.target * rows))
            units, with_scores = audit.game.fewest_units(target, _rows_per_unit(spec))
            counting = with_scores if spec.run.keep_scores else 0
            fewest[own] = max(fewest.get(own, 0), units + counting)
    return sum(fewest.values())


def _rows_per_unit(spec: AuditSpec) -> int:
    return KEPT_ROWS_PER_UNIT if spec.run.keep_scores else COUNTED_ROWS_PER_UNIT


def _loaded(data: Any, seed: int) -> Examples:
    try:
        examples: Examples = data.load(seed=seed)
    except DataError as err:
        raise DataError(without_values(str(err), data)) from None  # its cause would show what the message must not
    except MemoryError as err:
        raise DataError(f"the data must fit into memory, {shortened(data)} do not; ask for fewer rows") from err
    if not isinstance(examples, Examples):
        raise DataError(f"the data's method `load` must give dpaudit.Examples, got {type(examples).__name__}")
    return examples


def _planned(spec: AuditSpec, audit: Audit, parts: Parts) -> Iterator[tuple[PlannedAudit, list[Unit]]]:
    """An audit, and the one that confirms it, if there is one: that one's work waits until the first one is read."""
    entry, units = _plan_audit(spec, audit, parts, Seed(spec.seed))
    yield entry, units
    again = spec.together is not None and not entry.game.conditional
    if again or (audit.confirm and entry.game.conditional):
        # Looks may stop early, so that no unit of theirs can be waited for: their reader holds back what follows.
        after = () if spec.together is not None else (*entry.tallies, *entry.controls)
        asked = spec.played_again(audit) if again else spec.confirmation(audit)
        seed = Seed(spec.seed).child("confirm", *([audit.name] if spec.together is not None else []))
        follows, units = _plan_audit(spec, asked, parts, seed, after)
        yield dataclasses.replace(follows, confirms=audit.name, played_again=again), units


def _plan_audit(
    spec: AuditSpec, audit: Audit, parts: Parts, seed: Seed, after: tuple[str, ...] = ()
) -> tuple[PlannedAudit, list[Unit]]:
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
    game = planned(audit.game, setting)
    counting: dict[str, Estimator[Any, Any]] = dict.fromkeys((*game.scores, *game.ceilings), audit.estimator)
    if game.controls:
        counting |= dict.fromkeys(game.controls, control_estimator(audit.estimator, len(game.controls)))
    plays = {unit.key: unit for unit in game.units if unit.key in counting}
    if spec.run.keep_scores:
        units = list(game.units)
        counted = {key: _tally_unit(counting[key], unit, resources.on_cpus) for key, unit in plays.items()}
    else:
        units = [unit for unit in game.units if unit.key not in plays]
        counted = {key: _fused(counting[key], unit) for key, unit in plays.items()}
    units += counted.values()
    tallies = tuple(counted[key].key for key in game.scores)
    controls = tuple(counted[key].key for key in game.controls)
    ceilings = tuple(counted[key].key for key in game.ceilings)
    if not spec.run.keep_scores:
        game = dataclasses.replace(game, units=tuple(units), scores=())
    bounds = bound_units(audit.estimator, game, tallies, audit.name, resources.on_cpus)
    sizes = tuple((part, len(getattr(parts, part))) for part in ("target", "reference", "test", "validation"))
    entry = PlannedAudit(audit, game, tallies, controls, ceilings, sizes, parts.target.name, bounds=bounds)
    return entry, [*units, *bounds]


def _tally_unit(estimator: Any, scores: Unit, resources: Resources) -> Unit:
    if isinstance(scores.task, Call):
        return counting(estimator, scores, f"counting {scores.label}", resources)
    return Unit(Tally(estimator), f"counting {scores.label}", needs=(scores.key,), resources=resources)


def _fused(estimator: Estimator[Any, Any], scores: Unit) -> Unit:
    if isinstance(scores.task, Call):
        return counting(estimator, inlined(scores), f"{scores.label}, counted", scores.resources)
    if not isinstance(scores.task, BatchedPlay):
        raise SpecError(f"run.keep_scores must be true for units that do not play in batches, got '{scores.label}'")
    return dataclasses.replace(
        scores, task=PlayAndTally(scores.task, estimator), key="", label=f"{scores.label}, counted"
    )


@dataclass(frozen=True)
class Tally:
    """Counts the evidence of one unit, piece by piece."""

    estimator: Estimator[Any, Any]

    def run(self, inputs: Inputs, compute: Compute) -> pa.Table:
        """One row a replay, query or release."""
        return _tallies(self.estimator, inputs.tables.values())


@dataclass(frozen=True)
class PlayAndTally:
    """Plays replays and counts each at once; the evidence is not kept."""

    play: BatchedPlay
    estimator: Estimator[Any, Any]

    def run(self, inputs: Inputs, compute: Compute) -> pa.Table:
        """One row a replay."""
        schema = CODECS[self.estimator.evidence].schema
        return _tallies(self.estimator, (pa.Table.from_batches([batch], schema) for batch in self.play.batches(inputs)))


def _tallies(estimator: Estimator[Any, Any], tables: Iterable[pa.Table]) -> pa.Table:
    codec = CODECS[estimator.evidence]
    pieces = (piece for table in tables for piece in codec.decode(table))
    return encode((estimator.tally(piece) for piece in pieces), estimator.tally_type)


@runtime_checkable
class BatchedPlay(Protocol):
    """A task that can hand over its evidence a replay at a time, so that it need not be held at once."""

    def batches(self, inputs: Inputs) -> Iterable[pa.RecordBatch]:
        """The rows of its table, whole replays at a time."""
        ...
