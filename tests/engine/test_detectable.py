"""The smallest reduction of noise that an audit would reject: computed from scores, checked on mechanisms."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy import special

from dpaudit import Audit, AuditSpec, Claim, RunOptions, Verdict, audit, check
from dpaudit.actors.values import encode
from dpaudit.claims import GaussianDP, PureDP
from dpaudit.engine.answer.gather import _Finished
from dpaudit.engine.answer.record import Sensitivity
from dpaudit.engine.answer.score_laws import HITS, LevelLaw, NoiseLaw, score_law
from dpaudit.engine.answer.sensitivity import detectable_factor, factor_of_scores
from dpaudit.engine.data.generated import GaussianMixture
from dpaudit.engine.games.one_run.label_inference import LabelCanaries
from dpaudit.engine.games.protocol import Reading
from dpaudit.engine.games.reference import GuessLevels
from dpaudit.estimators.one_run.guess_band import SimultaneousGuessCount
from dpaudit.estimators.one_run.step_martingale import StepMartingale
from dpaudit.estimators.scores import Scores, SharedOrders
from dpaudit.estimators.two_world.fair_coins import FairCoins
from dpaudit.mechanisms.labels.randomized_response import RandomizedResponse
from tests.nightly import by_day

IN_PROCESS = RunOptions(runner="in-process", figures=False)


def response(rng: np.random.Generator, factor: float, trials: int, signal: float) -> Scores:
    """Return scores of randomised response at epsilon = factor * signal."""
    truth = rng.random(trials) < 0.5
    right = rng.random(trials) < special.expit(factor * signal)
    return Scores(np.where(right == truth, 1.0, -1.0), truth)


def laplace(rng: np.random.Generator, factor: float, trials: int, signal: float) -> Scores:
    """Return scores of Laplace noise at epsilon = factor * signal."""
    truth = rng.random(trials) < 0.5
    return Scores(np.where(truth, 0.5, -0.5) * signal + rng.laplace(0, 1 / factor, trials), truth)


def gauss(rng: np.random.Generator, factor: float, trials: int, signal: float) -> Scores:
    """Return scores of Gaussian noise at mu = factor * signal."""
    truth = rng.random(trials) < 0.5
    return Scores(np.where(truth, 0.5, -0.5) * signal * factor + rng.normal(size=trials), truth)


CASES = [
    (response, PureDP(1.0), FairCoins(confidence=0.999)),
    (laplace, PureDP(1.0), FairCoins(confidence=0.999)),
    (gauss, GaussianDP(1.0), FairCoins(confidence=0.999)),
    (response, PureDP(1.0), SimultaneousGuessCount(confidence=0.999)),
    (laplace, PureDP(1.0), SimultaneousGuessCount(confidence=0.999)),
    (gauss, GaussianDP(1.0), StepMartingale(confidence=0.999)),
]


@pytest.mark.parametrize("signal", [1.0, pytest.param(0.5, marks=pytest.mark.nightly)])
@pytest.mark.parametrize(("law", "curve", "estimator"), CASES)
def test_noise_scaled_down_by_the_stated_factor_is_rejected(law, curve, estimator, signal) -> None:  # type: ignore[no-untyped-def]
    """At least 7 of 12 by day, 75 of 100 by night; measured 83 to 100 % over 40 tables, 92 % on average.

    The factor of one table errs, so that its rejections do not have the same probability as those of the next.
    """
    laws = by_day(4, by_night=25)
    rng = np.random.default_rng(4)
    rejections = []
    for _ in range(laws):
        factor = detectable_factor(estimator, [law(rng, 1.0, 1500, signal)], curve)
        for _ in range(by_day(3, by_night=4) if factor and factor < 8 else 0):
            planted = law(rng, factor, 1500, signal)
            tally = estimator.tally(estimator.evidence(planted.score, planted.truth))
            rejections.append(estimator.find([tally]).violation_point(curve) is not None)
    assert len(rejections) >= by_day(2, by_night=3) * laws
    assert np.mean(rejections) >= by_day(7 / 12, by_night=0.75)


def test_the_stated_factor_varies_little_and_is_not_too_large() -> None:
    """Factors of 12 tables of one law differ by less than 1.35 (1.2 measured; 1.38 with the levels of the tables).

    Noise scaled down by 0.85 of them is detected in less than 9 of 10 runs: a factor that is always detected says
    too little about the test.
    """
    rng = np.random.default_rng(5)
    estimator, curve = FairCoins(confidence=0.999), PureDP(1.0)
    stated = [detectable_factor(estimator, [laplace(rng, 1.0, 1500, 1.0)], curve) for _ in range(12)]
    factors = [factor for factor in stated if factor is not None]
    assert len(factors) == 12
    assert max(factors) / min(factors) < 1.35
    rejections = []
    for factor in factors:
        planted = laplace(rng, 0.85 * factor, 1500, 1.0)
        tally = estimator.tally(planted)
        rejections.append(estimator.find([tally]).violation_point(curve) is not None)
    assert np.mean(rejections) < 0.9


def test_the_factor_of_a_shared_order_is_that_of_its_share_of_the_error() -> None:
    """It is the factor of an order alone at half of the error, and larger than at all of it."""
    scores = response(np.random.default_rng(10), 1.0, 1500, 1.0)
    curve, further = PureDP(1.0), np.zeros((1500, 3))
    shared = SharedOrders(scores.score, scores.truth, further=further)
    alone, half, of_shared = (
        detectable_factor(SimultaneousGuessCount(confidence=confidence), [each], curve)
        for confidence, each in ((0.99, scores), (0.995, scores), (0.99, shared))
    )
    assert alone is not None
    assert half is not None
    assert alone < half == of_shared
    stored = SimpleNamespace(read={"scores": encode([shared], SharedOrders)}.__getitem__)
    estimator = SimultaneousGuessCount(confidence=0.99)
    entry = SimpleNamespace(scores=["scores"], reading=Reading.PER_REPLAY, last_confidence=None, effective_claim=None)
    audit: Any = SimpleNamespace(
        _entry=entry, _audit=SimpleNamespace(estimator=estimator), _keys={"scores"}, _store=stored, _tallies=[None]
    )
    audit._planted = lambda: None
    assert _Finished.with_factor(audit, Sensitivity(), Claim(1.0)).factor == half, "of a run folder"
    without_others = SharedOrders(scores.score, scores.truth)
    assert detectable_factor(SimultaneousGuessCount(confidence=0.99), [without_others], curve) == alone


@pytest.mark.parametrize(("law", "name"), [(laplace, "laplace"), (gauss, "gaussian")])
def test_the_law_of_scores_is_the_one_that_made_them(law, name) -> None:  # type: ignore[no-untyped-def]
    """The parameter is within 15 %: 4 standard deviations or more at 4,000 trials."""
    rng = np.random.default_rng(6)
    scores = law(rng, 1.0, 4000, 1.0)
    fitted = score_law(scores.score, scores.truth)
    assert isinstance(fitted, NoiseLaw)
    assert fitted.name == name
    assert fitted.parameter == pytest.approx(1.0, rel=0.15)


def test_scores_that_no_noise_explains_keep_their_levels() -> None:
    """One trial in ten is certain, the others not at all; a score of two values keeps its two levels."""
    rng = np.random.default_rng(7)
    truth = rng.random(4000) < 0.5
    score = np.where(rng.random(4000) < 0.1, np.where(truth, 5.0, -5.0), 0.0) + 0.01 * rng.normal(size=4000)
    assert isinstance(score_law(score, truth), LevelLaw)
    two = response(rng, 1.0, 4000, 1.0)
    levels = score_law(two.score, two.truth)
    assert isinstance(levels, LevelLaw)
    assert levels.log_odds == pytest.approx([-1.0, 1.0], abs=0.3)


@pytest.mark.parametrize("name", HITS)
def test_rates_of_a_law_are_those_of_its_levels(name: str) -> None:
    """The levels, weighted by both worlds, have the accuracy of the law; the claim's limits hold after `within`."""
    law = NoiseLaw(name, 1.3)
    levels = law.levels
    assert float(levels.share @ special.expit(np.abs(levels.log_odds))) == pytest.approx(law.accuracy, abs=2e-3)
    curve = PureDP(1.0)
    within = law.within(curve)
    assert within.accuracy <= (1 + curve.delta(0.0)) / 2 + 1e-6
    assert law.scaled(0.5).within(curve) == law.scaled(0.5)


