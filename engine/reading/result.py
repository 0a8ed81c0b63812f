"""What one audit found: the finding, the verdict on the claim, and what a reader must know beside it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpaudit.claims import Claim, ConvertedClaim
from dpaudit.claims.scope import Scope
from dpaudit.engine.reading import answer_words
from dpaudit.engine.reading.record import Confirmation, Record, Sensitivity, TestRecord
from dpaudit.engine.reading.shift import ShiftControl
from dpaudit.engine.reading.stopping import Stopped
from dpaudit.engine.reading.verdict import Answer, Verdict, decide
from dpaudit.errors import RunError, UnknownNameError, printable
from dpaudit.estimators.bound import Bound
from dpaudit.estimators.finding import Comparison, Finding, Series

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from dpaudit.engine.planning.asked_twice import Memory


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
        confirmation: What became of the confirmatory run of a test that rejected the claim in a first pass.
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
        p_value: Upper limit of the p-value of the claim; None if it was not computed.
        unreadable: Results of the audited code that could not be read, in words.
        scope: What the audit is about: the claim, or a side finding.
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
    confirmation: Confirmation = Confirmation.NOT_PLANNED
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
    p_value: float | None = None
    unreadable: tuple[str, ...] = ()
    scope: Scope = Scope.CLAIM

    @cached_property
    def record(self) -> TestRecord:
        """What a verdict is decided from."""
        ceiling = self.ceiling
        return TestRecord(
            name=self.name,
            claim=self.claimed,
            compared=self.compared,
            finding=self.finding,
            at_first_confidence=self.at_first_confidence,
            confirmation=self.confirmation,
            p_value=self.p_value,
            sensitivity=Sensitivity(
                factor=self.detectable_factor,
                maximum=None if ceiling is None else ceiling.finding,
                noiseless=ceiling is not None and ceiling.noiseless,
                lost=self.ceiling_lost,
                helps="" if ceiling is None else ceiling.helps,
            ),
            on_proxy=self.conditional,
            control=self.control,
            control_lost=self.control_lost,
            rows_needed=self.rows_needed,
            planted_next=self.confirm,
            state=self.memory,
            noise=self.noise,
            unreadable=self.unreadable,
            whole=self.whole,
            where=self.where,
            failed_trials=len(self.failed_trials),
            failures=tuple((failure.label, failure.error) for failure in self.failures if not failure.skipped),
            units=self.units[1],
        )

    @cached_property
    def answer(self) -> Answer:
        """The verdict on the claim, with all that is printed of it."""
        return decide(Record(self.name, (self.record,)))

    @property
    def verdict(self) -> Verdict:
        """What the finding says of the claim."""
        return self.answer.verdict

    @property
    def headline(self) -> str:
        """Claim and bound in one line; of a part, what it means for what is claimed of all."""
        return self.answer.headline

    @property
    def series(self) -> Mapping[str, Series]:
        """The columns of what there is to draw, by name; none without a finding."""
        return {} if self.finding is None else self.finding.series

    @cached_property
    def comparison(self) -> Comparison | None:
        """Observed beside claimed, by the confirmatory run if that did not confirm; None without a finding."""
        return self.record.comparison

    @property
    def own_comparison(self) -> Comparison | None:
        """Observed beside claimed by this test's own finding, whatever its confirmatory run showed."""
        return None if self.finding is None else self.finding.comparison(self.compared.claim.curve)

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
    def violation_point(self) -> Comparison | None:
        """Where the claim broke, beyond what the proxy explains; None where it did not, or where that is open."""
        if self.verdict is not Verdict.VIOLATION or self.finding is None:
            return None
        refuting = self.control.beyond if self.conditional and self.control is not None else self.finding
        return None if refuting is None else refuting.violation_point(self.compared.claim.curve)

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
    def choices(self) -> list[tuple[str, str]]:
        """(label, text) of what the game chose: a note such as "tables chosen: ..." is split at its label."""
        split = [(note, *note.partition(": ")) for note in self.chosen]
        return [
            (label, text) if colon and len(label) <= LONGEST_LABEL else ("chosen", note)
            for note, label, colon, text in split
        ]

    @property
    def utility(self) -> str:
        """The metrics in words, each with its standard error if that was measured."""
        words = []
        for name, value in self.metrics.items():
            if not name.endswith("_error") or name.removesuffix("_error") not in self.metrics:
                error = self.metrics.get(f"{name}_error")
                words.append(f"{name.replace('_', ' ')} {value:.4f}{'' if error is None else f' ± {error:.4f}'}")
        return ", ".join(words)

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
        maximum = None if comparison is None else self.record.maximum_at(comparison)
        return {
            "audit": self.name,
            "verdict": self.verdict.value,
            "quantity": comparison.quantity if comparison else "",
            "where": comparison.where if comparison else "",
            "claimed": comparison.claimed if comparison else math.nan,
            "observed": comparison.observed if comparison else math.nan,
            "ceiling": math.nan if maximum is None else maximum.observed,
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
        from dpaudit.engine.finding_figures import finding_figures

        pictures = [] if self.finding is None else finding_figures(self.finding, self.compared.claim)
        figures = {picture.stem: picture.figure for picture in pictures}
        if name not in figures:
            raise UnknownNameError(f"figure must be one of {', '.join(figures) or '(none)'}, got {name!r}")
        return figures[name]

    def __repr__(self) -> str:
        return printable(f"<AuditResult {self.name!r}: {self.verdict}, {self.headline}>")

    def _repr_html_(self) -> str:
        from dpaudit.engine.reading.card import card

        return card(self.answer, self.text(verbose=True))

    def __str__(self) -> str:
        return self.text()

    def text(self, *, verbose: bool = False) -> str:
        """Return the verdict, and below it one labelled line for each thing to know.

        Args:
            verbose: True to add all else that is known: method, counts, choices, controls, utility.
        """
        lines = [*self.answer.lines, *(("detail", line) for line in self._details if verbose)]
        return answer_words.aligned(f"{self.verdict}  {self.name}", lines)

    @property
    def _details(self) -> tuple[str, ...]:
        """What a reader may want to know beside the verdict."""
        finding = self.finding
        lines = [f"{self.mechanism} on {self.data}", f"assumed: {self.assumes}" if self.conditional else ""]
        if finding is not None:
            lines += [*answer_words.details_of(finding, self.record), self.under_family]
        lines += [*self.whole[1:], *self.chosen, "" if self.noise is None or self.noise.odd else self.noise.line]
        lines.append("" if self.stopped is None else str(self.stopped))
        lines += [f"failed: {said}" for said in self.failed_trials[:FAILED_SHOWN]]
        lines += [] if self.control is None else self.control.lines[:1]
        lines.append(self.utility)
        lines += [
            f"failed: {failure.label}: {failure.error} (units/{failure.key}.failed)"
            for failure in self.failures
            if not failure.skipped
        ]
        lines.append(
            f"{len(self.blocked)} units were not run, most because they need a failed one" if self.blocked else ""
        )
        return tuple(lines)


LONGEST_LABEL = 25
"""Characters of the label of a choice."""
FAILED_SHOWN = 3
"""Failed trials that are printed."""


@dataclass(frozen=True)
class Ceiling:
    """What a mechanism with no privacy would show."""

    finding: Finding  # the estimator's, from its evidence
    # Whether the game was played, with what is at stake as the mechanism's answers; else every bit is told, which needs
    # no playing
    played: bool
    noiseless: bool = False  # whether the mechanism itself was played with its noise taken away
    helps: str = ""  # what would let the audit show more; "" where nothing is known

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            **self.finding.to_dict(),
            "played": self.played,
            "noiseless": self.noiseless,
            "helps": self.helps,
        }
