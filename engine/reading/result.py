"""What one audit found: the finding, the verdict on the claim, and what a reader must know beside it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpaudit.claims import Claim, ConvertedClaim, PrivacyCurve, Relation
from dpaudit.engine.reading.shift import ShiftControl
from dpaudit.engine.reading.stopping import Stopped
from dpaudit.engine.reading.verdict import NEXT, Verdict, verdict
from dpaudit.errors import RunError, UnknownNameError, printable
from dpaudit.estimators.bound import Bound, format_upper
from dpaudit.estimators.finding import Comparison, Finding, Series, Validity, ViolationPoint

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from dpaudit.engine.planning.asked_twice import Memory
    from dpaudit.estimators.chart import Chart

CEILING_LOST = "the unit that plays the ceiling failed: whether a leak could have been seen is not known; run it again"
CONTROL_LOST = "the control on held-out rows failed: a proxy that differs from the truth would not have been noticed"
POWER = 0.9
"""Probability with which the stated factor would be refuted."""
MOST = 8.0
"""The largest factor that is stated: the scores tell too little of larger ones."""


@dataclass(frozen=True)
class Failure:
    """A unit that was not finished."""

    label: str  # what it was
    key: str  # its key; `units/<key>.failed` holds the log
    error: str  # the last line of its error
    skipped: bool = False  # whether it was never tried, most often because it needs a failed one


@dataclass(frozen=True, eq=False, repr=False)
class AuditResult:
    """What one audit found.

    Attributes:
        name: The audit's name.
        mechanism: The mechanism in words.
        game: The game, the attack and the estimator in words.
        claimed: The claim as stated.
        compared: The claim as the game's relation sees it.
        finding: What the evidence shows; None when too much failed.
        metrics: Utility of the trained models, averaged over trainings.
        rows: Rows of each part of the data.
        run_on: On how many rows one run of the mechanism was, about; None where the game made data of its own.
        noise: What the noise of its steps looks like (`NoiseForm`); None where that was not looked at.
        data: What the data are.
        units: Units finished and planned.
        assumes: What must hold beside the arithmetic for the finding to hold.
        observational: Whether the training data were left as they are, found by comparing them.
        failures: What failed.
        conditional: Whether the finding takes a proxy for the truth.
        control: What distinguishers show without the mechanism; None where that was not played.
        control_lost: Whether a control was planned and failed, in whole or in part.
        confirm: Whether the same mechanism is tested once more without a proxy, in the same run.
        again: Of a test that refuted the claim in a first pass: what was found when it was repeated; FAILED where
            that is missing. None where it was not asked for.
        rows_needed: About how many rows of the control would decide an UNDECIDED audit; None where no number would.
        ceiling: What a mechanism with no privacy would show; None where that is not known.
        detectable_factor: How many times smaller the noise must be for such an audit to refute the claim with 90 %
            power, judged from the scores, or by planted noise of a mechanism that states its law; None where the scores
            tell too little to say, inf where even noise that is planted 8 times too small would not be refuted.
        ceiling_lost: Whether the ceiling was to be played and that failed.
        whole: What the finding about a part means for the whole, and what was not tested, in sentences.
        stopped: How far a sequential audit went; None for one that runs all its trials.
        said: What was noticed while the mechanism ran, in sentences.
        chosen: What the game chose on the way, in sentences.
        failed_trials: Trials that failed within a unit that was finished, each with its seed and why.
        evidence: Folder of its score tables in the run folder; "" where nothing was written.
        audited: The mechanism itself.
        memory: Of one that refutes the claim by calls made again and again: what was found by giving the same data
            twice; None where that was not asked for.
        where: Of one that refutes the claim: where it seems to leak, in sentences, for whoever mends it.
        at_first_confidence: Where a confirmatory run does not refute the claim, what its evidence shows at the
            confidence of the first pass: of the confirmatory run itself, and of the test that it repeats.
    """

    name: str
    mechanism: str
    game: str
    claimed: Claim
    compared: ConvertedClaim
    finding: Finding | None
    metrics: Mapping[str, float]
    rows: Mapping[str, int]
    data: str
    units: tuple[int, int]
    observational: bool
    assumes: str
    failures: tuple[Failure, ...] = ()
    conditional: bool = False
    control: ShiftControl | None = None
    control_lost: bool = False
    confirm: bool = False
    again: Verdict | None = None
    run_on: int | None = None
    noise: Any = None
    rows_needed: int | None = None
    ceiling: Ceiling | None = None
    detectable_factor: float | None = None
    ceiling_lost: bool = False
    whole: tuple[str, ...] = ()
    stopped: Stopped | None = None
    said: tuple[str, ...] = ()
    chosen: tuple[str, ...] = ()
    failed_trials: tuple[str, ...] = ()
    evidence: str = ""
    audited: Any = None
    memory: Memory | None = None
    where: tuple[str, ...] = ()
    at_first_confidence: Finding | None = None

    @property
    def series(self) -> Mapping[str, Series]:
        """The columns of what there is to draw, by name; none without a finding."""
        return {} if self.finding is None else self.finding.series

    def charts(self) -> list[Chart]:
        """What there is to see of the finding, beside the claim; nothing without one."""
        return [] if self.finding is None else self.finding.charts(self.compared.claim)

    @cached_property
    def comparison(self) -> Comparison | None:
        """Observed beside claimed, by the confirmatory run where that did not confirm; None without a finding."""
        found = self._repeated or self.finding
        return None if found is None else found.comparison(self.compared.claim.curve)

    @property
    def _repeated(self) -> Finding | None:
        """What a confirmatory run that did not confirm shows."""
        return None if self.again in (None, Verdict.VIOLATION) else self.at_first_confidence

    @property
    def epsilon(self) -> float:
        """The lower bound on epsilon at its delta; NaN where the finding is none, or where there is none."""
        return self.finding.lower if isinstance(self.finding, Bound) else math.nan

    @cached_property
    def under_family(self) -> str:
        """What the same evidence shows of the claim's own family of curves, in a sentence; "" where nothing does."""
        if not (isinstance(self.finding, Bound) and self.finding.delta and self.finding.evidence):
            return ""
        from dpaudit.estimators.two_world.family import bound_under_family  # most results need none

        found = bound_under_family(self.finding, self.compared.claim.curve)
        return f"conditional-on-family: {found}" if found is not None and found.epsilon else ""

    @property
    def violation_point(self) -> ViolationPoint | None:
        """Where the claim broke, beyond what the proxy explains; None where it did not, or where that is open."""
        if self.verdict is not Verdict.VIOLATION or self.finding is None:
            return None
        refuting = self.control.beyond if self.conditional and self.control is not None else self.finding
        return None if refuting is None else refuting.violation_point(self.compared.claim.curve)

    @cached_property
    def verdict(self) -> Verdict:
        """What the finding says of the claim."""
        said = verdict(self.finding, self.compared.claim)
        if said is Verdict.VIOLATION and self.conditional and not self._beyond_the_proxy:
            return Verdict.UNDECIDED
        if said is Verdict.VIOLATION and self.again not in (None, Verdict.VIOLATION):
            return Verdict.UNDECIDED if self.again in _NOT_KNOWN else Verdict.NO_VIOLATION
        if said is Verdict.VIOLATION and self.remembers:
            return Verdict.UNDECIDED
        return Verdict.INCONCLUSIVE if said is Verdict.NO_VIOLATION and self._blind else said

    @property
    def _detectable(self) -> bool:
        """Whether some under-noising is known to be refuted."""
        return self.detectable_factor is not None and self.detectable_factor < math.inf

    @property
    def _blind(self) -> bool:
        """Whether nothing could have been seen, or whether anything could is not known."""
        if self.ceiling_lost or self.ceiling is None:
            return self.ceiling_lost
        if self.ceiling.noiseless and self._detectable:  # few trials are played without noise
            return False
        return not self.ceiling.exceeds(self.compared.claim.curve)

    @property
    def _beyond_the_proxy(self) -> bool:
        """Whether more was seen than a proxy that is off explains, by every control that was planned."""
        if self.control is None or self.control_lost:
            return False
        return self.control.exceeds(self.compared.claim.curve)

    @property
    def open_question(self) -> str:
        """Why an audit is undecided, and what would decide it; "" for the others."""
        if self.again is Verdict.UNDECIDED and self._repeated is not None:
            return (
                "undecided: the confirmatory run exceeds the claim at the confidence of the first pass, not at that of "
                "the verdict: check again with more trials and another seed (`--until-decided`)"
            )
        if self.again in _NOT_KNOWN:
            return "undecided: it is not known whether it refutes the claim when it is repeated: run again"
        if self.verdict is not Verdict.UNDECIDED:
            return ""
        if self.memory is not None and self.remembers:
            return self.memory.words
        why = "undecided: more than the claim was observed, but a proxy that is off could explain it; "
        if self.control_lost:
            return f"{why}run again to have the control that failed"
        other = "the game with planted labels needs no proxy" if self.confirm else "`confirm: true` needs no proxy"
        if self.rows_needed is None:
            return f"{why}no number of held-out rows would decide it: give a better proxy; {other}"
        have = f"more than the {self.control.rows:,} there are" if self.control else "and there are none (split.test)"
        return f"{why}about {self.rows_needed:,} rows of a control would decide it, {have}; {other}"

    @property
    def remembers(self) -> bool:
        """Whether the code carries memory from one call to the next, or that could not be told."""
        return self.memory is not None and self.memory.carried

    @property
    def same_again(self) -> str:
        """That a violation comes of releases that are the same whatever the seed; "" elsewhere."""
        return "" if self.memory is None or self.remembers else self.memory.words

    @property
    def headline(self) -> str:
        """Claim and bound, for a reader who reads one line; of a part, what it means for what is claimed of all."""
        if not self.of_a_part:
            return self._compared_in_words
        found = "give away more than" if self.verdict is Verdict.VIOLATION else "were not seen to give away more than"
        return f"{self.whole[0]}; its steps {found} their share"

    @property
    def part(self) -> str:
        """Claim and bound of a part alone; "" where nothing is about a part."""
        return f"one step: {self._compared_in_words}" if self.of_a_part else ""

    @property
    def _compared_in_words(self) -> str:
        comparison = self.comparison
        if comparison is None:
            why = next((f": {printable(one.error)}" for one in self.failures if not one.skipped), "")
            return f"no bound: {len(self.failures)} of {self.units[1]} units failed or were not run{why}"
        if self.compared.claim.is_point and math.isinf(self.compared.claim.epsilon):
            claimed = "no privacy claimed;"
        elif math.isinf(comparison.claimed):
            claimed = f"the claim says nothing about {comparison.quantity} at {comparison.where};"
        elif comparison.quantity == "epsilon" and comparison.claimed < self.compared.claim.epsilon * (1 - 1e-9):
            claim = self.compared.claim
            stated = f"claimed epsilon {claim.epsilon:g} at delta={claim.delta:g}"
            claimed = f"{stated}, which allows {comparison.claimed:g} at {comparison.where},"
        else:
            claimed = f"claimed {comparison.quantity} {comparison.claimed:g},"
        return f"{claimed} observed {comparison.words}{'' if self._repeated is None else ', confirmatory run'}"

    @property
    def cautions(self) -> tuple[str, ...]:
        """Sentences that must not be overlooked."""
        lines = [_CAUTIONS.get(self.finding.validity, "") if self.finding else "", self.compared.note]
        lines += [CONTROL_LOST if self.control_lost else "", self.open_question, self._not_confirmed, self.same_again]
        lines += [self.odd_noise, self.located]
        lines.append(self.seen if self.verdict is Verdict.INCONCLUSIVE else "")
        return tuple(line for line in lines if line)

    @property
    def plainly(self) -> str:
        """What an attacker can do, in a sentence, where guesses at fair coins were counted; "" elsewhere."""
        counts = {} if self.finding is None or self.whole else dict(self.finding.counts)
        if not counts.get("guesses") or "correct" not in counts:
            return ""
        claim, guesses, correct = self.compared.claim, int(counts["guesses"]), int(counts["correct"])
        what = _ASKED[claim.relation]
        abstained = int(counts.get("canaries", guesses)) > guesses
        said = f"Asked {what}, the attacker was right in {correct:,} of {guesses:,} guesses"
        said += f", and passed on {int(counts['canaries']) - guesses:,} other records" if abstained else ""
        if claim.delta or not claim.is_point or not math.isfinite(claim.epsilon):
            return f"{said}; a coin is right in half."
        allowed = 100 / (1 + math.exp(-claim.epsilon))
        return f"{said}; the claim allows {allowed:.3g} % on average, a coin 50 %."

    @property
    def next_step(self) -> str:
        """What to do after this verdict, and what would let the same game show more."""
        more = "" if self.ceiling is None or not self.ceiling.helps else self.ceiling.helps
        helps = self.verdict in (Verdict.NO_VIOLATION, Verdict.INCONCLUSIVE) and more
        return f"{NEXT[self.verdict]}{f' More power in this game: {more}.' if helps else ''}"

    @property
    def _not_confirmed(self) -> str:
        """That a first pass does not count by itself."""
        if self.again in (None, Verdict.VIOLATION, *_NOT_KNOWN):
            return ""
        first = "" if self.finding is None else f" ({self.finding.comparison(self.compared.claim.curve).words})"
        return f"not confirmed: it exceeded the claim in a first pass{first}, and did not when it was repeated"

    @property
    def seen(self) -> str:
        """What this audit could have seen, in a sentence; "" where nothing is sampled."""
        if self.ceiling_lost:
            return CEILING_LOST
        if self.verdict is Verdict.INCONCLUSIVE and self.ceiling is not None:
            return self.ceiling.too_low(self.compared.claim.curve)
        most = "" if self.ceiling is None else self.ceiling.line
        power, factor = f"with {100 * POWER:.0f} % power", self.detectable_factor
        if factor is not None:
            unseen = f"noise {MOST:g} times smaller than it is would not have been detected {power}"
            seen = f"detectable {power}: noise {factor:.2f} times smaller than it is"
            return "; ".join(filter(None, [unseen if factor == math.inf else seen, most]))
        if self.verdict is not Verdict.NO_VIOLATION:
            return most
        if self.ceiling is not None and self.ceiling.noiseless:
            return f"{most}; how weak the noise must be for this attack to tell is not known"
        sampled = self.finding is not None and self.finding.confidence is not None
        unknown = "how much of it this attack could reach is not known" if most else "what could be seen is not known"
        return "; ".join(filter(None, [most, unknown if sampled else ""]))

    @property
    def odd_noise(self) -> str:
        """That the noise is not as stated, in a sentence; "" where nothing was found. No verdict about privacy."""
        return self.noise.line if self.noise is not None and self.noise.odd else ""

    @property
    def rows_used(self) -> str:
        """That the mechanism was run on a part of the rows, in a sentence; "" where it was not."""
        given = sum(self.rows.values())
        if self.run_on is None or self.run_on >= given - 1:
            return ""
        target = self.rows["target"]
        part = ", of which a run takes a part" if self.run_on < target else ""
        return (
            f"the mechanism was run on about {self.run_on:,} of {given:,} rows: the target part has {target:,}{part} "
            "(`split: {target: ...}`)"
        )

    @property
    def of_a_part(self) -> bool:
        """Whether claim and finding are about a part of what the mechanism promises, as a step of a training."""
        return bool(self.whole)

    @property
    def blocked(self) -> tuple[Failure, ...]:
        """Units that were not tried."""
        return tuple(failure for failure in self.failures if failure.skipped)

    def row(self) -> dict[str, Any]:
        """The audit as one row of a table: verdict, what was observed and claimed, validity, counts."""
        finding, comparison = self.finding, self.comparison
        return {
            "audit": self.name,
            "verdict": self.verdict.value,
            "quantity": comparison.quantity if comparison else "",
            "where": comparison.where if comparison else "",
            "claimed": comparison.claimed if comparison else math.nan,
            "observed": comparison.observed if comparison else math.nan,
            "ceiling": self.ceiling.finding.comparison(self.compared.claim.curve).observed
            if self.ceiling
            else math.nan,
            "detectable_factor": math.nan if self.detectable_factor is None else self.detectable_factor,
            "finding": finding.headline if finding else "",
            "confidence": finding.confidence if finding else math.nan,
            "method": finding.method if finding else "",
            "selection": finding.selection if finding else "",
            "validity": finding.validity.value if finding else "",
            "counts": "; ".join(f"{name} {value}" for name, value in finding.counts) if finding else "",
        }

    def scores(self) -> pd.DataFrame:
        """Every score with the truth beside it, read from the run folder now.

        Raises: RunError when the run kept none.
        """
        import pyarrow.dataset as pads

        if not self.evidence or not Path(self.evidence).is_dir():
            raise RunError(f"{self.name}: no scores were kept; run it with keep_scores = true, and keep the run folder")
        frame: pd.DataFrame = pads.dataset(self.evidence, format="parquet").to_table().to_pandas()
        return frame

    def figure(self, name: str) -> Figure:
        """One of the report's figures by its name.

        Raises: UnknownNameError, listing the names there are.
        """
        from dpaudit.engine.drawing import draw

        charts = {chart.stem: chart for chart in self.charts()}
        if name not in charts:
            raise UnknownNameError(f"figure must be one of {', '.join(charts) or '(none)'}, got {name!r}")
        return draw(charts[name])

    def __repr__(self) -> str:
        return printable(f"<AuditResult {self.name!r}: {self.verdict}, {self.headline}>")

    def _repr_html_(self) -> str:
        from dpaudit.engine.reading.card import card

        said = (f"{self.name}: {self.headline}", self.plainly, self.certainty)
        return card(self.verdict, said, self.text(verbose=True), self.comparison)

    def __str__(self) -> str:
        return self.text()

    def text(self, *, verbose: bool = False) -> str:
        """The verdict with claim and bound; how sure it is, and under which assumption; what could have been seen.

        Args:
            verbose: Whether all else that is known of the audit follows: method, counts, choices, controls, utility.
        """
        first = f"{self.verdict:<{INDENT}}{self.name}: {self.headline}"
        lines = [
            first,
            self.part,
            self._how_sure,
            self.odd_noise,
            self.seen,
            self.located,
            *(self._details if verbose else ()),
        ]
        return f"\n{'':{INDENT}}".join(printable(line) for line in lines if line)

    @property
    def located(self) -> str:
        """Where it seems to leak, found by replays after the verdict; "" where nothing is known."""
        return f"where: {' '.join(self.where)}" if self.where and self.verdict is Verdict.VIOLATION else ""

    @property
    def _how_sure(self) -> str:
        """Confidence, assumptions, and whatever makes the verdict less than it seems."""
        trials, units = len(self.failed_trials), sum(not failure.skipped for failure in self.failures)
        failed = [
            f"{trials:,} trainings failed, each counted as the worst guess" if trials else "",
            f"{units:,} units failed: {self.failures[0].label}: {self.failures[0].error}" if units else "",
        ]
        shift = [] if self.control is None else self.control.lines[1:]
        cautions = [CONTROL_LOST if self.control_lost else "", *shift, self.open_question, self._not_confirmed]
        return "; ".join(filter(None, [self.certainty, self.compared.note, *cautions, self.same_again, *failed]))

    @property
    def certainty(self) -> str:
        """The confidence of the finding, and in what sense it is valid; "" without one."""
        if self.finding is None:
            return ""
        confidence = f"{100 * self.finding.confidence:.5g} % confidence" if self.finding.confidence else ""
        return ", ".join(filter(None, [confidence, (_CAUTIONS | _SURE)[self.finding.validity]]))

    @property
    def _details(self) -> tuple[str, ...]:
        """What a reader may want to know beside the verdict."""
        finding = self.finding
        lines = [f"{self.mechanism} on {self.data}", f"assumed: {self.assumes}" if self.conditional else ""]
        if finding is not None:
            own = finding.at_its_delta(self.compared.claim.curve) if isinstance(finding, Bound) else self.comparison
            lines.append(
                "" if self._repeated or self.comparison == own else f"the bound at its own delta: {finding.headline}"
            )
            counts = ", ".join(f"{name} {value:,}" for name, value in finding.counts)
            lines += [f"{finding.method}, {finding.selection}; {counts}", *finding.notes, self.under_family]
        lines += [*self.whole[1:], *self.chosen, "" if self.noise is None or self.noise.odd else self.noise.line]
        lines.append("" if self.stopped is None else str(self.stopped))
        lines += [f"failed: {said}" for said in self.failed_trials[:FAILED_SHOWN]]
        lines += [] if self.control is None else self.control.lines[:1]
        lines.append(", ".join(f"{name.replace('_', ' ')} {value:.4f}" for name, value in self.metrics.items()))
        lines += [
            f"failed: {failure.label}: {failure.error} (units/{failure.key}.failed)"
            for failure in self.failures
            if not failure.skipped
        ]
        lines.append(
            f"{len(self.blocked)} units were not run, most because they need a failed one" if self.blocked else ""
        )
        return tuple(lines)


