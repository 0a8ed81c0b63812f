"""`decide` alone makes verdicts, by rules in a fixed order; all outputs print its lines."""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest

from dpaudit.claims import Scope
from dpaudit.engine.answer.record import Confirmation, Sensitivity
from dpaudit.engine.answer.verdict import RULES, Verdict, decide
from dpaudit.estimators.finding import Validity
from tests.engine.answer_situations import (
    BLIND,
    ROWS,
    SITUATIONS,
    STATE,
    alone,
    bound,
    noise,
    planted,
    record,
    rejected,
    side,
    texts,
    together,
)
from tests.loops import Cases

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests/golden/answers.txt"
VERDICT_FILE = "engine/answer/verdict.py"


def test_each_situation_is_decided_by_its_rule() -> None:
    with Cases() as cases:
        for name, situation in SITUATIONS.items():
            with cases.case(name):
                answer = decide(situation.record)
                assert (answer.verdict, answer.rule) == (situation.verdict, situation.rule)


def test_every_rule_decides_a_situation() -> None:
    assert {situation.rule for situation in SITUATIONS.values()} == {rule.name for rule in RULES}
    assert set(Verdict) == {rule.verdict for rule in RULES}


def test_printed_verdicts_equal_the_reviewed_ones() -> None:
    """After an intended change of wording, renew the file: see `answer_situations.py`."""
    assert texts() == GOLDEN.read_text()


def test_lines_have_one_order_and_end_with_the_next_step() -> None:
    order = [
        *(
            "error",
            "claim",
            "part",
            "lower bound",
            "test",
            "evidence",
            "p-value",
            "reason",
            "caution",
            "where",
            "sensitivity",
        ),
        *(scope.value for scope in Scope if scope is not Scope.CLAIM and scope is not Scope.STATED_NOISE),
        *("stated-noise", "budget", "not run", "next"),
    ]
    with Cases() as cases:
        for name, situation in SITUATIONS.items():
            with cases.case(name):
                labels = [label for label, _ in decide(situation.record).lines]
                assert labels == sorted(labels, key=order.index)
                assert labels[-1] == "next"


def test_explained_bounds_are_no_violation() -> None:
    """Two explanations of a bound above the claim never combine into VIOLATION."""
    explained = {
        "state": {"state": STATE},
        "proxy": {"on_proxy": True},
        "independence": {"assumed_method": "two-samples"},
        "split": {"split_doubt": "the split is not random"},
        "missing": {"confirmation": Confirmation.MISSING},
        "close": {"confirmation": Confirmation.CLOSE},
        "not confirmed": {"confirmation": Confirmation.NOT_CONFIRMED},
    }
    with Cases() as cases:
        for (situation, first), (other, second) in itertools.product(explained.items(), repeat=2):
            with cases.case(f"{situation}, {other}"):
                assert decide(alone(replace(record(4.7), **first | second))).verdict is not Verdict.VIOLATION


def test_a_confirmed_bound_by_planted_labels_needs_no_control() -> None:
    by_proxy = rejected(on_proxy=True)
    assert decide(together(by_proxy)).verdict is Verdict.VIOLATION
    assert decide(together(replace(by_proxy, confirmation=Confirmation.NOT_PLANNED))).verdict is Verdict.UNDECIDED


def test_an_as_published_bound_rejects_no_claim() -> None:
    published = replace(bound(4.7), validity=Validity.AS_PUBLISHED)
    assert decide(alone(record(0.0, finding=published))).verdict is Verdict.NO_VIOLATION
    assert decide(alone(record(0.0, finding=replace(published, validity=Validity.FINITE_SAMPLE)))).verdict is (
        Verdict.VIOLATION
    )


def test_a_side_finding_is_named_but_does_not_change_the_verdict() -> None:
    with Cases() as cases:
        for scope in (Scope.FLOATING_POINT, Scope.BEYOND_SCHEMA):
            with cases.case(scope):
                answer = decide(together(record(0.9, ROWS), side(scope)))
                assert answer.verdict is Verdict.NO_VIOLATION
                assert answer.side == (scope,)
                assert "epsilon >= 5.100" in answer.line(scope.value)
                assert "5.1" not in answer.headline + answer.line("lower bound")
                counted = replace(side(scope), scope=Scope.CLAIM)
                assert decide(together(record(0.9, ROWS), counted)).verdict is Verdict.VIOLATION
                doubtful = side(scope, confirmation=Confirmation.CLOSE)
                assert decide(together(record(0.9, ROWS), doubtful)).side == ()


