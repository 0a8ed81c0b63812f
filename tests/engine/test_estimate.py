"""`dpaudit.estimate` and `dpaudit estimate`: arrays, tables and files of every format, and the output."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from click.testing import CliRunner, Result
from scipy.stats import binom

import dpaudit
from dpaudit import Bound, Claim, Estimate, Relation, Verdict
from dpaudit.engine.cli.main import main
from dpaudit.engine.estimate.reading import CanaryScores, Question
from dpaudit.engine.estimate.results import estimates_by
from dpaudit.engine.estimate.tables import SourceTable
from dpaudit.errors import AuditError, DataError, InputError
from dpaudit.estimators import measures as measuring
from dpaudit.estimators.measures import accuracy, auc, true_positive_rate
from dpaudit.estimators.proportions.binomial import clopper_pearson

RNG = np.random.default_rng(5)
MEMBERS = np.arange(600) % 2 == 0
SCORES = RNG.normal(size=600) + 1.5 * MEMBERS
TWO_CUT_TABLE = {"k1": [3], "n1": [9], "k2": [5], "n2": [9]}


def command(*words: object, stdin: bytes | None = None) -> Result:
    return CliRunner().invoke(main, ["estimate", *map(str, words)], catch_exceptions=False, input=stdin)


def test_arrays_of_every_kind_give_the_same_bound() -> None:
    expected = dpaudit.estimate(SCORES, MEMBERS)
    assert isinstance(expected, Bound)
    assert expected.lower > 1
    rows = RNG.permutation(600)
    for scores, members in (
        (SCORES.tolist(), MEMBERS.tolist()),
        (pd.Series(SCORES, index=rows), pd.Series(MEMBERS.astype(int), index=rows)),
        (pa.array(SCORES), pa.array(MEMBERS)),
        (pa.chunked_array([SCORES[:7], SCORES[7:]]), MEMBERS.astype(float)),
    ):
        assert dpaudit.estimate(scores, members) == expected
    table = {"score": SCORES, "member": MEMBERS}
    for every_column in (table, pd.DataFrame(table, index=RNG.permutation(600)), pa.table(table)):
        assert dpaudit.estimate(every_column) == expected
    separate = dpaudit.estimate(in_scores=SCORES[MEMBERS], out_scores=pd.Series(SCORES[~MEMBERS]))
    assert separate.lower == expected.lower
    assert separate.measures[0] == expected.measures[0]


def test_scores_of_any_number_type_give_the_bound_of_float64() -> None:
    """Rounding to 16 bits keeps the order of these scores, as far as the bound depends on it."""
    scores = np.round(SCORES * 16) / 16
    expected = dpaudit.estimate(scores, MEMBERS)
    tensor, members = torch.tensor(scores), torch.tensor(MEMBERS)
    for values in (
        tensor.bfloat16(),
        tensor.half(),
        tensor.bfloat16().requires_grad_(),
        torch.stack([tensor, tensor]).bfloat16().T[:, 0],
        tensor.bfloat16()[:, None],
        list(tensor.bfloat16()),
        list(tensor.clone().requires_grad_()),
        scores.astype(np.longdouble),
        scores.astype(">f2"),
        scores[:, None],
        scores.astype(object),
        [f"np.float64({score})" for score in scores],
    ):
        assert dpaudit.estimate(values, members) == expected
    for truths in (members[:, None], members.bfloat16(), MEMBERS.astype(str), [str(int(member)) for member in MEMBERS]):
        assert dpaudit.estimate(scores, truths) == expected
    frame = {"score": tensor.bfloat16(), "member": members}
    assert dpaudit.estimate(frame) == expected
    in_scores, out_scores = tensor.bfloat16()[members], tensor.bfloat16()[~members]
    two = dpaudit.estimate(in_scores=in_scores, out_scores=out_scores)
    assert two == dpaudit.estimate(in_scores=scores[MEMBERS], out_scores=scores[~MEMBERS])


def test_default_method_depends_on_the_table() -> None:
    """Members drawn by coins, as one array or two; shares too uneven for coins."""
    assert dpaudit.estimate(SCORES, MEMBERS).method == "simultaneous-guess-count"
    assert dpaudit.estimate(in_scores=SCORES[MEMBERS], out_scores=SCORES[~MEMBERS]).method == "simultaneous-guess-count"
    assert dpaudit.estimate(in_scores=SCORES[:200], out_scores=SCORES[200:]).method == "two-samples"
    uneven = np.arange(600) < 200
    assert dpaudit.estimate(SCORES, uneven).method == "two-samples"
    assert dpaudit.estimate(SCORES, MEMBERS, selection="fixed:0.5").method == "clopper-pearson"


def test_unstated_independence_leaves_a_claim_undecided() -> None:
    two = {"in_scores": SCORES[MEMBERS], "out_scores": SCORES[~MEMBERS][:150]}
    guessed = dpaudit.estimate(**two, claim=0.5)
    assert guessed.lower > 0.5
    assert guessed.verdict is Verdict.UNDECIDED
    assert guessed.answer.rule == "independence-not-stated"
    reason = guessed.answer.line("reason")
    assert reason.startswith("the default method `two-samples` holds only if each row comes from a separate training")
    assert reason in str(guessed)
    assert "Name the method: `--method two-samples`" in guessed.answer.line("next")
    uneven = dpaudit.estimate(in_scores=SCORES[MEMBERS][:60], out_scores=SCORES[~MEMBERS], delta=1e-5)
    for estimated in (guessed, uneven):  # two samples assume no coins
        assert not any("coin" in note for note in estimated.notes)
        assert any(note.startswith("assumes that each row comes from a separate training") for note in estimated.notes)
    assert dpaudit.estimate(SCORES, np.arange(600) < 200, method="two-samples", guess="signed").lower >= 0
    stated = dpaudit.estimate(**two, claim=0.5, method="two-samples")
    assert (stated.verdict, stated.lower) == (Verdict.VIOLATION, guessed.lower)
    assert dpaudit.estimate(SCORES, MEMBERS, claim=0.5).verdict is Verdict.VIOLATION  # holds for one training as well
    assert stated.p_value == 1e-6
    assert stated.answer.line("p-value").startswith("at most 1e-6 (probability of evidence as strong as this")


def test_p_value_is_the_error_at_which_the_bound_reaches_the_claim() -> None:
    """The bound is barely above the claim, so the p-value is near 1 in 20, not one in a million."""
    bound = dpaudit.estimate(SCORES, MEMBERS)
    close = dpaudit.estimate(SCORES, MEMBERS, claim=0.98 * bound.lower)
    assert close.verdict is Verdict.VIOLATION
    assert close.p_value is not None
    assert 0.02 <= close.p_value <= 0.05
    assert close.answer.line("p-value").startswith(f"at most {close.p_value:.2g} (")
    larger_claim = dpaudit.estimate(SCORES, MEMBERS, claim=1.02 * bound.lower)
    assert larger_claim.verdict is Verdict.NO_VIOLATION
    assert larger_claim.p_value is not None
    assert larger_claim.p_value > 0.05


def test_a_run_s_own_scores_give_the_audit_s_own_bound(tmp_path: Path) -> None:
    """In this leak guesses by sign give a larger bound than guesses from both ends."""
    spec = {
        "name": "own",
        "data": "digits",
        "game": {"name": "label-canaries", "canaries": 400, "replays": 3},
        "mechanism": {"name": "randomized-response", "epsilon": 4.0},
        "run": {"runner": "in-process", "figures": False},
    }
    (result,) = dpaudit.audit(spec, output=tmp_path).results
    assert result.epsilon > 1
    (folder,) = (tmp_path / "scores").iterdir()
    (reading,) = json.loads(command(folder, "--json").output)["readings"]
    assert (reading["lower"], reading["method"]) == (result.epsilon, "simultaneous-guess-count")


def test_duplicate_rows_are_reported() -> None:
    twice = dpaudit.estimate(np.tile(SCORES, 2), np.tile(MEMBERS, 2))
    assert any("100% of rows repeat the score of another row" in note for note in twice.notes)
    some = dpaudit.estimate(np.append(SCORES, SCORES[:40]), np.append(MEMBERS, MEMBERS[:40]))
    assert any("repeat the score of another row" in note for note in some.notes)
    for honest in (SCORES, SCORES.round(2), SCORES.clip(-1, 1), MEMBERS.astype(float), SCORES.astype(np.float32)):
        assert not any("repeat the score of another row" in note for note in dpaudit.estimate(honest, MEMBERS).notes)


def test_estimate_equals_the_bound_of_the_estimator() -> None:
    from dpaudit.estimators.scores import Scores
    from dpaudit.estimators.two_world.confusion_tables import ClopperPearson

    estimated = dpaudit.estimate(SCORES, MEMBERS, method="clopper-pearson", selection="fixed:0.5", confidence=0.9)
    estimator = ClopperPearson(confidence=0.9, selection="fixed:0.5")  # type: ignore[arg-type]
    bound = estimator.bound([estimator.tally(Scores(SCORES, MEMBERS))])
    for part in fields(Bound):
        if part.name != "notes":
            assert getattr(estimated, part.name) == getattr(bound, part.name)
    assert set(bound.notes) < set(estimated.notes)


def test_a_claim_gets_its_verdict() -> None:
    refuted = dpaudit.estimate(SCORES, MEMBERS, claim=0.5)
    assert refuted.verdict is Verdict.VIOLATION
    assert str(refuted).startswith("VIOLATION  estimate\n  claim        epsilon <= 0.5 (add-remove, delta = 0)\n")
    estimated = dpaudit.estimate(SCORES, MEMBERS, claim=Claim(3.0, 1e-5, Relation.ADD_REMOVE))
    assert (estimated.verdict, estimated.delta) == (Verdict.NO_VIOLATION, 1e-5)
    beyond = dpaudit.estimate(SCORES, MEMBERS, claim=Claim(9.0, 1e-5, Relation.ADD_REMOVE))
    assert beyond.verdict is Verdict.INCONCLUSIVE
    assert dpaudit.estimate(SCORES, MEMBERS).verdict is Verdict.NO_CLAIM
    counted = dpaudit.estimate({"tp": [65], "fp": [25], "tn": [75], "fn": [35]}, claim=0.1)
    assert (counted.verdict, counted.measures) == (Verdict.VIOLATION, ())
    with pytest.raises(InputError, match="delta must be at least the claim's, 1e-05"):
        dpaudit.estimate(SCORES, MEMBERS, delta=0.0, claim=Claim(1.0, 1e-5))


@pytest.mark.parametrize("how", ["max", "mean", "logsumexp"])
def test_rows_of_a_person_are_a_single_canary(how: str) -> None:
    person = np.repeat(np.arange(200), 3)
    members = person % 2 == 0
    by_person = SCORES.reshape(200, 3)
    combined = {
        "max": by_person.max(axis=1),
        "mean": by_person.mean(axis=1),
        "logsumexp": np.log(np.exp(by_person).sum(axis=1)),
    }
    order = RNG.permutation(600)
    names = np.array([f"person {number}" for number in person])
    estimated = dpaudit.estimate(SCORES[order], members[order], groups=names[order], group_score=how)  # type: ignore[arg-type]
    expected = dpaudit.estimate(combined[how], np.arange(200) % 2 == 0)
    assert dict(estimated.counts) == dict(expected.counts)
    assert estimated.measures[0].value == expected.measures[0].value
    assert f"600 rows are 200 canaries: the {how} of the scores of each" in estimated.notes


def test_replays_may_be_in_any_order_with_any_numbers() -> None:
    replays, rng = np.repeat([7, 2, 40], 200), np.random.default_rng(3)
    mixed = rng.permutation(600)
    mixed = mixed[np.argsort(mixed % 200, kind="stable")]  # rows of one replay stay in their order
    scores, members = SCORES[:600], MEMBERS[:600]
    estimated = dpaudit.estimate(scores[mixed], members[mixed], replays=replays[mixed])
    assert dict(estimated.counts)["replays"] == 3
    in_turn = np.argsort(replays, kind="stable")
    other = dpaudit.estimate(scores[in_turn], members[in_turn], replays=np.repeat([0, 1, 2], 200))
    assert (estimated.lower, estimated.measures) == (other.lower, other.measures)
    assert estimated.lower != dpaudit.estimate(scores, members).lower


def test_groups_are_separate_in_each_replay_and_must_be_consistent() -> None:
    replays = np.repeat([0, 1], 300)
    estimated = dpaudit.estimate(SCORES, MEMBERS, groups=np.arange(600) % 300, replays=replays)
    assert dict(estimated.counts)["replays"] == 2
    with pytest.raises(
        DataError, match="one group must all be members or all be non-members, got both in row 1 and row 2"
    ):
        dpaudit.estimate(SCORES, MEMBERS, groups=np.arange(600) // 2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "give `scores` and `members`, both"),
        ({"in_scores": [1.0]}, "give `scores` and `members`, both"),
        ({"scores": [1.0], "in_scores": [1.0], "out_scores": [1.0]}, "give `scores` and `members`, both"),
        ({"scores": [1.0, 2.0], "members": [1]}, "must have one value a row each, got 2 score, 1 member"),
        (
            {"scores": [[1.0, 2.0]], "members": [1, 0]},
            "score must be one column of plain values of one type, got a list in it",
        ),
        (
            {"scores": [1.0, None], "members": [1, 0]},
            "column score must hold numbers, got NaN or nothing in 1 of 2 rows",
        ),
        ({"scores": ["a", "b"], "members": [1, 0]}, "column score must hold numbers"),
        ({"scores": np.ones((1, 2)), "members": [1, 0]}, r"of shape \(1, 2\); choose a column, as in values\[:, 0\]"),
        ({"scores": np.ones(2) + 1j, "members": [1, 0]}, "got complex128; give real numbers, such as abs"),
        ({"scores": [1.0, 2.0], "members": ["in", "out"]}, "got the texts 'in', 'out'; write 1 for members"),
        ({"scores": [1.0, 2.0], "members": [True, None]}, "got nothing in 1 of 2 rows; state for each row"),
        ({"scores": [2**60 + 1, 2**60 + 3], "members": [1, 0]}, "subtract the least score from all"),
        (
            {"scores": [1.0, 2.0], "members": [1, 2]},
            "must be 0 or 1 .*, got 2 in row 2; write 1 for members",
        ),
        ({"scores": [1.0, 2.0]}, "a table must be a mapping .*, got list; for scores in an array give `members`"),
        ({"scores": {"tp": [1, 2], "fp": [1]}}, "columns of one length"),
        (
            {"scores": {"tp": [1, 2], "fp": [1, 1], "tn": [5, 5], "fn": [3, 3]}},
            "must lead to one bound on epsilon, got 2",
        ),
        ({"scores": TWO_CUT_TABLE}, "must lead to one bound on epsilon"),
        ({"scores": TWO_CUT_TABLE, "claim": 1.0}, "a claim must be compared with a bound on epsilon"),
        (
            {"scores": [1.0, 2.0], "members": [1, 0], "group_score": "sum", "groups": [1, 2]},
            "must be 'max', 'mean' or 'logsumexp'",
        ),
        ({"scores": [1.0, 2.0], "members": [1, 0], "ordered": True}, "must be left out for methods other than betting"),
        ({"scores": [1.0, 2.0], "members": [1, 0], "gues": "signed"}, "has no field 'gues'"),
        ({"scores": [1.0, 2.0], "members": [1, 0], "claim": -1}, "a claimed epsilon must be > 0"),
    ],
)
def test_invalid_input_is_refused_in_one_sentence(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(AuditError, match=message) as raised:
        dpaudit.estimate(**arguments)  # type: ignore[arg-type]
    assert "\n" not in str(raised.value)


def test_the_command_line_compares_with_a_claim(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", score=SCORES, member=MEMBERS, person=np.arange(600) // 2 * 2 + MEMBERS)
    path = tmp_path / "a.npz"
    refuted = command(path, "--claim", "0.5", "--fail-on-violation")
    assert (refuted.exit_code, refuted.output.splitlines()[0][:9]) == (1, "VIOLATION")
    assert command(path, "--claim", "9,1e-5", "--fail-on-violation").exit_code == 0
    np.savez(tmp_path / "apart.npz", in_scores=SCORES[MEMBERS], out_scores=SCORES[~MEMBERS][:150])
    exceeding = command(tmp_path / "apart.npz", "--claim", "0.5", "--fail-on-violation")
    assert (exceeding.exit_code, exceeding.output.splitlines()[0][:9]) == (1, "UNDECIDED")
    assert command(path, "--claim", "0.5").exit_code == 0
    for option in ("--fail-on-violation", "--fail-on-inconclusive"):
        assert f"{option} needs --claim" in command(path, option).output
    np.savez(tmp_path / "losses.npz", score=-SCORES, member=MEMBERS)
    assert command(tmp_path / "losses.npz", "--claim", "0.5", "--fail-on-violation").exit_code == 0
    assert command(tmp_path / "losses.npz", "--claim", "0.5", "--fail-on-inconclusive").exit_code == 4
    assert "--claim: a claim must be like '1', '1, 1e-5', 'rho=0.5'" in command(path, "--claim", "low").output
    assert command(path, "--claim", "mu=0.01").output.startswith("VIOLATION  estimate\n  claim        epsilon <= ")
    for claim in ("rho=0.5", "mu=1", "1, 1e-5"):
        reading = json.loads(command(path, "--claim", claim, "--json").output)["readings"][0]
        expected = dpaudit.estimate(SCORES, MEMBERS, claim=claim)
        assert expected.claim is not None
        assert reading["claim"]["epsilon"] == pytest.approx(expected.claim.epsilon)
        assert reading["claim"]["delta"] == 1e-5
        assert reading["verdict"] == expected.verdict
    grouped = command(path, "--group-by", "person", "--group-score", "mean")
    assert "600 rows are 600 canaries: the mean" in grouped.output
    assert "must have the column nobody" in command(path, "--group-by", "nobody").output


def test_json_and_a_page_without_scripts(tmp_path: Path) -> None:
    path = tmp_path / "<img src=x onerror=alert(1)>.npz"
    np.savez(path, score=SCORES, member=MEMBERS)
    result = command(path, "--claim", 0.5, "--json", "-o", tmp_path / "page.html")
    content = json.loads(result.output)
    reading = content["readings"][0]
    expected = dpaudit.estimate(SCORES, MEMBERS, claim=0.5)
    assert (reading["verdict"], reading["lower"]) == ("VIOLATION", expected.lower)
    assert [measure["name"] for measure in reading["measures"]] == [
        "AUC",
        "TPR at 1 % FPR",
        "TPR at 0.1 % FPR",
        "accuracy",
    ]
    page = (tmp_path / "page.html").read_text()
    assert "<img" not in page
    assert "&lt;img" in page
    assert "Content-Security-Policy" in page
    assert expected.headline.replace(">=", "≥") in page
    assert command(path, "-o", tmp_path / "no" / "page.html").exit_code == 2
    (tmp_path / "cut.csv").write_text("k1,n1,k2,n2\n3,100,9,100\n")
    text = json.loads(command(tmp_path / "cut.csv", "--json").output)["readings"][0]["text"]
    assert "RDP lower bounds in nats" in text[0]


@pytest.mark.parametrize(
    ("content", "words", "message"),
    [
        (b"sc\xffre,member\n1,1\n2,0\n", [], "line 1: must be UTF-8 text"),
        (b"score,member,score\n1,1,2\n2,0,3\n", [], "must name each column once, got 'score' 2 times"),
        (b"score,member\n2020-01-01,1\n2020-01-02,0\n", [], "column score must hold numbers, got date"),
        (b"score,member\n10:00:00,1\n11:00:00,0\n", [], "column score must hold numbers, got time"),
        (b'{"score": [1, 2], "member": 1}\n{"score": [1], "member": 0}\n', [], "score must hold numbers, got list"),
        (b"score,member\n1,1\n2,0\n", ["--confidence", "1e-300"], r"confidence must be in \[1e-06, 1 - 1e-09\]"),
        (b"score,member\n1,1\n2,0\n", ["--confidence", "0.9999999999999999"], r"confidence must be in \[1e-06"),
        (b"tp,fp,tn,fn\n1,1,1,1\n", ["--confidence", "0.9999999999999999"], r"confidence must be in \[1e-06"),
        (b"score,member\n1,1\n2,0\n", ["--score-column", "member"], "must be two columns, got 'member' for both"),
        (b"PK\x03\x04 not a zip", [], "table with named columns"),
        (b"\x93NUMPY", [], "table with named columns"),
        (b"", [], "standard input: is empty"),
    ],
)
def test_odd_input_is_refused_in_one_sentence(content: bytes, words: list[str], message: str) -> None:
    result = command("-", *words, stdin=content)
    assert result.exit_code == 2, result.output
    assert len(result.output.strip().splitlines()) == 1, result.output
    assert re.search(message, result.output), result.output


def worthless(seed: int, share: float, rows: int = 1000) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=rows) + 3, rng.random(rows) < share


def test_one_run_guesses_equally_often_from_both_ends_and_states_its_assumption() -> None:
    """Signed guesses on positive scores call everyone a member, which 60 % members would turn into epsilon >= 0.30."""
    for share in (0.6, 0.9):
        for seed in range(20):
            scores, members = worthless(seed, share, rows=3000)
            # each table errs with probability <= 0.05, all but never at these shares: 3 of 20 with probability < 0.08
            assert dpaudit.estimate(scores, members, method="one-run").lower < 0.3
            for guess in ("signed", "member-only"):
                with pytest.raises(DataError, match="use guess=both-tails"):
                    dpaudit.estimate(scores, members, method="one-run", guess=guess)
    scores, members = worthless(0, 0.5)
    fair = dpaudit.estimate(scores, members, method="one-run")
    assert any(note.startswith("assumes that a separate fair coin") for note in fair.notes)
    uneven = dpaudit.estimate(*worthless(0, 0.9), method="one-run")
    assert any("are members, which is" in note and "improbable for fair coins" in note for note in uneven.notes)
    assert dpaudit.estimate(scores, members, method="one-run", guess="signed").lower >= 0


@pytest.mark.parametrize("relation", [Relation.LABEL, Relation.ADD_REMOVE])
def test_label_claim_states_the_requirement_on_the_proxy(relation: Relation) -> None:
    estimated = dpaudit.estimate(*worthless(0, 0.5), claim=Claim(1.0, relation=relation))
    assert any(note.startswith("if a proxy drew labels") for note in estimated.notes) == (relation is Relation.LABEL)


def test_betting_on_a_sorted_file_claims_nothing_of_worthless_scores() -> None:
    """In file order 61 % of sorted tables would claim. 60 tables err with probability <= 0.05 each: 12 have < 1e-4."""
    claims = 0
    for seed in range(60):
        scores, members = worthless(seed, 0.5, rows=400)
        order = np.argsort(scores)
        claims += dpaudit.estimate(scores[order], members[order], method="betting").lower > 0
        if seed < 3:
            with pytest.raises(DataError, match="must not have sorted scores"):
                dpaudit.estimate(scores[order], members[order], method="betting", ordered=True)
    assert claims < 12


def test_betting_takes_a_stated_order_and_says_when_it_shuffles() -> None:
    ordered = dpaudit.estimate(SCORES, MEMBERS, method="betting", ordered=True)
    from dpaudit.estimators.scores import Scores
    from dpaudit.estimators.two_world.betting import Betting

    assert ordered.lower == Betting().bound([Scores(SCORES, MEMBERS)]).lower
    assert not any("shuffled" in note for note in ordered.notes)
    assert any("shuffled" in note for note in dpaudit.estimate(SCORES, MEMBERS, method="betting").notes)
    few = dpaudit.estimate([1.0, 2.0, 3.0], [0, 1, 1], method="betting", ordered=True)  # an accident, 1 in 3
    assert few.lower == 0


def normal_games(count: int, members: int, others: int, shift: float) -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(11)
    return [(rng.normal(shift, 1, members), rng.normal(0, 1, others)) for _ in range(count)]


@pytest.mark.parametrize(("members", "others", "shift"), [(60, 90, 0.5), (300, 500, 1.5), (40, 40, 4.0)])
def test_intervals_cover_the_truth(members: int, others: int, shift: float) -> None:
    """200 games, each interval misses with probability <= 0.1: more than 40 misses with probability < 1e-5."""
    from scipy.stats import norm

    missed = {"auc": 0, "one per cent": 0, "accuracy": 0}
    true_auc, true_rate = norm.cdf(shift / np.sqrt(2)), norm.cdf(shift - norm.isf(0.01))
    for index, (inside, outside) in enumerate(normal_games(200, members, others, shift)):
        area = auc(np.sort(inside), np.sort(outside), confidence=0.9)
        rate = true_positive_rate(np.sort(inside), np.sort(outside), 0.01, confidence=0.9)
        right = accuracy(inside, outside, confidence=0.9, seed=index)
        missed["auc"] += not area.lower <= true_auc <= area.upper
        missed["one per cent"] += not rate.lower <= true_rate <= rate.upper
        # the best threshold of all is never worse than the one that was chosen
        missed["accuracy"] += right.lower > norm.cdf(shift / 2)
        assert all(measure.lower <= measure.value <= measure.upper for measure in (area, rate, right))
    assert max(missed.values()) <= 40, missed


def test_measures_in_chunks_equal_those_of_all_pairs_and_thresholds(monkeypatch: pytest.MonkeyPatch) -> None:
    """The twins use all pairs and thresholds at once, on scores with many ties."""
    from scipy.stats import beta

    monkeypatch.setattr(measuring, "PAIRED_AT_ONCE", 7)
    rng = np.random.default_rng(4)
    inside, outside = np.sort(rng.integers(0, 12, 90) + 2.0), np.sort(rng.integers(0, 12, 130).astype(float))
    every = (inside[:, None] > outside).sum() + (inside[:, None] == outside).sum() / 2
    assert measuring.pairs_above(inside, outside) == every
    values = np.unique(np.concatenate([inside, outside]))
    gains = [(1 - (inside < value).mean()) - (1 - (outside < value).mean()) for value in values]
    assert measuring._best_threshold(inside, outside) == values[int(np.argmax(gains))]
    for rate in (0.001, 0.05, 0.2, 0.9):
        k = np.arange(1, 131)
        below = k[beta.sf(rate, k, 131 - k) <= 0.0125]
        above = k[beta.cdf(rate, k, 131 - k) <= 0.0125]
        measured = true_positive_rate(inside, outside, rate, confidence=0.95)
        descending, limit = outside[::-1], {"confidence": 1 - 0.0125}
        lower = upper = None
        if below.size:
            hits = int((inside > descending[below[-1] - 1]).sum())
            lower = clopper_pearson(hits, 90, side="lower", **limit).lower
        if above.size:
            hits = int((inside >= descending[above[0] - 1]).sum())
            upper = clopper_pearson(hits, 90, side="upper", **limit).upper
        assert measured.lower == min(measured.value, 0.0 if lower is None else lower)
        assert measured.upper == max(measured.value, 1.0 if upper is None else upper)


def sliced(rows: int = 3000) -> dict[str, Any]:
    """Return a table in which members of the south leak, members of the north do not, and the east has one row."""
    rng = np.random.default_rng(0)
    region = np.where(np.arange(rows) % 2 == 0, "north", "south")
    region[0] = "east"
    member = rng.random(rows) < 0.5
    return {"score": rng.normal(size=rows) + 3 * member * (region == "south"), "member": member, "region": region}


def test_slices_share_the_error_and_a_slice_with_too_few_rows_is_reported(tmp_path: Path) -> None:
    pd.DataFrame(sliced()).to_csv(tmp_path / "scores.csv", index=False)
    table = SourceTable.of_file(tmp_path / "scores.csv")
    by_slice = estimates_by(table, Question(claim=Claim(1.0)), ["region"])
    assert list(by_slice) == ["region=east", "region=north", "region=south"]
    assert isinstance(by_slice["region=east"], str)
    north, south = by_slice["region=north"], by_slice["region=south"]
    assert isinstance(north, Estimate)
    assert isinstance(south, Estimate)
    assert north.confidence == pytest.approx(1 - 0.05 / 3)
    assert (north.verdict, south.verdict) == (Verdict.NO_VIOLATION, Verdict.VIOLATION)
    with pytest.raises(DataError, match="must have the column city, got score,member,region"):
        estimates_by(table, Question(), ["region", "city"])


def test_slices_from_the_command_line(tmp_path: Path) -> None:
    pd.DataFrame(sliced()).to_csv(tmp_path / "scores.csv", index=False)
    arguments = ["estimate", str(tmp_path / "scores.csv"), "--by", "region", "--claim", "1"]
    lines = CliRunner().invoke(main, arguments).output.splitlines()
    assert [line.partition(",")[0] for line in lines[1:3]] == [
        "region=north: NO VIOLATION FOUND",
        "region=south: VIOLATION",
    ]
    assert lines[3] == "The 2 bounds hold together: each has an equal share of the error."
    output = json.loads(CliRunner().invoke(main, [*arguments, "--json"]).output)
    assert set(output["slices"]) == {"region=east", "region=north", "region=south"}
    assert CliRunner().invoke(main, [*arguments, "--fail-on-violation"]).exit_code == 1
    assert CliRunner().invoke(main, [*arguments, "-o", str(tmp_path / "page.html")]).exit_code == 0
    text = (tmp_path / "page.html").read_text()
    assert re.search("VIOLATION</span><h2>region=south<", text)
    assert re.findall(r"<details( open)?>", text) == ["", " open"], "only the violation is shown whole"


@pytest.mark.parametrize(("rows", "verdict"), [(5, Verdict.INCONCLUSIVE), (400, Verdict.NO_VIOLATION)])
def test_too_few_rows_to_reject_a_claim_are_inconclusive(rows: int, verdict: Verdict) -> None:
    """Uninformative scores; five rows in perfect order give at most 0.2."""
    rng = np.random.default_rng(3)
    estimated = dpaudit.estimate(rng.normal(size=rows), np.arange(rows) % 2 == 0, claim=1.0)
    assert estimated.verdict is verdict
    reason = estimated.answer.line("reason")
    assert ("the maximum detectable epsilon of this number of rows is 0.1" in reason) is (
        verdict is Verdict.INCONCLUSIVE
    )


def test_members_in_one_block_are_not_coins() -> None:
    """Two lists from different weeks, one after the other, without any training: no violation is reported."""
    rng = np.random.default_rng(0)
    scores, member = np.r_[rng.normal(1.0, size=2_000), rng.normal(size=2_100)], np.arange(4_100) < 2_000
    estimated = dpaudit.estimate(scores, member, claim=0.3)
    assert estimated.verdict is Verdict.UNDECIDED
    assert "members form blocks in the table" in str(estimated)
    assert dpaudit.estimate(scores, member, claim=0.3, method="simultaneous-guess-count").verdict is Verdict.VIOLATION


@pytest.mark.parametrize(
    "order", ["halves", "three runs", "a first third", "sorted by time, members first in each of 9"]
)
def test_other_orders_unlike_coins_are_detected(order: str) -> None:
    place = np.arange(900)
    member = {
        "halves": place < 450,
        "three runs": (place > 300) & (place < 700),
        "a first third": place < 430,
        "sorted by time, members first in each of 9": place % 100 < 50,
    }[order]
    scores = np.random.default_rng(1).normal(size=900) + 2 * member
    assert dpaudit.estimate(scores, member, claim=0.3).verdict is Verdict.UNDECIDED


def test_the_order_of_rows_is_not_tested_where_scores_give_it() -> None:
    """Rows in eight orders and as two arrays have one bound, whose coin is stated with the option for another."""
    rng = np.random.default_rng(4)
    member = rng.random(600) < 0.5
    scores = np.round(rng.normal(size=600) + 3 * (member & (rng.random(600) < 0.4)), 2)
    of_worlds = {"in_scores": scores[member], "out_scores": scores[~member]}
    answers = [dpaudit.estimate(**of_worlds, claim=0.5)]
    other_attack = scores + rng.normal(0, 0.5, 600)
    keys = [scores, -scores, np.abs(scores - np.median(scores)), other_attack, np.round(scores)]
    orders = [*map(np.argsort, keys), np.lexsort((scores, member)), np.lexsort((-scores, ~member)), np.arange(600)]
    answers += [dpaudit.estimate(scores[order], member[order], claim=0.5) for order in orders]
    for answer in answers:
        assert (answer.verdict, answer.method) == (Verdict.VIOLATION, "simultaneous-guess-count")
        assert abs(answer.lower - answers[0].lower) < 0.1  # ties are broken by the place of a row
        assert any("fair coin" in note and "`rate`" in note for note in answer.notes)


@pytest.mark.parametrize("share", [0.02, 0.05, 0.16, 0.84, 0.9, 0.98])
def test_unequal_shares_have_a_bound_with_every_claim(share: float) -> None:
    rng = np.random.default_rng(6)
    member = np.arange(2_000) < 2_000 * share
    scores = rng.normal(size=2_000)
    plain = dpaudit.estimate(scores, member)
    for claim in (0.5, 3.0, (1.0, 1e-5), "mu=1"):
        estimated = dpaudit.estimate(scores, member, claim=claim)
        assert estimated.verdict in (Verdict.NO_VIOLATION, Verdict.INCONCLUSIVE)
        assert claim == 0.5 or estimated.lower <= 0.5
    assert plain.method == "two-samples"
    leaking = dpaudit.estimate(scores + 9 * member, member, claim=0.1, method="two-samples")
    assert leaking.verdict is Verdict.VIOLATION


def test_few_members_or_none_are_answered_in_a_sentence() -> None:
    scores = np.random.default_rng(7).normal(size=300)
    assert dpaudit.estimate(scores, np.arange(300) < 3, claim=3.0).verdict is Verdict.INCONCLUSIVE
    for member in (np.ones(300), np.zeros(300)):
        with pytest.raises(AuditError, match="must hold both members and non-members"):
            dpaudit.estimate(scores, member, claim=1.0)


@pytest.mark.parametrize("value", [0.0, -3.5, np.inf])
def test_equal_scores_are_inconclusive(value: float) -> None:
    member = np.random.default_rng(8).random(400) < 0.5
    estimated = dpaudit.estimate(np.full(400, value), member, claim=1.0)
    assert estimated.verdict is Verdict.INCONCLUSIVE
    assert "all scores are equal" in estimated.answer.line("reason")
    assert dpaudit.estimate(np.where(member, value, -9.0), member, claim=1.0).verdict is Verdict.VIOLATION


@pytest.mark.parametrize(
    ("guess", "shares"),
    [
        (None, (0.4, 0.6)),
        ("member-only", (0.57, 0.6)),
        ("non-member-only", (0.4, 0.43)),
    ],
)
def test_coins_called_fair_exceed_the_truth_no_more_often_than_stated(
    guess: str | None, shares: Sequence[float]
) -> None:
    """Worthless scores, 90 % confidence: at most 10 % of the tables are above 0; false failure < 1e-6."""
    stated = {} if guess is None else {"method": "simultaneous-guess-count", "guess": guess}
    misses, games = 0, 60
    for game in range(games):
        rng = np.random.default_rng([game, len(shares)])
        member = rng.random(400) < shares[game % len(shares)]
        with contextlib.suppress(DataError):  # refused: no false bound
            misses += dpaudit.estimate(rng.normal(size=400), member, confidence=0.9, **stated).lower > 0
    assert misses <= binom.ppf(1 - 1e-6, games, 0.1)


def test_coins_are_rarely_mistaken_for_blocks() -> None:
    coins = [np.random.default_rng(seed).random(200) < 0.5 for seed in range(2_000)]
    methods = [CanaryScores(*_table_and_question(coin)).method for coin in coins]
    assert methods.count("two-samples") <= 3


@pytest.mark.parametrize("copies", ["groups", "replays"])
def test_canaries_are_tested_for_coins_not_their_rows(copies: str) -> None:
    """One set of coins in 20 replays or in 100 rows a canary: fair tables are read as coins, a perfect leak as one."""
    for seed in range(12):
        rng = np.random.default_rng(seed)
        coins = rng.random(100) < 0.5
        times = 20 if copies == "replays" else 100
        number = np.repeat(np.arange(times), 100) if copies == "replays" else np.tile(np.arange(100), times)
        member = np.tile(coins, times)
        estimated = dpaudit.estimate(member + rng.normal(0, 0.1, member.size), member, claim=1.0, **{copies: number})
        assert estimated.method.startswith("simultaneous-guess-count")
        assert estimated.verdict is Verdict.VIOLATION


def test_no_measure_says_more_than_the_bound() -> None:
    """For as many as 60 tables of each law the lower ends lie within what the bound's epsilon allows."""
    for seed in range(60):
        rng = np.random.default_rng(seed)
        member = rng.random(300) < 0.5
        score = 6 * (member & (rng.random(300) < 0.05 * (seed % 5))) + rng.normal(size=300)
        estimated = dpaudit.estimate(score, member, delta=0.01 * (seed % 2))
        lower = {measure.name: measure.lower for measure in estimated.measures}
        right = np.exp(estimated.lower) / (1 + np.exp(estimated.lower))
        delta = estimated.delta
        assert lower["TPR at 1 % FPR"] <= 0.01 * np.exp(estimated.lower) + delta + 1e-12
        assert lower["accuracy"] <= right + delta * (1 - right) + 1e-12
        assert lower["AUC"] <= 1 - (1 - delta) ** 2 * (1 - right) + 1e-12