_ASKED = {
    Relation.LABEL: "which of two labels a record had",
    Relation.REPLACE: "which of two records was used",
    Relation.ADD_REMOVE: "whether a record was used",
}
_NOT_KNOWN = (Verdict.FAILED, Verdict.UNDECIDED)
"""What leaves open whether a test refutes the claim when it is repeated."""
FAILED_SHOWN = 3
"""Failed trials that are printed."""
INDENT = 19
"""Columns that the verdict takes in printed text."""


@dataclass(frozen=True)
class Ceiling:
    """What a mechanism with no privacy would show."""

    finding: Finding  # the estimator's, from its evidence
    # Whether the game was played, with what is at stake as the mechanism's answers; else every bit is told, which needs
    # no playing
    played: bool
    noiseless: bool = False  # whether the mechanism itself was played with its noise taken away
    helps: str = ""  # what would let the audit show more; "" where nothing is known

    def exceeds(self, curve: PrivacyCurve) -> bool:
        """Whether it exceeds the claim anywhere."""
        comparison = self.finding.comparison(curve)
        return comparison.observed > comparison.claimed

    @property
    def line(self) -> str:
        """For a reader, in one line."""
        if self.noiseless:
            return f"without its noise this audit would show {self.finding.headline}"
        if self.played:
            return f"at most {self.finding.headline} where nothing is hidden"
        return f"at most {self.finding.headline} if every guess were right"

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            **self.finding.to_dict(),
            "played": self.played,
            "noiseless": self.noiseless,
            "says": self.line,
            "helps": self.helps,
        }

    def too_low(self, curve: PrivacyCurve) -> str:
        """Why nothing follows from a finding below the claim, and what would help."""
        comparison = self.finding.comparison(curve)
        helps = f"; for more power: {self.helps}" if self.helps else ""
        other = "the mechanism without its noise" if self.noiseless else "a mechanism with no privacy"
        return (
            f"this audit cannot detect a violation: even {other} would show only "
            f"{comparison.quantity} {format_upper(comparison.observed)} at {comparison.where}{helps}"
        )


_SURE = {
    Validity.EXACT: "computed exactly, nothing is sampled",
    Validity.FINITE_SAMPLE: "valid for any number of samples",
}
_CAUTIONS = {
    Validity.ASYMPTOTIC: "valid for many trials only",
    Validity.CREDIBLE: "a credible bound: for some mechanisms it exceeds the truth more often than stated",
    Validity.CONDITIONAL_ON_FAMILY: "valid only if the mechanism's trade-off function belongs to the stated family",
    Validity.CONDITIONAL_ON_MODEL: "valid only if the votes have the distribution that answers were drawn from: "
    "it was fitted to several trainings, or stands for sampled records",
    Validity.CONDITIONAL_ON_PROXY: "valid only if the proxy matches the true label distribution; held-out rows "
    "support this, they cannot prove it",
    Validity.AS_PUBLISHED: "WARNING: chosen on the samples it is measured on, as published; not a valid bound",
}
"""What a reader must know before trusting the stated confidence."""
