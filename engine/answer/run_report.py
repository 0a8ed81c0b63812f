"""Report of a run: results of its audits, with spec, seed, versions and run folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING

from dpaudit.actors.storage.store import Provenance
from dpaudit.claims import Scope
from dpaudit.engine.answer.answer_words import NOT_SHOWN
from dpaudit.engine.answer.joint import JointVerdict
from dpaudit.engine.answer.result import AuditResult
from dpaudit.engine.answer.verdict import Answer, Verdict
from dpaudit.errors import VerdictError, printable
from dpaudit.plain_files import join_place

if TYPE_CHECKING:
    import pandas as pd

    from dpaudit.engine.answer.records import Records
    from dpaudit.engine.answer.sweep_summary import SweepSummary


@dataclass(frozen=True)
class RepeatedUnit:
    """A unit that was run twice with the same seed to check that it is deterministic."""

    label: str  # label of the unit
    difference: str  # description of the difference; "" if every bit was equal


@dataclass(frozen=True, eq=False, repr=False)
class Report:
    """Results of a run.

    Attributes:
        name: Name of the spec.
        results: Result of each audit, in the order of the spec.
        seed: Seed of the spec.
        confidence: Stated confidence of each bound alone.
        seconds: Wall time of this run.
        executed: Number of units that this run executed.
        units: Number of planned units; a unit that several audits share counts once.
        reused: Origin of reused results: date and code version.
        damaged: Unit files that failed their check, with the reason.
        unseen: User code that cannot be read; units that depend on it are never reused.
        folder: The run folder; "" if nothing was written.
        spec: The spec in YAML.
        versions: Packages and platform.
        events: Number of events of each kind, over all runs in the folder.
        repeated: Units that were run twice to check determinism.
        remarks: Side effects of units on their process.
        joint: Joint verdict of audits that test one claim; None if each audit has a verdict alone.
        sweep: Summary of a sweep; None if the run is no sweep.
        skipped: Number of units that were not needed, or did not fit the budget.
    """

    name: str
    results: tuple[AuditResult, ...]
    seed: int
    confidence: float
    seconds: float
    executed: int
    units: int
    folder: str
    spec: str
    versions: Mapping[str, str] = field(default_factory=dict)
    events: Mapping[str, int] = field(default_factory=dict)
    reused: Provenance = Provenance()
    damaged: tuple[str, ...] = ()
    unseen: tuple[str, ...] = ()
    repeated: tuple[RepeatedUnit, ...] = ()
    remarks: tuple[str, ...] = ()
    joint: JointVerdict | None = None
    sweep: SweepSummary | None = None
    skipped: int = 0

    @property
    def origin(self) -> tuple[str, ...]:
        """Sentences on results that this run did not compute, or not reproducibly."""
        again = "run again" if self.executed else "not used"
        return (
            *([f"{self.reused.units} of {self.units} units reused ({self.reused})"] if self.reused.units else []),
            *(f"damaged, {again}: {file}" for file in self.damaged),
            *(f"never reused, because the code cannot be read: {why}" for why in self.unseen),
            *self._not_repeatable,
            *(
                f"a unit changed its process, and the change was undone as far as possible: {remark}"
                for remark in self.remarks
            ),
        )

    @property
    def _not_repeatable(self) -> list[str]:
        return [
            f"not repeatable: {unit.label}: {unit.difference}. Draw all randomness from the given seed or generator: "
            "otherwise no run can be repeated, and a resumed run mixes results"
            for unit in self.repeated
            if unit.difference
        ]

    @property
    def determinism(self) -> str:
        """Sentence on units that gave equal results twice; "" if there are none."""
        same = [unit.label for unit in self.repeated if not unit.difference]
        return f"determinism check passed (run twice): {', '.join(same)}" if same else ""

    @property
    def violations(self) -> tuple[AuditResult, ...]:
        """Audits that reject their claim; for tests of one claim, empty unless the joint verdict rejects it."""
        return self._with(Verdict.VIOLATION)

    @property
    def inconclusive(self) -> tuple[AuditResult, ...]:
        """Audits that could not have rejected their claim; for tests of one claim, empty unless none could have."""
        return self._with(Verdict.INCONCLUSIVE)

    @property
    def failed(self) -> tuple[AuditResult, ...]:
        """Audits of the claim without a finding; empty if another test of the claim rejects it."""
        if self.joint is not None and self.joint.verdict is Verdict.VIOLATION:
            return ()
        return tuple(result for result in self._of_claim if result.verdict is Verdict.FAILED)

    @property
    def _of_claim(self) -> tuple[AuditResult, ...]:
        """Results of the claim, without side findings."""
        return tuple(result for result in self.results if result.scope is Scope.CLAIM)

    @property
    def undecided(self) -> tuple[AuditResult, ...]:
        """Audits whose finding exceeds the claim without rejecting it; empty if another test rejects it."""
        return self._with(Verdict.UNDECIDED)

    def raise_for_verdict(self, *accept: Verdict) -> None:
        """Raise an error unless every verdict is NO VIOLATION FOUND or NO CLAIM; for tests and pipelines.

        Args:
            accept: Further verdicts that pass, such as `Verdict.INCONCLUSIVE`.
        Raises: VerdictError for any other verdict. For tests of one claim, the joint verdict and failed tests count.
        """
        passing = {Verdict.NO_VIOLATION, Verdict.NO_CLAIM, *accept}
        failing = [answer.text() for answer in self.answers if answer.verdict not in passing]
        if failing:
            raise VerdictError("\n".join(failing))

    @property
    def answers(self) -> tuple[Answer, ...]:
        """Answers that count: the joint answer and failed tests, or without a joint one that of each audit."""
        if self.joint is None:
            return tuple(result.answer for result in self.results)
        failed = () if self.joint.verdict is Verdict.FAILED else self.failed
        return (self.joint.answer, *(result.answer for result in failed))

    def _with(self, verdict: Verdict) -> tuple[AuditResult, ...]:
        if self.joint is not None and self.joint.verdict is not verdict:
            return ()
        results = tuple(result for result in self._of_claim if result.verdict is verdict)
        deciding = self.joint and self.joint.deciding  # the joint verdict may differ from that of each test
        return results or ((deciding,) if deciding else ())

    @property
    def joint_confidence_note(self) -> str:
        """Sentence on the joint confidence of several bounds; exact findings do not count."""
        count = sum(result.finding is None or result.finding.confidence is not None for result in self.results)
        if self.joint is not None:
            return (
                "The tests of the first pass share the error: their bounds hold together with confidence "
                f"{self.joint.together.screening:g}. Confirmatory runs share an error of {1 - self.confidence:.4g}, "
                "for any result of the first pass. Side findings have separate errors of the same size."
            )
        if self.sweep is not None:
            return self.sweep.confidence_line
        if count < 2:
            return ""
        return (
            f"Each of the {count} bounds holds with confidence {self.confidence:g}; "
            f"all of them hold together with at least {max(0.0, 1 - count * (1 - self.confidence)):.4g}."
        )

    def to_frame(self) -> pd.DataFrame:
        """Return one row for each audit: verdict, observed and claimed values, validity, counts."""
        import pandas as pd

        return pd.DataFrame([result.row() for result in self.results])

    def records(self, top: int = 20, *, rate: float = 0.05, audit: str | None = None) -> Records:
        """Return the records that the attack guessed too often; arguments as in `Records.of_results`."""
        from dpaudit.engine.answer.records import Records

        return Records.of_results(self.results, self.spec, top=top, rate=rate, audit=audit)

    def __repr__(self) -> str:
        joint = "" if self.joint is None else f"{self.joint.verdict}; "
        verdicts = ", ".join(f"{result.name} {result.verdict}" for result in self.results)
        return printable(f"<Report {self.name!r}: {joint}{verdicts}>")

    def _repr_html_(self) -> str:
        from dpaudit.engine.answer.card import card

        if self.joint is not None:
            return card(self.joint.answer, self.text(verbose=True))
        return "".join(result._repr_html_() for result in self.results) + f"<pre>{escape(self.text())}</pre>"

    def __str__(self) -> str:
        return self.text()

    def text(self, *, verbose: bool = False) -> str:
        """Return the verdict of each audit with its lines, and facts about the run.

        Args:
            verbose: True to add methods, counts, choices and tests that did not run.
        """
        if self.sweep is None:
            blocks = [result.text(verbose=verbose) for result in self.results]
        else:
            blocks = [str(self.sweep)]
        if self.joint is not None:
            blocks = [self.joint.text(verbose=verbose), *(blocks if verbose else [])]
        budget = " or beyond the budget" if self.joint is not None and self.joint.not_played else ""
        skipped = f" ({self.skipped} not needed{budget})" if self.skipped else ""
        units = f"{self.executed} of {self.units} units ran{skipped}, {self.seconds:.1f} s; seed {self.seed}"
        tail = [
            units,
            *dict.fromkeys(result.rows_used for result in self.results),
            *dict.fromkeys(warning for result in self.results for warning in result.warnings),
            *self.origin,
            self.determinism if verbose else "",
            self.joint_confidence_note if verbose and self.sweep is None else "",
            NOT_SHOWN[0] if verbose else "",
        ]
        if self.folder:
            tail.append(f"report: {join_place(self.folder, 'report.html')}")
        return "\n".join([*blocks, *map(printable, filter(None, tail))])