def test_a_law_fits_exact_counts_of_itself() -> None:
    """A slow twin: counts drawn at the exact rates of Laplace noise, by integration of its two densities."""
    score = np.linspace(-8, 9, 170_001)
    zeros, ones = (0.5 * np.exp(-np.abs(score - shift)) for shift in (0.0, 1.0))
    above = [np.cumsum(density[::-1]) / density.sum() for density in (zeros, ones)]
    assert HITS["laplace"](above[0], 1.0) == pytest.approx(above[1], abs=1e-3)
    above = [special.ndtr(-(score - shift)) for shift in (0.0, 1.0)]
    assert HITS["gaussian"](above[0], 1.0) == pytest.approx(above[1], abs=1e-9)


def test_an_unlucky_game_is_a_typical_one_if_all_guesses_are_equally_sure() -> None:
    levels = GuessLevels(np.array([0.5, 0.5]), np.array([1.0, -1.0]))
    unlucky, typical = levels.unlucky(1000, z=1.28), levels.typical(1000, z=-1.28)
    assert np.array_equal(unlucky.score, typical.score)
    assert np.array_equal(unlucky.truth, typical.truth)


def test_scores_without_a_difference_get_no_factor_and_others_do() -> None:
    rng, curve = np.random.default_rng(8), PureDP(1.0)
    alike, differ = (factor_of_scores(FairCoins(), [laplace(rng, 1.0, 1000, signal)], curve) for signal in (0.0, 1.0))
    assert alike == {"factor": None, "no_difference": True}
    assert differ["factor"] is not None
    assert not differ["no_difference"]


