"""Results of audits from their finished units: stored tallies are read by the estimator of the audit."""

from __future__ import annotations

import hashlib
import json
import math
import os
import pickle
import shutil
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar

import cloudpickle  # type: ignore[import-untyped]
import numpy as np
import pyarrow as pa

from dpaudit.actors.storage.store import UnitStore
from dpaudit.actors.unit import Inputs, Resources, Unit
from dpaudit.actors.values import decode
from dpaudit.actors.work import Outcome, outcome_metadata, value_of
from dpaudit.claims import Claim, ConvertedClaim
from dpaudit.engine.answer.record import Failure, Sensitivity, Verb
from dpaudit.engine.answer.result import AuditResult, SequentialProgress
from dpaudit.engine.answer.sensitivity import MAX_ROWS, ceiling_bound, factor_of_scores, p_value_of, planted_factor
from dpaudit.engine.answer.verdict import Verdict
from dpaudit.engine.games.protocol import BLIND, PlantedNoise, Reading
from dpaudit.engine.planning.plan import WORTH_S, PlannedAudit, keys_of
from dpaudit.engine.request.audit_spec import Audit
from dpaudit.engine.request.build import call_text
from dpaudit.estimators.bound import Bound
from dpaudit.estimators.finding import Finding
from dpaudit.estimators.one_run.right_guesses import OneRunTally
from dpaudit.estimators.one_run.signed_scores import Shiftable, control_estimator
from dpaudit.estimators.scores import Scores, SharedOrders
from dpaudit.mechanisms.compute import Compute
from dpaudit.mechanisms.queries.row_function import ALIKE, UNKNOWN, UNREADABLE, is_unreadable

if TYPE_CHECKING:
    from dpaudit.engine.answer.shift import ShiftControl
    from dpaudit.estimators.measures import Measure
    from dpaudit.estimators.two_world.betting import Betting

MOST_FOR_P = 50_000  # score rows of all replays up to which a p-value is computed, in about a second
SECONDS_FOR_P = 0.25  # longest computation of a bound with a p-value, which needs several bounds
ROC_SEED = 0  # seed of the split that chooses the threshold of the accuracy


def read_audit(
    entry: PlannedAudit,
    finished: Set[str],
    store: UnitStore,
    reader: SequentialReader | None = None,
    failures: Mapping[str, Failure] | None = None,
    evidence: Path | None = None,
    *,
    p_value: bool = True,
) -> AuditResult:
    """Return the result of an audit from its finished units.

    Args:
        store: Tables of units; only `read` and `schema` are called.
        evidence: Folder that will have the scores; None to compute the finding only.
        p_value: False to leave out the p-value, which takes up to a second.
    """
    audit = _Finished(entry, frozenset(finished), store, reader)
    if evidence is None:
        return audit.result(failures or {}, Path())
    result = audit.result(failures or {}, evidence)
    if p_value:
        p = audit.p_value(result)
        result = replace(result, p_value=p, first_p_value=p)
    sensitivity = result.sensitivity
    brief = result.verdict is Verdict.INCONCLUSIVE and sensitivity.noiseless
    if not (brief or result.verdict is Verdict.NO_VIOLATION) or result.on_proxy or sensitivity.one_outcome:
        return result
    return replace(result, sensitivity=audit.with_factor(sensitivity, result.compared.claim))


