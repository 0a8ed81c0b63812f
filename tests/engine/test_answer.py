"""One pure function decides every verdict, by rules in one order, and every surface prints its lines."""

from __future__ import annotations

import ast
import itertools
import math
from dataclasses import replace
from pathlib import Path

import pytest

from dpaudit.claims.scope import Scope
from dpaudit.engine.reading.record import Confirmation, Sensitivity
from dpaudit.engine.reading.verdict import RULES, Answer, Verdict, decide
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
VERDICT_FILE = "engine/reading/verdict.py"


def test_each_situation_has_its_verdict_by_its_rule() -> None:
    with Cases() as cases:
        for name, situation in SITUATIONS.items():
            with cases.case(name):
                answer = decide(situation.record)
                assert (answer.verdict, answer.rule) == (situation.verdict, situation.rule)


def test_every_rule_decides_some_situation() -> None:
    assert {situation.rule for situation in SITUATIONS.values()} == {rule.name for rule in RULES}
    assert set(Verdict) == {rule.verdict for rule in RULES}


def test_what_is_printed_is_what_was_read_and_found_good() -> None:
    """A change of words is made on purpose: see `answer_situations.py`."""
    assert texts() == GOLDEN.read_text()


def test_lines_are_short_ideas_in_one_order() -> None:
    order = [
        *("claim", "part", "lower bound", "test", "evidence", "p-value", "reason", "caution", "where", "sensitivity"),
        *(scope.value for scope in Scope if scope is not Scope.CLAIM and scope is not Scope.STATED_NOISE),
        *("stated-noise", "budget", "not run", "next"),
    ]
    with Cases() as cases:
        for name, situation in SITUATIONS.items():
            with cases.case(name):
                labels = [line.label for line in decide(situation.record).lines]
                assert labels == sorted(labels, key=order.index)
                assert labels[-1] == "next"