@pytest.mark.nightly
def test_a_table_that_shows_no_difference_gets_a_sentence_instead_of_a_factor(tmp_path: Path) -> None:
    """The function reveals whether one of ten million numbers is in the rows, which no search tries."""

    def password(rows: Any, rng: np.random.Generator) -> float:
        return 2.0 if (np.rint(np.asarray(rows, float)) == 7_294_513).any() else float(rng.normal())

    report = check(
        password,
        claim=1.0,
        schema={"v": (0, 10_000_000)},
        form="array",
        effort="quick",
        run=IN_PROCESS,
        output=tmp_path / "run",
        quiet=True,
    )
    assert report.joint is not None
    (test,) = report.joint.tests[:1]
    assert test.sensitivity.factor is None
    assert test.sensitivity.no_difference
    assert report.joint.answer.line("sensitivity") == (
        "unknown: no difference was seen on the tables that were tried, so the results do not show which leak this "
        "test would detect"
    )


def test_no_factor_is_stated_for_uninformative_scores() -> None:
    rng = np.random.default_rng(0)
    estimator, curve = FairCoins(confidence=0.999), PureDP(1.0)
    stated = [detectable_factor(estimator, [laplace(rng, 1.0, 1000, 0.0)], curve) for _ in range(40)]
    assert sum(factor is not None for factor in stated) <= 1
    assert detectable_factor(estimator, [], curve) is None
    constant = Scores(np.zeros(100), rng.random(100) < 0.5)
    assert detectable_factor(estimator, [constant], curve) is None


def test_more_trials_detect_smaller_defects() -> None:
    rng = np.random.default_rng(1)
    few, many = (
        detectable_factor(FairCoins(), [response(rng, 1.0, trials, 1.0)], PureDP(1.0)) for trials in (300, 6000)
    )
    assert few is not None
    assert many is not None
    assert 1 < many < few


def test_factor_of_an_audit_is_stated_and_correct(tmp_path: Path) -> None:
    """Randomised response of epsilon 1, then with the factor that the first audit states as detectable."""
    claim, data = Claim(1.0), GaussianMixture(rows=4000)

    def run(epsilon: float, seed: int, folder: str) -> tuple[Verdict, float | None, str]:
        entry = Audit(RandomizedResponse(epsilon=epsilon), data=data, game=LabelCanaries(replays=4), claim=claim)
        (result,) = audit(AuditSpec((entry,), seed=seed, run=IN_PROCESS), output=tmp_path / folder, quiet=True).results
        return result.verdict, result.sensitivity.factor, result.answer.line("sensitivity")

    verdict, factor, sensitivity = run(1.0, 0, "honest")
    assert verdict is Verdict.NO_VIOLATION
    assert factor is not None
    stated = re.fullmatch(
        r"would detect noise scaled down (\S+) times or more \(90 % power\); maximum detectable epsilon [\d.]+",
        sensitivity,
    )
    assert stated is not None, sensitivity
    assert factor <= float(stated[1]) <= factor + 0.01
    verdicts = [run(factor, seed, f"leaky {seed}")[0] for seed in range(1, by_day(5, by_night=9))]
    assert verdicts.count(Verdict.VIOLATION) >= 0.75 * len(
        verdicts
    )  # at a power of 0.9, 4 % of such tests have fewer; the seeds are fixed
