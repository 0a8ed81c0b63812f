"""Report of a run: results of its audits, the joint verdict of tests of one claim, and facts about the run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from html import escape
from typing import TYPE_CHECKING, Any

from dpaudit.actors.storage.store import Provenance
from dpaudit.claims import Scope
from dpaudit.engine.answer.answer_words import NOT_SHOWN
from dpaudit.engine.answer.record import Confirmation, Record, Test, Verb
from dpaudit.engine.answer.result import AuditResult
from dpaudit.engine.answer.verdict import Answer, Answered, Verdict
from dpaudit.engine.request.error_budget import JointTest
from dpaudit.errors import VerdictError, printable
from dpaudit.plain_files import join_place

if TYPE_CHECKING:
    import pandas as pd

    from dpaudit.engine.answer.records import Records
    from dpaudit.engine.answer.sweep_summary import SweepSummary


@dataclass(frozen=True, eq=False)
class JointVerdict(Answered):
    """The verdict of several tests of one claim.

    A test that rejects the claim in the first pass is repeated with other seeds and at a stricter confidence. A test
    that relies on a proxy is followed by planted labels instead.

    Attributes:
        name: The name of the run.
        tests: Results of the tests that ran, in order.
        confirmations: Results of confirmatory runs, by the name of the test that each repeats.
        together: How the tests share the error, and which of them look for side findings.
        confidence: Confidence of a verdict VIOLATION, for any result of the first pass.
        not_played: Names of planned tests that did not run, because the claim was rejected or the budget spent.
    """

    name: str
    tests: tuple[AuditResult, ...]
    confirmations: Mapping[str, AuditResult]
    together: JointTest
    confidence: float
    not_played: tuple[str, ...] = ()

    @cached_property
    def record(self) -> Record:
        """Record from which the answer is decided.

        If no test of the claim exceeds it in the first pass, none has a confirmatory run. Its error is then left for
        the test on unrounded results, which tests the claim too if the results are whole numbers.
        """
        records = [self._with_confirmation(test) for test in self.tests]
        if not any(record.exceeds for record in records if record.scope is Scope.CLAIM):
            records = [
                replace(record, scope=Scope.CLAIM) if record.digits_cannot_tell and record.rejects else record
                for record in records
            ]
        return Record(self.name, tuple(records), self.not_played, self.together.cut, Verb.CHECK)

    @property
    def deciding(self) -> AuditResult | None:
        """Result of the test that the verdict rests on; None if no test ran."""
        test = self.answer.test
        return None if test is None else next(result for result in self.tests if result.name == test.name)

    def _with_confirmation(self, test: AuditResult) -> Test:
        """Return a test with its scope, updated with the result of its confirmatory run."""
        record: Test = replace(test, scope=self.together.scope(test.name))
        again = self.confirmations.get(test.name)
        sharing = sum(self.together.scope(each.name) is record.scope for each in self.tests) + sum(
            self.together.scope(name) is record.scope for name in self.not_played
        )
        p_value = record.p_value if again is None else again.p_value
        record = replace(record, p_value=None if p_value is None else min(1.0, sharing * p_value))
        if not record.exceeds:
            return record
        if again is None:
            return replace(record, confirmation=Confirmation.MISSING)
        if again.rejects_without_proxy:
            return replace(
                record,
                confirmation=Confirmation.CONFIRMED,
                repeated=again.finding,
                sensitivity=again.sensitivity,
                leak_location=again.leak_location or record.leak_location,
                state=again.state or record.state,
                meaning_for_whole=again.meaning_for_whole,
            )
        if record.on_proxy:  # planted labels did not reject the claim, and a first pass on a proxy cannot
            return replace(record, confirmation=Confirmation.MISSING)
        repeated = again.finding if again.exceeds else None
        return replace(
            record, confirmation=test.confirmation, repeated=repeated, at_first_confidence=test.at_first_confidence
        )

    @property
    def repeated_tests(self) -> list[tuple[AuditResult, AuditResult]]:
        """Tests with a confirmatory run, each with its result."""
        return [(test, self.confirmations[test.name]) for test in self.tests if test.name in self.confirmations]

    def text(self, *, verbose: bool = False) -> str:
        """Return the verdict and its lines; `verbose` adds the tests that were chosen, repeated and left out."""
        return self.answer.text(self.details if verbose else (), verbose=verbose)

    @property
    def details(self) -> list[tuple[str, str]]:
        """(label, text) on the shared error and on the tests that were chosen, repeated and left out."""
        repeated = [
            ("repeated", f"{test.name}: first {test.headline}; again {again.headline}")
            for test, again in self.repeated_tests
        ]
        screening = f"{100 * self.together.screening:.5g} % confidence for all bounds of the first pass together"
        return [
            ("first pass", screening),
            *repeated,
            *(("chosen", reason) for reason in self.together.chosen),
            *(("left out", reason) for reason in self.together.left_out),
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return values for JSON."""
        side = {scope.value: self.answer.line(scope.value) for scope in self.answer.side}
        confirmations = [
            {
                "test": test.name,
                "first": test.headline,
                "again": again.headline,
                "confirmed": again.rejects_without_proxy,
            }
            for test, again in self.repeated_tests
        ]
        return {
            "answer": self.answer.to_dict(),
            "verdict": self.verdict,
            "headline": self.answer.headline,
            "rests_on": None if self.deciding is None else self.deciding.name,
            "side_findings": side,
            "confidence": self.confidence,
            "screening": self.together.screening,
            "chosen": self.together.chosen,
            "left_out": self.together.left_out,
            "cut": self.together.cut,
            "not_played": self.not_played,
            "confirmations": confirmations,
        }


