"""The smallest reduction of noise that an audit would reject: computed from scores, checked on mechanisms."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from scipy import special

from dpaudit import Audit, AuditSpec, Claim, RunOptions, Verdict, audit
from dpaudit.claims import GaussianDP, PureDP
from dpaudit.engine.answer.sensitivity import detectable_factor
from dpaudit.engine.data.generated import GaussianMixture
from dpaudit.engine.games.one_run.label_inference import LabelCanaries
from dpaudit.estimators.one_run.guess_band import SimultaneousGuessCount
from dpaudit.estimators.one_run.step_martingale import StepMartingale
from dpaudit.estimators.scores import Scores
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
    """At least 85 of 100, by day 17 of 20; measured 91 % and more.

    The seed is fixed. With another seed and a probability of 0.91, 3 % of such tests would fail, by day 10 %.
    """
    laws = by_day(2, by_night=10)
    rng = np.random.default_rng(4)
    rejections = []
    for _ in range(laws):
        factor = detectable_factor(estimator, [law(rng, 1.0, 1500, signal)], curve)
        for _ in range(10 if factor else 0):
            planted = law(rng, factor, 1500, signal)
            tally = estimator.tally(estimator.evidence(planted.score, planted.truth))
            rejections.append(estimator.find([tally]).violation_point(curve) is not None)
    assert len(rejections) >= 8 * laws
    assert np.mean(rejections) >= 0.85


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
