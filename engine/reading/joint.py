"""One verdict on one claim from several tests: what refutes it in a first pass counts once it is confirmed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dpaudit.engine.reading.result import INDENT, AuditResult
from dpaudit.engine.reading.verdict import NEXT, Verdict
from dpaudit.engine.spec.error_budget import JointTest
from dpaudit.errors import printable


@dataclass(frozen=True, eq=False)
class JointVerdict:
    """What all tests together say of the claim.

    A test that refutes the claim in the first pass is repeated, with other seeds and at a stricter confidence: the
    verdict is VIOLATION where that refutes the claim too. A test that takes a proxy for the truth is followed by
    planted labels instead, and leaves the verdict UNDECIDED where these do not refute the claim.
    """

    tests: tuple[AuditResult, ...]  # what was found by each that was played, in order
    confirmations: Mapping[str, AuditResult]  # by the name of a test, what was found when it was confirmed
    # Stated confidence of the verdict: whatever the first pass was, with at most the rest of probability it is a
    # VIOLATION though the claim holds
    confidence: float
    screening: float  # confidence of all bounds of the first pass together
    chosen: tuple[str, ...] = ()  # why each game is among them
    left_out: tuple[str, ...] = ()  # which games are not, and why
    cut: str = ""  # which have fewer trainings or calls than usual, by the budget
    # Names of tests that were chosen and not played: nothing was left to find, or of the budget
    not_played: tuple[str, ...] = ()

    @property
    def deciding(self) -> AuditResult | None:
        """The test that the verdict rests on: the one that is confirmed, else the one that could show most.

        What could be shown of a part of the claim is on another scale than what could be shown of all of it: a look at
        all of it comes before one at a part.
        """
        confirmed = next((test for test in self.tests if self._is_confirmed(test)), None)
        if confirmed is not None:
            return confirmed
        doubtful = [test for test in self.tests if test.verdict in _DOUBTFUL]
        if doubtful:
            return doubtful[0]
        whole, parts = self._able
        return _best(whole) or _best(parts) or (self.tests[0] if self.tests else None)

    @property
    def _able(self) -> tuple[list[AuditResult], list[AuditResult]]:
        """Tests that found nothing though they could have, else those that could not: at all of it, and at a part."""
        for verdict in (Verdict.NO_VIOLATION, Verdict.INCONCLUSIVE):
            found = [test for test in self.tests if test.verdict is verdict]
            if found:
                return [test for test in found if not test.of_a_part], [test for test in found if test.of_a_part]
        return [], []

    @property
    def verdict(self) -> Verdict:
        """What they say of the claim."""
        found = {test.verdict for test in self.tests}
        if any(self._is_confirmed(test) for test in self.tests):
            return Verdict.VIOLATION
        if found & _DOUBTFUL:
            return Verdict.UNDECIDED
        order = (Verdict.NO_VIOLATION, Verdict.INCONCLUSIVE, Verdict.NO_CLAIM)
        return next((verdict for verdict in order if verdict in found), Verdict.FAILED)

    @property
    def headline(self) -> str:
        """For a reader who reads one line."""
        test = self.deciding
        if test is None:
            return "no test was run"
        if self.verdict is Verdict.VIOLATION:
            return f"{test.name}: {self.confirmations[test.name].headline}"
        open_tests = [one.name for one in self.tests if one.verdict in _OPEN and one is not test]
        beside = f"; no verdict from {', '.join(open_tests)}" if open_tests else ""
        return f"{test.name}: {test.headline}{beside}{self._parts_alone}"

    @property
    def _parts_alone(self) -> str:
        """That nothing looked at all of the claim; "" where a test did."""
        alone = all(test.of_a_part or test.verdict in _OPEN for test in self.tests)
        return "; no test looked at the training from end to end" if alone and self.verdict in _LOOKED else ""

    @property
    def how_sure(self) -> str:
        """The confidence of the verdict, and what was not confirmed."""
        test = self.deciding
        if self.verdict is Verdict.VIOLATION and test is not None:
            confirmed = self.confirmations[test.name]
            first = "" if test.comparison is None else f"; the first pass found {test.comparison.words}"
            sure = f"{100 * self.confidence:.5g} % confidence, from a confirmatory run on fresh randomness{first}"
            return "; ".join(filter(None, [confirmed.part, sure, confirmed.same_again]))
        tests = f"{100 * self.screening:.5g} % confidence for the {len(self.tests)} tests together"
        assumed = "" if test is None or not test.open_question else test.open_question
        part = "" if test is None else test.part
        return "; ".join(filter(None, [part, tests, assumed, *self._not_confirmed]))

    def _is_confirmed(self, test: AuditResult) -> bool:
        return test.name in self.confirmations and refutes(self.confirmations[test.name])

    @property
    def _not_confirmed(self) -> list[str]:
        undecided = {test.name for test in self.tests if test.verdict is Verdict.UNDECIDED}
        names = [name for name, again in self.confirmations.items() if not refutes(again) and name not in undecided]
        return (
            [f"{', '.join(names)} exceeded the claim in the first pass, and not in the confirmatory run"]
            if names
            else []
        )

    @property
    def _pairs(self) -> list[tuple[AuditResult, AuditResult]]:
        """Each test that was followed by a confirmation, with it."""
        return [(test, self.confirmations[test.name]) for test in self.tests if test.name in self.confirmations]

    @property
    def lines(self) -> tuple[str, ...]:
        """Which tests were chosen, run again, not run, and left out."""
        return (
            *(
                f"confirmatory run: {test.name}: first {test.headline}; again {again.headline}: "
                + ("confirmed" if refutes(again) else "undecided" if again.open_question else "not confirmed")
                for test, again in self._pairs
            ),
            *(f"chosen: {reason}" for reason in self.chosen),
            *filter(None, [self.cut, self.not_run]),
            *(f"left out: {reason}" for reason in self.left_out),
        )

    @property
    def detectable(self) -> tuple[str, ...]:
        """What the best test on the scale of the deciding one could have detected, and the best of a part alone."""
        test = self.deciding
        if test is None:
            return ()
        _, parts = self._able
        beside = _best(parts)
        shown = [test] if beside is None or beside is test else [test, beside]
        read = [self.confirmations[one.name] if self._is_confirmed(one) else one for one in shown]
        return tuple(_seen_by(one) for one in read if one.seen)

    @property
    def beside_a_violation(self) -> str:
        """Which tests did not refute a claim that one refuted: such as that of rows within the schema."""
        others = [test for test in self.tests if test.verdict is Verdict.NO_VIOLATION and test is not self.deciding]
        if self.verdict is not Verdict.VIOLATION or not others:
            return ""
        return f"no violation found by: {'; '.join(f'{test.name}, {test.headline}' for test in others)}"

    @property
    def next_step(self) -> str:
        """What to do now."""
        if self.verdict is Verdict.NO_VIOLATION:
            return "No proof of privacy: a leak that is small, rare or of another kind may be missed. Try more calls."
        return NEXT[self.verdict]

    @property
    def not_run(self) -> str:
        """Which tests were chosen and not run, and why; "" where all were."""
        why = "the claim is refuted" if self.verdict is Verdict.VIOLATION else "the budget was spent"
        return f"not run: {', '.join(self.not_played)}: {why}" if self.not_played else ""

    def text(self, name: str, *, verbose: bool = False) -> str:
        """The verdict of a run in three lines, in the form of `AuditResult.text`."""
        lines = [
            f"{self.verdict:<{INDENT}}{name}: {self.headline}",
            self.how_sure,
            next((test.odd_noise for test in self.tests if test.odd_noise), ""),
            *self.detectable,
            *(() if verbose or self.verdict is Verdict.VIOLATION else (self.cut, self.not_run)),
            self.beside_a_violation,
            "" if self.deciding is None else self.deciding.located,
        ]
        return f"\n{'':{INDENT}}".join(printable(line) for line in [*lines, *(self.lines if verbose else ())] if line)

    def to_dict(self) -> dict[str, Any]:
        """Values for JSON."""
        said = ("verdict", "headline", "how_sure", "confidence", "screening", "chosen", "left_out", "cut", "not_played")
        confirmations = [
            {
                "test": test.name,
                "first": test.headline,
                "again": again.headline,
                "verdict_again": again.verdict,
                "confirmed": refutes(again),
            }
            for test, again in self._pairs
        ]
        more = {"rests_on": None if self.deciding is None else self.deciding.name, "detectable": self.detectable}
        return {name: getattr(self, name) for name in said} | more | {"confirmations": confirmations}


_DOUBTFUL = frozenset({Verdict.VIOLATION, Verdict.UNDECIDED})
_LOOKED = frozenset({Verdict.NO_VIOLATION, Verdict.INCONCLUSIVE})
_OPEN = frozenset({Verdict.FAILED, Verdict.UNDECIDED})


def refutes(test: AuditResult) -> bool:
    """Whether a test refutes the claim and takes nothing on trust."""
    return test.verdict is Verdict.VIOLATION and not test.conditional


def joint_verdict(
    together: JointTest, results: Sequence[AuditResult], planned: Mapping[str, str], confidence: float
) -> JointVerdict:
    """The verdict of tests that were planned: from the name of each audit to that of the test it confirms, or ""."""
    tests = tuple(result for result in results if not planned[result.name])
    confirmations = {planned[result.name]: result for result in results if planned[result.name]}
    played = {test.name for test in tests}
    not_played = tuple(name for name, confirmed in planned.items() if not confirmed and name not in played)
    return JointVerdict(
        tests,
        confirmations,
        confidence,
        together.screening,
        together.chosen,
        together.left_out,
        together.cut,
        not_played,
    )


def _best(tests: Sequence[AuditResult]) -> AuditResult | None:
    """The test that would have seen the least under-noising; where no score tells, that could show most."""
    return max(tests, key=_could_show, default=None)


def _seen_by(test: AuditResult) -> str:
    part = f"for a part alone ({test.name}), on a scale of its own: " if test.of_a_part else ""
    return f"{part}{test.seen}"


def _could_show(test: AuditResult) -> tuple[float, float]:
    """How little under-noising it would have seen, then how much it could have shown at most."""
    least = 0.0 if test.detectable_factor is None else 1 / test.detectable_factor
    if test.ceiling is None:
        return least, 0.0
    comparison = test.ceiling.finding.comparison(test.compared.claim.curve)
    return least, comparison.observed - comparison.claimed
