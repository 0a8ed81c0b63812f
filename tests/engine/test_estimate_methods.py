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
from dpaudit.estimators.label_reconstruction.advantage import (
    advantage_quantile,
    llp_additive_advantage,
    llp_geometric_additive_advantage,
    llp_laplace_additive_advantage,
    llp_posterior,
    multiplicative_advantage,
    rr_additive_advantage,
)
from dpaudit.estimators.one_run.f_dp import f_dp_epsilon, f_dp_p_value, f_dp_parameter
from dpaudit.estimators.one_run.guess_tables import mean_e_value, twice_mean_p
from dpaudit.estimators.one_run.guesses import one_run_epsilon, one_run_p_value
from dpaudit.estimators.private_prediction.conversion import rdp_to_epsilon
from dpaudit.estimators.private_prediction.divergence import renyi_divergence
from dpaudit.estimators.private_prediction.k_cut import k_cut_bound
from dpaudit.estimators.private_prediction.noisy_argmax import noisy_argmax_probabilities
from dpaudit.estimators.private_prediction.two_cut import two_cut_bound
from dpaudit.estimators.proportions.binomial import clopper_pearson, jeffreys
from dpaudit.estimators.proportions.multinomial import goodman, sison_glaz
from dpaudit.estimators.replays import median_rule
from dpaudit.estimators.two_world.confusion import epsilon_posterior_cdf
from dpaudit.estimators.two_world.ratio import detectable_ceiling, ratio_epsilon
from dpaudit.registry import catalogue, load

CONFUSION = "tp,fp,tn,fn\n65,25,75,35\n"
GUESSES = "guesses,correct,canaries\n200,190,200\n"
REPLAYS = "guesses,correct,canaries\n200,190,200\n200,181,200\n200,186,200\n"
RATIO = "n1,n0,trials1,trials0\n95,50,100,100\n"
TWO_CUT = "k1,n1,k2,n2\n4200,10000,3100,10000\n"
K_CUT = "c1_cat,c1_dog,c1_owl,c2_owl,c2_dog,c2_cat\n500,300,200,250,350,400\n"
VOTES = "v1_a,v1_b,v1_c,v1_d,v1_e,v2_a,v2_b,v2_c,v2_d,v2_e\n14,12,10,8,6,13,13,10,8,6\n"
BAGS = "bag,prior,released,positives,count\n1,0.1,0,1,1\n1,0.4,1,1,1\n2,0.9,1,1,2\n2,0.8,0,1,2\n"
PRIOR = np.array([[0.1, 0.4], [0.9, 0.8]])


@pytest.fixture
def estimate(tmp_path: Path) -> Callable[..., Result]:
    def run(text: str, *options: object) -> Result:
        path = tmp_path / "table.csv"
        path.write_text(text)
        words = ["estimate", str(path), *(str(option) for option in options)]
        return CliRunner().invoke(main, words, catch_exceptions=False)

    return run


def options(*given: str) -> list[str]:
    return [word for option in given for word in ("--option", option)]


def down(value: object) -> str:
    return format_lower(float(value), 6)  # type: ignore[arg-type]


def up(value: object) -> str:
    return format_upper(float(value), 6)  # type: ignore[arg-type]


def nearest(*values: object) -> list[str]:
    return [f"{float(value):.6g}" for value in values]  # type: ignore[arg-type]


def table(shown: Result) -> list[list[str]]:
    """The rows of numbers and words in what was printed."""
    assert shown.exit_code == 0, shown.output
    return [line.split() for line in shown.output.splitlines() if line.startswith("  ")]


def test_every_method_for_counts_has_a_test_here() -> None:
    readers = {name for name in catalogue("estimator") if hasattr(load("estimator", name), "read")}
    assert readers == {
        "bag-size-equivalents", "bayesian", "bayesian-posterior", "clopper-pearson", "gnmax", "jeffreys", "k-cut",
        "katz-log", "label-advantage", "multinomial", "one-run", "one-run-f-dp", "one-run-p-value", "one-run-replays",
        "one-run-theorem-16", "proportion", "ratio", "rdp-to-epsilon", "two-cut",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("method", "shown"),
    [
        ("bayesian", "epsilon >= 0.521 at delta=0.05, <= 1.267 for this attack (0.95 confidence, credible"),
        ("clopper-pearson", "epsilon >= 0.295 at delta=0.05, <= 1.489 for this attack (0.95 confidence, finite-sample"),
        ("jeffreys", "epsilon >= 0.320 at delta=0.05, <= 1.457 for this attack (0.95 confidence, asymptotic"),
    ],
)
def test_confusion_tables(estimate: Callable[..., Result], method: str, shown: str) -> None:
    found = estimate(CONFUSION, "--method", method, "--delta", 0.05)
    assert found.exit_code == 0
    assert found.output.startswith(shown)