def _table_and_question(member: Any) -> tuple[SourceTable, Question]:
    return SourceTable.of_arrays(score=np.arange(member.size), member=member), Question()


def test_scores_of_the_wrong_sign_are_inconclusive() -> None:
    rng = np.random.default_rng(0)
    member = rng.random(1_000) < 0.5
    loss = rng.normal(size=1_000) - 2 * member
    estimated = dpaudit.estimate(loss, member, claim=1.0)
    assert estimated.verdict is Verdict.INCONCLUSIVE
    assert "negate losses" in estimated.answer.line("reason")
    assert dpaudit.estimate(-loss, member, claim=1.0).verdict is Verdict.VIOLATION


def test_sensitivity_is_stated_without_a_violation() -> None:
    """Randomised response at the claim: slightly smaller noise would have been detected."""
    rng = np.random.default_rng(0)
    member = rng.random(4_000) < 0.5
    score = np.where(rng.random(4_000) < np.e / (1 + np.e), member, ~member).astype(float)
    estimated = dpaudit.estimate(score, member, claim=(1.0, 0.0))
    assert estimated.verdict is Verdict.NO_VIOLATION
    assert estimated.detectable is not None
    assert 1 < estimated.detectable < 1.5
    sensitivity = estimated.answer.line("sensitivity")
    assert sensitivity.startswith("would detect noise scaled down 1.")
    assert "times or more (90 % power); maximum detectable epsilon " in sensitivity


