"""`dpaudit estimate` for secrets in text: ranks, probabilities of texts, rare coins, random subsets; repetitions."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import Result

import dpaudit
from dpaudit.claims import Claim, Relation
from dpaudit.engine.answer.verdict import Verdict
from dpaudit.errors import SpecError
from dpaudit.estimators.bound import format_lower
from dpaudit.estimators.extraction.exposure import SecretRanks, rank_epsilon


def rank_rows(right: int, secrets: int, candidates: int = 1000) -> list[tuple[int, int]]:
    return [(1 if secret < right else 500, candidates) for secret in range(secrets)]


def rank_table(right: int, secrets: int) -> str:
    return "rank,candidates\n" + "".join(f"{rank},{count}\n" for rank, count in rank_rows(right, secrets))


def test_ranks_give_epsilon_and_exposure(estimate: Callable[..., Result]) -> None:
    result = estimate(rank_table(30, 50))
    ranks = SecretRanks(np.array([1] * 30 + [500] * 20), np.full(50, 1000), np.empty(0))
    bound = rank_epsilon(ranks, delta=0.0, confidence=0.95)
    assert result.exit_code == 0
    assert result.output.startswith(f"epsilon >= {format_lower(bound)} at delta=0 (0.95 confidence, finite-sample")
    assert "p < 1e-12 for a training that learned nothing about the secrets" in result.output
    assert "median exposure   9.9658  in [" in result.output


def test_ranks_by_repetitions_share_the_error(estimate: Callable[..., Result]) -> None:
    rows = [
        (rank, count, repetitions)
        for repetitions, right in ((16, 60), (1, 2), (4, 30))
        for rank, count in rank_rows(right, 60)
    ]
    table = "rank,candidates,repetitions\n" + "".join(f"{','.join(map(str, row))}\n" for row in rows)
    result = estimate(table, "--by", "repetitions", "--claim", "3, 1e-6")
    lines = result.output.splitlines()
    assert [line.split(":")[0] for line in lines[:3]] == ["repetitions=1", "repetitions=4", "repetitions=16"]
    assert lines[3] == "The 3 bounds hold together: each has an equal share of the error."
    ranks = SecretRanks(np.ones(60, np.int64), np.full(60, 1000), np.empty(0))
    alone = rank_epsilon(ranks, delta=1e-6, confidence=0.95)
    shared = rank_epsilon(ranks, delta=1e-6, confidence=1 - 0.05 / 3)
    assert f"VIOLATION, epsilon >= {format_lower(shared)} at delta=1e-06" in lines[2]
    assert shared < alone


def test_few_secrets_are_inconclusive_with_the_most_that_they_can_show(estimate: Callable[..., Result]) -> None:
    result = estimate(rank_table(10, 10), "--claim", 8, "--fail-on-inconclusive")
    assert result.exit_code == 4
    most = rank_epsilon(SecretRanks(np.ones(10, np.int64), np.full(10, 1000), np.empty(0)), delta=0.0, confidence=0.95)
    assert "INCONCLUSIVE" in result.output
    assert f"the maximum detectable epsilon of this number of rows is {most:.3f}"[:-3] in result.output


def test_a_claim_about_replacing_is_compared_with_the_bound_for_replacing() -> None:
    rank, candidates = np.array(rank_rows(30, 50)).T
    table = {"rank": rank, "candidates": candidates}
    adding = dpaudit.estimate(table, claim=Claim(4.5, 0.0, Relation.ADD_REMOVE))
    replacing = dpaudit.estimate(table, claim=Claim(4.5, 0.0, Relation.REPLACE))
    assert adding.verdict is Verdict.NO_VIOLATION
    assert replacing.verdict is Verdict.VIOLATION
    assert replacing.lower == pytest.approx(2 * adding.lower)
    with pytest.raises(SpecError, match="relation must be that of the claim"):
        dpaudit.estimate(table, claim=5.0, relation="replace")


def text_rows(repetitions: int, planted_log: float) -> list[str]:
    return [f"{log},{planted},{repetitions}\n" for log, planted in [(planted_log, 1), (-40.0, 0)] * 20]


def test_extraction_probabilities_by_repetitions(estimate: Callable[..., Result]) -> None:
    table = "log_probability,planted,repetitions\n" + "".join(text_rows(1, -30.0) + text_rows(16, -0.5))
    whole = estimate(table, "--option", "queries=1,1000", "--option", "probability=0.6")
    assert "texts in n samples with probability >= 0.6" in whole.output
    assert whole.output.splitlines()[2].split()[:2] == ["1", "0.5"]
    by = estimate(table, "--by", "repetitions", "--option", "queries=100")
    rows = [line.split() for line in by.output.splitlines() if line.strip().startswith("100 ")]
    assert [row[1] for row in rows] == ["0", "1"]
    assert "(all limits: confidence 0.975)" in by.output
    assert by.output.splitlines()[-1] == "The 2 tables hold together: each has an equal share of the error."
    in_json = json.loads(estimate(table, "--by", "repetitions", "--json").output)
    assert set(in_json["slices"]) == {"repetitions=1", "repetitions=16"}


def test_copies_of_texts(estimate: Callable[..., Result]) -> None:
    table = "longest_span,planted,edit_distance\n" + "30,1,0.05\n" * 9 + "4,1,0.8\n" + "5,0,0.9\n" * 10
    result = estimate(table, "--option", "lengths=5,20")
    rows = [line.split() for line in result.output.splitlines()]
    assert rows[2][:4] == ["span", ">=", "5", "0.9"]
    assert rows[3][:4] == ["span", ">=", "20", "0.9"]
    assert rows[4][:4] == ["distance", "<=", "0.1", "0.9"]


def test_pages_show_exposure_and_the_tables_of_slices(estimate: Callable[..., Result], tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert estimate(rank_table(30, 50), "--output", page).exit_code == 0
    text = page.read_text()
    assert "median exposure" in text
    assert "width:inf" not in text
    assert "if rows are independent trials" not in text
    table = "log_probability,planted,repetitions\n" + "".join(text_rows(1, -30.0) + text_rows(16, -0.5))
    assert estimate(table, "--by", "repetitions", "--output", page).exit_code == 0
    assert page.read_text().count("texts in n samples") == 2
    assert "repetitions=16" in page.read_text()


def score_table(members: int, others: int) -> str:
    rng = np.random.default_rng(0)
    truth = rng.permutation(np.arange(members + others) < members)
    score = rng.normal(size=truth.size) + 6 * truth
    return "score,member\n" + "".join(f"{value},{int(bit)}\n" for value, bit in zip(score, truth, strict=True))


def test_rare_coins_and_a_random_subset_from_scores(estimate: Callable[..., Result]) -> None:
    table = score_table(50, 4950)
    rare = estimate(table, "--method", "rare-canaries", "--option", "rate=0.01", "--claim", "8, 1e-6")
    assert "NO VIOLATION FOUND" in rare.output or "INCONCLUSIVE" in rare.output
    assert "Of the 50 records with the highest scores, 50 were members; of all 5,000 records, 50 were" in rare.output
    assert "a separate coin made each canary a member with probability 0.01" in rare.output
    subset = estimate(table, "--method", "random-subset", "--claim", 2)
    assert subset.output.startswith("VIOLATION")
    assert "uniformly drawn subset" in subset.output
    other = estimate(table, "--method", "random-subset", "--claim", 5.3)
    assert other.exit_code == 0
    refused = estimate(table, "--method", "rare-canaries", "--option", "rate=0.5")
    assert refused.exit_code == 2
    assert "members must be about 0.5 of the canaries" in refused.output
    with_delta = estimate(table, "--method", "random-subset", "--claim", "2, 1e-5")
    assert with_delta.output.startswith("VIOLATION")