@dataclass(frozen=True)
class ReadAudit:
    """Task that reads an audit on a worker: bounds, sensitivity, ROC, p-value and all that pages print of them."""

    entry: PlannedAudit  # without tasks of units whose tables are not read
    evidence: Path  # as for `read_audit`
    p_value: bool
    metadata: Mapping[str, Mapping[bytes, bytes]] = field(default_factory=dict)  # of the units that it follows
    name: ClassVar[str] = "read_audit"

    @classmethod
    def unit(cls, entry: PlannedAudit, evidence: Path, *, p_value: bool) -> Unit:
        """Return the unit that reads an audit from the tables of its units."""
        game = entry.game
        scores = entry.scores
        if game.reference is not None and scores:  # more rows than `MAX_ROWS` are not read
            rows = game.replays * game.reference.rows
            scores = scores[: 2 + math.ceil(MAX_ROWS * len(scores) / max(1, rows))]
        facts = keys_of(each for each in (game.noise, game.planted) if each is not None)
        needs = (*entry.tallies, *entry.controls, *entry.ceilings, *keys_of(entry.bounds), *facts, *scores)
        needs = tuple(key for key in dict.fromkeys(needs) if key in entry.keys)
        return Unit(
            cls(_without_tasks(entry), evidence, p_value),
            f"estimate of {entry.audit.name}",
            needs=needs,
            resources=Resources(max(unit.resources.cpus for unit in entry.units)),
            key=answer_key(entry, p_value=p_value),
            follows=tuple(sorted(entry.keys.difference(needs))),
            is_answer=True,
        )

    def following(self, metadata: Mapping[str, Mapping[bytes, bytes]]) -> ReadAudit:
        return replace(self, metadata=metadata)

    def run(self, inputs: Inputs, compute: Compute) -> pa.Table:
        def schema(key: str) -> pa.Schema:
            return inputs.tables[key].schema if key in inputs.tables else pa.schema([], self.metadata.get(key))

        tables: Any = SimpleNamespace(read=inputs.tables.__getitem__, schema=schema)
        result = read_audit(self.entry, self.entry.keys, tables, evidence=self.evidence, p_value=self.p_value)
        result.prepare()
        return pa.table({"result": pa.array([cloudpickle.dumps(result)], pa.large_binary())})

    def value(self, table: pa.Table) -> AuditResult:
        # A worker of Ray may run any code anyway; no file of a run folder is unpickled.
        result: AuditResult = pickle.loads(table["result"][0].as_py())
        return result


def answer_key(entry: PlannedAudit, *, p_value: bool) -> str:
    """Return the key of an audit's answer: equal for equal evidence, claims and options, within this process."""
    bare = replace(entry.audit, data=None)
    confidences = entry.first_confidence, entry.last_confidence
    facts = bare, entry.effective_claim, confidences, entry.scope, entry.of_check, entry.confirms, p_value
    text = repr((facts, entry.scores, entry.tallies, entry.controls, entry.ceilings, sorted(entry.keys)))
    return f"estimate-{hashlib.sha256(text.encode()).hexdigest()[:32]}"


def _without_tasks(entry: PlannedAudit) -> PlannedAudit:
    """Return the entry without data, and with units reduced to their keys, except those whose values are read."""
    no_task: Any = None

    def bare(units: Iterable[Unit]) -> tuple[Unit, ...]:
        return tuple(Unit(no_task, "", key=unit.key) for unit in units)

    names = ("evidence", "trainings", "control", "ceiling", "choices", "shadows")
    parts: dict[str, Any] = {name: bare(getattr(entry.game, name)) for name in names}
    game = replace(entry.game, where=None, **parts)
    return replace(entry, audit=replace(entry.audit, data=None), game=game, units=bare(entry.units), state=None)


