"""What a run found: the results of its audits, and what they were made from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING

from dpaudit.actors.storage.places import join_place
from dpaudit.actors.storage.store import Provenance
from dpaudit.claims.scope import Scope
from dpaudit.engine.reading.answer_words import NOT_SHOWN
from dpaudit.engine.reading.joint import JointVerdict
from dpaudit.engine.reading.result import AuditResult
from dpaudit.engine.reading.verdict import Answer, Verdict
from dpaudit.errors import VerdictError, printable

if TYPE_CHECKING:
    import pandas as pd

    from dpaudit.engine.reading.comparison import Study
    from dpaudit.engine.reading.records import Records
    from dpaudit.engine.reading.sweep_summary import SweepSummary


@dataclass(frozen=True)
class Repeat:
    """A unit that was run a second time, with the same seed, to see whether it gives the same."""

    label: str  # what it is
    difference: str  # what was different; "" when every bit was the same


@dataclass(frozen=True, eq=False, repr=False)
class Report:
    """What a run found.

    Attributes:
        name: The spec's name.
        results: One for each audit, in the order of the spec.
        seed: The spec's seed.
        confidence: Stated confidence of each bound on its own.
        seconds: Wall time of this run (units found finished cost nothing).
        executed: Units run now.
        units: Units planned; one that several audits share counts once.
        reused: When and by which code the results that were found finished were made.
        damaged: Unit files that failed their check and what is wrong with them.
        unseen: What of the user's code cannot be read; units that depend on it are never reused.
        folder: The run folder; "" when nothing was written.
        spec: The spec in YAML.
        versions: Packages and platform.
        events: How often each kind of event happened, over all runs in the folder.
        repeated: Units that were run twice and compared.
        remarks: What units did to their process, and which.
        joint: The one verdict of audits that are tests of one claim; None where each stands for itself.
        sweep: The configurations of a sweep side by side; None where the audits are none.
        spared: Units that were not needed, or left out when the budget was spent.
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
    repeated: tuple[Repeat, ...] = ()
    remarks: tuple[str, ...] = ()
    joint: JointVerdict | None = None
    sweep: SweepSummary | None = None
    spared: int = 0

    @property
    def origin(self) -> tuple[str, ...]:
        """Where the results come from, as far as they were not made by this run with code that could be read."""
        again = "run again" if self.executed else "not used"
        return (
            *([f"{self.reused.units} of {self.units} units reused ({self.reused})"] if self.reused.units else []),
            *(f"damaged, {again}: {file}" for file in self.damaged),
            *(f"what depends on it is never reused: {why}" for why in self.unseen),
            *self._not_repeatable,
            *(f"changed in the process it ran in, and put back as far as that can be: {said}" for said in self.remarks),
        )

    @property
    def _not_repeatable(self) -> list[str]:
        return [
            f"not repeatable: {unit.label}: {unit.difference}; what is random in it must follow the seed or generator "
            "it is given, else no run can be repeated, and one that is resumed mixes results"
            for unit in self.repeated
            if unit.difference
        ]

    @property
    def determinism(self) -> str:
        """Which units were run twice and gave the same; "" if none."""
        same = [unit.label for unit in self.repeated if not unit.difference]
        return f"determinism check passed (run twice): {', '.join(same)}" if same else ""

    @property
    def violations(self) -> tuple[AuditResult, ...]:
        """The audits whose finding refutes their claim; of tests of one claim only where their verdict is that."""
        return self._with(Verdict.VIOLATION)

    @property
    def inconclusive(self) -> tuple[AuditResult, ...]:
        """The audits that could not have refuted their claim; of tests of one claim only where none could have."""
        return self._with(Verdict.INCONCLUSIVE)

    @property
    def failed(self) -> tuple[AuditResult, ...]:
        """The audits of the claim without a finding; none if another test of the same claim rejects it."""
        if self.joint is not None and self.joint.verdict is Verdict.VIOLATION:
            return ()
        return tuple(result for result in self._of_claim if result.verdict is Verdict.FAILED)

    @property
    def _of_claim(self) -> tuple[AuditResult, ...]:
        """The results without those of side findings."""
        return tuple(result for result in self.results if result.scope is Scope.CLAIM)

    @property
    def undecided(self) -> tuple[AuditResult, ...]:
        """The audits whose finding exceeds their claim and does not refute it; none where another test does."""
        return self._with(Verdict.UNDECIDED)

    def raise_for_verdict(self, *accept: Verdict) -> None:
        """Passes in silence where no claim is refuted and every audit could say so: for tests and pipelines.

        Args:
            accept: Further verdicts that pass beside NO VIOLATION FOUND and NO CLAIM, such as `Verdict.INCONCLUSIVE`.
        Raises: VerdictError for any other verdict, FAILED among them; of tests of one claim the joint verdict counts,
            and a test that failed.
        """
        passing = {Verdict.NO_VIOLATION, Verdict.NO_CLAIM, *accept}
        failing = [answer.text() for answer in self.answers if answer.verdict not in passing]
        if failing:
            raise VerdictError("\n".join(failing))

    @property
    def answers(self) -> tuple[Answer, ...]:
        """The answers that count: of tests of one claim the joint one, and tests that failed; else each audit's."""
        if self.joint is None:
            return tuple(result.answer for result in self.results)
        failed = () if self.joint.verdict is Verdict.FAILED else self.failed
        return (self.joint.answer, *(result.answer for result in failed))

    def _with(self, verdict: Verdict) -> tuple[AuditResult, ...]:
        if self.joint is not None and self.joint.verdict is not verdict:
            return ()
        found = tuple(result for result in self._of_claim if result.verdict is verdict)
        deciding = self.joint and self.joint.deciding  # the tests together may say more than each
        return found or ((deciding,) if deciding else ())

    @property
    def joint_confidence_note(self) -> str:
        """What several bounds in one report mean together; what was computed exactly is none of them."""
        count = sum(result.finding is None or result.finding.confidence is not None for result in self.results)
        if self.joint is not None:
            return (
                "The tests of the first pass share the error: their bounds hold together with confidence "
                f"{self.joint.together.screening:g}. Confirmatory runs share an error of {1 - self.confidence:.4g}, "
                "whatever the first pass showed. Side findings have errors of their own, as large."
            )
        if self.sweep is not None:
            return self.sweep.confidence_line
        if count < 2:
            return ""
        return (
            f"Each of the {count} bounds holds with confidence {self.confidence:g} on its own; "
            f"all of them together with at least {max(0.0, 1 - count * (1 - self.confidence)):.4g}."
        )

    def to_frame(self) -> pd.DataFrame:
        """One row an audit: verdict, what was observed and claimed, validity, counts."""
        import pandas as pd

        return pd.DataFrame([result.row() for result in self.results])

    def records(self, top: int = 20, *, rate: float = 0.05, audit: str | None = None) -> Records:
        """Which records the attack was right about too often, over trainings; arguments as `Records.of_results`."""
        from dpaudit.engine.reading.records import Records

        return Records.of_results(self.results, self.spec, top=top, rate=rate, audit=audit)

    def __repr__(self) -> str:
        joint = "" if self.joint is None else f"{self.joint.verdict}; "
        found = ", ".join(f"{result.name} {result.verdict}" for result in self.results)
        return printable(f"<Report {self.name!r}: {joint}{found}>")

    @property
    def studies(self) -> list[Study]:
        """Label mechanisms side by side, one study a data set, where they were read for what they tell of labels."""
        if not any("beliefs" in result.series for result in self.results):
            return []
        from dpaudit.engine.reading.comparison import studies  # knows mechanisms

        return studies(self.results)

    def _repr_html_(self) -> str:
        from dpaudit.engine.reading.card import card

        if self.joint is not None:
            return card(self.joint.answer, self.text(verbose=True))
        return "".join(result._repr_html_() for result in self.results) + f"<pre>{escape(self.text())}</pre>"

    def __str__(self) -> str:
        return self.text()

    def text(self, *, verbose: bool = False) -> str:
        """Return the verdict of each audit with its lines, and what must be known of the run.

        Args:
            verbose: Whether all else follows: methods, counts, choices, which tests were not run.
        """
        if self.sweep is None:
            blocks = [result.text(verbose=verbose) for result in self.results]
        else:
            blocks = [str(self.sweep)]
        blocks += [printable(line) for study in self.studies for line in study.lines]
        if self.joint is not None:
            blocks = [self.joint.text(verbose=verbose), *(blocks if verbose else [])]
        left = " or beyond the budget" if self.joint is not None and self.joint.not_played else ""
        spared = f" ({self.spared} not needed{left})" if self.spared else ""
        units = f"{self.executed} of {self.units} units ran{spared}, {self.seconds:.1f} s; seed {self.seed}"
        tail = [
            units,
            *dict.fromkeys(result.rows_used for result in self.results),
            *dict.fromkeys(said for result in self.results for said in result.said),
            *self.origin,
            self.determinism if verbose else "",
            self.joint_confidence_note if verbose and self.sweep is None else "",
            NOT_SHOWN[0] if verbose else "",
        ]
        if self.folder:
            tail.append(f"report: {join_place(self.folder, 'report.html')}")
        return "\n".join([*blocks, *map(printable, filter(None, tail))])
