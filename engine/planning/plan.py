"""Plan the units of a run from its spec: keys, seeds and resources. No unit runs."""

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

from dpaudit.actors.fingerprint import read_once
from dpaudit.actors.seed import Seed
from dpaudit.actors.unit import Inputs, Resources, Unit
from dpaudit.actors.values import arrow_array
from dpaudit.actors.work import Call, Work, inlined, unit, value_of
from dpaudit.claims import Claim, Scope
from dpaudit.consent import endpoints
from dpaudit.engine.data.partition import Parts, loaded_rows
from dpaudit.engine.games.coins import Coins
from dpaudit.engine.games.protocol import Played, Reading, Setting, require_units
from dpaudit.engine.request.audit_spec import Audit, AuditSpec
from dpaudit.engine.request.build import call_text
from dpaudit.errors import InputError, SpecError
from dpaudit.estimators.estimator import Estimator, share_of
from dpaudit.estimators.one_run.signed_scores import control_estimator
from dpaudit.locations import require_packages
from dpaudit.mechanisms.examples import Examples, Rows
from dpaudit.mechanisms.protocols import BagMechanism, DividedTrainer, FeatureChecker, LabelMechanism, Learner
from dpaudit.mechanisms.queries.row_function import TableRows
from dpaudit.registry import load

KEPT_ROWS_PER_UNIT = 2_000_000  # score rows of one unit whose table is kept: tens of megabytes
ANNOUNCED_ROWS = 1_000_000  # generated rows from which planning takes a second and announces it
COUNTED_ROWS_PER_UNIT = 25_000_000  # score rows of a unit that counts them at once, holding one replay in memory


@dataclass(frozen=True)
class PlannedAudit:
    """An audit with its units.

    Attributes:
        audit: The requested audit.
        game: The game's part of the plan, with facts that reading the evidence needs.
        units: Units that play and count, each after the units it needs; without those that compute bounds.
        scores: Keys of the units whose evidence is stored, in the order of its rows.
        tallies: Keys of the units that count, in the order of the evidence.
        controls: Keys of the units that count the game on held-out rows, one for each distinguisher.
        ceilings: Keys of the units that count the game against a mechanism without privacy.
        reading: How the evidence is read.
        rows: (part, number of rows) of the data.
        data_name: Description of the data.
        confirms: Name of the audit that this one confirms; "" for audits of the spec.
        confirmatory: True if it confirms by running the same test again.
        bounds: Units that compute bounds, if that takes long.
        first_confidence: For a confirmatory run, the confidence of the bound of the first pass.
        last_confidence: For a test with a confirmatory run, the confidence of the confirmatory bound.
        scope: Subject of the test: the claim, or a side finding.
        of_check: True for one of several tests of a claim.
        state: Unit that checks for state between calls. It is no unit of the plan: it runs only after repeated calls
            have rejected the claim.
    """

    audit: Audit
    game: Played
    units: tuple[Unit, ...]
    scores: tuple[str, ...]
    tallies: tuple[str, ...]
    controls: tuple[str, ...]
    ceilings: tuple[str, ...]
    reading: Reading
    rows: tuple[tuple[str, int], ...]
    data_name: str
    confirms: str = ""
    confirmatory: bool = False
    bounds: tuple[Unit, ...] = ()
    first_confidence: float | None = None
    last_confidence: float | None = None
    scope: Scope = Scope.CLAIM
    of_check: bool = False
    state: Unit | None = None

    @property
    def effective_claim(self) -> Claim:
        """Claim that the bound is compared with: that of the spec, the game or the mechanism, in this order."""
        stated: Any = self.audit.claim
        return stated or self.game.claim or self.audit.effective_claim()

    @property
    def choices(self) -> tuple[str, ...]:
        """Keys of the units that make a choice and report it."""
        return keys_of(self.game.choices)

    @property
    def trainings(self) -> tuple[str, ...]:
        """Keys of the units that ran the mechanism."""
        return keys_of(self.game.trainings)

    @cached_property
    def keys(self) -> frozenset[str]:
        return frozenset(keys_of((*self.units, *self.bounds)))

    def bound_parts(self, finished: Set[str], counted: Set[str], read_table: Callable[[str], pa.Table]) -> list[Any]:
        """Return the partial bounds of finished units whose inputs were all counted."""
        units = (unit for unit in self.bounds if unit.key in finished and counted >= set(unit.needs))
        return [value_of(unit, read_table(unit.key)) for unit in units]