def test_the_epsilon_that_bags_are_as_good_as(estimate: Callable[..., Result]) -> None:
    """Bags of one give labels away; in larger ones of rare labels the same mean needs less epsilon."""
    priors = "prior\n" + "\n".join(["0.1", "0.2", "0.3", "0.4"] * 30)
    rows = table(estimate(priors, "--method", "bag-size-equivalents", *options("sizes=1,4", "draws=2")))
    assert rows[1] == ["1", "0.25", "inf", "inf", "100.00%"]
    additive, same_mean = float(rows[2][1]), float(rows[2][2])
    assert 0 < additive < 0.25
    assert float(np.mean(rr_additive_advantage([0.1, 0.2, 0.3, 0.4], epsilon=same_mean))) == pytest.approx(
        additive, rel=1e-5
    )


def test_the_posterior_of_epsilon(estimate: Callable[..., Result]) -> None:
    found = table(estimate(CONFUSION, "--method", "bayesian-posterior", "--delta", 0.05, *options("epsilon=0.5,1.268")))
    assert found[2][:2] == ["1.268", "0.975362"]
    assert found[1][1] == nearest(epsilon_posterior_cdf(0.5, 65, 25, 75, 35, delta=0.05))[0]


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
    found = estimate(GUESSES, "--method", method, "--delta", 1e-2, "--confidence", 0.9, *options(*extra))
    assert found.output.startswith(f"epsilon >= {format_lower(value)} at delta=0.01 (0.9 confidence")


def test_one_run_shows_the_families_parameter_too(estimate: Callable[..., Result]) -> None:
    found = estimate(GUESSES, "--method", "one-run-f-dp", "--delta", 1e-2)
    assert f"mu >= {down(f_dp_parameter(200, 190, canaries=200, confidence=0.95))}" in found.output


def test_p_values(estimate: Callable[..., Result]) -> None:
    found = table(estimate(GUESSES, "--method", "one-run-p-value", "--delta", 1e-2, *options("epsilon=2")))
    assert found[1] == ["200", "190", "200", *nearest(one_run_p_value(200, 190, epsilon=2.0, canaries=200, delta=0.01))]
    found = table(estimate(GUESSES, "--method", "one-run-p-value", *options("epsilon=2", "likelihood_ratio=1.5")))
    value = one_run_p_value(200, 190, epsilon=2.0, canaries=200, delta=0.0, likelihood_ratio=1.5)
    assert found[1][-1:] == nearest(value)
    found = table(estimate(GUESSES, "--method", "one-run-p-value", *options("epsilon=1", "family=gaussian")))
    assert found[1][-1:] == nearest(f_dp_p_value(200, 190, canaries=200, parameter=1.0))


def test_replays(estimate: Callable[..., Result]) -> None:
    guesses, correct = np.array([200, 200, 200]), np.array([190, 181, 186])
    each = one_run_epsilon(guesses, correct, canaries=200, delta=0.0, confidence=0.975)
    values = {
        "median": median_rule(each),
        "twice-mean-p": twice_mean_p(
            lambda epsilon: one_run_p_value(guesses, correct, epsilon=epsilon, canaries=200, delta=0.0), confidence=0.95
        ),
        "mean-e-value": mean_e_value(guesses, correct, confidence=0.95, alternative=[0.9, 0.95]),
    }
    for rule, value in values.items():
        found = estimate(REPLAYS, "--method", "one-run-replays", *options(f"rule={rule}", "alternative=0.9,0.95"))
        assert found.output.startswith(f"epsilon >= {format_lower(float(value))} at delta=0 "), rule
        assert "a mean of dependent bounds is not a bound" in found.output


@pytest.mark.parametrize("method", ["ratio", "katz-log"])
@pytest.mark.parametrize("fields", [{}, {"group": 4}, {"directions": "one"}])
def test_ratio(estimate: Callable[..., Result], method: str, fields: dict[str, object]) -> None:
    given = [f"{name}={value}" for name, value in fields.items()]
    found = estimate(RATIO, "--method", method, "--delta", 1e-3, *options(*given))
    formula = "clopper-pearson" if method == "ratio" else method
    value = ratio_epsilon(95, 50, 100, 100, delta=1e-3, confidence=0.95, method=formula, **fields)  # type: ignore[arg-type]
    assert found.output.startswith(f"epsilon >= {format_lower(float(value))} at delta=0.001 ")