@pytest.mark.parametrize("kind", ["float16", "float32"])
def test_scores_of_two_precisions_are_compared_at_the_lower_one(kind: str, tmp_path: Path) -> None:
    """Rounded scores of one side near 1 would show 3.9 of a system without any leak."""
    rng = np.random.default_rng(0)
    near = {"float16": 1e-3, "float32": 1e-6}[kind]
    members, others = (1 - near * rng.random(500) for _ in range(2))
    truth = np.repeat([True, False], 500)
    order = rng.permutation(1000)
    ways = {
        "arrays": lambda inside, outside: dpaudit.estimate(in_scores=inside, out_scores=outside),
        "one array": lambda inside, outside: dpaudit.estimate(np.concatenate([inside, outside])[order], truth[order]),
    }
    for name, estimate in ways.items():
        for rounded in ((members.astype(kind), others), (members, others.astype(kind))):
            answer = estimate(*rounded)
            assert answer.lower <= 0.6, name
            assert f"read as: score: all numbers as {kind}" in str(answer), name
        assert "read as" not in str(estimate(members, others))
        assert "read as" not in str(estimate(members.astype(kind), others.astype(kind)))
    coarse = str(dpaudit.estimate(in_scores=rng.normal(size=500).round(2), out_scores=rng.normal(size=500)))
    assert "read as: score: in steps of 0.01 in members, finer in non-members" in coarse


def test_persons_of_scores_are_named_by_value(tmp_path: Path) -> None:
    path = tmp_path / "scores.csv"
    path.write_text("score,member,person\n1,1,7\n2,1,7.0\n3,0,8 \n4,0,8\n5,1,007\n6,0,NA\n")
    assert SourceTable.of_file(path).identities("score").tolist() == [0, 1, 2, 3, 4, 5]
    with pytest.raises(DataError, match="column person must name a group in each row, got nothing in some"):
        SourceTable.of_file(path).identities("person")
    path.write_text(path.read_text().replace("NA", "x"))
    assert SourceTable.of_file(path).identities("person").tolist() == [0, 0, 1, 1, 2, 3]
    with pytest.raises(DataError, match="column p must name a group in each row, got nothing in some"):
        SourceTable.of({"p": [1.0, np.nan]}).identities("p")