def test_no_verdict_but_violation_speaks_of_a_rejected_claim() -> None:
    """Whatever explains a bound above the claim keeps the verdict from VIOLATION, and makes none of another claim."""
    explained = {
        "state": {"state": STATE},
        "proxy": {"on_proxy": True},
        "independence": {"assumed_method": "two-samples"},
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


def test_a_bound_as_published_rejects_nothing() -> None:
    published = replace(bound(4.7), validity=Validity.AS_PUBLISHED)
    assert decide(alone(record(0.0, finding=published))).verdict is Verdict.NO_VIOLATION
    assert decide(alone(record(0.0, finding=replace(published, validity=Validity.FINITE_SAMPLE)))).verdict is (
        Verdict.VIOLATION
    )


def test_a_side_finding_is_no_part_of_the_verdict_and_always_named() -> None:
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


def test_digits_are_no_finding_beside_a_claim_that_is_exceeded() -> None:
    """Full digits show a leak of the numbers too: its bound would be told twice, with a reason that is not its own."""
    digits = side(Scope.FLOATING_POINT)
    assert decide(together(rejected(), digits)).side == ()
    assert decide(together(record(4.7, confirmation=Confirmation.MISSING), digits)).side == ()
    unconfirmed = record(4.7, confirmation=Confirmation.NOT_CONFIRMED)
    assert decide(together(unconfirmed, digits)).side == (Scope.FLOATING_POINT,)
    assert decide(together(rejected(), side(Scope.BEYOND_SCHEMA))).side == (Scope.BEYOND_SCHEMA,)


@pytest.mark.parametrize(("p", "verdict"), [(1e-12, Verdict.UNDECIDED), (1e-6, Verdict.NO_VIOLATION)])
def test_noise_that_is_not_the_stated_noise_is_no_pass(p: float, verdict: Verdict) -> None:
    """The p-value is that of five looks together."""
    answer = decide(alone(record(0.9, ROWS, noise=noise(p))))
    assert answer.verdict is verdict
    assert decide(alone(rejected(noise=noise(p)))).verdict is Verdict.VIOLATION
    blind = record(0.9, ROWS, noise=noise(p), sensitivity=BLIND)
    assert decide(alone(blind)).verdict is (Verdict.UNDECIDED if p < 1e-6 else Verdict.NO_VIOLATION)


def test_a_test_that_could_not_reject_is_no_pass_unless_another_one_could() -> None:
    blind = record(0.9, sensitivity=BLIND)
    assert decide(together(blind, blind)).verdict is Verdict.INCONCLUSIVE
    assert decide(together(blind, record(0.9))).verdict is Verdict.NO_VIOLATION
    digits = side(Scope.FLOATING_POINT, sensitivity=Sensitivity(maximum=bound(7.0)))
    assert decide(together(blind, digits)).verdict is Verdict.INCONCLUSIVE


def test_runs_without_noise_are_few_and_a_known_factor_speaks_of_all_trials() -> None:
    with Cases() as cases:
        for factor, verdict in ((None, Verdict.INCONCLUSIVE), (math.inf, Verdict.INCONCLUSIVE), (2.0, None)):
            with cases.case(factor):
                sensitivity = Sensitivity(factor=factor, maximum=bound(2.1), noiseless=True)
                verdict = decide(alone(record(0.9, sensitivity=sensitivity))).verdict
                assert verdict is (verdict or Verdict.NO_VIOLATION)


def test_results_that_cannot_be_read_are_no_pass() -> None:
    unreadable = SITUATIONS["results that cannot be read"]
    assert decide(planted(unreadable, unreadable=())).verdict is Verdict.NO_VIOLATION
    assert decide(alone(rejected(unreadable=("a Box object",)))).verdict is Verdict.VIOLATION


def test_the_deciding_test_looks_at_the_whole_and_could_detect_most() -> None:
    weak = record(0.5, name="weak", sensitivity=Sensitivity(factor=3.0, maximum=bound(5.0)))
    strong = record(0.5, name="strong", sensitivity=Sensitivity(factor=1.2, maximum=bound(4.5)))
    part = record(0.5, name="part", meaning_for_whole=("a part",), sensitivity=Sensitivity(factor=1.01))
    answer = decide(together(part, weak, strong))
    assert answer.test is not None
    assert answer.test.name == "strong"


def test_a_p_value_is_printed_only_where_a_broken_claim_alone_explains_it() -> None:
    assert decide(alone(record(4.7, p_value=1e-4))).line("p-value").startswith("at most 0.0001 ")
    assert decide(alone(record(0.9, p_value=0.3))).line("p-value").startswith("at most 0.3 ")
    for explained in ({"on_proxy": True}, {"state": STATE}):
        assert decide(alone(record(4.7, p_value=1e-6, **explained))).line("p-value") == ""
    guessed = decide(alone(record(4.7, p_value=1e-6, assumed_method="two-samples")))
    assert "rows are independent trials" in guessed.line("p-value")


def test_an_answer_does_not_change() -> None:
    answer = decide(alone(rejected()))
    with pytest.raises(AttributeError):
        answer.verdict = Verdict.NO_VIOLATION  # type: ignore[misc]


# Nothing else makes a verdict


def verdicts_made(source: str) -> list[int]:
    """Return the lines in which a member of `Verdict` is used other than to compare or to look something up.

    It may stand in a comparison, as a key or in a collection of constants (an upper-case name, or an argument's
    default), and in `accept` of a call.
    """
    tree = ast.parse(source)
    fine: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            parts: list[ast.AST] = [node.left, *node.comparators]
        elif isinstance(node, ast.Dict):
            parts = [key for key in node.keys if key is not None]
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            constant = all(isinstance(target, ast.Name) and target.id.isupper() for target in targets)
            local = all(isinstance(target, ast.Name) and target.id == "passing" for target in targets)
            parts = [node.value] if (constant or local) and node.value is not None else []
        elif isinstance(node, ast.Subscript):
            parts = [node.slice]
        elif isinstance(node, ast.Set):
            parts = list(node.elts)
        elif isinstance(node, ast.Call):
            named = isinstance(node.func, ast.Attribute) and node.func.attr in ("_with", "index")
            parts = list(node.args) if named else []
        else:
            parts = []
        fine |= {id(inner) for part in parts for inner in ast.walk(part)}
    return [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "Verdict"
        and id(node) not in fine
    ]


def test_every_verdict_is_made_by_the_one_function() -> None:
    with Cases() as cases:
        for path in sorted(ROOT.glob("engine/**/*.py")):
            if path.relative_to(ROOT).as_posix() != VERDICT_FILE:
                with cases.case(path.relative_to(ROOT).as_posix()):
                    assert verdicts_made(path.read_text()) == []
    planted_source = (
        "def verdict(self):\n    return Verdict.NO_VIOLATION if self.kind is Verdict.FAILED else self.other\n"
    )
    assert verdicts_made(planted_source) == [2]


def answers_made(source: str) -> list[int]:
    """Return the lines in which an `Answer` is made or copied with changes."""
    return [
        node.lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call)
        and (
            (isinstance(node.func, ast.Name) and node.func.id == Answer.__name__)
            or (
                isinstance(node.func, ast.Name)
                and node.func.id == "replace"
                and bool(node.args)
                and "answer" in ast.unparse(node.args[0])
            )
        )
    ]


def test_nothing_makes_or_rewrites_an_answer_elsewhere() -> None:
    with Cases() as cases:
        for path in sorted(ROOT.glob("engine/**/*.py")):
            if path.relative_to(ROOT).as_posix() != VERDICT_FILE:
                with cases.case(path.relative_to(ROOT).as_posix()):
                    assert answers_made(path.read_text()) == []
    assert answers_made("x = replace(result.answer, verdict=1)\ny = Answer(1)\n") == [1, 2]
