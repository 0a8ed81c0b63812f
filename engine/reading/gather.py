"""From finished units to results: what was stored is gathered, audit by audit, and read by the audit's estimator.

The smallest under-noising that an audit would refute is judged from the scores it has.
"""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

from dpaudit.actors.storage.store import UnitStore
from dpaudit.actors.values import decode
from dpaudit.actors.work import Outcome, beside, value_of
from dpaudit.claims import Claim, ConvertedClaim, PrivacyCurve
from dpaudit.engine.games.protocol import PlantedNoise, Reading
from dpaudit.engine.games.reference import GuessLevels
from dpaudit.engine.planning.plan import WORTH_S, PlannedAudit, bound_seconds, control_estimator
from dpaudit.engine.planning.power import ceiling_bound
from dpaudit.engine.planning.sensitivity_words import MOST_SCALED, POWER
from dpaudit.engine.reading.result import AuditResult, Ceiling, Failure
from dpaudit.engine.reading.shift import ShiftControl, rows_to_decide, shift_control
from dpaudit.engine.reading.stopping import SequentialReader
from dpaudit.engine.reading.verdict import Verdict
from dpaudit.engine.request.audit_spec import Audit
from dpaudit.engine.request.describe import in_words
from dpaudit.estimators.bisection import last_true
from dpaudit.estimators.bound import Bound
from dpaudit.estimators.finding import Finding
from dpaudit.estimators.one_run.signed_scores import Shiftable
from dpaudit.estimators.scores import Scores
from dpaudit.mechanisms.queries.outcome import UNREADABLE, is_unreadable

