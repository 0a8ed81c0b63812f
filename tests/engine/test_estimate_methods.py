"""`dpaudit estimate` for every method: a file shows the functions' numbers; bad input is one sentence, exit code 2."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from dpaudit.engine.cli.main import main
from dpaudit.estimators.bound import format_lower, format_upper
from dpaudit.estimators.one_run.f_dp import f_dp_epsilon, f_dp_parameter
from dpaudit.estimators.one_run.guesses import one_run_epsilon
from dpaudit.estimators.private_prediction.k_cut import k_cut_bound
from dpaudit.estimators.private_prediction.two_cut import two_cut_bound
from dpaudit.estimators.two_world.confusion import epsilon_posterior_cdf
from dpaudit.estimators.two_world.ratio import detectable_ceiling, ratio_epsilon

CONFUSION = "tp,fp,tn,fn\n65,25,75,35\n"
GUESSES = "guesses,correct,canaries\n200,190,200\n"
RATIO = "n1,n0,trials1,trials0\n95,50,100,100\n"
TWO_CUT = "k1,n1,k2,n2\n4200,10000,3100,10000\n"
K_CUT = "c1_cat,c1_dog,c1_owl,c2_owl,c2_dog,c2_cat\n500,300,200,250,350,400\n"


def options(*settings: str) -> list[str]:
    return [word for option in settings for word in ("--option", option)]


def down(value: object) -> str:
    return format_lower(float(value), 6)  # type: ignore[arg-type]


def up(value: object) -> str:
    return format_upper(float(value), 6)  # type: ignore[arg-type]


def nearest(*values: object) -> list[str]:
    return [f"{float(value):.6g}" for value in values]  # type: ignore[arg-type]


def table(result: Result) -> list[list[str]]:
    """Return the printed table rows, split into words."""
    assert result.exit_code == 0, result.output
    return [line.split() for line in result.output.splitlines() if line.startswith("  ")]


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("bayesian", "epsilon >= 0.521 at delta=0.05, <= 1.267 for this attack (0.95 confidence, credible"),
        ("clopper-pearson", "epsilon >= 0.295 at delta=0.05, <= 1.489 for this attack (0.95 confidence, finite-sample"),
        ("jeffreys", "epsilon >= 0.320 at delta=0.05, <= 1.457 for this attack (0.95 confidence, asymptotic"),
    ],
)
def test_confusion_tables(estimate: Callable[..., Result], method: str, expected: str) -> None:
    result = estimate(CONFUSION, "--method", method, "--delta", 0.05)
    assert result.exit_code == 0
    assert result.output.startswith(expected)


def test_the_posterior_of_epsilon(estimate: Callable[..., Result]) -> None:
    rows = table(estimate(CONFUSION, "--method", "bayesian-posterior", "--delta", 0.05, *options("epsilon=0.5,1.268")))
    assert rows[2][:2] == ["1.268", "0.975362"]
    assert rows[1][1] == nearest(epsilon_posterior_cdf(0.5, 65, 25, 75, 35, delta=0.05))[0]


@pytest.mark.parametrize(
    ("method", "extra", "value"),
    [
        ("one-run", [], one_run_epsilon(200, 190, canaries=200, delta=1e-2, confidence=0.9)),
        (
            "one-run-theorem-16",
            [],
            one_run_epsilon(200, 190, canaries=200, delta=1e-2, confidence=0.9, method="theorem-16"),
        ),
        ("one-run-f-dp", [], f_dp_epsilon(200, 190, canaries=200, delta=1e-2, confidence=0.9)),
        (
            "one-run-f-dp",
            ["family=laplace", "tau=0.01"],
            f_dp_epsilon(200, 190, canaries=200, delta=1e-2, confidence=0.9, family="laplace", tau=0.01),
        ),
    ],
)
def test_one_run(estimate: Callable[..., Result], method: str, extra: list[str], value: float) -> None:
    result = estimate(GUESSES, "--method", method, "--delta", 1e-2, "--confidence", 0.9, *options(*extra))
    assert result.output.startswith(f"epsilon >= {format_lower(value)} at delta=0.01 (0.9 confidence")


def test_one_run_prints_the_parameter_of_the_family(estimate: Callable[..., Result]) -> None:
    result = estimate(GUESSES, "--method", "one-run-f-dp", "--delta", 1e-2)
    assert f"mu >= {down(f_dp_parameter(200, 190, canaries=200, confidence=0.95))}" in result.output


def test_order_statistics_of_counts(estimate: Callable[..., Result]) -> None:
    table = "guesses,correct,canaries\n250,214,1000\n1000,691,1000\n"
    result = estimate(table, "--method", "one-run-order-statistics")
    assert "epsilon >= 3.632 at delta=1e-05 (0.95 confidence, conditional-on-family;" in result.output
    assert "epsilon >= 3.670 at" in result.output
    assert result.output.count("canaries leak independently") == 2


def test_a_family_beside_the_bound(estimate: Callable[..., Result]) -> None:
    rng = np.random.default_rng(0)
    member = rng.random(1_000) < 0.5
    rows = zip(rng.normal(size=1_000) + member, member.astype(int), strict=True)
    table = "score,member\n" + "".join(f"{score},{bit}\n" for score, bit in rows)
    result = estimate(table, "--delta", 1e-5, "--family", "gaussian")
    assert re.search(r"\n  conditional-on-family: epsilon >= 3\.\d+ at delta=1e-05 \(mu >= 0\.8", result.output)
    json = estimate(table, "--delta", 1e-5, "--family", "dp-sgd:1,1", "--json")
    assert '"independent_leaks": true' in json.output
    refused = estimate(table, "--family", "gaussian")
    assert refused.exit_code == 2
    assert "state a delta > 0" in refused.output


@pytest.mark.parametrize("method", ["ratio", "katz-log"])
@pytest.mark.parametrize("fields", [{}, {"group": 4}, {"directions": "one"}])
def test_ratio(estimate: Callable[..., Result], method: str, fields: dict[str, object]) -> None:
    settings = [f"{name}={value}" for name, value in fields.items()]
    result = estimate(RATIO, "--method", method, "--delta", 1e-3, *options(*settings))
    formula = "clopper-pearson" if method == "ratio" else method
    value = ratio_epsilon(95, 50, 100, 100, delta=1e-3, confidence=0.95, method=formula, **fields)  # type: ignore[arg-type]
    assert result.output.startswith(f"epsilon >= {format_lower(float(value))} at delta=0.001 ")


def test_katz_shows_its_interval_and_its_ceiling(estimate: Callable[..., Result]) -> None:
    output = estimate(RATIO, "--method", "katz-log", *options("directions=one")).output
    assert "ln(p1/p0) in [0.440766, 0.842942]" in output
    assert f"100 runs a world can show at most {float(detectable_ceiling(100, confidence=0.95)):.6f}" in output


@pytest.mark.parametrize("cut", ["corner", "termwise"])
def test_two_cut(estimate: Callable[..., Result], cut: str) -> None:
    result = estimate(TWO_CUT, *options("orders=2,32", f"cut={cut}"))
    rows = table(result)[1:3]
    forward = two_cut_bound(4200, 10_000, 3100, 10_000, [2.0, 32.0], confidence=0.95, method=cut)  # type: ignore[arg-type]
    backward = two_cut_bound(3100, 10_000, 4200, 10_000, [2.0, 32.0], confidence=0.95, method=cut)  # type: ignore[arg-type]
    for row, order, first, second in zip(rows, ("2", "32"), forward, backward, strict=True):  # type: ignore[arg-type]
        assert row == [order, down(first), down(second), down(max(first, second))]
    assert f"finite-sample; {cut}" in result.output
    assert "the error 0.05 is shared by 4 limits, for both directions and every order" in result.output
    assert "must not be converted to epsilon" in result.output


@pytest.mark.parametrize("intervals", ["clopper-pearson", "goodman", "sison-glaz"])
def test_k_cut(estimate: Callable[..., Result], intervals: str) -> None:
    result = estimate(K_CUT, "--confidence", 0.9, *options("orders=32", f"intervals={intervals}"))
    first, second = np.array([500, 300, 200]), np.array([400, 350, 250])
    pairs = ((first, second), (second, first))
    values = [float(k_cut_bound(*pair, 32.0, confidence=0.9, method=intervals)) for pair in pairs]  # type: ignore[arg-type]
    assert table(result)[1] == ["32", *map(down, values), down(max(values))]


def test_bootstrap_output_states_that_it_is_not_a_bound(estimate: Callable[..., Result]) -> None:
    same = "c1_a,c1_b,c1_c,c2_a,c2_b,c2_c\n500,300,200,500,300,200\n"
    result = estimate(same, *options("intervals=bootstrap", "orders=2"))
    assert "as-published; bootstrap" in result.output
    assert result.output == estimate(same, *options("intervals=bootstrap", "orders=2", "seed=0")).output


def test_parquet_and_several_rows(tmp_path: Path) -> None:
    path = tmp_path / "table.parquet"
    pq.write_table(pa.table({"k1": [42, 10], "n1": [100, 100], "k2": [3, 90], "n2": [100, 100]}), path)
    result = CliRunner().invoke(main, ["estimate", str(path), *options("orders=2")], catch_exceptions=False)
    assert result.exit_code == 0
    assert "two-cut, query 2: RDP lower bounds in nats (0.975 confidence" in result.output
    assert "two-cut, worst query: RDP lower bounds in nats (0.95 confidence" in result.output
    assert "two-cut, all 2 queries answered" in result.output


def test_list_names_the_functions_of_the_estimators() -> None:
    output = CliRunner().invoke(main, ["list", "estimators"], catch_exceptions=False).output
    for name in ("binomial.clopper_pearson", "guesses.one_run_epsilon", "selection.Grid", "bound.Bound"):
        assert re.search(rf"  ([a-z_]+\.)?{re.escape(name)} ", output), name
    listed = output.partition("functions and types")[2].splitlines()[1:]
    for name, summary in (line.split(maxsplit=1) for line in listed if line.strip()):
        assert "/" not in name
        assert summary.endswith((".", "?", "!"))


@pytest.mark.parametrize(
    ("text", "words", "message"),
    [
        ("k,n\n3,100\n", ["--method", "ratio"], "must have the columns n1,n0,trials1,trials0 for ratio, got k,n$"),
        ("k,n\n3,100\n", ["--method", "band"], "must have the columns score,member, got k,n; name yours"),
        ("k,n\n3,100\n", ["--method", "bayesian"], r"must have the columns score,member \(or counts: tp,fp,tn,fn\)"),
        ("v1_a,v1_b\n5,4\n", [], r"columns score,member \(or counts: tp,fp,tn,fn, or guesses,.*\), got v1_a,v1_b"),
        ("order,rdp\n2,0.1\n", ["--method", "rdp-to-epsilon"], "must be one of answers, .*, got 'rdp-to-epsilon'"),
        (TWO_CUT, ["--delta", 0.1], "--method two-cut has no field 'delta'; it has orders, confidence"),
        (TWO_CUT, ["--selection", "grid"], "has no field 'selection'"),
        (CONFUSION, ["--selection", "grid"], "--selection must be left out for counts"),
        ("k1,n1,k2,n2\n3,4,1,\n", [], "column n2 must hold numbers, got NaN or nothing in 1 of 1 rows"),
        (RATIO, options("gruop=2"), "--method ratio has no field 'gruop'; it has delta, confidence, group, directions"),
        (RATIO, options("group=two"), "--method ratio.group must be .*whole number.*, got 'two'"),
        (RATIO, options("group=0"), "group must be >= 1, got 0"),
        (RATIO, options("group"), "--option must be NAME=VALUE, got 'group'"),
        (RATIO, options("directions=up"), "directions must be 'best' or 'one', got 'up'"),
        (
            RATIO,
            ["--method", "magic", *options("a=1")],
            "must be one of answers, band.*, got 'magic'",
        ),
        (TWO_CUT, options("orders=1"), "orders must be numbers > 1, got"),
        (TWO_CUT, options("orders=2,x"), r"--method two-cut.orders.* must be a number"),
        (TWO_CUT, ["--confidence", 1.5], r"confidence must be in \(0, 1\), got 1.5"),
        ("k1,n1,k2,n2\n5,4,1,2\n", [], "must be <="),
        ("k1,n1,k2,n2\n0.5,4,1,2\n", [], "column k1 must hold whole numbers >= 0, got 0.5; see row 1"),
        ("c1_a,c1_b,c2_a,c2_d\n1,2,3,4\n", [], r"c1_\* and c2_\* must name the same classes"),
        (GUESSES, ["--method", "one-run-f-dp"], "Gaussian family has no finite epsilon at delta = 0"),
        ("tp,fp,tn,fn\n0,1,1,0\n", [], r"tp \+ fn must be >= 1"),
        ("guesses,correct,canaries\n5,6,10\n", [], "correct must be <= guesses"),
        (
            "score,member\n1,1\nnan,0\n",
            [],
            "score must hold numbers, got NaN or nothing in 1 of 2 rows .*line 3",
        ),
        ("score,member\n1,1\n2,1\n", [], "must hold both members and non-members, got only 1"),
        ("score,member\n", [], "at least one row"),
        ("score,member\n1,1\n2,3\n", [], "column member must be 0 or 1 .1: a member., got 3 in line 3"),
        ("score,member\nx,1\ny,0\n", [], "column score must hold numbers"),
        ("score,member\n1,1\n2,0\n", ["--delta", 2], r"delta must be in \[0, 1\), got 2"),
        ("score,member\n1,1\n2,0\n", ["--selection", "luck"], "a selection must be one of"),
        ("tp,fp,tn,fn\n1,-1,1,1\n", [], "column fp must hold whole numbers >= 0, got -1.0; see row 1"),
        ("guesses,correct,canaries\n50,6,10\n", [], "guesses"),
        ("tp,fp,tn,fn,x\n65,25,75,35,a\n65,25,75,35,a\n", ["--by", "x"], "one row of counts in each slice"),
    ],
)
def test_bad_input_is_refused_in_one_sentence_with_exit_code_2(
    estimate: Callable[..., Result], text: str, words: list[object], message: str
) -> None:
    result = estimate(text, *words)
    assert result.exit_code == 2, result.output
    assert len(result.output.strip().splitlines()) == 1
    assert result.output.startswith("dpaudit: ")
    assert re.search(message, result.output.strip()), result.output