class _Finished:
    """The finished units of one audit."""

    def __init__(
        self, entry: PlannedAudit, finished: frozenset[str], store: UnitStore, reader: SequentialReader | None
    ) -> None:
        self._entry = entry
        self._audit: Audit = entry.audit
        self._keys = finished
        self._store = store
        self._reader = reader
        counted = reader.tallies if reader else tuple(key for key in entry.tallies if key in self._keys)
        groups = {key: self._decoded([key]) for key in counted}
        self._tallies = [tally for group in groups.values() for tally in group]
        self._parts = entry.bound_parts(self._keys, groups.keys(), store.read)

    def result(self, failures: Mapping[str, Failure], evidence: Path) -> AuditResult:
        """Return the result; it names the folder `evidence`, which holds the linked scores."""
        entry, audit = self._entry, self._audit
        compared: ConvertedClaim = audit.game.traits.compared(entry.effective_claim)
        control = self._control()
        conditional = entry.game.conditional or (control is not None and control.shift_detected)
        scores = self._scores_for_roc()
        finding = self._finding(conditional=conditional)
        measured: tuple[Measure, ...] = ()
        if scores and isinstance(finding, Bound):
            from dpaudit.estimators.measures import measures, roc  # only games that ask who was trained on

            finding = replace(finding, series={**finding.series, "trade-off": roc(scores[0])})
            measured = measures(
                scores, confidence=finding.confidence, seed=ROC_SEED, epsilon=finding.lower, delta=finding.delta
            )
        keys = entry.keys
        trainings = [key for key in entry.trainings if key not in entry.choices]
        notes = tuple(dict.fromkeys(note for report in self._reports(trainings) for note in report.notes))
        chosen = tuple(note for report in self._reports(entry.choices) for note in report.notes)
        at_first: Finding | None = None  # of a confirmatory run that does not reject
        if entry.first_confidence is not None and finding and not finding.violation_point(compared.claim.curve):
            estimator = replace(audit.estimator, confidence=entry.first_confidence)
            at_first = estimator.find(self._tallies, failed_replays=self._failed_replays)
        differing = self._parts_of_equal_results(trainings, scores)
        names = ("game", "attack", "proxy", "estimator")
        parts: dict[str, Any] = {name: getattr(audit, name) for name in names}
        run_on, noise = audit.game.traits.run_on, entry.game.noise
        failing = dict.fromkeys((*entry.trainings, *(entry.scores or entry.tallies)))
        return AuditResult(
            name=audit.name,
            scope=entry.scope,
            verb=Verb.CHECK if entry.of_check else Verb.RUN,
            mechanism=call_text(audit.mechanism),
            game="; ".join(f"{kind} {call_text(part)}" for kind, part in parts.items() if part is not None),
            claimed=entry.effective_claim,
            compared=compared,
            finding=finding,
            metrics=self._metrics(),
            rows=dict(entry.rows),
            run_on=None if run_on is None else run_on(audit.game, dict(entry.rows)["target"])[0],
            noise=value_of(noise, self._store.read(noise.key)) if noise and noise.key in self._keys else None,
            data=entry.data_name,
            units=(len(keys & self._keys), len(keys)),
            assumes=audit.game.traits.assumed,
            observational=entry.game.observational,
            failures=tuple(failure for key, failure in failures.items() if key in keys),
            on_proxy=conditional,
            control=control,
            control_lost=any(key not in self._keys for key in entry.controls),
            planted_next=audit.confirm,
            rows_needed=self._rows_needed(finding, compared.claim) if conditional else None,
            sensitivity=replace(
                Sensitivity() if differing is not None else self._sensitivity(finding),
                reference_failed=not self._keys.issuperset(entry.ceilings),
                one_outcome=differing is not None,
                blind="; ".join(note.removeprefix(BLIND) for note in dict.fromkeys(chosen) if note.startswith(BLIND)),
            ),
            failed_trials=tuple(failure for report in self._reports(failing) for failure in report.failures),
            warnings=tuple(note for note in notes if not is_unreadable(note) and not note.startswith(ALIKE)),
            unreadable=tuple(note.removeprefix(UNREADABLE) for note in notes if is_unreadable(note))
            + ((f"all parts that can be read are equal; {', '.join(differing)} may differ",) if differing else ()),
            chosen=tuple(note for note in chosen if not note.startswith(BLIND)),
            meaning_for_whole=entry.game.whole(finding, compared.claim) if entry.game.whole and finding else (),
            stopped=self._reader.stopped(self._keys) if self._reader else None,
            evidence=str(evidence),
            audited=audit.mechanism,
            at_first_confidence=at_first,
            measures=measured,
            guess_counts=tuple(tally for tally in self._tallies if isinstance(tally, OneRunTally)),
            failed_replays=self._failed_replays,
        )

    def _parts_of_equal_results(self, trainings: Sequence[str], scores: Sequence[Scores]) -> tuple[str, ...] | None:
        """Return the unread parts that may differ if all results are equal; None if results differ."""
        answers: list[Any] = [getattr(tally, "answers_given", None) for tally in self._tallies]  # private prediction
        if answers and None not in answers:
            if any(len(different) > 1 for different in answers):
                return None
            return ("the predictor besides its answers",) if len(set(answers)) == 1 else ()
        if scores and len({number for replay in scores for number in (replay.score.min(), replay.score.max())}) == 1:
            return ("the models besides their predictions",)
        return differing_parts([report.notes for report in self._reports(trainings)])

    def _scores_for_roc(self) -> list[Scores]:
        """Return the scores of the first replays if the game asks who was trained on; none if they were not stored."""
        if not self._audit.game.traits.asks_membership:
            return []
        replays: list[Scores] = []
        for key in self._entry.scores:
            if key in self._keys and sum(scores.score.size for scores in replays) < MAX_ROWS:
                replays += decode(self._store.read(key), Scores)
        return [scores for scores in replays if scores.truth.any() and not scores.truth.all()]

    @property
    def _failed_replays(self) -> int:
        """Number of planned replays without a tally; each counts as a bound of 0."""
        game = self._entry.game
        return game.replays - len(self._tallies) if self._entry.reading is Reading.PER_REPLAY else 0

    def _finding(self, *, conditional: bool) -> Finding | None:
        """Return the finding, with failed replays counted as 0; None if too much is missing."""
        together = self._entry.reading is Reading.TOGETHER
        if not self._tallies or (together and len(self._tallies) < len(self._entry.tallies)):
            return None
        bounds = {"parts": self._parts} if self._parts else {}
        finding: Finding = self._audit.estimator.find(self._tallies, failed_replays=self._failed_replays, **bounds)
        return finding.conditional_on_proxy() if conditional and isinstance(finding, Bound) else finding

    def p_value(self, result: AuditResult) -> float | None:
        """Return an upper limit of the p-value of the claim; None if nothing is sampled or bounds take long."""
        estimator: Any = self._audit.estimator
        finding, curve = result.finding, result.compared.claim.curve
        if finding is None or finding.confidence is None or not hasattr(estimator, "confidence"):
            return None
        rows = self._entry.game.reference.rows if self._entry.game.reference is not None else 0
        replays = len(self._tallies)
        if replays * rows > MOST_FOR_P or estimator.seconds(replays, rows) > SECONDS_FOR_P:
            return None
        return p_value_of(estimator, self._tallies, finding, curve, failed_replays=self._failed_replays)

    def _control(self) -> ShiftControl | None:
        """Return the negative control: the same game on held-out rows."""
        if not self._tallies or not self._held_out:
            return None
        from dpaudit.engine.answer.shift import shift_control  # few audits have a control

        where = self._entry.game.controlled_on
        return shift_control(
            self._audit.estimator, self._tallies, self._held_out, where=where, failed_replays=self._failed_replays
        )

    def _rows_needed(self, finding: Finding | None, claim: Claim) -> int | None:
        """Return the number of held-out rows that would decide about a finding that exceeds the claim."""
        estimator = self._audit.estimator
        if finding is None or finding.violation_point(claim.curve) is None or not isinstance(estimator, Shiftable):
            return None
        from dpaudit.engine.answer.shift import rows_to_decide

        claimed = finding.comparison(claim.curve).claimed
        return rows_to_decide(
            estimator.unshifted(), self._tallies, self._held_out, epsilon=claimed, failed_replays=self._failed_replays
        )

    @cached_property
    def _held_out(self) -> list[list[Any]]:
        """Tallies of the negative control, by distinguisher."""
        keys = [key for key in self._entry.controls if key in self._keys]
        if not keys:
            return []
        kind = control_estimator(self._audit.estimator, len(keys)).tally_type
        return [decode(self._store.read(key), kind) for key in keys]

    def _sensitivity(self, finding: Finding | None) -> Sensitivity:
        """Return the finding for a mechanism with no privacy, measured or computed from the game's reference.

        The attack may be weaker on a training without privacy; then the maximum is the finding of the audit itself.
        """
        entry, estimator = self._entry, self._audit.estimator
        if entry.ceilings:
            tallies = self._decoded(entry.ceilings) if self._keys.issuperset(entry.ceilings) else []
            maximum = estimator.find(tallies) if tallies else None
        elif entry.game.reference is not None:
            maximum = ceiling_bound(estimator, entry.game.reference)
        else:
            maximum = None
        if maximum is None:
            return Sensitivity()
        if isinstance(finding, Bound) and isinstance(maximum, Bound) and finding.lower > maximum.lower:
            maximum = finding
        traits, played = self._audit.game.traits, bool(entry.ceilings)
        return Sensitivity(
            maximum=maximum, played=played, noiseless=entry.game.noiseless, helps=traits.helps, tried=traits.tried
        )

    def with_factor(self, sensitivity: Sensitivity, claim: Claim) -> Sensitivity:
        """Return the sensitivity with the detectable scaling of the noise, if the scores allow it."""
        entry = self._entry
        estimator: Any = self._audit.estimator
        if not issubclass(estimator.evidence, Scores):
            return sensitivity
        scores: list[Scores] = []
        rows = 0
        for key in entry.scores:
            if key in self._keys:
                table = self._store.read(key)
                scores += decode(table, SharedOrders if "further" in table.column_names else estimator.evidence)
                rows = sum(table.score.size for table in scores)
            if rows > MAX_ROWS:  # stop reading early
                return sensitivity
        replays = len(self._tallies) if entry.reading is Reading.PER_REPLAY else 1
        if not scores or estimator.seconds(replays, rows // replays) / replays > WORTH_S / 4:
            return sensitivity
        sure = replace(estimator, confidence=entry.last_confidence or estimator.confidence)
        planted, stated = self._planted(), entry.effective_claim
        if planted is not None and stated.is_point and not stated.delta and stated.epsilon not in (0, math.inf):
            factor = planted_factor(sure, planted, stated.epsilon, rows // replays, claim.curve, replays=replays)
            return replace(sensitivity, factor=factor)
        return replace(sensitivity, **factor_of_scores(sure, scores, claim.curve, replays=replays))

    def _planted(self) -> PlantedNoise | None:
        """Return the log-odds at planted noise scales; None if unknown, or if the claim has another relation."""
        unit, entry = self._entry.game.planted, self._entry
        if unit is None or unit.key not in self._keys:
            return None
        if entry.effective_claim.relation is not entry.audit.mechanism.claim().relation:
            return None
        planted: PlantedNoise = value_of(unit, self._store.read(unit.key))
        return planted

    def _decoded(self, keys: Sequence[str]) -> list[Any]:
        kind = self._audit.estimator.tally_type
        return [tally for key in keys for tally in decode(self._store.read(key), kind)]

    def _metrics(self) -> dict[str, float]:
        """Return utility metrics, averaged over the trainings that measured them."""
        measured = [report.metrics for report in self._reports(self._entry.trainings) if report.metrics]
        names = dict.fromkeys(name for metrics in measured for name in metrics)
        return {name: float(np.mean([metrics[name] for metrics in measured if name in metrics])) for name in names}

    def _reports(self, keys: Iterable[str]) -> list[Outcome[None]]:
        """Return the notes, metrics and failures of finished units."""
        return [outcome_metadata(self._store.schema(key)) for key in keys if key in self._keys]


def link_scores(
    entry: PlannedAudit, finished: Set[str], store: UnitStore, reader: SequentialReader | None, target: Path
) -> None:
    """Link the score tables of an audit into `target` as `<number>.parquet`, in the order of the plan."""
    shutil.rmtree(target, ignore_errors=True)
    for number, key in enumerate(entry.scores[: len(reader.tallies)] if reader else entry.scores):
        if key in finished:
            target.mkdir(parents=True, exist_ok=True)
            source, link = Path(store.path(key)), target / f"{number:05d}.parquet"
            try:
                os.link(source, link)  # a hard link needs no copy
            except OSError:
                shutil.copyfile(source, link)


def differing_parts(notes: Sequence[Sequence[str]]) -> tuple[str, ...] | None:
    """Return the unread parts that differ or may differ, from the notes of each unit; None if results differ.

    Equal results show no leak, and no leak would show in them. If some part of the results, the printed text or the
    files was not read and differs, nothing is known about the claim.
    """
    alike = [json.loads(note.removeprefix(ALIKE)) for unit in notes for note in unit if note.startswith(ALIKE)]
    if not alike or len(alike) != len(notes) or len({unit["result"] for unit in alike}) > 1:
        return None
    whats = dict.fromkeys(what for unit in alike for what in unit["unread"])
    checksums = {what: {each for unit in alike for each in unit["unread"].get(what, [""])} for what in whats}
    return tuple(what for what, different in checksums.items() if len(different) > 1 or UNKNOWN in different)


# Sequential audits


def is_hopeless(log_wealth: float, share: float, confidence: float) -> bool:
    """True if, after this share of all trials, the wealth is too low to make a rejection by the end likely.

    Of a thousand streams that reject by their last trial, a handful cross this line (`docs/data/futility.csv`).
    """
    return 0.5 <= share < 1 and log_wealth < (1.2 * share - 1.05) * -math.log1p(-confidence)


class SequentialReader:
    """Reads the tallies of one audit in the order of the plan until the stopping rule is met.

    This needs an anytime-valid estimator. It always reads a prefix of the plan, whichever trials finish first, because
    the duration of a trial may depend on the audited data. The same spec therefore stops at the same trial on one
    worker, on many workers and after a resume.

    Attributes:
        tallies: Keys of the tallies read so far, a prefix of those planned.
        reason: Why reading stopped; "" while it continues.
    """

    def __init__(self, entry: PlannedAudit, store: UnitStore) -> None:
        assert entry.audit.stop is not None
        self.entry = entry
        self.tallies: tuple[str, ...] = ()
        self.reason = ""
        self._store = store
        self._rule = entry.audit.stop
        self._estimator: Betting = entry.audit.estimator
        self._state = self._estimator.start()
        self._claimed = entry.audit.game.traits.compared(entry.effective_claim).claim.epsilon

    def advance(self, finished: Set[str], failed: Set[str]) -> None:
        """Read further tallies, up to the first missing one or until the stopping rule is met."""
        planned = len(self.entry.tallies)
        while not self.reason and len(self.tallies) < planned:
            key = self.entry.tallies[len(self.tallies)]
            if key in failed:
                # Skipping the trials of a failed unit would bias the bound; stopping before them does not.
                self.reason = "a unit failed, and trials after it are not read. Run again to retry it"
            if key not in finished:
                return
            for trials in decode(self._store.read(key), self._estimator.tally_type):
                self._state = self._estimator.update(self._state, trials)
            self.tallies += (key,)
            lower = self._state.lower
            self.reason = self._rule.reached(lower, self._state.trials, self._claimed)
            if self.reason or not self._rule.hopeless or self.entry.confirms or math.isinf(self._claimed):
                continue
            wealth, share = self._estimator.log_wealth(self._state, self._claimed), len(self.tallies) / planned
            if is_hopeless(wealth, share, self._estimator.confidence):
                self.reason = "the remaining trials are unlikely to reject the claim"

    def stopped(self, finished: Set[str]) -> SequentialProgress:
        """Return the progress, given the keys of finished units."""
        trainings = self.entry.trainings
        return SequentialProgress(self.reason, sum(key in finished for key in trainings), len(trainings))