@dataclass(frozen=True)
class Plan:
    """All units of a run.

    Attributes:
        spec: The spec that was planned.
        units: All units, each after the units it needs. A unit that two audits share is listed once, with the larger
            of their requests.
        audits: The units of each audit.
        shared: Large inputs by name.
        isolated: True if units that run without Ray run in a child process, because their code came with the spec.
    """

    spec: AuditSpec
    units: tuple[Unit, ...]
    audits: tuple[PlannedAudit, ...]
    shared: dict[str, Rows] = field(repr=False)
    isolated: bool = False

    def table(self) -> pa.Table:
        """Return one row for each unit: key, label, task, seed, needs, resources, pieces."""
        needs = arrow_array([list(unit.needs) for unit in self.units])
        columns = {
            "key": [unit.key for unit in self.units],
            "label": [unit.label for unit in self.units],
            "task": [unit.function_name for unit in self.units],
            "seed": [str(_argument(unit, "seed", "")) for unit in self.units],
            "needs": needs.cast(pa.list_(pa.string())),  # if all lists are empty
            "cpus": [unit.resources.cpus for unit in self.units],
            "gpus": [unit.resources.gpus for unit in self.units],
            "memory": [unit.resources.memory for unit in self.units],
            "custom": [unit.resources.custom_text for unit in self.units],
            "pieces": [pieces_of(unit) for unit in self.units],
        }
        return pa.table(
            {name: arrow_array(column) if isinstance(column, list) else column for name, column in columns.items()}
        )

    def needed(self, wanted: Iterable[str]) -> tuple[Unit, ...]:
        """Return the units with these keys and all units they need, in the order of the plan."""
        keys = set(wanted)
        for planned in reversed(self.units):  # a unit comes after the units it needs
            if planned.key in keys:
                keys |= set(planned.needs)
        return tuple(unit for unit in self.units if unit.key in keys)

    def prices(self) -> list[str]:
        """Return the expected cost of each unit that sends paid requests, as one line for each."""
        lines = []
        for planned in self.units:
            if isinstance(planned.task, Call):
                words = planned.task.price(Inputs({name: self.shared[name] for name in planned.shared}))
                lines += [f"{planned.label}: {words}"] if words else []
        return lines

    def price(self) -> str:
        """Return the expected cost of all paid requests, in words; "" if there are none or it is unknown."""
        runs = sum(pieces_of(unit) for unit in self.units if endpoints(unit.task))
        return "; ".join(self.prices()) or (f"about {runs:,} requests or more" if runs else "")


def pieces_of(unit: Unit) -> int:
    """Return the number of models, replays or releases of a unit: its `last` minus its `first`, 1 by default."""
    return max(1, int(_argument(unit, "last", 1)) - int(_argument(unit, "first", 0)))


def _argument(unit: Unit, name: str, default: Any) -> Any:
    return unit.task.argument(name, default) if isinstance(unit.task, Call) else default


def keys_of(units: Iterable[Unit]) -> tuple[str, ...]:
    return tuple(unit.key for unit in units)


def trainings_of(plan: Plan) -> dict[str, int]:
    """Return the number of models that each unit trains (target or shadow models), by key of units that train."""
    trains = {unit.key for entry in plan.audits for unit in (*entry.game.trainings, *entry.game.shadows)}
    return {unit.key: pieces_of(unit) for unit in plan.units if unit.key in trains}


@read_once()
def make_plan(spec: AuditSpec) -> Plan:
    """Load the data, whose content is part of every key, and plan every audit.

    Raises: InputError for a missing package that a part of the spec needs.
    """
    for audit in spec.audits:
        require_packages(audit)
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
        rows = loaded[source]
        wanted = audit.game.traits.rows_for(audit.mechanism)
        if not isinstance(rows, wanted):
            raise SpecError(f"{audit.name}: the game needs rows of class {wanted.__name__}, got {type(rows).__name__}")
        division = f"{source} {audit.split}"
        if division not in divided:  # audits with the same split share rows, reference model and digests
            divided[division] = audit.split.divide(loaded[source], Seed(spec.seed).child("split").rng())
        parts = divided[division]
        shared |= parts.shared()
        for entry, inputs in _planned(spec, audit, parts):
            if entry.game.trainings:
                _require_trainable(entry.audit, loaded[source])
                _require_divisible(spec, entry.audit, loaded[source])
            for each in (*entry.units, *entry.bounds):
                larger = each.resources.scarcity > units.setdefault(each.key, each).resources.scarcity
                if larger:  # the request of another audit that shares the unit is smaller
                    units[each.key] = each
            shared |= inputs
            planned.append(entry)
    require_units(len(units))
    return Plan(spec, tuple(units.values()), tuple(planned), shared)