MAX_ROWS = 1 << 21  # of all replays: more take longer than a reader waits
MOST_FOR_P = 50_000  # rows of all replays up to which a p-value is computed: a second
SECONDS_FOR_P = 0.25  # of one bound, of which a p-value takes several
_LEVELS = 16  # of scores, each with as many trials
_PRECISION = 1.02
_DOUBT = 0.01  # probability that trials tell less than is taken
_EACH = special.ndtri(1 - (1 - POWER) / 2)  # luck below which neither the first pass nor the confirmatory run falls


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
    """Return the result of an audit from what is finished of it.

    Args:
        evidence: The folder that its scores are linked into; None: nothing is linked, and only the finding is read.
        p_value: False to leave out the p-value, which takes up to a second.
    """
    found = _Finished(entry, frozenset(finished), store, reader)
    if evidence is None:
        return found.result(failures or {}, Path())
    found.link_scores(evidence)
    result = found.result(failures or {}, evidence)
    if p_value:
        result = replace(result, p_value=found.p_value(result))
    brief = result.verdict is Verdict.INCONCLUSIVE and result.ceiling is not None and result.ceiling.noiseless
    if not (brief or result.verdict is Verdict.NO_VIOLATION) or result.conditional:
        return result
    return replace(result, detectable_factor=found.detectable_factor(result.compared.claim))


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
        """The audit's result."""
        entry, audit = self._entry, self._audit
        compared: ConvertedClaim = audit.game.fits.compared(entry.effective_claim)
        control = self._control()
        conditional = entry.game.conditional or (control is not None and control.shift_detected)
        finding = self._finding(conditional=conditional)
        keys = entry.keys
        notes = tuple(dict.fromkeys(note for said in self._said(entry.trainings) for note in said.notes))
        return AuditResult(
            name=audit.name,
            mechanism=in_words(audit.mechanism),
            game=_game_in_words(audit),
            claimed=entry.effective_claim,
            compared=compared,
            finding=finding,
            metrics=self._metrics(),
            rows=dict(entry.rows),
            run_on=self._run_on(),
            noise=self._noise(),
            data=entry.data_name,
            units=(len(keys & self._keys), len(keys)),
            assumes=audit.game.fits.assumed,
            observational=entry.game.observational,
            failures=tuple(failure for key, failure in failures.items() if key in keys),
            conditional=conditional,
            control=control,
            control_lost=any(key not in self._keys for key in entry.controls),
            confirm=audit.confirm,
            rows_needed=self._rows_needed(finding, compared.claim) if conditional else None,
            ceiling=self._ceiling(),
            ceiling_lost=not self._keys.issuperset(entry.ceilings),
            failed_trials=self._failed_trials(),
            said=tuple(note for note in notes if not is_unreadable(note)),
            unreadable=tuple(note.removeprefix(UNREADABLE) for note in notes if is_unreadable(note)),
            chosen=tuple(note for said in self._said(entry.choices) for note in said.notes),
            whole=entry.game.whole(finding, compared.claim) if entry.game.whole and finding else (),
            stopped=self._reader.stopped(self._keys) if self._reader else None,
            evidence=str(evidence),
            audited=audit.mechanism,
            at_first_confidence=self._at_first_confidence(finding, compared.claim),
        )

    def _run_on(self) -> int | None:
        """On how many rows one run of the mechanism was; None where the game decides that by itself."""
        game = self._audit.game
        return None if game.fits.run_on is None else game.fits.run_on(game, dict(self._entry.rows)["target"])[0]

    def _noise(self) -> Any:
        """What its noise looks like; None where that was not looked at."""
        look = self._entry.game.noise
        return value_of(look, self._store.read(look.key)) if look is not None and look.key in self._keys else None

    @property
    def _lost(self) -> int:
        """Replays that failed: each is a bound of 0, one for each that was planned and is not there."""
        game = self._entry.game
        return game.replays - len(self._tallies) if self._entry.reading is Reading.PER_REPLAY else 0

    def _finding(self, *, conditional: bool) -> Finding | None:
        """What failed counts against it; None when nothing is left to read, or too much is missing."""
        together = self._entry.reading is Reading.TOGETHER
        if not self._tallies or (together and len(self._tallies) < len(self._entry.tallies)):
            return None
        apart = {"parts": self._parts} if self._parts else {}
        finding: Finding = self._audit.estimator.find(self._tallies, lost=self._lost, **apart)
        return finding.on_a_proxy() if conditional and isinstance(finding, Bound) else finding

    def p_value(self, result: AuditResult) -> float | None:
        """Return an upper limit of the p-value of the claim; None where nothing is sampled or bounds take long."""
        estimator: Any = self._audit.estimator
        finding, curve = result.finding, result.compared.claim.curve
        if finding is None or finding.confidence is None or not hasattr(estimator, "confidence"):
            return None
        rows = self._entry.game.reference.rows if self._entry.game.reference is not None else 0
        replays = len(self._tallies)
        if replays * rows > MOST_FOR_P or bound_seconds(estimator, replays, rows) > SECONDS_FOR_P:
            return None
        return p_value_of(estimator, self._tallies, finding, curve, lost=self._lost)

    def _at_first_confidence(self, finding: Finding | None, claim: Claim) -> Finding | None:
        """Of a confirmatory run that refutes nothing: its evidence read at the confidence of the first pass."""
        if self._entry.first_confidence is None or finding is None or finding.violation_point(claim.curve):
            return None
        estimator = replace(self._audit.estimator, confidence=self._entry.first_confidence)
        read: Finding = estimator.find(self._tallies, lost=self._lost)
        return read

    def _control(self) -> ShiftControl | None:
        """The game where the mechanism remembers nothing."""
        if not self._tallies:
            return None
        where = self._entry.game.controlled_on
        return shift_control(self._audit.estimator, self._tallies, self._held_out, where=where, lost=self._lost)

    def _rows_needed(self, finding: Finding | None, claim: Claim) -> int | None:
        """Rows of the control that would decide about a finding that exceeds the claim."""
        estimator = self._audit.estimator
        if finding is None or finding.violation_point(claim.curve) is None or not isinstance(estimator, Shiftable):
            return None
        claimed = finding.comparison(claim.curve).claimed
        return rows_to_decide(estimator.unshifted(), self._tallies, self._held_out, epsilon=claimed, lost=self._lost)

    @cached_property
    def _held_out(self) -> list[list[Any]]:
        """The tallies of each distinguisher that was played."""
        keys = [key for key in self._entry.controls if key in self._keys]
        if not keys:
            return []
        kind = control_estimator(self._audit.estimator, len(keys)).tally_type
        return [decode(self._store.read(key), kind) for key in keys]

    def _ceiling(self) -> Ceiling | None:
        """What a mechanism with no privacy would show: as played, or as the game says without."""
        entry, estimator = self._entry, self._audit.estimator
        if entry.ceilings:
            found = self._decoded(entry.ceilings) if self._keys.issuperset(entry.ceilings) else []
            finding = estimator.find(found) if found else None
        elif entry.game.reference is not None:
            finding = ceiling_bound(estimator, entry.game.reference)
        else:
            finding = None
        played = bool(entry.ceilings)
        helps = self._audit.game.fits.helps
        return None if finding is None else Ceiling(finding, played, entry.game.noiseless, helps)

    def detectable_factor(self, claim: Claim) -> float | None:
        """How many times smaller than it is the noise must be to be found; None where the scores cannot say."""
        entry = self._entry
        estimator: Any = self._audit.estimator
        if not issubclass(estimator.evidence, Scores):
            return None
        scores: list[Scores] = []
        rows = 0
        for key in entry.scores:
            if key in self._keys:
                scores += decode(self._store.read(key), estimator.evidence)
                rows = sum(each.score.size for each in scores)
            if rows > MAX_ROWS:  # no more of them are read than are looked at
                return None
        replays = len(self._tallies) if entry.reading is Reading.PER_REPLAY else 1
        if not scores or bound_seconds(estimator, replays, rows // replays) / replays > WORTH_S / 4:
            return None
        sure = replace(estimator, confidence=entry.last_confidence or estimator.confidence)
        planted, stated = self._planted(), entry.effective_claim
        if planted is None or not stated.is_point or stated.delta > 0 or stated.epsilon in (0, math.inf):
            return detectable_factor(sure, scores, claim.curve, replays=replays)
        return planted_factor(sure, planted, stated.epsilon, rows // replays, claim.curve, replays=replays)

    def _planted(self) -> PlantedNoise | None:
        """What releases reveal at other epsilons; None where that is not known, or the claim has other neighbours."""
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
        """Utility, averaged over the trainings that measured it."""
        measured = [said.metrics for said in self._said(self._entry.trainings) if said.metrics]
        names = measured[0] if measured else {}
        return {name: float(np.mean([metrics[name] for metrics in measured])) for name in names}

    def _failed_trials(self) -> tuple[str, ...]:
        """What went wrong in single trials: in the units that ran the mechanism, and where they were scored."""
        entry = self._entry
        keys = dict.fromkeys((*entry.trainings, *(entry.scores or entry.tallies)))
        return tuple(failure for said in self._said(keys) for failure in said.failures)

    def _said(self, keys: Iterable[str]) -> list[Outcome[None]]:
        """What finished units said beside their values."""
        return [beside(self._store.schema(key)) for key in keys if key in self._keys]

    def link_scores(self, target: Path) -> None:
        """`<part>.parquet` in the order of the plan: the same files whoever ran the units."""
        shutil.rmtree(target, ignore_errors=True)
        keys = self._entry.scores
        for number, key in enumerate(keys[: len(self._reader.tallies)] if self._reader else keys):
            if key in self._keys:
                target.mkdir(parents=True, exist_ok=True)
                _link(Path(self._store.path(key)), target / f"{number:05d}.parquet")


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)  # the same bytes under a second name: no copy
    except OSError:
        shutil.copyfile(source, target)


def _game_in_words(audit: Audit) -> str:
    parts: dict[str, Any] = {
        "game": audit.game,
        "attack": audit.attack,
        "proxy": audit.proxy,
        "estimator": audit.estimator,
    }
    return "; ".join(f"{kind} {in_words(part)}" for kind, part in parts.items() if part is not None)


ERRORS = (1e-6, 1e-5, 1e-4, 1e-3, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2)
"""Levels of a p-value."""


def p_value_of(
    estimator: Any, tallies: Sequence[Any], finding: Finding, curve: PrivacyCurve, *, lost: int = 0
) -> float:
    """Return the smallest of `ERRORS` at which the bound exceeds the claim, an upper limit of its p-value; 1 if none.

    A bound at confidence 1 - p that exceeds the claim is a test of level p.

    Args:
        finding: What the estimator found of the tallies at its own confidence.
        curve: The claim's.
        lost: Replays that failed.
    """

    def exceeds(error: float) -> bool:
        if math.isclose(error, 1 - estimator.confidence):
            return finding.violation_point(curve) is not None
        asked = replace(estimator, confidence=1 - error)
        read = asked.bound if hasattr(asked, "bound") else asked.find  # a bound alone has nothing to draw
        return read(tallies, lost=lost).violation_point(curve) is not None

    low, high = 0, len(ERRORS)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if exceeds(ERRORS[middle]) else (middle + 1, high)
    return ERRORS[low] if low < len(ERRORS) else 1.0


def detectable_factor(
    estimator: Any, evidence: Sequence[Scores], curve: PrivacyCurve, *, replays: int = 1
) -> float | None:
    """The smallest factor on the noise, to 2 %, that would be refuted with probability `POWER`.

    Noise that is c times too small makes the log-odds that a trial tells c times as large: exactly so for randomised
    response and the tails of Laplace noise, at least so for Gaussian noise. How much trials tell is learned from the
    scores themselves, and taken at the lower end of what their number of right guesses allows.

    Args:
        estimator: Of `Scores` or `StepScores`, at the confidence of the verdict.
        evidence: The scores of the audit; those of all replays are taken together.
        curve: The claim's, in the relation of the game.
        replays: Bounds that are combined by their median, >= 1.
    Returns: A factor in [1, 8]; None where the scores tell too little to name one, or are none, or more than 2,097,152.
    """
    if not 0 < sum(each.score.size for each in evidence) <= MAX_ROWS:
        return None
    score = np.concatenate([each.score for each in evidence])
    truth = np.concatenate([each.truth for each in evidence])
    levels = _levels(score, truth, replays)
    if levels is None:
        return None
    rows = max(2, score.size // replays)
    if not _refuted(estimator, levels, MOST_SCALED, rows, curve, replays):
        return None
    low, high = 1.0, MOST_SCALED
    if _refuted(estimator, levels, low, rows, curve, replays):
        return low
    while high / low > _PRECISION:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if _refuted(estimator, levels, middle, rows, curve, replays) else (middle, high)
    return high


def planted_factor(
    estimator: Any, planted: PlantedNoise, epsilon: float, rows: int, curve: PrivacyCurve, *, replays: int = 1
) -> float:
    """The smallest factor on the noise that would be refuted with probability `POWER`, of those that were planted.

    Args:
        estimator: As in `detectable_factor`; so are `curve` and `replays`.
        planted: What a trial tells at several epsilons.
        epsilon: The claim's: at that one the noise is not too small.
        rows: Trials of a replay.
    Returns: A factor in [1, 8]; inf where none of them would be refuted.
    """
    for each in np.unique(planted.epsilon[(planted.epsilon >= epsilon) & (planted.epsilon <= MOST_SCALED * epsilon)]):
        log_odds = planted.log_odds[planted.epsilon == each]
        levels = GuessLevels(np.full(log_odds.size, 1 / log_odds.size), log_odds)
        if _refuted(estimator, levels, 1.0, rows, curve, replays):
            return float(each / epsilon)
    return math.inf


def _levels(score: NDArray[np.float64], truth: NDArray[np.bool_], replays: int) -> GuessLevels | None:
    """What trials tell, level by level of their scores; None where it may be nothing.

    Replays may share a training, so their guesses count as those of one.
    """
    _, place = np.unique(score, return_inverse=True)
    if place.max() >= _LEVELS:
        place = np.argsort(np.argsort(place, kind="stable"), kind="stable") * _LEVELS // place.size
    trials, ones = _pooled(np.bincount(place), np.bincount(place, weights=truth))
    log_odds = np.log((ones + 0.5) / (trials - ones + 0.5))
    right, rows = np.where(log_odds > 0, ones, trials - ones).sum() / replays, truth.size / replays
    surely = float(special.betaincinv(right, rows - right + 1, _DOUBT))
    share = trials / truth.size
    if surely <= 0.5:
        return None

    def accuracy(scale: float) -> float:
        return float(share @ special.expit(scale * np.abs(log_odds))) - surely

    scale = 1.0 if accuracy(1.0) <= 0 else last_true(lambda scale: accuracy(scale) <= 0, 0.0, 1.0)
    return GuessLevels(share, scale * log_odds)


def _pooled(trials: NDArray[Any], ones: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Levels put together until the share of ones rises from each to the next: isotonic regression."""
    kept: list[tuple[float, float]] = []
    for block in zip(trials.tolist(), ones.tolist(), strict=True):
        while kept and kept[-1][1] * block[0] >= block[1] * kept[-1][0]:
            before = kept.pop()
            block = before[0] + block[0], before[1] + block[1]
        kept.append(block)
    pooled = np.array(kept, np.float64)
    return pooled[:, 0], pooled[:, 1]


def _refuted(estimator: Any, levels: GuessLevels, factor: float, rows: int, curve: PrivacyCurve, replays: int) -> bool:
    typical = GuessLevels(levels.share, factor * levels.log_odds).typical(rows, z=-_EACH)
    tally = estimator.tally(estimator.evidence(typical.score, typical.truth))
    return estimator.find([tally] * min(replays, 2)).violation_point(curve) is not None
