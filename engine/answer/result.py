"""Result of one audit: finding, verdict on the claim, and the facts needed to judge them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpaudit.claims import Scope
from dpaudit.engine.answer import answer_words
from dpaudit.engine.answer.record import Failure, Record, Test, Verb
from dpaudit.engine.answer.verdict import Answered, Verdict
from dpaudit.errors import RunError, UnknownNameError, printable
from dpaudit.estimators.bound import Bound
from dpaudit.estimators.finding import Comparison, Series, Validity

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    from matplotlib.figure import Figure

    from dpaudit.estimators.family_bound import FamilyBound
    from dpaudit.estimators.measures import Measure
    from dpaudit.estimators.one_run.right_guesses import OneRunTally


@dataclass(frozen=True)
class SequentialProgress:
    """Progress of a sequential audit."""

    reason: str  # why it stopped early; "" if it read the whole plan or has not finished
    trainings: int  # finished units that ran the mechanism, including those in flight at the end
    planned: int  # units planned that run the mechanism

    def __str__(self) -> str:
        saved = f"{self.trainings:,} of {self.planned:,} training units run, {self.planned - self.trainings:,} saved"
        return f"stopped: {self.reason}; {saved}" if self.reason else saved


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class AuditResult(Answered, Test):
    """Result of one audit: its test of the claim, and facts about the run.

    Attributes:
        mechanism: The mechanism in words.
        game: The game, the attack and the estimator in words.
        metrics: Utility of the trained models, averaged over trainings.
        rows: Rows of each part of the data.
        run_on: Approximate number of rows in one run of the mechanism; None if the game makes its data.
        data: Description of the data.
        assumes: Assumptions of the finding about the mechanism and the data.
        observational: True if the game leaves the training data unchanged.
        stopped: Progress of a sequential audit; None for an audit that runs all its trials.
        warnings: Observations while the mechanism ran, in sentences.
        chosen: Choices that the game made, in sentences.
        evidence: Folder of the score tables; "" if none were written.
        audited: The mechanism object.
        measures: AUC, true-positive rates and accuracy of the attack, if the game asks who was trained on.
        guess_counts: Counts of right guesses of each replay of a one-run game, for `family_bound`; else empty.
        failed_replays: Number of planned replays without counts.
        verb: Way in which the audit was started.
    """

    mechanism: str
    game: str
    metrics: Mapping[str, float]
    rows: Mapping[str, int]
    data: str
    observational: bool
    assumes: str
    run_on: int | None = None
    stopped: SequentialProgress | None = None
    warnings: tuple[str, ...] = ()
    chosen: tuple[str, ...] = ()
    evidence: str = ""
    audited: Any = None
    measures: tuple[Measure, ...] = ()
    guess_counts: tuple[OneRunTally, ...] = ()
    failed_replays: int = 0
    verb: Verb = Verb.RUN

    @property
    def record(self) -> Record:
        """Record of this test alone, as a test of the claim."""
        return Record(self.name, (replace(self, scope=Scope.CLAIM),), verb=self.verb)

    @property
    def headline(self) -> str:
        """Claim and bound in one line; for a part, the consequence for the whole."""
        return self.answer.headline

    @property
    def series(self) -> Mapping[str, Series]:
        """Columns of the finding's charts, by name; empty without a finding."""
        return {} if self.finding is None else self.finding.series

    @cached_property
    def own_comparison(self) -> Comparison | None:
        """Comparison of the first pass with the claim; None without a finding."""
        return None if self.finding is None else self.finding.comparison(self.compared.claim.curve)

    @property
    def epsilon(self) -> float:
        """Lower bound on epsilon at the finding's delta; NaN if the finding is no such bound."""
        return self.finding.lower if isinstance(self.finding, Bound) else math.nan

    @cached_property
    def mu(self) -> float | None:
        """Limit up to which the finding rejects every mu of mu-Gaussian DP; None if it is no bound on epsilon."""
        return self.finding.mu if isinstance(self.finding, Bound) else None

    @cached_property
    def curve_line(self) -> str:
        """Sentence on what the finding shows at other deltas and false positive rates; "" if it shows nothing there."""
        return "" if self.finding is None else answer_words.curve_line(self.finding)

    @cached_property
    def family_bound(self) -> FamilyBound | None:
        """Bound from the same evidence under the claim's family of curves; None at delta = 0, or if there is none.

        No data show that a mechanism belongs to a family, so the verdict does not use it.
        """
        finding, curve = self.finding, self.compared.claim.curve
        if not isinstance(finding, Bound) or not finding.delta or self.on_proxy:
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

    @cached_property
    def violation_point(self) -> Comparison | None:
        """Point at which a rejected claim is exceeded, beyond proxy error; None unless the verdict is VIOLATION."""
        if self.verdict is not Verdict.VIOLATION or self.finding is None:
            return None
        rejecting = self.control.beyond if self.on_proxy and self.control is not None else self.finding
        return None if rejecting is None else rejecting.violation_point(self.compared.claim.curve)

    def prepare(self) -> None:
        """Compute and cache what pages and files print of the bound, which takes up to a second."""
        self.row(), self.text(verbose=True)
        _ = self.own_comparison, self.violation_point

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
    def blocked(self) -> tuple[Failure, ...]:
        """Units that did not run."""
        return tuple(failure for failure in self.failures if failure.skipped)

    def row(self) -> dict[str, Any]:
        """Return the audit as a table row: verdict, observed and claimed values, validity, counts."""
        finding, comparison = self.finding, self.comparison
        maximum = None if comparison is None else self.maximum_at(comparison)
        return {
            "audit": self.name,
            "verdict": self.verdict.value,
            "quantity": comparison.quantity if comparison else "",
            "where": comparison.where if comparison else "",
            "claimed": comparison.claimed if comparison else math.nan,
            "observed": comparison.observed if comparison else math.nan,
            "ceiling": math.nan if maximum is None else maximum.observed,
            "detectable_factor": math.nan if self.sensitivity.factor is None else self.sensitivity.factor,
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
        self._require_scores()
        frame: pd.DataFrame = read_parquet_folder(self.evidence).to_pandas()
        return frame

    def scores_ref(self) -> Any:
        """Return a reference to the Arrow table of `scores` in Ray's object store, for a program with a Ray session.

        A task on the node of this process reads the table, which this process never holds (with `ray://` it does).

        Raises: RunError if no scores were stored, or no Ray session runs.
        """
        from dpaudit.cluster.session import called_on_this_node  # imports Ray

        self._require_scores()
        return called_on_this_node(read_parquet_folder, self.evidence)

    def _require_scores(self) -> None:
        if not self.evidence or not Path(self.evidence).is_dir():
            raise RunError(
                f"{self.name}: no scores were stored. Run the audit with keep_scores = true, and keep the run folder"
            )

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

    def text(self, *, verbose: bool = False) -> str:
        """Return the verdict with labelled lines below it.

        Args:
            verbose: True to add method, counts, choices, controls and utility.
        """
        # Measures of the attack are no bounds on epsilon.
        measured = ", ".join(f"{measure.name} {measure.value:.4f}" for measure in self.measures)
        attack = [("attack", measured)] if verbose or self.verdict is Verdict.NO_CLAIM else []
        if not verbose:
            return self.answer.text(attack)
        finding, blocked = self.finding, len(self.blocked)
        details = [
            f"{self.mechanism} on {self.data}",
            f"assumed: {self.assumes}" if self.on_proxy else "",
            *([] if finding is None else [*answer_words.details_of(finding, self), self.under_family]),
            answer_words.mu_line(self.mu),
            self.curve_line,
            *self.meaning_for_whole[1:],
            *self.chosen,
            "" if self.noise is None or self.noise.odd else self.noise.line,
            "" if self.stopped is None else str(self.stopped),
            *(f"failed: {failure}" for failure in self.failed_trials[:FAILED_SHOWN]),
            *([] if self.control is None else self.control.lines[:1]),
            self.utility,
            *(f"failed: {each.label}: {each.error} (units/{each.key}.failed)" for each in self.tried_failures),
            f"{blocked} units did not run, usually because they need a failed one" if blocked else "",
        ]
        return self.answer.text([*attack, *(("detail", line) for line in details)], verbose=True)


def read_parquet_folder(folder: str) -> pa.Table:
    """Return the rows of all Parquet files in a folder, in the order of their names."""
    import pyarrow.dataset as pads

    return pads.dataset(folder, format="parquet").to_table()


LONGEST_LABEL = 25
"""Largest number of characters of a choice's label."""
FAILED_SHOWN = 3
"""Number of failed trials that are printed."""
