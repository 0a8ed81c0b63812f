"""Result of one audit: finding, verdict on the claim, and the facts needed to judge them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpaudit.claims import Claim, ConvertedClaim
from dpaudit.claims.scope import Scope
from dpaudit.engine.answer import answer_words
from dpaudit.engine.answer.record import Confirmation, Record, Sensitivity, TestRecord, Verb
from dpaudit.engine.answer.shift import ShiftControl
from dpaudit.engine.answer.stopping import SequentialProgress
from dpaudit.engine.answer.verdict import Answer, Verdict, decide
from dpaudit.errors import RunError, UnknownNameError, printable
from dpaudit.estimators.bound import Bound
from dpaudit.estimators.family_bound import FamilyBound
from dpaudit.estimators.finding import Comparison, Finding, Series, Validity
from dpaudit.estimators.measures import Measure
from dpaudit.estimators.one_run.right_guesses import OneRunTally

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from dpaudit.engine.planning.state_between_calls import StateBetweenCalls


@dataclass(frozen=True)
class Failure:
    """A unit that did not finish."""

    label: str  # label of the unit
    key: str  # key of the unit; `units/<key>.failed` holds its log
    error: str  # the last line of its error
    skipped: bool = False  # True if it was not tried, usually because it needs a failed unit


@dataclass(frozen=True, eq=False, repr=False)
class AuditResult:
    """Result of one audit.

    Attributes:
        name: Name of the audit.
        mechanism: The mechanism in words.
        game: The game, the attack and the estimator in words.
        claimed: The claim as stated.
        compared: The claim converted to the neighbouring relation of the game.
        finding: The finding; None if too much failed.
        metrics: Utility of the trained models, averaged over trainings.
        rows: Rows of each part of the data.
        run_on: Approximate number of rows in one run of the mechanism; None if the game makes its data.
        noise: Form of the noise of training steps (`NoiseForm`); None if not checked.
        data: Description of the data.
        units: Numbers of finished and planned units.
        assumes: Assumptions of the finding about the mechanism and the data.
        observational: True if the game leaves the training data unchanged.
        failures: Units that failed.
        conditional: True if the finding relies on a proxy.
        control: Negative control: distinguishers without the mechanism; None if it was not run.
        control_lost: True if a planned control failed, in whole or in part.
        confirm: True if the same run also tests the mechanism without a proxy.
        confirmation: Outcome of the confirmatory run of a test that rejected the claim in the first pass.
        rows_needed: Approximate number of held-out rows that would decide an UNDECIDED audit; None if none would.
        ceiling: Finding for a mechanism with no privacy; None if unknown.
        detectable_factor: Scaling of the noise at which such an audit rejects the claim with 90 % power. It is
            estimated from the scores, or from planted noise of a mechanism that states its law. None if it cannot be
            estimated, inf if noise planted 8 times too small would not be detected.
        ceiling_lost: True if measuring the ceiling was planned and failed.
        one_outcome: True if all fresh runs had the same result, so that no ceiling is known.
        blind: Reason why the audit could not have rejected the claim, if the training shows that; else "".
        meaning_for_whole: Consequences of a finding about a part for the whole, and what was not tested, in sentences.
        stopped: Progress of a sequential audit; None for an audit that runs all its trials.
        warnings: Observations while the mechanism ran, in sentences.
        chosen: Choices that the game made, in sentences.
        failed_trials: Trials that failed within finished units, each with its seed and error.
        evidence: Folder of the score tables; "" if none were written.
        audited: The mechanism object.
        state: For an audit that rejects the claim by repeated calls: result of releasing the same data twice; None if
            that was not checked.
        leak_location: For an audit that rejects the claim, the probable place of the leak, in sentences.
        at_first_confidence: If a confirmatory run does not reject the claim, its finding at the confidence of the first
            pass; set for the confirmatory run and for the test that it repeats.
        p_value: Upper limit of the p-value of the claim; None if it was not computed.
        unreadable: Results of the audited code that could not be read, in words.
        scope: Subject of the audit: the claim or a side finding.
        measures: AUC, true-positive rates and accuracy of the attack, if the game asks who was trained on.
        guess_counts: Counts of right guesses of each replay of a one-run game, for `family_bound`; else empty.
        failed_replays: Number of planned replays without counts.
        verb: Way in which the audit was started.
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
    one_outcome: bool = False
    blind: str = ""
    meaning_for_whole: tuple[str, ...] = ()
    stopped: SequentialProgress | None = None
    warnings: tuple[str, ...] = ()
    chosen: tuple[str, ...] = ()
    failed_trials: tuple[str, ...] = ()
    evidence: str = ""
    audited: Any = None
    state: StateBetweenCalls | None = None
    leak_location: tuple[str, ...] = ()
    at_first_confidence: Finding | None = None
    p_value: float | None = None
    unreadable: tuple[str, ...] = ()
    scope: Scope = Scope.CLAIM
    measures: tuple[Measure, ...] = ()
    guess_counts: tuple[OneRunTally, ...] = ()
    failed_replays: int = 0
    verb: Verb = Verb.RUN

    @cached_property
    def record(self) -> TestRecord:
        """Record from which the verdict is decided."""
        ceiling = self.ceiling
        return TestRecord(
            name=self.name,
            claim=self.claimed,
            compared=self.compared,
            finding=self.finding,
            at_first_confidence=self.at_first_confidence,
            confirmation=self.confirmation,
            p_value=self.p_value,
            first_p_value=self.p_value,
            sensitivity=Sensitivity(
                factor=self.detectable_factor,
                maximum=None if ceiling is None else ceiling.finding,
                noiseless=ceiling is not None and ceiling.noiseless,
                reference_failed=self.ceiling_lost,
                helps="" if ceiling is None else ceiling.helps,
                tried="" if ceiling is None else ceiling.tried,
                blind=self.blind,
                one_outcome=self.one_outcome,
            ),
            on_proxy=self.conditional,
            control=self.control,
            control_lost=self.control_lost,
            rows_needed=self.rows_needed,
            planted_next=self.confirm,
            state=self.state,
            noise=self.noise,
            unreadable=self.unreadable,
            meaning_for_whole=self.meaning_for_whole,
            leak_location=self.leak_location,
            failed_trials=len(self.failed_trials),
            failures=tuple((failure.label, failure.error) for failure in self.failures if not failure.skipped),
            units=self.units[1],
        )

    @cached_property
    def answer(self) -> Answer:
        """Verdict on the claim with every printed line."""
        return decide(Record(self.name, (self.record,), verb=self.verb))

    @property
    def verdict(self) -> Verdict:
        """Verdict on the claim."""
        return self.answer.verdict

    @property
    def headline(self) -> str:
        """Claim and bound in one line; for a part, the consequence for the whole."""
        return self.answer.headline

    @property
    def series(self) -> Mapping[str, Series]:
        """Columns of the finding's charts, by name; empty without a finding."""
        return {} if self.finding is None else self.finding.series

    @cached_property
    def comparison(self) -> Comparison | None:
        """Comparison of the deciding finding with the claim; None without a finding."""
        return self.record.comparison

    @property
    def own_comparison(self) -> Comparison | None:
        """Comparison of the first pass with the claim; None without a finding."""
        return None if self.finding is None else self.finding.comparison(self.compared.claim.curve)

    @property
    def epsilon(self) -> float:
        """Lower bound on epsilon at the finding's delta; NaN if the finding is no such bound."""
        return self.finding.lower if isinstance(self.finding, Bound) else math.nan

    @cached_property
    def family_bound(self) -> FamilyBound | None:
        """Bound from the same evidence under the claim's family of curves; None at delta = 0, or if there is none.

        No data show that a mechanism belongs to a family, so the verdict does not use it.
        """
        finding, curve = self.finding, self.compared.claim.curve
        if not isinstance(finding, Bound) or not finding.delta or self.conditional:
            return None
        if self.guess_counts:
            from dpaudit.estimators.one_run import order_statistics  # few results need it

            return order_statistics.order_statistics_bound(
                self.guess_counts,
                order_statistics.family_of(curve),
                delta=finding.delta,
                confidence=finding.confidence,
                failed_replays=self.failed_replays,
            )
        if not finding.evidence:
            return None
        from dpaudit.estimators.two_world.family import bound_under_family, family_of

        return bound_under_family(finding, family_of(curve))

    @property
    def under_family(self) -> str:
        """Sentence on `family_bound`; "" if it shows nothing."""
        bound = self.family_bound
        return f"{Validity.CONDITIONAL_ON_FAMILY}: {bound}" if bound is not None and bound.epsilon else ""

    @property
    def violation_point(self) -> Comparison | None:
        """Point at which a rejected claim is exceeded, beyond proxy error; None unless the verdict is VIOLATION."""
        if self.verdict is not Verdict.VIOLATION or self.finding is None:
            return None
        rejecting = self.control.beyond if self.conditional and self.control is not None else self.finding
        return None if rejecting is None else rejecting.violation_point(self.compared.claim.curve)

    @property
    def rows_used(self) -> str:
        """Sentence on the rows used if the mechanism ran on a part of them; "" otherwise."""
        total_rows = sum(self.rows.values())
        if self.run_on is None or self.run_on >= total_rows - 1:
            return ""
        target = self.rows["target"]
        part = ", and a run uses some of them" if self.run_on < target else ""
        return (
            f"the mechanism ran on about {self.run_on:,} of {total_rows:,} rows: the target part has {target:,} "
            f"(`split: {{target: ...}}`){part}"
        )

    @property
    def choices(self) -> list[tuple[str, str]]:
        """(label, text) of each choice of the game: a note such as "tables chosen: ..." is split at its label."""
        split = [(note, *note.partition(": ")) for note in self.chosen]
        return [
            (label, text) if colon and len(label) <= LONGEST_LABEL else ("chosen", note)
            for note, label, colon, text in split
        ]

    @property
    def utility(self) -> str:
        """Metrics in words, each with its standard error if that was measured."""
        words = []
        for name, value in self.metrics.items():
            if not name.endswith("_error") or name.removesuffix("_error") not in self.metrics:
                error = self.metrics.get(f"{name}_error")
                words.append(f"{name.replace('_', ' ')} {value:.4f}{'' if error is None else f' ± {error:.4f}'}")
        return ", ".join(words)

    @property
    def attack_success(self) -> str:
        """Measures of the attack in words; "" if there are none. They are no bounds on epsilon."""
        return ", ".join(f"{measure.name} {measure.value:.4f}" for measure in self.measures)

    @property
    def is_partial(self) -> bool:
        """True if claim and finding are about a part of the mechanism, such as a training step."""
        return bool(self.meaning_for_whole)

    @property
    def blocked(self) -> tuple[Failure, ...]:
        """Units that did not run."""
        return tuple(failure for failure in self.failures if failure.skipped)

    def row(self) -> dict[str, Any]:
        """Return the audit as a table row: verdict, observed and claimed values, validity, counts."""
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
        """Return all scores with their truths, read from the run folder.

        Raises: RunError if no scores were stored.
        """
        import pyarrow.dataset as pads

        if not self.evidence or not Path(self.evidence).is_dir():
            raise RunError(
                f"{self.name}: no scores were stored. Run the audit with keep_scores = true, and keep the run folder"
            )
        frame: pd.DataFrame = pads.dataset(self.evidence, format="parquet").to_table().to_pandas()
        return frame

    def figure(self, name: str) -> Figure:
        """Return one of the report's figures.

        Raises: UnknownNameError with the available names.
        """
        from dpaudit.engine.figures.finding_figures import finding_figures

        pictures = [] if self.finding is None else finding_figures(self.finding, self.compared.claim)
        figures = {picture.stem: picture.figure for picture in pictures}
        if name not in figures:
            raise UnknownNameError(f"figure must be one of {', '.join(figures) or '(none)'}, got {name!r}")
        return figures[name]

    def __repr__(self) -> str:
        return printable(f"<AuditResult {self.name!r}: {self.verdict}, {self.headline}>")

    def _repr_html_(self) -> str:
        from dpaudit.engine.answer.card import card

        return card(self.answer, self.text(verbose=True))

    def __str__(self) -> str:
        return self.text()

    def text(self, *, verbose: bool = False) -> str:
        """Return the verdict with labelled lines below it.

        Args:
            verbose: True to add method, counts, choices, controls and utility.
        """
        attack = [("attack", self.attack_success)] if verbose or self.verdict is Verdict.NO_CLAIM else []
        return self.answer.text([*attack, *(("detail", line) for line in self._details if verbose)], verbose=verbose)

    @property
    def _details(self) -> tuple[str, ...]:
        """Further lines for `verbose`."""
        finding = self.finding
        lines = [f"{self.mechanism} on {self.data}", f"assumed: {self.assumes}" if self.conditional else ""]
        if finding is not None:
            lines += [*answer_words.details_of(finding, self.record), self.under_family]
        lines += [
            *self.meaning_for_whole[1:],
            *self.chosen,
            "" if self.noise is None or self.noise.odd else self.noise.line,
        ]
        lines.append("" if self.stopped is None else str(self.stopped))
        lines += [f"failed: {failure}" for failure in self.failed_trials[:FAILED_SHOWN]]
        lines += [] if self.control is None else self.control.lines[:1]
        lines.append(self.utility)
        lines += [
            f"failed: {failure.label}: {failure.error} (units/{failure.key}.failed)"
            for failure in self.failures
            if not failure.skipped
        ]
        lines.append(
            f"{len(self.blocked)} units did not run, usually because they need a failed one" if self.blocked else ""
        )
        return tuple(lines)


LONGEST_LABEL = 25
"""Largest number of characters of a choice's label."""
FAILED_SHOWN = 3
"""Number of failed trials that are printed."""


@dataclass(frozen=True)
class Ceiling:
    """Finding for a mechanism with no privacy, which limits what an audit can detect."""

    finding: Finding  # finding of the audit's estimator
    played: bool  # True if the game was run with fully revealing answers; False if computed for all-correct guesses
    noiseless: bool = False  # True if the mechanism itself was run without its noise
    helps: str = ""  # advice on raising the maximum; "" if there is none
    tried: str = ""  # inputs to which the sensitivity is limited, in words; "" for no limit

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            **self.finding.to_dict(),
            "played": self.played,
            "noiseless": self.noiseless,
            "helps": self.helps,
        }
