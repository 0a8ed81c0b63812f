"""The joint verdict of several tests of one claim, decided from the record of all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from dpaudit.claims import Scope
from dpaudit.engine.answer.record import Confirmation, Record, Test, Verb
from dpaudit.engine.answer.result import AuditResult
from dpaudit.engine.answer.verdict import Answered
from dpaudit.engine.request.error_budget import JointTest


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
        if rejects_without_proxy(again):
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

    def text(self, *, verbose: bool = False) -> str:
        """Return the verdict and its lines; `verbose` adds the tests that were chosen, repeated and left out."""
        return self.answer.text(self.details if verbose else (), verbose=verbose)

    @property
    def details(self) -> list[tuple[str, str]]:
        """(label, text) on the shared error and on the tests that were chosen, repeated and left out."""
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
    """True if a test rejects the claim without relying on a proxy."""
    return test.rejects and not test.on_proxy


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