def test_digits_are_no_side_finding_if_the_claim_is_exceeded() -> None:
    """Full digits also reveal a leak of the numbers themselves, so this finding would repeat the violation."""
    digits = side(Scope.FLOATING_POINT)
    assert decide(together(rejected(), digits)).side == ()
    assert decide(together(record(4.7, confirmation=Confirmation.MISSING), digits)).side == ()
    unconfirmed = record(4.7, confirmation=Confirmation.NOT_CONFIRMED)
    assert decide(together(unconfirmed, digits)).side == (Scope.FLOATING_POINT,)
    assert decide(together(rejected(), side(Scope.BEYOND_SCHEMA))).side == (Scope.BEYOND_SCHEMA,)


@pytest.mark.parametrize(("p", "verdict"), [(1e-12, Verdict.UNDECIDED), (1e-6, Verdict.NO_VIOLATION)])
def test_noise_other_than_the_stated_noise_does_not_pass(p: float, verdict: Verdict) -> None:
    """The p-value combines five comparisons."""
    answer = decide(alone(record(0.9, ROWS, noise=noise(p))))
    assert answer.verdict is verdict
    assert decide(alone(rejected(noise=noise(p)))).verdict is Verdict.VIOLATION
    blind = record(0.9, ROWS, noise=noise(p), sensitivity=BLIND)
    assert decide(alone(blind)).verdict is (Verdict.UNDECIDED if p < 1e-6 else Verdict.NO_VIOLATION)


def test_a_test_without_power_does_not_pass_unless_another_has_power() -> None:
    blind = record(0.9, sensitivity=BLIND)
    assert decide(together(blind, blind)).verdict is Verdict.INCONCLUSIVE
    assert decide(together(blind, record(0.9))).verdict is Verdict.NO_VIOLATION
    digits = side(Scope.FLOATING_POINT, sensitivity=Sensitivity(maximum=bound(7.0)))
    assert decide(together(blind, digits)).verdict is Verdict.INCONCLUSIVE


def test_a_maximum_from_runs_without_noise_counts_only_without_a_known_factor() -> None:
    with Cases() as cases:
        for factor, expected in ((None, Verdict.INCONCLUSIVE), (math.inf, Verdict.INCONCLUSIVE), (2.0, None)):
            with cases.case(factor):
                sensitivity = Sensitivity(factor=factor, maximum=bound(2.1), noiseless=True)
                verdict = decide(alone(record(0.9, sensitivity=sensitivity))).verdict
                assert verdict is (expected or Verdict.NO_VIOLATION)


def test_unreadable_results_do_not_pass() -> None:
    unreadable = SITUATIONS["results that cannot be read"]
    assert decide(planted(unreadable, unreadable=())).verdict is Verdict.NO_VIOLATION
    assert decide(alone(rejected(unreadable=("a Box object",)))).verdict is Verdict.VIOLATION


def test_the_deciding_test_covers_the_whole_with_the_highest_sensitivity() -> None:
    weak = record(0.5, name="weak", sensitivity=Sensitivity(factor=3.0, maximum=bound(5.0)))
    strong = record(0.5, name="strong", sensitivity=Sensitivity(factor=1.2, maximum=bound(4.5)))
    part = record(0.5, name="part", meaning_for_whole=("a part",), sensitivity=Sensitivity(factor=1.01))
    answer = decide(together(part, weak, strong))
    assert answer.test is not None
    assert answer.test.name == "strong"


def test_a_p_value_is_printed_only_if_nothing_but_a_violation_explains_it() -> None:
    assert decide(alone(record(4.7, p_value=1e-4))).line("p-value").startswith("at most 0.0001 ")
    assert decide(alone(record(0.9, p_value=0.3))).line("p-value").startswith("at most 0.3 ")
    for explained in ({"on_proxy": True}, {"state": STATE}):
        assert decide(alone(record(4.7, p_value=1e-6, **explained))).line("p-value") == ""
    guessed = decide(alone(record(4.7, p_value=1e-6, assumed_method="two-samples")))
    assert "rows are independent trials" in guessed.line("p-value")


# No other code makes a verdict

MAKES_A_VERDICT = re.compile(r"(return|else|verdict=|verdict =) Verdict\.[A-Z]|\bAnswer\(|\breplace\([\w.]*answer\b")


def test_only_one_module_makes_verdicts_and_answers() -> None:
    """Others compare verdicts, look them up and collect them."""
    with Cases() as cases:
        for path in sorted(ROOT.glob("engine/**/*.py")):
            if path.relative_to(ROOT).as_posix() != VERDICT_FILE:
                with cases.case(path.relative_to(ROOT).as_posix()):
                    assert not MAKES_A_VERDICT.search(path.read_text())
    for planted_line in (
        "return Verdict.FAILED",
        "x if y else Verdict.FAILED",
        "Answer(1)",
        "replace(result.answer, a=1)",
    ):
        assert MAKES_A_VERDICT.search(planted_line)