def _require_trainable(audit: Audit, rows: Rows) -> None:
    """Raise SpecError if a model of the audit cannot be trained on the columns of `rows`."""
    if not isinstance(rows, Examples) or not len(rows):
        return
    rows = rows.take(np.arange(1))  # columns in shards are read for it
    parts = {"mechanism": audit.mechanism, "proxy": audit.proxy}
    for name, model in [(name, model) for name, part in parts.items() for model in _models(part, 4)]:
        try:
            model.require_features(rows)
        except InputError as err:
            kind = getattr(type(model), "registered_name", type(model).__name__)
            raise SpecError(f"{audit.name}: {name}: {kind} cannot be trained on these data: {err}") from err


def _require_divisible(spec: AuditSpec, audit: Audit, rows: Rows) -> None:
    """Raise SpecError if units of the audit would train on several GPUs what trains on one."""
    reference = audit.proxy if getattr(audit.proxy, "trains", True) else None
    requests = {
        "mechanism": (audit.mechanism, spec.resources_of(audit).gpus),
        "proxy": (getattr(reference, "model", reference), spec.run.resources.per_unit().gpus),
    }
    for name, (part, gpus) in requests.items():
        if gpus <= 1 or part is None or isinstance(part, LabelMechanism | BagMechanism):
            continue
        kind = getattr(type(part), "registered_name", type(part).__name__)
        if not isinstance(part, DividedTrainer) or not isinstance(rows, Examples):
            raise SpecError(
                f"{audit.name}: {name}: {kind} trains on one GPU, and `resources` request {gpus:g} for each unit. "
                "Request at most 1; more `workers` use more GPUs"
            )
        try:
            part.require_divisible(rows)
        except InputError as err:
            raise SpecError(f"{audit.name}: {name}: {kind} cannot be trained on {gpus:g} GPUs: {err}") from err


def _models(part: Any, depth: int) -> Iterator[FeatureChecker]:
    """Yield the parts of a mechanism that check features: itself or a model inside it, `depth` levels deep at most."""
    if isinstance(part, FeatureChecker):
        yield part
    elif depth and (inner := getattr(part, "model", None)) is not None:
        yield from _models(inner, depth - 1)


def planning_announcement(spec: AuditSpec) -> str:
    """Return what planning is about to generate, in words; "" if that takes less than about a second."""
    generated = {
        repr(audit.data): rows for audit in spec.audits if (rows := _generated_rows(audit.data)) >= ANNOUNCED_ROWS
    }
    if not generated:
        return ""
    units, rows = _fewest_units(spec), sum(generated.values())
    return f"planning at least {units:,} units on {rows:,} generated rows, which are made first"


def _generated_rows(data: Any) -> int:
    return 0 if hasattr(data, "path") else getattr(data, "rows", None) or 0


def _fewest_units(spec: AuditSpec) -> int:
    """Return a lower limit of the number of units of a spec, before any data are generated."""
    fewest: dict[str, int] = {}
    for audit in spec.audits:
        if hasattr(audit.game, "fewest_units"):
            # Audits of one mechanism on the same data may share units; a file may hold fewer rows than are asked for.
            mechanism_and_data = f"{audit.mechanism!r} {audit.data!r} {audit.split}"
            target = max(1, int(audit.split.target * (_generated_rows(audit.data) or 1)))
            units, with_scores = audit.game.fewest_units(target, _rows_per_unit(spec))
            counting = with_scores if spec.run.keep_scores else 0
            fewest[mechanism_and_data] = max(fewest.get(mechanism_and_data, 0), units + counting)
    return sum(fewest.values())