def test_katz_shows_its_interval_and_its_ceiling(estimate: Callable[..., Result]) -> None:
    found = estimate(RATIO, "--method", "katz-log", *options("directions=one")).output
    assert "ln(p1/p0) in [0.440766, 0.842942]" in found
    assert f"100 runs a world can show at most {float(detectable_ceiling(100, confidence=0.95)):.6f}" in found


@pytest.mark.parametrize("cut", ["corner", "termwise"])
def test_two_cut(estimate: Callable[..., Result], cut: str) -> None:
    shown = estimate(TWO_CUT, *options("orders=2,32", f"cut={cut}"))
    rows = table(shown)[1:3]
    forward = two_cut_bound(4200, 10_000, 3100, 10_000, [2.0, 32.0], confidence=0.95, method=cut)  # type: ignore[arg-type]
    backward = two_cut_bound(3100, 10_000, 4200, 10_000, [2.0, 32.0], confidence=0.95, method=cut)  # type: ignore[arg-type]
    for row, order, first, second in zip(rows, ("2", "32"), forward, backward, strict=True):  # type: ignore[arg-type]
        assert row == [order, down(first), down(second), down(max(first, second))]
    assert f"finite-sample; {cut}" in shown.output
    assert "the error 0.05 is shared by 4 limits, for both directions and every order" in shown.output
    assert "must not be converted to epsilon" in shown.output


@pytest.mark.parametrize("intervals", ["clopper-pearson", "goodman", "sison-glaz"])
def test_k_cut(estimate: Callable[..., Result], intervals: str) -> None:
    shown = estimate(K_CUT, "--confidence", 0.9, *options("orders=32", f"intervals={intervals}"))
    first, second = np.array([500, 300, 200]), np.array([400, 350, 250])
    pairs = ((first, second), (second, first))
    values = [float(k_cut_bound(*pair, 32.0, confidence=0.9, method=intervals)) for pair in pairs]  # type: ignore[arg-type]
    assert table(shown)[1] == ["32", *map(down, values), down(max(values))]


def test_the_bootstrap_says_that_it_is_no_bound(estimate: Callable[..., Result]) -> None:
    same = "c1_a,c1_b,c1_c,c2_a,c2_b,c2_c\n500,300,200,500,300,200\n"
    shown = estimate(same, *options("intervals=bootstrap", "orders=2"))
    assert "as-published; bootstrap" in shown.output
    assert shown.output == estimate(same, *options("intervals=bootstrap", "orders=2", "seed=0")).output


def test_noisy_argmax(estimate: Callable[..., Result]) -> None:
    shown = estimate(VOTES, "--delta", 1e-5, *options("sigma=2", "orders=2,4"))
    p, q = (noisy_argmax_probabilities(votes, 2.0) for votes in ([14, 12, 10, 8, 6], [13, 13, 10, 8, 6]))
    rows = table(shown)
    assert rows[1] == ["a", "14", nearest(p[0])[0], "13", nearest(q[0])[0]]
    exact = nearest(renyi_divergence(p, q, 2.0), renyi_divergence(q, p, 2.0))
    assert exact == ["0.239564", "0.312353"]
    order_2 = next(row for row in rows if row[0] == "2")
    assert order_2 == ["2", "0.500000", "0.500000", *exact]
    epsilon = rdp_to_epsilon([2.0, 4.0], [0.5, 1.0], delta=1e-5)
    assert f"epsilon <= {up(epsilon)} at delta=1e-05" in shown.output
    assert "a conversion of upper bounds, no result of an audit" in shown.output
    assert "data-dependent bounds D(histogram || neighbour) only" in shown.output
    assert "largest two-cut at order 2: a" in shown.output


def test_votes_without_a_neighbour(estimate: Callable[..., Result]) -> None:
    shown = estimate("query,v1_a,v1_b\nfirst,101,99\n", *options("sigma=20", "orders=2"))
    assert shown.output.startswith("query first: noisy argmax, sigma 20 (exact)")
    assert "D(v1" not in shown.output


@pytest.mark.parametrize("conversion", ["improved", "classical"])
def test_a_guarantee(estimate: Callable[..., Result], conversion: str) -> None:
    shown = estimate("order,rdp\n2,0.1\n8,0.4\n32,1.6\n", "--delta", 1e-6, *options(f"conversion={conversion}"))
    value = rdp_to_epsilon([2.0, 8.0, 32.0], [0.1, 0.4, 1.6], delta=1e-6, conversion=conversion)  # type: ignore[arg-type]
    assert shown.output.startswith(f"epsilon <= {up(value)} at delta=1e-06")
    assert "no result of an audit" in shown.output


