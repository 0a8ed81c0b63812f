"""The one verdict on a claim: `decide` makes an `Answer` of a `Record` by an ordered table of rules."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from html import escape
from typing import Any

from dpaudit.claims import Scope
from dpaudit.engine.answer import answer_words
from dpaudit.engine.answer.record import Confirmation, Record, Test
from dpaudit.errors import printable
from dpaudit.estimators.finding import Comparison


class Verdict(StrEnum):
    """Verdict on a claim."""

    VIOLATION = "VIOLATION"
    """The bound exceeds the claim, and nothing else explains it."""
    NO_VIOLATION = "NO VIOLATION FOUND"
    """The bound does not exceed the claim. That is not evidence of privacy."""
    UNDECIDED = "UNDECIDED"
    """There is evidence against the claim, but it is not known whether the claim is broken."""
    INCONCLUSIVE = "INCONCLUSIVE"
    """The audit could not have rejected the claim."""
    NO_CLAIM = "NO CLAIM"
    """There is no claim, only a bound."""
    FAILED = "FAILED"
    """There is no bound, because too much of the audit failed."""


COLOURS = {
    Verdict.VIOLATION: "#b91c1c",
    Verdict.NO_VIOLATION: "#1d4ed8",
    Verdict.INCONCLUSIVE: "#6b7280",
    Verdict.NO_CLAIM: "#475569",
    Verdict.UNDECIDED: "#a16207",
    Verdict.FAILED: "#a16207",
}
"""Colour of each verdict on pages and in charts. "No violation found" is not green: it proves no privacy."""


@dataclass(frozen=True)
class Rule:
    """A row of the verdict table: the first rule that applies to a record decides the verdict.

    Attributes:
        verdict: The verdict.
        name: A short name, as it stands in `bounds.json`.
        when: The condition in words, for the documentation.
        tests: Returns the tests that the rule applies to, best first; none if it does not apply.
    """

    verdict: Verdict
    name: str
    when: str
    tests: Callable[[Record], Sequence[Test]]


def _readable_tests(condition: Callable[[Test], bool]) -> Callable[[Record], Sequence[Test]]:
    return lambda record: [test for test in record.readable if condition(test)]


def _most_sensitive_first(tests: Sequence[Test]) -> list[Test]:
    """Sort tests of the whole claim before tests of a part, and each group by detection strength."""
    return sorted(tests, key=lambda test: (bool(test.meaning_for_whole), *(-each for each in test.detection_strength)))


RULES = (
    Rule(
        Verdict.FAILED,
        "nothing-usable",
        "no test of the claim ended in a bound",
        lambda record: [] if record.readable else record.of_claim,
    ),
    Rule(
        Verdict.NO_CLAIM,
        "no-claim",
        "nothing was claimed",
        lambda record: [] if any(test.claims_something for test in record.readable) else record.readable,
    ),
    Rule(
        Verdict.VIOLATION,
        "claim-rejected",
        "a bound exceeds the claim, its confirmatory run (if planned) also rejects the claim, the code keeps no state "
        "between calls, and the validity of the bound needs no unstated assumption (independent trials; a random "
        "split; for a proxy, a control that does not explain the bound, or a confirmatory run)",
        _readable_tests(lambda test: test.rejects),
    ),
    Rule(
        Verdict.UNDECIDED,
        "state-between-calls",
        "a bound exceeds the claim, but the code keeps state between calls",
        _readable_tests(lambda test: test.is_open and test.keeps_state),
    ),
    Rule(
        Verdict.UNDECIDED,
        "independence-not-stated",
        "a bound exceeds the claim, but it holds for independent trials only and their independence was not stated",
        _readable_tests(lambda test: test.is_open and bool(test.assumed_method)),
    ),
    Rule(
        Verdict.UNDECIDED,
        "split-not-random",
        "a bound exceeds the claim, but the split of rows into training and holdout was not random",
        _readable_tests(lambda test: test.is_open and bool(test.split_doubt)),
    ),
    Rule(
        Verdict.UNDECIDED,
        "proxy",
        "a bound exceeds the claim, but an error of the proxy could explain it",
        _readable_tests(lambda test: test.is_open and test.on_proxy),
    ),
    Rule(
        Verdict.UNDECIDED,
        "confirmation-open",
        "the first pass rejects the claim, but the confirmatory run is missing, or rejects only at the lower "
        "confidence of the first pass",
        _readable_tests(lambda test: test.is_open),
    ),
    Rule(
        Verdict.UNDECIDED,
        "results-change",
        "the first pass rejects the claim (p <= 1e-6) and the confirmatory run does not: results change from call to "
        "call",
        _readable_tests(lambda test: test.changes),
    ),
    Rule(
        Verdict.UNDECIDED,
        "digits-cannot-tell",
        "the test on unrounded results rejects the claim, and the test on rounded results does so in its first pass "
        "alone; the results are whole numbers, so the cause is not floating-point digits",
        lambda record: [test for test in record.tests if test.rejects and test.digits_cannot_tell],
    ),
    Rule(
        Verdict.UNDECIDED,
        "average-record",
        "the test of an ordinary record rejects the claim and the test of the worst record that was found does not",
        lambda record: [test for test in record.tests if test.rejects and test.scope is Scope.AVERAGE_RECORD],
    ),
    Rule(
        Verdict.UNDECIDED,
        "stated-noise",
        "the noise is not the stated noise (p < 1e-6)",
        lambda record: sorted(
            (test for test in record.tests if test.rejects_stated_noise), key=lambda test: test.finding is None
        ),
    ),
    Rule(
        Verdict.UNDECIDED,
        "without-noise",
        "the claim is finite, and gradients of the audited training held no noise",
        _readable_tests(lambda test: test.claims_something and bool(test.without_noise)),
    ),
    Rule(
        Verdict.UNDECIDED,
        "other-training",
        "the training differs from the one that the claim is about: its records were not sampled as stated, or its "
        "steps spend more than is claimed",
        _readable_tests(lambda test: bool(test.differs_from_claim)),
    ),
    Rule(
        Verdict.INCONCLUSIVE,
        "unreadable-results",
        "the code returned results that could not be read",
        _readable_tests(lambda test: bool(test.unreadable)),
    ),
    Rule(
        Verdict.INCONCLUSIVE,
        "cannot-detect",
        "no test could have rejected the claim: for every test, the maximum detectable epsilon is not above the claim, "
        "or the budget ended before it had enough trials",
        lambda record: [] if record.able else _most_sensitive_first(record.readable),
    ),
    Rule(Verdict.NO_VIOLATION, "not-rejected", "none of the above", lambda record: _most_sensitive_first(record.able)),
)
"""Rules of the verdict, in order: the first one that applies decides."""


@dataclass(frozen=True, eq=False)
class Answer:
    """The verdict on one claim with every sentence that pages, cards and files print about it. It is never changed.

    Attributes:
        name: Name of the run, or of the only test.
        verdict: The verdict.
        rule: Name of the rule that decided.
        test: The test that the verdict rests on; None if no test was run.
        headline: Claim and bound in one line.
        sentence: The result in a sentence for a reader without statistics.
        lines: (label, text) of the lines printed below the verdict, in order, such as ("claim", "epsilon <= 4 ...").
        side: Scopes with side findings.
        next_step: Advice on what to do now.
    """

    name: str
    verdict: Verdict
    rule: str
    test: Test | None
    headline: str
    sentence: str
    lines: tuple[tuple[str, str], ...]
    side: tuple[Scope, ...]
    next_step: str

    def text(self, further: Sequence[tuple[str, str]] = (), *, verbose: bool = False) -> str:
        """Return the verdict and its lines, aligned.

        Args:
            further: (label, text) of lines that are printed before the next step.
            verbose: True to print the lines with details too.
        """
        lines = [pair for pair in self.with_lines(further).lines if verbose or pair[0] not in answer_words.DETAILS]
        return answer_words.aligned(f"{self.verdict}  {self.name}", lines)

    def with_lines(self, further: Sequence[tuple[str, str]]) -> Answer:
        """Return the answer with further (label, text) lines before the next step."""
        return replace(self, lines=(*self.lines[:-1], *further, *self.lines[-1:]))

    @property
    def below_sentence(self) -> tuple[tuple[str, str], ...]:
        """`lines` without the one that repeats `sentence`, for pages that print both."""
        return tuple((label, text) for label, text in self.lines if text != self.sentence.rstrip("."))

    def line(self, label: str) -> str:
        """Return the text of the lines with this label; "" if there is none."""
        return "; ".join(text for line_label, text in self.lines if line_label == label)

    def html(self, rest: object) -> str:
        """Return the answer for a notebook: a badge, labelled lines, a bar for the bound, and `rest` folded below."""
        badge = f'<b style="background:{COLOURS[self.verdict]};color:#fff;border-radius:9px;padding:2px 9px">'
        head = '<th style="text-align:left;vertical-align:top;padding-right:12px;white-space:nowrap">'
        rows = "".join(
            f'<tr>{head}{escape(label)}</th><td style="text-align:left">{escape(printable(text))}</td></tr>'
            for label, text in self.below_sentence
        )
        folded = f"<details><summary>more</summary><pre>{escape(str(rest))}</pre></details>"
        bar = _bar(None if self.test is None else self.test.comparison)
        title = f"{badge}{self.verdict}</b> {escape(printable(self.name))}"
        return f"<p>{title}</p><p>{escape(printable(self.sentence))}</p>{bar}<table>{rows}</table>{folded}"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "name": self.name,
            "verdict": self.verdict.value,
            "rule": self.rule,
            "test": None if self.test is None else self.test.name,
            "headline": self.headline,
            "sentence": self.sentence,
            "lines": [list(line) for line in self.lines],
            "side": [scope.value for scope in self.side],
            "next": self.next_step,
        }


def _bar(compared: Comparison | None) -> str:
    """Return a bar for the observed value with a line at the claim, as SVG; "" if the value is infinite."""
    if compared is None or not math.isfinite(compared.observed):
        return ""
    from dpaudit.engine.figures.palette import can_be_drawn  # only notebooks need it

    claimed = compared.claimed if can_be_drawn(compared.claimed) else 0.0
    unit = 400 / max(compared.observed, claimed, 1e-9)
    line = f'<rect x="{claimed * unit - 1:.0f}" width="2" height="20" fill="#111"/>' if claimed else ""
    bar = f'<rect y="4" width="{max(compared.observed, 0) * unit:.0f}" height="12" fill="#94a3b8"/>'
    caption = f'<div style="font-size:85%">bar: lower bound{"; line: claim" if claimed else ""}</div>'
    return (
        f'<svg role="img" aria-label="{escape(compared.words)}" viewBox="0 0 404 20" width="404" '
        f'style="max-width:100%">{bar}{line}</svg>{caption}'
    )


def decide(record: Record) -> Answer:
    """Return the answer to a record: the first rule of `RULES` that applies gives the verdict."""
    for rule in RULES:
        tests = list(rule.tests(record))
        if tests:
            return _answer(record, rule, tests[0])
    return _answer(record, RULES[0], None)


class Answered:
    """Base of results that tests of one claim give: the answer to their record, decided once."""

    @property
    def record(self) -> Record:
        """Record from which the answer is decided."""
        raise NotImplementedError

    @cached_property
    def answer(self) -> Answer:
        """Verdict on the claim, with everything that is printed about it."""
        return decide(self.record)

    @property
    def verdict(self) -> Verdict:
        """Verdict on the claim."""
        return self.answer.verdict

    def text(self, *, verbose: bool = False) -> str:
        """Return the verdict with labelled lines below it; `verbose` adds details."""
        raise NotImplementedError

    def __str__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        return self.answer.html(self.text(verbose=True))


def _answer(record: Record, rule: Rule, test: Test | None) -> Answer:
    side = [] if test is None else side_findings(record, test)
    lines = answer_words.lines(record, rule.verdict, rule.name, test, side)
    return Answer(
        record.name,
        rule.verdict,
        rule.name,
        test,
        answer_words.headline(test, rule.verdict),
        answer_words.sentence(test, rule.verdict),
        tuple(lines),
        (*dict.fromkeys(each.scope for each in side), *([Scope.STATED_NOISE] if record.noisy else [])),
        answer_words.next_step(record, rule.verdict, rule.name, test),
    )


def side_findings(record: Record, deciding: Test | None) -> list[Test]:
    """Return the tests of side findings that reject the claim in their own scope.

    If the claim itself is exceeded, low digits are not reported: they only repeat that the noise is too small.
    """
    exceeded = deciding is not None and deciding.exceeds and deciding.confirmation is not Confirmation.NOT_CONFIRMED
    return [
        test
        for test in record.tests
        if test.scope is not Scope.CLAIM
        and test.rejects
        and not test.digits_cannot_tell
        and not (exceeded and test.scope is Scope.FLOATING_POINT)
    ]