def _rows_per_unit(spec: AuditSpec) -> int:
    return KEPT_ROWS_PER_UNIT if spec.run.keep_scores else COUNTED_ROWS_PER_UNIT


def _planned(spec: AuditSpec, audit: Audit, parts: Parts) -> Iterator[tuple[PlannedAudit, dict[str, Any]]]:
    """Yield a planned audit and, if there is one, its confirmatory audit, whose units wait for the first result."""
    entry, shared = _plan_audit(spec, audit, parts, Seed(spec.seed))
    repeated = spec.together is not None and not entry.game.conditional
    last = spec.confirmatory(audit).estimator.confidence if repeated else None
    scope, of_check = spec.scope_of(audit), spec.together is not None
    yield dataclasses.replace(entry, last_confidence=last, scope=scope, of_check=of_check), shared
    if repeated or (audit.confirm and entry.game.conditional):
        # Tests of a check may stop early, so their units cannot be waited for: `run.policy` delays the confirmation.
        after = () if spec.together is not None else (*entry.tallies, *entry.controls)
        confirmation = spec.confirmatory(audit) if repeated else spec.confirmation(audit)
        seed = Seed(spec.seed).child("confirm", *([audit.name] if spec.together is not None else []))
        follows, shared = _plan_audit(spec, confirmation, parts, seed, after)
        first = audit.estimator.confidence if repeated else None
        follows = dataclasses.replace(follows, confirms=audit.name, confirmatory=repeated, first_confidence=first)
        yield dataclasses.replace(follows, scope=scope, of_check=of_check), shared


def _plan_audit(
    spec: AuditSpec, audit: Audit, parts: Parts, seed: Seed, after: tuple[str, ...] = ()
) -> tuple[PlannedAudit, dict[str, Any]]:
    resources = spec.resources_of(audit)
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
        reading=audit.game.traits.reading(stops_early=audit.stop is not None),
        after=after,
        first_seed=Seed(spec.seed),
        measures_ceiling=spec.sweep is not None,
        # Equal CPUs, so that a worker of any unit of the audit can run those that request less of the others.
        reference_resources=dataclasses.replace(spec.run.resources.per_unit(), cpus=resources.cpus),
        metrics=audit.metrics,
    )
    work = Work()
    game: Played = audit.game.play(setting, work)
    if spec.sweep is not None and not isinstance(audit.game, Coins):
        game = _with_utility(game, setting, work)
    counts = {unit.key: audit.estimator for unit in (*game.evidence, *game.ceiling)}
    counts |= {unit.key: control_estimator(audit.estimator, len(game.control)) for unit in game.control}
    keep_scores = spec.run.keep_scores
    units = [unit for unit in work.units.values() if keep_scores or unit.key not in counts]
    counted = {
        key: counting(counts[key], unit, keep_evidence=keep_scores) for key, unit in work.units.items() if key in counts
    }
    units += counted.values()
    evidence, controls, ceilings = (
        tuple(counted[unit.key] for unit in several) for several in (game.evidence, game.control, game.ceiling)
    )
    bounds = bound_units(audit.estimator, game, evidence, setting.reading, audit.name, resources.without_gpu)
    entry = PlannedAudit(
        audit,
        game,
        tuple(units),
        keys_of(game.evidence) if keep_scores else (),
        keys_of(evidence),
        keys_of(controls),
        keys_of(ceilings),
        setting.reading,
        tuple((part, len(getattr(parts, part))) for part in ("target", "reference", "test", "validation")),
        parts.target.name,
        bounds=bounds,
        state=_state_unit(setting, work, Seed(spec.seed)) if audit.game.traits.repeats_calls else None,
    )
    return entry, work.shared


def _with_utility(game: Played, setting: Setting, work: Work) -> Played:
    """Return the game with a training on the unchanged target part that measures utility, for a game without it."""
    if isinstance(setting.parts.target, TableRows):
        added = tuple(unit for unit in load("utility", "tables")(setting, work) if unit not in game.trainings)
        return dataclasses.replace(game, trainings=(*added, *game.trainings))
    if not (isinstance(setting.mechanism, Learner) and isinstance(setting.parts.target, Examples)):
        return game
    if not len(setting.parts.target) or not len(setting.parts.test):
        return game
    from dpaudit.engine.games.one_run.labelled import add_utility  # only sweeps need it

    measured = add_utility(setting, work, "utility, a training on the target part")
    return dataclasses.replace(game, trainings=(measured, *game.trainings))