def joint_verdict(
    name: str, together: JointTest, results: Sequence[AuditResult], planned: Mapping[str, str], confidence: float
) -> JointVerdict:
    """Return the verdict of planned tests.

    Args:
        name: The name of the run.
        planned: Name of the test that each audit confirms, or "", by the name of the audit.
    """
    tests = tuple(result for result in results if not planned[result.name])
    confirmations = {planned[result.name]: result for result in results if planned[result.name]}
    played = {test.name for test in tests}
    not_played = tuple(test for test, confirmed in planned.items() if not confirmed and test not in played)
    return JointVerdict(name, tests, confirmations, together, confidence, not_played)


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
            *(
                f"not repeatable: {unit.label}: {unit.difference}. Draw all randomness from the given seed or "
                "generator: otherwise no run can be repeated, and a resumed run mixes results"
                for unit in self.repeated
                if unit.difference
            ),
            *(
                f"a unit changed its process, and the change was undone as far as possible: {remark}"
                for remark in self.remarks
            ),
        )

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
        if self.joint is not None:
            return (
                "The tests of the first pass share the error: their bounds hold together with confidence "
                f"{self.joint.together.screening:g}. Confirmatory runs share an error of {1 - self.confidence:.4g}, "
                "for any result of the first pass. Side findings have separate errors of the same size."
            )
        if self.sweep is not None:
            return self.sweep.confidence_line
        count = sum(result.finding is None or result.finding.confidence is not None for result in self.results)
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
        if self.joint is not None:
            return self.joint.answer.html(self.text(verbose=True))
        return "".join(result._repr_html_() for result in self.results) + f"<pre>{escape(self.text())}</pre>"

    def __str__(self) -> str:
        return self.text()

    def text(self, *, verbose: bool = False) -> str:
        """Return the verdict of each audit with its lines, and facts about the run.

        Args:
            verbose: True to add methods, counts, choices and tests that did not run.
        """
        texts = [result.text(verbose=verbose) for result in self.results] if self.sweep is None else []
        blocks = texts if self.sweep is None else [str(self.sweep)]
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
