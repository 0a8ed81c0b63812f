"""Tables of counts: the columns of each estimator, its agreement with the functions, and its errors."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest

from dpaudit.errors import InputError
from dpaudit.estimators.bound import Bound
from dpaudit.estimators.counts import Column, CountEstimator, TextTable, has_columns, matches
from dpaudit.estimators.estimator import Estimator
from dpaudit.estimators.finding import Validity
from dpaudit.estimators.label_reconstruction.advantage import (
    advantage_cdf,
    multiplicative_advantage,
    rr_additive_advantage,
)
from dpaudit.estimators.label_reconstruction.bags import LabelAdvantage
from dpaudit.estimators.one_run.f_dp import f_dp_parameter
from dpaudit.estimators.one_run.guesses import one_run_epsilon
from dpaudit.estimators.one_run.signed_scores import OneRun, OneRunFDP
from dpaudit.estimators.private_prediction.rdp_bound import KCutCounts, TwoCutCounts
from dpaudit.estimators.private_prediction.two_cut import two_cut_bound
from dpaudit.estimators.two_world.confusion import epsilon_interval
from dpaudit.estimators.two_world.confusion_tables import Bayesian, BayesianPosterior
from dpaudit.estimators.two_world.ratio import KatzLog, Ratio
from dpaudit.registry import catalogue, load


def test_counts_of_other_software_become_bounds() -> None:
    table = {"tp": [65, 90], "fp": [25, 0], "tn": [75, 100], "fn": [35, 10], "extra": [1, 2]}
    bounds = Bayesian(delta=0.05).read(table)
    assert bounds[0].lower == pytest.approx(0.52179, abs=1e-5)
    assert bounds[0].upper == pytest.approx(1.26665, abs=1e-5)
    assert len(bounds) == 2
    assert bounds[1].counts == (("tp", 90), ("fp", 0), ("tn", 100), ("fn", 10))
    one_run = OneRun(delta=1e-2).read({"guesses": [200], "correct": [190], "canaries": [200]})
    assert one_run[0].lower == pytest.approx(2.316, abs=1e-3)
    ratio = KatzLog().read({"n1": [50], "n0": [5], "trials1": [100], "trials0": [100]})
    assert ratio[0].validity is Validity.ASYMPTOTIC


def test_every_estimator_reads_evidence_or_counts() -> None:
    for name in catalogue("estimator"):
        estimator = load("estimator", name)
        assert issubclass(estimator, Estimator | CountEstimator), name
        if issubclass(estimator, Estimator):
            assert dataclasses.is_dataclass(estimator.evidence), name
            assert dataclasses.is_dataclass(estimator.tally_type), name


def test_column_patterns() -> None:
    assert matches("c1_*", "c1_cat")
    assert not matches("c1_*", "c1_")
    assert not matches("c_*", "c1_cat")
    assert not matches("k", "k1")
    assert has_columns(("k", "c_*"), ("c_a", "k"))
    assert not has_columns(("k", "c_*"), ("c_a",))


def test_a_finding_prints_bounds_rounded_to_their_side() -> None:
    finding = TextTable("it", (Column("low", (0.12345678,), "down"), Column("high", (0.12345612,), "up")))
    assert str(finding) == "it\n       low      high\n  0.123456  0.123457"
    assert finding.column("low") == (0.12345678,)


def test_queries_share_the_error_and_their_sum_and_worst_hold_with_them() -> None:
    table = {"query": ["a", "b"], "k1": [4200, 10], "n1": [10_000, 100], "k2": [3100, 90], "n2": [10_000, 100]}
    first, other, worst, total = TwoCutCounts(orders=(2.0, 8.0)).read(table)
    expected = np.array(
        [
            two_cut_bound(k1, n1, k2, n2, [2.0, 8.0], confidence=0.975)
            for k1, n1, k2, n2 in ((4200, 10_000, 3100, 10_000), (10, 100, 90, 100))
        ]
    )
    for finding, row in zip((first, other, worst, total), (*expected, expected.max(0), expected.sum(0)), strict=True):
        assert finding.column("D(1 || 2) >=") == pytest.approx(row, abs=1e-12)
    assert first.title.startswith("two-cut, query a: RDP lower bounds in nats (0.975 confidence, finite-sample")
    assert "all 2 queries answered" in total.title
    assert first.notes == ()
    assert any("must not be converted to epsilon" in note for note in total.notes)


TABLES = {
    "confusion": {"tp": [1], "fp": [1], "tn": [1], "fn": [1]},
    "guesses": {"guesses": [5], "correct": [4], "canaries": [10]},
    "ratio": {"n1": [5], "n0": [1], "trials1": [10], "trials0": [10]},
    "two-cut": {"k1": [5], "n1": [10], "k2": [1], "n2": [10]},
    "k-cut": {"c1_a": [5], "c1_b": [5], "c2_a": [1], "c2_b": [9]},
}


@pytest.mark.parametrize(
    ("estimator", "table", "change", "message"),
    [
        (Bayesian(), "confusion", {"tp": None}, "must have the columns tp, fp, tn, fn, got 'fp, tn, fn'"),
        (Bayesian(), "confusion", {"tp": [1.5]}, "column tp must hold whole numbers >= 0, got 1.5; see row 1"),
        (Bayesian(), "confusion", {"tp": [-1]}, "column tp must hold whole numbers >= 0, got -1.0; see row 1"),
        (Bayesian(), "confusion", {"tp": ["x"]}, "column tp must hold numbers"),
        (Bayesian(), "confusion", {"tp": [np.nan]}, "column tp must hold finite numbers, got nan; see row 1"),
        (Bayesian(), "confusion", {"tp": [1, 2]}, "must have one length, of at least one row"),
        (Bayesian(), "confusion", {"tp": [], "fp": [], "tn": [], "fn": []}, "at least one row"),
        (Bayesian(), "confusion", {"tp": [0], "fn": [0]}, "tp + fn must be >= 1"),
        (OneRun(), "guesses", {"correct": [6]}, "correct must be <= guesses"),
        (OneRun(), "guesses", {"guesses": [11]}, "guesses must be <= canaries"),
        (OneRunFDP(delta=0.1), "guesses", {"correct": [6]}, "correct must be <= guesses"),
        (BayesianPosterior(), "confusion", {"tp": [0], "fn": [0]}, "tp + fn must be >= 1"),
        (Ratio(), "ratio", {"n1": [11]}, "n1 must be <= trials1"),
        (KatzLog(), "ratio", {"trials0": [0], "n0": [0]}, "trials0 must be >= 1"),
        (TwoCutCounts(), "two-cut", {"k2": [11]}, "must be <="),
        (KCutCounts(), "k-cut", {"c2_b": None}, "must have a column c2_NAME for each class"),
        (KCutCounts(), "k-cut", {"c2_b": None, "c2_d": [9]}, "c1_* and c2_* must name the same classes"),
        (KCutCounts(), "k-cut", {"c1_a": [0], "c1_b": [0]}, "must hold at least one"),
    ],
)
def test_impossible_counts_are_refused_in_one_sentence(
    estimator: Bayesian, table: str, change: dict[str, object], message: str
) -> None:
    columns = {name: column for name, column in (TABLES[table] | change).items() if column is not None}
    with pytest.raises(InputError) as refused:
        estimator.read(columns)  # type: ignore[arg-type]
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("kind", "fields", "message"),
    [
        (TwoCutCounts, {"orders": (1.0,)}, "orders must be numbers > 1"),
        (TwoCutCounts, {"orders": ()}, "orders must be numbers > 1"),
        (TwoCutCounts, {"cut": "best"}, "cut must be one of corner, termwise"),
        (TwoCutCounts, {"confidence": 1.0}, "confidence must be in (0, 1)"),
        (KCutCounts, {"intervals": "best"}, "intervals must be one of clopper-pearson"),
        (LabelAdvantage, {"quantiles": (1.2,)}, "quantiles must be in [0, 1]"),
        (Ratio, {"group": 0}, "group must be >= 1"),
        (Ratio, {"directions": "two"}, "directions must be one of best, one"),
        (KatzLog, {"group": 0}, "group must be >= 1"),
        (BayesianPosterior, {"epsilon": (-1.0,)}, "epsilon must be finite points >= 0"),
    ],
)
def test_fields_out_of_range_are_refused(kind: type[Bound], fields: dict[str, object], message: str) -> None:
    with pytest.raises(InputError) as refused:
        kind(**fields)  # type: ignore[arg-type]
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: one_run_epsilon([], [], canaries=[], delta=0.0, confidence=0.95), "correct must not be empty"),
        (lambda: one_run_epsilon(np.inf, 1, canaries=5, delta=0.0, confidence=0.95), "guesses must be <= 2"),
        (lambda: one_run_epsilon(5, 1, canaries=5, delta=[], confidence=0.95), "delta must not be empty"),
        (lambda: f_dp_parameter(np.array([]), 1, canaries=5, confidence=0.95), "guesses must not be empty"),
        (lambda: epsilon_interval(5, 1, 5, 1, delta=[], confidence=0.95), "delta must not be empty"),
        (lambda: epsilon_interval(5, 1, 5, 1, delta=0, confidence=[]), "confidence must not be empty"),
        (lambda: multiplicative_advantage([0.2, 0.3], [0.1] * 3), "prior, posterior must have shapes"),
        (lambda: rr_additive_advantage([], epsilon=1.0), "a prior must not be empty"),
        (lambda: advantage_cdf([0.2], np.nan), "at must be thresholds >= 0"),
    ],
)
def test_empty_unequal_and_infinite_arguments_are_refused_in_one_sentence(
    call: Callable[[], object], message: str
) -> None:
    with pytest.raises(InputError) as refused:
        call()
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)
