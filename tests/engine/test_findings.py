"""Three kinds of evidence and of findings: all share the text, the page and the JSON."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from dpaudit import AuditResult, Claim, Relation, Report, Verdict, estimate
from dpaudit.actors.values import decode, encode
from dpaudit.claims import GaussianDP, SubsampledGaussian, claim_under
from dpaudit.engine.answer.verdict import COLOURS
from dpaudit.engine.figures.finding_figures import finding_figures
from dpaudit.engine.report.page import bounds_json, bounds_table, write_page
from dpaudit.estimators.estimator import Estimator
from dpaudit.estimators.finding import Finding, Validity
from dpaudit.estimators.label_reconstruction.advantage import rr_additive_advantage
from dpaudit.estimators.label_reconstruction.bags import LabelAdvantage, Posteriors
from dpaudit.estimators.one_run.guess_band import SimultaneousGuessCount
from dpaudit.estimators.one_run.signed_scores import OneRun
from dpaudit.estimators.private_prediction.answers_estimator import AnsweredQuery, Answers
from dpaudit.estimators.private_prediction.two_cut import two_cut_bound
from dpaudit.estimators.scores import Scores
from dpaudit.estimators.two_world.betting import Betting
from dpaudit.estimators.two_world.two_sample import Band
from tests.estimators.releases import rr_posterior
from tests.nightly import too

ANSWERS = [
    AnsweredQuery(query, np.array([900, 60, 40]), np.array([300, 500, 200]), np.array([True, False, False]))
    for query in range(2)
]


def two_worlds(shift: float, replay: int = 0) -> Scores:
    truth = np.arange(400) % 2 == 0
    return Scores(np.random.default_rng(replay).normal(size=400) + shift * truth, truth, replay)


def released_labels(epsilon: float) -> Posteriors:
    rng = np.random.default_rng(5)
    prior = rng.uniform(0.05, 0.95, 300)
    posterior = np.asarray(rr_posterior(prior, rng.integers(0, 2, 300).astype(float), epsilon=epsilon))
    expected = np.asarray(rr_additive_advantage(prior, epsilon=epsilon))
    return Posteriors(prior, posterior, np.arange(300) // 5, expected=expected)


def finding_of(estimator: Estimator, pieces: list) -> Finding:
    """Return the finding after evidence and tallies have been stored and loaded, as in a run."""
    evidence, kind = type(pieces[0]), estimator.tally_type
    counted = encode((estimator.tally(piece) for piece in decode(encode(pieces, evidence), evidence)), kind)
    return estimator.find(decode(counted, kind))


def result(finding: Finding | None, claim: Claim, name: str = "one") -> AuditResult:
    return AuditResult(
        name=name,
        mechanism="mechanism",
        game="game",
        claimed=claim,
        compared=claim_under(claim, claim.relation),
        finding=finding,
        metrics={},
        rows={"target": 10},
        data="data",
        units=(1, 1),
        observational=False,
        assumes="nothing",
    )


def report(*results: AuditResult) -> Report:
    return Report("run", results, 0, 0.95, 1.0, 1, 1, "", "spec: here")


KINDS = {
    "scores of one run": (OneRun(), [two_worlds(4.0, replay) for replay in range(3)], {"fractions", "replays"}),
    "scores of two worlds": (Band(), [two_worlds(3.0)], {"trade-off", "posterior", "delta"}),
    "several replays of a band": (
        Band(),
        [two_worlds(3.0, replay) for replay in range(3)],
        {"trade-off", "posterior", "delta", "replays"},
    ),
    "scores in trial order": (Betting(), [two_worlds(3.0)], {"trials"}),
    "advantage": (LabelAdvantage(), [released_labels(1.0)], {"advantages", "advantages-additive", "beliefs"}),
    "additive advantage": (
        LabelAdvantage(kind="additive"),
        [released_labels(1.0)],
        {"advantages", "advantages-multiplicative", "beliefs"},
    ),
}
BY_NIGHT = ("scores of two worlds", "additive advantage")
"""Kinds whose figures other kinds cover too."""


def test_a_one_run_result_shows_the_bound_under_the_family_of_its_claim(tmp_path: Path) -> None:
    """The bound under the family exceeds the claim, and the verdict does not change."""
    rng = np.random.default_rng(0)
    truth = rng.random(1_000) < 0.5
    scores = Scores(rng.normal(size=1_000) + truth - 0.5, truth)
    estimator, claim = SimultaneousGuessCount(delta=1e-5), Claim(3.0, 1e-5)
    tally = estimator.tally(scores)
    audit = replace(result(estimator.find([tally]), claim), guess_counts=(tally,))
    assert audit.family_bound is not None
    assert audit.epsilon < 3.0 < audit.family_bound.epsilon
    assert audit.verdict is not Verdict.VIOLATION
    assert "leak independently" in audit.under_family
    assert audit.under_family in audit.text(verbose=True)
    json_values = json.loads(bounds_json(report(audit)))["results"][0]["under_family"]
    assert json_values["epsilon"] == audit.family_bound.epsilon
    write_page(report(audit), tmp_path)
    assert "Under a family" in (tmp_path / "report.html").read_text()
    assert replace(audit, on_proxy=True).family_bound is None
    pure = result(SimultaneousGuessCount().find([tally]), Claim(3.0))
    assert replace(pure, guess_counts=(tally,)).family_bound is None
    sampled = Claim.of(SubsampledGaussian(1.0, 0.5, 2), relation=Relation.ADD_REMOVE, delta=1e-5)
    named = replace(result(estimator.find([tally]), sampled), guess_counts=(tally,)).family_bound
    assert named is not None
    assert named.family == "DP-SGD (sampled at 0.5, 2 steps)"


@pytest.mark.figures
@pytest.mark.parametrize("kind", [*(kind for kind in KINDS if kind not in BY_NIGHT), *too(*BY_NIGHT)])
def test_every_kind_of_finding_has_text_page_and_json(kind: str, tmp_path: Path) -> None:
    estimator, pieces, figures = KINDS[kind]
    finding = finding_of(estimator, pieces)
    rejected = result(finding, Claim(0.05))
    not_rejected = result(finding, Claim(30.0), name="two")
    assert rejected.verdict is Verdict.VIOLATION
    assert not_rejected.verdict is Verdict.NO_VIOLATION
    assert rejected.violation_point is not None
    assert rejected.violation_point.observed > rejected.violation_point.claimed
    both = report(rejected, not_rejected)
    assert rejected.violation_point.words in rejected.headline
    assert rejected.violation_point.where.rpartition(" ")[2] in rejected.violation_point.words, (
        "observed and claimed are of one point"
    )
    assert rejected.violation_point.words in rejected.answer.line("lower bound")
    assert rejected.violation_point.quantity == "epsilon" or "where the claim allows" in rejected.answer.line(
        "lower bound"
    )
    assert all(text in str(both) for each in (rejected, not_rejected) for _, text in each.answer.lines)
    assert all(note in both.text(verbose=True) for note in finding.notes)
    plain = json.loads(bounds_json(both))["results"]
    assert plain[0]["violation_point"]["where"] == rejected.violation_point.where
    assert plain[1]["violation_point"] is None
    assert len(plain[0]["series"]) == len(finding.series) > 0
    assert bounds_table(both).column("observed").to_pylist()[0] == rejected.violation_point.observed
    write_page(both, tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert page.count("<svg") == 1 + 2 * len(figures)
    assert rejected.violation_point.where in page
    figure_names = {re.sub("^one-[0-9a-f]{6}-", "", path.stem) for path in (tmp_path / "figures").glob("one-*.png")}
    assert figure_names == figures
    assert not list(tmp_path.glob(".*")), "nothing half-written stays"


def test_the_trade_off_figure_draws_the_whole_claim() -> None:
    """A Gaussian claim is stricter than its point (epsilon, delta), so the figure draws a separate curve."""
    claim = Claim(delta=1e-5, curve=GaussianDP(1.0))
    finding = finding_of(Band(), [two_worlds(3.0)])
    (picture,) = [picture for picture in finding_figures(finding, claim) if picture.stem == "trade-off"]
    allowed = picture.figure.axes[0].lines[-1]
    alarm, hit = np.asarray(allowed.get_xdata()), np.asarray(allowed.get_ydata())
    np.testing.assert_allclose(hit, stats.norm.cdf(stats.norm.ppf(alarm) + 1), atol=1e-9)


def test_queries_share_the_error_and_a_lost_one_costs_its_share() -> None:
    estimator = Answers()
    tallies = [estimator.tally(query) for query in ANSWERS]
    two, three = (
        np.asarray(two_cut_bound(900, 1000, 300, 1000, estimator.orders, confidence=confidence))
        for confidence in (0.975, 1 - 0.05 / 3)
    )
    lossy = estimator.find(tallies, failed_replays=1)
    np.testing.assert_array_equal(estimator.find(tallies).bound.forward, [two, two])
    np.testing.assert_array_equal(lossy.bound.forward, [three, three])
    assert (three < two).all()
    assert dict(lossy.counts)["lost queries"] == 1


def test_exact_advantages_reject_a_smaller_epsilon_but_not_the_true_epsilon() -> None:
    """Randomised response moves log-odds by exactly epsilon: rounding must not cause a rejection."""
    for epsilon in (0.1, 1.0, 2.5, 7.0):
        finding = finding_of(LabelAdvantage(), [released_labels(epsilon)])
        assert finding.validity is Validity.EXACT
        assert finding.confidence is None
        assert finding.violation_point(Claim(epsilon).curve) is None
        assert finding.violation_point(Claim(0.999 * epsilon).curve) is not None
        additive = finding_of(LabelAdvantage(kind="additive"), [released_labels(epsilon)])
        assert additive.violation_point(Claim(epsilon).curve) is None


def test_a_lost_release_counts_as_no_advantage() -> None:
    estimator = LabelAdvantage()
    tally = estimator.tally(released_labels(1.0))
    assert estimator.find([tally], failed_replays=1).mean == pytest.approx(estimator.find([tally]).mean / 2)


def test_finding_as_published_is_never_a_violation(tmp_path: Path) -> None:
    published = result(finding_of(Answers(cut="k-bootstrap"), ANSWERS[:1]), Claim(0.05))
    assert published.finding is not None
    assert published.finding.validity is Validity.AS_PUBLISHED
    assert published.verdict is Verdict.NO_VIOLATION
    assert "WARNING" in str(published)


def test_claim_that_implies_no_divergence_is_reported() -> None:
    approximate = result(finding_of(Answers(), ANSWERS), Claim(1.0, 1e-5))
    assert approximate.verdict is Verdict.NO_VIOLATION
    assert approximate.headline.startswith("the claim says nothing about RDP")
    assert "where the claim allows anything" in approximate.answer.line("lower bound")
    nothing = result(finding_of(Answers(), ANSWERS), Claim(math.inf))
    assert nothing.verdict is Verdict.NO_CLAIM


def one_run_of(guesses: int, correct: int, claim: Claim) -> AuditResult:
    """Return the result of a run with 1,000 canaries."""
    counts = (("guesses", guesses), ("correct", correct), ("canaries", 1000))
    return result(replace(finding_of(OneRun(), [two_worlds(4.0)]), counts=counts), claim)


def test_power_of_an_attacker_is_stated_plainly() -> None:
    answer = one_run_of(200, 190, Claim(1.0, relation=Relation.LABEL)).answer
    assert "which of two labels a record had, an attacker was right in 190 of 200 guesses" in answer.sentence
    assert (
        "abstained on 800 other records; the claim allows at most 73.1 % on average; guessing gives 50 %"
        in answer.sentence
    )
    assert answer.line("evidence") == answer.sentence.rstrip(".")
    answers = [one_run_of(9, 9, Claim(1.0, relation=relation)).answer for relation in Relation]
    assert {answer.sentence.partition(",")[0] for answer in answers} == {
        "Asked which of two labels a record had",
        "Asked which of two records was used",
        "Asked whether a record was used",
        "Asked whether a record contributed",
    }


@pytest.mark.parametrize(
    "claim", [Claim(math.inf), Claim(1.0, 1e-5), Claim.of(GaussianDP(1.0), relation=Relation.LABEL, delta=1e-5)]
)
def test_share_of_right_guesses_is_stated_only_for_pure_epsilon(claim: Claim) -> None:
    assert one_run_of(200, 190, claim).answer.sentence.endswith("guessing gives 50 %.")


def test_findings_without_guesses_have_a_sentence_without_an_attacker() -> None:
    bound = finding_of(Betting(), [two_worlds(3.0)])
    assert result(bound, Claim(1.0)).answer.sentence.startswith("At least epsilon ")
    assert result(bound, Claim(30.0)).answer.sentence == "This audit found no leak larger than the claim allows."
    assert result(None, Claim(1.0)).answer.sentence.startswith("The audit did not finish")


def test_a_notebook_shows_a_badge_a_bar_and_the_claim() -> None:
    html = one_run_of(200, 190, Claim(1.0, relation=Relation.LABEL))._repr_html_()
    assert f"background:{COLOURS[Verdict.VIOLATION]}" in html
    assert "right in 190 of 200 guesses" in html
    assert html.count("<rect") == 2
    unclaimed = result(finding_of(OneRun(), [two_worlds(4.0)]), Claim(math.inf))._repr_html_()
    assert unclaimed.count("<rect") == 1
    assert "<svg" not in result(None, Claim(1.0))._repr_html_()
    report_of_two = report(one_run_of(9, 9, Claim(1.0, relation=Relation.LABEL)), result(None, Claim(1.0), "two"))
    assert report_of_two._repr_html_().count("<details>") == 2


def test_an_estimate_is_a_card_and_a_table() -> None:
    scores = two_worlds(3.0)
    estimated = estimate(scores.score, scores.truth, claim=1.0)
    assert "VIOLATION" in estimated._repr_html_()
    table = estimated.to_frame()
    assert table["name"].tolist() == ["epsilon", "AUC", "TPR at 1 % FPR", "TPR at 0.1 % FPR", "accuracy"]
    assert table["value"][0] == table["lower"][0] == estimated.lower
    assert (table["lower"] <= table["value"]).all()
    assert (table["value"] <= table["upper"]).all()
