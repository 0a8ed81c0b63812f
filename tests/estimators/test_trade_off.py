"""Limits of a whole trade-off function from the scores of one classifier: a slow twin, error rates, planted defects.

Games are seeded; "false failure" is the probability that a correct limit would have failed with a random seed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import special, stats

from dpaudit import Audit, AuditSpec, Claim, Relation, RunOptions, Verdict, audit, from_summary
from dpaudit.claims import GaussianDP, PrivacyCurve, PureDP
from dpaudit.engine.answer.answer_words import curve_line
from dpaudit.engine.attacks.output_set import OutputSet, SummaryView
from dpaudit.engine.data.bundled import Iris
from dpaudit.engine.games.neighbours.game import Neighbours
from dpaudit.engine.games.neighbours.poisonings.rows import ClassFlip
from dpaudit.estimators.scores import Scores
from dpaudit.estimators.two_world.fair_coins import FairCoins
from dpaudit.estimators.two_world.two_sample import Band, RateRegions
from tests.nightly import by_day

Floats = NDArray[np.float64]
ALARMS = np.concatenate([[0.0], np.geomspace(1e-4, 0.5, 60), np.linspace(0.51, 1.0, 50)])


def laplace_misses(alarm: Floats, epsilon: float) -> Floats:
    """Return the trade-off function of Laplace noise of scale 1/epsilon on a sum that moves by 1."""
    steep, flat = 1 - np.exp(epsilon) * alarm, np.exp(-epsilon) * (1 - alarm)
    with np.errstate(divide="ignore"):
        middle = np.exp(-epsilon) / (4 * alarm)
    return np.where(alarm < np.exp(-epsilon) / 2, steep, np.where(alarm <= 0.5, middle, flat))


def classified(noise: Callable[[np.random.Generator, int], Floats], rng: np.random.Generator, trials: int) -> Scores:
    """Return scores of fresh trainings by the classifier of ML-Audit, which learned on 400 other trainings."""
    truth = rng.random(400 + trials) < 0.5
    summaries = (truth + noise(rng, truth.size))[:, None]
    view = SummaryView(summaries[:400], truth[:400], summaries[400:])
    return Scores(OutputSet(("linear", "laplace")).score(view), truth[400:])


def regions_of(scores: Scores, confidence: float = 0.95) -> RateRegions:
    band = Band(confidence=confidence)
    return band.regions([band.tally(scores)])


def misses_of(curve: PrivacyCurve) -> Floats:
    return np.array([curve.miss_rate(alarm) for alarm in ALARMS.tolist()])


MECHANISMS: dict[str, tuple[Callable[[np.random.Generator, int], Floats], Floats]] = {
    "laplace": (lambda rng, n: rng.laplace(size=n), laplace_misses(ALARMS, 1.0)),
    "gaussian": (lambda rng, n: rng.normal(size=n), misses_of(GaussianDP(1.0))),
}
"""Noise on a sum that moves by 1, and its trade-off function at `ALARMS`."""


@pytest.mark.parametrize("name", ["laplace", "gaussian"])
def test_limits_lie_below_the_true_curve_no_more_often_than_stated(name: str) -> None:
    """No false positive rate at all may have a limit below the truth. False failure < 1e-6."""
    (noise, exact), games = MECHANISMS[name], by_day(30, by_night=1_000)
    wrong = sum(
        bool((regions_of(classified(noise, np.random.default_rng([seed, 1]), 600)).misses(ALARMS) < exact).any())
        for seed in range(games)
    )
    assert wrong <= stats.binom.ppf(1 - 1e-6, games, 0.05)


def test_limits_of_a_tight_mechanism_lie_below_its_curve_no_more_often_than_stated() -> None:
    """Randomised response attains the curve of its claim, and its score has two values. False failure < 1e-6."""
    exact, games = misses_of(PureDP(1.0)), by_day(300, by_night=4_000)
    wrong = 0
    for seed in range(games):
        rng = np.random.default_rng(seed)
        truth = np.arange(400) % 2 == 0
        scores = Scores(np.where(truth ^ (rng.random(400) >= special.expit(1.0)), 1.0, -1.0), truth)
        wrong += bool((regions_of(scores).misses(ALARMS) < exact).any())
    assert wrong <= stats.binom.ppf(1 - 1e-6, games, 0.05)


def test_shares_taken_for_rates_are_found_below_the_true_curve() -> None:
    """Plant the defect that the ROC of the sample is taken for the limits: most games are then wrong."""
    exact, wrong = MECHANISMS["laplace"][1], 0
    for seed in range(20):
        scores = classified(MECHANISMS["laplace"][0], np.random.default_rng([seed, 2]), 600)
        thresholds = np.unique(scores.score)[:, None]
        alarm = (scores.score[~scores.truth] >= thresholds).mean(axis=1)
        miss = (scores.score[scores.truth] < thresholds).mean(axis=1)
        wrong += bool((RateRegions(((alarm[::-1], miss[::-1]),)).misses(ALARMS) < exact).any())
    assert wrong >= 14


def test_limits_are_those_of_the_best_mixture_of_two_tests() -> None:
    """A slow twin: each pair of tests, either direction, drawn with the probabilities that reach the rate."""
    regions = regions_of(classified(MECHANISMS["laplace"][0], np.random.default_rng(3), 300))
    ((alarms, misses),) = regions.rates
    forward = list(zip(alarms.tolist(), misses.tolist(), strict=True))
    tests = [*forward, *((miss, alarm) for alarm, miss in forward), (0.0, 1.0), (1.0, 0.0)]

    def least_miss(rate: float) -> float:
        least = 1.0
        for low_alarm, low_miss in tests:
            for high_alarm, high_miss in tests:
                if low_alarm <= rate <= high_alarm:
                    weight = (rate - low_alarm) / (high_alarm - low_alarm) if high_alarm > low_alarm else 0.0
                    least = min(least, (1 - weight) * low_miss + weight * high_miss)
        return least

    expected = [least_miss(rate) for rate in ALARMS.tolist()]
    assert regions.misses(ALARMS) == pytest.approx(expected, abs=1e-9)


def test_limits_and_epsilons_say_the_same_at_every_delta() -> None:
    """The steepest line through (0, 1 - delta) that touches the limits has the slope e^epsilon(delta)."""
    regions = regions_of(classified(MECHANISMS["gaussian"][0], np.random.default_rng(4), 2_000))
    alarms = np.linspace(1e-6, 1.0, 400_001)
    limits = regions.misses(alarms)
    for delta in (0.0, 1e-5, 0.01, 0.1, 0.3):
        slope = ((1 - delta - limits) / alarms).max()
        assert math.log(max(1.0, slope)) == pytest.approx(regions.epsilon(delta), abs=1e-3)


def test_lost_and_different_replays_count_by_the_median() -> None:
    strong, weak = (np.array([0.01]), np.array([0.05])), (np.array([0.4]), np.array([0.55]))
    at = np.array([0.0, 0.01, 0.5, 1.0])
    of_weak = RateRegions((weak,)).misses(at)
    assert RateRegions((strong, weak, weak)).misses(at) == pytest.approx(of_weak)
    assert RateRegions((strong, strong, weak)).misses(at) == pytest.approx(RateRegions((strong,)).misses(at))
    assert RateRegions((strong,), failed_replays=2).misses(at) == pytest.approx(1 - at)


def gaussian_count(X: NDArray[np.float32], y: NDArray[np.int64], seed: int, noise: float = 1.0) -> list[float]:
    return [float((y == 1).sum() + np.random.default_rng(seed).normal(0, noise))]


@pytest.mark.parametrize(("noise", "verdict"), [(1.0, Verdict.NO_VIOLATION), (0.5, Verdict.VIOLATION)])
def test_ml_audit_rejects_half_the_noise_by_the_curve_and_not_at_the_printed_delta(
    noise: float, verdict: Verdict, tmp_path: Path
) -> None:
    """A count with Gaussian noise claims 1-GDP; with half the noise 1,000 trainings show it, but not at 1e-5."""
    claim = Claim.of(GaussianDP(1.0), relation=Relation.LABEL, delta=1e-5)
    mechanism = from_summary(gaussian_count, claim, noise=noise)
    game = Neighbours(trials=1_000, search=400, stack=1_000, poisoning=ClassFlip())
    entry = Audit(mechanism, Iris(), game=game, attack=OutputSet(("linear",)))
    run = RunOptions(runner="in-process", figures=False, repeats=0)
    result = audit(AuditSpec((entry,), seed=1, run=run), output=tmp_path).results[0]
    assert result.verdict is verdict
    assert result.finding is not None
    assert result.epsilon < claim.epsilon
    assert "epsilon >=" in result.curve_line
    assert result.curve_line in result.text(verbose=True)
    (regions,) = [each for each in result.finding.evidence if isinstance(each, RateRegions)]
    assert (regions.misses(ALARMS) < misses_of(GaussianDP(1.0))).any() == (verdict is Verdict.VIOLATION)
    columns = result.finding.series["trade-off"]
    assert columns["limit_hit"] == pytest.approx(1 - regions.misses(np.asarray(columns["limit_alarm"])))


def test_no_line_is_printed_where_nothing_is_shown() -> None:
    rng = np.random.default_rng(0)
    estimator = FairCoins()
    nothing = estimator.find([estimator.tally(Scores(rng.normal(size=200), rng.random(200) < 0.5))])
    assert curve_line(nothing) == ""
