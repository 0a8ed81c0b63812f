"""Several tests of one claim: the record of all of them, and the one answer that is decided from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from dpaudit.engine.reading import answer_words
from dpaudit.engine.reading.record import Confirmation, Record, TestRecord
from dpaudit.engine.reading.result import AuditResult
from dpaudit.engine.reading.verdict import Answer, Verdict, decide
from dpaudit.engine.request.error_budget import JointTest


@dataclass(frozen=True, eq=False)
class JointVerdict:
    """What all tests of one claim say together.

    A test that rejects the claim in the first pass is repeated with other seeds and at a stricter confidence. A test
    that takes a proxy for the truth is followed by planted labels instead.

    Attributes:
        name: The name of the run.
        tests: The result of each test that was played, in order.
        confirmations: The result of each confirmatory run, by the name of the test that it repeats.
        together: How the tests share the error, and which of them look for side findings.
        confidence: Of a verdict VIOLATION, whatever the first pass was.
        not_played: Names of tests that were chosen and not played: nothing was left to find, or of the budget.
    """

    name: str
    tests: tuple[AuditResult, ...]
    confirmations: Mapping[str, AuditResult]
    together: JointTest
    confidence: float
    not_played: tuple[str, ...] = ()

    @cached_property
    def record(self) -> Record:
        """What the answer is decided from."""
        return Record(
            self.name,
            tuple(self._record_of(test) for test in self.tests),
            self.not_played,
            self.together.cut,
        )

    @cached_property
    def answer(self) -> Answer:
        """The verdict on the claim, with all that is printed of it."""
        return decide(self.record)

    @property
    def verdict(self) -> Verdict:
        """What the tests say of the claim."""
        return self.answer.verdict

    @property
    def deciding(self) -> AuditResult | None:
        """The result of the test that the verdict rests on; None if no test was run."""
        test = self.answer.test
        return None if test is None else next(result for result in self.tests if result.name == test.name)

    def _record_of(self, test: AuditResult) -> TestRecord:
        """Return the record of a test, with what its confirmatory run showed."""
        record = replace(test.record, scope=self.together.scope(test.name))
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
        if rejects_without_proxy(again):
            confirmed = again.record
            return replace(
                record,
                confirmation=Confirmation.CONFIRMED,
                repeated=again.finding,
                sensitivity=confirmed.sensitivity,
                where=confirmed.where or record.where,
                state=confirmed.state or record.state,
                whole=confirmed.whole,
            )
        if record.on_proxy:  # planted labels do not reject the claim, and a first pass on a proxy does not either
            return replace(record, confirmation=Confirmation.MISSING)
        shown = again.finding if again.record.exceeds else None
        return replace(
            record, confirmation=test.confirmation, repeated=shown, at_first_confidence=test.at_first_confidence
        )

    def text(self, *, verbose: bool = False) -> str:
        """Return the verdict and its lines; with `verbose`, which tests were chosen, repeated and left out too."""
        lines = [*self.answer.lines, *(self.details if verbose else ())]
        return answer_words.aligned(f"{self.verdict}  {self.name}", lines)

    @property
    def details(self) -> list[tuple[str, str]]:
        """(label, text): how the error is shared, which tests were chosen, repeated and left out."""
        repeated = [
            ("repeated", f"{test.name}: first {test.headline}; again {self.confirmations[test.name].headline}")
            for test in self.tests
            if test.name in self.confirmations
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
                "again": self.confirmations[test.name].headline,
                "confirmed": rejects_without_proxy(self.confirmations[test.name]),
            }
            for test in self.tests
            if test.name in self.confirmations
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


def rejects_without_proxy(test: AuditResult) -> bool:
    """True if a test rejects the claim and takes nothing on trust."""
    return test.record.rejects and not test.conditional


def joint_verdict(
    name: str, together: JointTest, results: Sequence[AuditResult], planned: Mapping[str, str], confidence: float
) -> JointVerdict:
    """Return the verdict of planned tests.

    Args:
        name: The name of the run.
        planned: From the name of each audit to that of the test it confirms, or "".
    """
    tests = tuple(result for result in results if not planned[result.name])
    confirmations = {planned[result.name]: result for result in results if planned[result.name]}
    played = {test.name for test in tests}
    not_played = tuple(test for test, confirmed in planned.items() if not confirmed and test not in played)
    return JointVerdict(name, tests, confirmations, together, confidence, not_played)