def _state_unit(setting: Setting, work: Work, seed: Seed) -> Unit | None:
    """Return the unit that checks for state between calls, with the mechanism pickled before its first call."""
    if not len(setting.parts.target):
        return None
    from dpaudit.engine.planning.state_between_calls import detect_state, pickled_mechanism  # few games need it

    words = hashlib.sha256(call_text(setting.mechanism).encode()).hexdigest()[:16]
    pickled = work.share(f"as given: {words}", pickled_mechanism(setting.mechanism))
    return work.add(
        detect_state,
        setting.mechanism,
        pickled,
        setting.required_part("target"),
        seed=seed.child("memory"),
        label="the same data given twice",
        resources=setting.resources,
    )


WORTH_S = 1.0
"""Bounds that take less are computed by the driver: a unit costs milliseconds there, a second in the worst case."""
MAX_PARTS = 256
PARTS_IN_STEP = 4  # the number of parts is a multiple of it, so that as many workers end together
SHARING = 8
"""Largest number of parts that take the same tallies. Replays with close bounds share work in one part, and more
tallies to choose from bring closer ones together. Each part decodes all that it takes, in about 0.1 ms for a replay."""


def counting(estimator: Any, evidence: Unit, *, keep_evidence: bool) -> Unit:
    """Return the unit that counts the evidence of another unit."""
    return Work().add(
        count,
        estimator,
        evidence if keep_evidence else inlined(evidence),
        label=f"counting {evidence.label}" if keep_evidence else f"{evidence.label}, counted",
        resources=evidence.resources.without_gpu if keep_evidence else evidence.resources,
        returns=GenericAlias(list, estimator.tally_type),
    )


@unit
def count(estimator: Estimator[Any, Any], evidence: Iterable[Any]) -> Iterator[Any]:
    """Return the estimator's tally of each piece of evidence: replay, query or release."""
    return (estimator.tally(piece) for piece in evidence)


@unit
def bound_part(
    estimator: Estimator[Any, Any], tallies: tuple[list[Any], ...], *, pieces: int, share: int, shares: int
) -> Any:
    """Return one of `shares` parts of the bound on `tallies`, of `pieces` pieces of evidence in all."""
    some = [tally for group in tallies for tally in group]
    return estimator.part(some, pieces=pieces, share=share, shares=shares)


def bound_units(
    estimator: Estimator[Any, Any],
    game: Played,
    tallies: tuple[Unit, ...],
    reading: Reading,
    name: str,
    resources: Resources,
) -> tuple[Unit, ...]:
    """Return the units that compute the bounds of an audit.

    Each takes the tallies of consecutive units, as tables of the object store where they are there. Up to `SHARING`
    units take the same tallies and divide their replays and candidates.

    Returns: Nothing if the driver is as quick, or if the evidence is read in order, because it may end early.

    Args:
        tallies: Units that count, in the order of the evidence.
    """
    in_one_bound = reading is Reading.TOGETHER and (len(tallies), game.replays) != (1, 1)
    if estimator.part_type is None or reading is Reading.IN_ORDER or in_one_bound:
        return ()
    parts, work = _parts(estimator, game), Work()
    groups = min(len(tallies), math.ceil(parts / SHARING))
    for group in range(groups):
        shares = len(share_of(range(parts), group, groups))
        for share in range(shares):
            work.add(
                bound_part,
                estimator,
                share_of(tallies, group, groups),
                pieces=game.replays,
                share=share,
                shares=shares,
                label=f"bounds of {name}, part {len(work.units) + 1}/{parts}",
                resources=resources,
                returns=estimator.part_type,
            )
    return tuple(work.units.values())


def _parts(estimator: Estimator[Any, Any], game: Played) -> int:
    """Return the number of parts of the bounds of a game; 0 if the driver is as quick."""
    seconds = estimator.seconds(game.replays, 0 if game.reference is None else game.reference.rows)
    if seconds < WORTH_S:
        return 0
    return min(MAX_PARTS, PARTS_IN_STEP * math.ceil(seconds / estimator.part_s / PARTS_IN_STEP))