@pytest.mark.parametrize(
    ("mechanism", "advantages"),
    [
        ("llp", llp_additive_advantage(PRIOR)),
        ("rr", rr_additive_advantage(PRIOR, epsilon=1.0)),
        ("llp-laplace", llp_laplace_additive_advantage(PRIOR, epsilon=1.0)),
        ("llp-geometric", llp_geometric_additive_advantage(PRIOR, epsilon=1.0)),
    ],
)
def test_label_advantages(estimate: Callable[..., Result], mechanism: str, advantages: np.ndarray) -> None:
    extra = [f"mechanism={mechanism}"] + ["epsilon=1"] * (mechanism != "llp")
    rows = table(estimate(BAGS, *options(*extra)))
    assert rows[1] == ["mean", *nearest(advantages.mean())]
    assert rows[4] == ["0.98", "quantile", *nearest(advantage_quantile(advantages, 0.98))]
    if mechanism == "llp":
        gained = np.abs(np.asarray(multiplicative_advantage(PRIOR, llp_posterior(PRIOR, [1, 1]))))
        assert ["mean", *nearest(gained.mean())] in rows[2:]
    if mechanism == "rr":  # every release moves the log-odds by epsilon
        assert ["1", "quantile", "1"] in rows[2:]


def test_label_advantages_need_no_release_and_show_shares(estimate: Callable[..., Result]) -> None:
    shown = estimate("bag,prior\n1,0.1\n1,0.4\n", *options("within=0.05,1", "quantiles=0.5"))
    assert "multiplicative" not in shown.output
    assert ["share", "within", "1", "1"] in table(shown)


def test_proportions(estimate: Callable[..., Result]) -> None:
    rows = table(estimate("k,n\n3,100\n0,10\n", "--confidence", 0.9))
    for row, interval in zip(rows[1:3], (clopper_pearson, jeffreys), strict=True):
        ends = interval(3, 100, confidence=0.9)
        assert row[1:3] == [down(ends.lower), up(ends.upper)]
    assert rows[4][1] == "0.000000"


def test_multinomials(estimate: Callable[..., Result]) -> None:
    rows = table(estimate("c_a,c_b,c_c\n30,50,20\n"))
    score, common = goodman([30, 50, 20], confidence=0.95), sison_glaz([30, 50, 20], confidence=0.95)
    ends = [down(score.lower[1]), up(score.upper[1]), down(common.lower[1]), up(common.upper[1])]  # type: ignore[index]
    assert rows[2] == ["b", "50", *ends]


def test_parquet_and_several_rows(tmp_path: Path) -> None:
    path = tmp_path / "table.parquet"
    pq.write_table(pa.table({"k1": [42, 10], "n1": [100, 100], "k2": [3, 90], "n2": [100, 100]}), path)
    shown = CliRunner().invoke(main, ["estimate", str(path), *options("orders=2")], catch_exceptions=False)
    assert shown.exit_code == 0
    assert "two-cut, query 2: RDP lower bounds in nats (0.975 confidence" in shown.output
    assert "two-cut, worst query: RDP lower bounds in nats (0.95 confidence" in shown.output
    assert "two-cut, all 2 queries answered" in shown.output


def test_list_shows_the_functions_they_are_made_of() -> None:
    shown = CliRunner().invoke(main, ["list", "estimators"], catch_exceptions=False).output
    for name in (
        "binomial.clopper_pearson", "binomial.jeffreys", "binomial.katz_log", "multinomial.goodman",
        "multinomial.sison_glaz", "confusion.epsilon_interval", "confusion.epsilon_posterior_cdf",
        "confusion.epsilon_posterior_pdf", "guesses.one_run_epsilon", "guesses.one_run_p_value",
        "f_dp.f_dp_parameter", "f_dp.f_dp_epsilon", "ratio.ratio_epsilon", "ratio.detectable_ceiling",
        "divergence.renyi_divergence", "two_cut.two_cut_bound", "k_cut.k_cut_bound", "k_cut.bootstrap_bound",
        "noisy_argmax.noisy_argmax_probabilities", "conversion.rdp_to_epsilon", "rdp_bound.compose_bounds",
        "advantage.rr_posterior", "advantage.llp_posterior", "advantage.llp_laplace_posterior",
        "advantage.llp_geometric_posterior", "advantage.rr_additive_advantage", "advantage.llp_additive_advantage",
        "advantage.llp_laplace_additive_advantage", "advantage.llp_geometric_additive_advantage",
        "advantage.multiplicative_advantage", "advantage.advantage_quantile", "advantage.advantage_cdf",
        "selection.Fixed", "selection.Split", "selection.Grid", "selection.Bonferroni", "selection.SimultaneousBand",
        "selection.AsPublished", "replays.median_rule", "guess_tables.twice_mean_p",
        "guess_tables.mean_e_value",
        "bound.Bound", "finding.Validity", "finding.Finding",
    ):  # fmt: skip
        assert re.search(rf"  ([a-z_]+\.)?{re.escape(name)} ", shown), name
    listed = shown.partition("functions and types")[2].splitlines()[1:]
    for name, summary in (line.split(maxsplit=1) for line in listed if line.strip()):
        assert "/" not in name
        assert summary.endswith((".", "?", "!"))


@pytest.mark.parametrize(
    ("text", "given", "message"),
    [
        ("k,n\n3,100\n", ["--method", "ratio"], "must have the columns n1,n0,trials1,trials0 for ratio, got k,n$"),
        ("k,n\n3,100\n", ["--method", "band"], "must have the columns score,member, got k,n; name yours"),
        ("k,n\n3,100\n", ["--method", "bayesian"], r"must have the columns score,member \(or counts: tp,fp,tn,fn\)"),
        ("k,n\n3,100\n", ["--delta", 0.1], "--method proportion has no field 'delta'; it has confidence"),
        ("k,n\n3,100\n", ["--selection", "grid"], "has no field 'selection'"),
        (CONFUSION, ["--selection", "grid"], "--selection must be left out for counts"),
        ("k,n\n103,100\n", [], "k must be <= n"),
        ("k,n\n3,\n", [], "column n must hold numbers, got NaN or nothing in 1 of 1 rows"),
        (RATIO, options("gruop=2"), "--method ratio has no field 'gruop'; it has delta, confidence, group, directions"),
        (RATIO, options("group=two"), "--method ratio.group must be .*whole number.*, got 'two'"),
        (RATIO, options("group=0"), "group must be >= 1, got 0"),
        (RATIO, options("group"), "--option must be NAME=VALUE, got 'group'"),
        (RATIO, options("directions=up"), "directions must be 'best' or 'one', got 'up'"),
        (
            RATIO,
            ["--method", "magic", *options("a=1")],
            "must be one of answers, bag-size-.*, got 'magic'",
        ),
        (TWO_CUT, options("orders=1"), "orders must be numbers > 1, got"),
        (TWO_CUT, options("orders=2,x"), r"--method two-cut.orders.* must be a number"),
        (TWO_CUT, ["--confidence", 1.5], r"confidence must be in \(0, 1\), got 1.5"),
        ("k1,n1,k2,n2\n5,4,1,2\n", [], "must be <="),
        ("k1,n1,k2,n2\n0.5,4,1,2\n", [], "column k1 must hold whole numbers >= 0, got 0.5; see row 1"),
        ("c1_a,c1_b,c2_a,c2_d\n1,2,3,4\n", [], r"c1_\* and c2_\* must name the same classes"),
        (VOTES, [], "--method gnmax needs sigma"),
        (VOTES, options("sigma=0"), "sigma must be finite and > 0, got 0.0"),
        (BAGS, options("mechanism=rr"), "epsilon must be given"),
        (BAGS, options("mechanism=laplace", "epsilon=1"), "mechanism must be 'rr', 'llp'.*, got 'laplace'"),
        ("bag,prior\n1,1.2\n", [], r"a prior must be in \[0, 1\]"),
        ("bag,prior,positives\n1,0.5,0\n1,0.5,1\n", [], "must repeat one number on all rows of a bag"),
        ("order,rdp\n1,0.1\n", [], "orders must be > 1"),
        ("order,rdp\n2,-0.1\n", [], "rdp must be >= 0"),
        (GUESSES, ["--method", "one-run-f-dp"], "Gaussian family has no finite epsilon at delta = 0"),
        (GUESSES, ["--method", "one-run-p-value"], "--method one-run-p-value needs epsilon"),
        (REPLAYS, ["--method", "one-run-replays", *options("rule=mean")], "rule must be 'median'.*, got 'mean'"),
        ("tp,fp,tn,fn\n0,1,1,0\n", [], r"tp \+ fn must be >= 1"),
        ("guesses,correct,canaries\n5,6,10\n", [], "correct must be <= guesses"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(
    estimate: Callable[..., Result], text: str, given: list[object], message: str
) -> None:
    done = estimate(text, *given)
    assert done.exit_code == 2, done.output
    assert len(done.output.strip().splitlines()) == 1
    assert done.output.startswith("dpaudit: ")
    assert re.search(message, done.output.strip()), done.output
