"""Evidence against the whole curve of a claim: violations away from the printed delta, and false positives.

Games are seeded; "false failure" is the probability that a correct verdict would have failed with a random seed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import special, stats

from dpaudit.claims import ApproximateDP, GaussianDP, PrivacyCurve, PureDP, SubsampledGaussian
from dpaudit.estimators.bound import Bound
from dpaudit.estimators.estimator import Estimator
from dpaudit.estimators.finding import Validity
from dpaudit.estimators.one_run.f_dp import f_dp_parameter
from dpaudit.estimators.one_run.signed_scores import OneRun, most_right_guesses, tangents
from dpaudit.estimators.scores import Scores
from dpaudit.estimators.selection import AsPublished, Grid, Split
from dpaudit.estimators.two_world.fair_coins import FairCoins, GuessAccuracy
from dpaudit.estimators.two_world.two_sample import Band, RateRegions
from tests.nightly import by_day, nightly_games

ERROR = 0.05
Attack = Callable[[np.random.Generator], Scores]


def limit(games: int) -> int:
    """Return the number of games that false violations of a correct verdict exceed with probability < 1e-6."""
    return int(stats.binom.ppf(1 - 1e-6, games, ERROR))


def gaussian(mu: float, rows: int) -> Attack:
    """Return an attack with fair coins and scores from two unit normal laws mu apart, centred on 0."""

    def attack(rng: np.random.Generator) -> Scores:
        truth = rng.random(rows) < 0.5
        return Scores(rng.normal(0, 1, rows) + mu * (truth - 0.5), truth)

    return attack


def two_worlds(mu: float, rows: int) -> Attack:
    """Return the attack of `gaussian` with equal trials in each world, whose limits are computed once for all games."""

    def attack(rng: np.random.Generator) -> Scores:
        truth = np.arange(rows) % 2 == 0
        return Scores(rng.normal(0, 1, rows) + mu * (truth - 0.5), truth)

    return attack


def dp_sgd(rows: int, *, noise: float, norm: float = 1.0, rate: float = 0.1, steps: int = 100) -> Attack:
    """Return the Neyman-Pearson attack on a canary in a Poisson-subsampled Gaussian; `norm` is in units of the clip."""

    def attack(rng: np.random.Generator) -> Scores:
        truth = rng.random(rows) < 0.5
        score = np.zeros(rows)
        for _ in range(steps):
            release = rng.normal(0, noise, rows) + norm * (truth & (rng.random(rows) < rate))
            score += np.log1p(-rate + rate * np.exp((2 * norm * release - norm**2) / (2 * noise**2)))
        return Scores(score, truth)

    return attack


def violations(estimator: Estimator[Any, Any], attack: Attack, curve: PrivacyCurve, games: int) -> int:
    """Return the number of games in which the claim is rejected."""
    count = 0
    for seed in np.random.SeedSequence(5).spawn(games):
        bound = estimator.bound([estimator.tally(attack(np.random.default_rng(seed)))])
        count += bound.violation_point(curve) is not None
    return count


DP_SGD = SubsampledGaussian(noise_multiplier=0.99, sample_rate=0.1, steps=100)


@pytest.mark.parametrize("estimator", [Band(delta=1e-5), FairCoins(delta=1e-5)], ids=["band", "fair-coins"])
def test_only_the_curve_rejects_twice_the_claimed_mu(estimator: Estimator[Any, Any]) -> None:
    """The bound at 1e-5 stays below the claimed 4.377. Each of 20 runs, by day 6, violates the curve elsewhere."""
    attack, claim = gaussian(2.0, 1_000), GaussianDP(1.0)
    for seed in np.random.SeedSequence(1).spawn(by_day(6, by_night=20)):
        bound = estimator.bound([estimator.tally(attack(np.random.default_rng(seed)))])
        assert bound.lower < claim.epsilon(1e-5)
        violation_point = bound.violation_point(claim)
        assert violation_point is not None
        assert violation_point.where != "delta = 1e-05"
        assert violation_point.observed > violation_point.claimed


def test_honest_gaussian_does_not_violate_its_curve() -> None:
    """300 games by the band (by day 40) and by counts. False failure < 2e-6. At mu = 2.5 most games are violations."""
    band, counts = (Band(delta=1e-5), two_worlds), (OneRun(delta=1e-5), gaussian)
    for (estimator, attack), games in ((band, by_day(40, by_night=300)), (counts, nightly_games(300))):
        assert violations(estimator, attack(1.0, 400), GaussianDP(1.0), games) <= limit(games)
        assert violations(estimator, attack(2.5, 400), GaussianDP(1.0), 20) > limit(20)


def test_mechanism_on_its_curve_is_rejected_no_more_often_than_stated() -> None:
    """Randomised response attains its curve: 80 (by day 40) and 300 games of a tight claim. False failure < 2e-6."""

    def attack(rng: np.random.Generator) -> Scores:
        truth = rng.random(300) < 0.5
        return Scores(np.where(truth ^ (rng.random(300) >= special.expit(1.0)), 1.0, -1.0), truth)

    for estimator, games in ((FairCoins(), by_day(40, by_night=80)), (OneRun(), nightly_games(300))):
        assert violations(estimator, attack, PureDP(1.0), games) <= limit(games)
        assert violations(estimator, attack, PureDP(0.3), 20) > limit(20), "a claim below the privacy loss"


def test_the_curve_rejects_only_dp_sgd_with_half_the_noise_or_a_larger_norm() -> None:
    """512 trials each. Clipping by coordinate may leave a norm of 1.5 clips. False failure < 1e-6."""
    estimator = FairCoins(delta=1e-5)
    few, games = by_day(4, by_night=10), by_day(20, by_night=40)
    assert violations(estimator, dp_sgd(512, noise=0.99 / 2), DP_SGD, few) == few
    assert violations(estimator, dp_sgd(512, noise=0.99, norm=1.5), DP_SGD, few) == few
    assert violations(estimator, dp_sgd(512, noise=0.99), DP_SGD, games) <= limit(games)
    half = [
        estimator.bound([estimator.tally(dp_sgd(512, noise=0.99 / 2)(np.random.default_rng(seed)))])
        for seed in range(3)
    ]
    assert max(bound.lower for bound in half) < DP_SGD.epsilon(1e-5), "no violation at the printed delta"


def test_counts_of_one_training_reject_a_curve_but_not_its_epsilon() -> None:
    attack, claim = gaussian(2.5, 1_000), GaussianDP(1.0)
    estimator = OneRun(delta=1e-5)
    assert violations(estimator, attack, claim, 20) >= 18
    assert violations(estimator, attack, ApproximateDP(claim.epsilon(1e-5), 1e-5), 20) == 0, (
        "the single point is not violated"
    )


@pytest.mark.parametrize("curve", [GaussianDP(1.0), PureDP(1.5), DP_SGD, ApproximateDP(1.0, 0.01)], ids=str)
def test_tangents_are_below_the_curve_and_close_to_it(curve: PrivacyCurve) -> None:
    lines = tangents(curve)
    for power in (1e-4, 0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99):
        line = int(np.searchsorted(lines[0], power, side="right")) - 1
        tangent = max(0.0, lines[1, line] * power + lines[2, line])
        exact = curve.miss_rate(1 - power)  # symmetric: its own inverse
        assert tangent <= exact + 1e-12
        assert tangent >= exact - 0.01 * exact - 1e-4


@pytest.mark.parametrize(("guesses", "canaries"), [(10, 10), (100, 1_000), (500, 10_000)])
def test_most_allowed_is_where_algorithm_3_rejects_first(guesses: int, canaries: int) -> None:
    allowed = most_right_guesses(tangents(GaussianDP(1.0)), guesses, canaries=canaries, error=0.01)
    assert f_dp_parameter(guesses, allowed, canaries=canaries, confidence=0.99) < 1.0
    if allowed < guesses - 1:  # lines reject no more than the curve, and hardly less
        assert f_dp_parameter(guesses, allowed + 2, canaries=canaries, confidence=0.99) > 1 - 1e-8


def test_counts_against_a_curve_share_the_error_over_their_candidates_and_replays() -> None:
    estimator = OneRun(delta=1e-5, selection=Grid((0.05, 0.1, 0.5)))
    tally = estimator.tally(gaussian(1.0, 400)(np.random.default_rng(0)))
    for replays, share in ((1, 3), (2, 6)):
        (counts,) = estimator.bound([tally] * replays).evidence
        assert counts.error == pytest.approx(0.05 / share)  # type: ignore[attr-defined]


def test_regions_of_replays_combine_by_the_median_and_lost_replays_count_as_0() -> None:
    strong, weak = (np.array([0.01]), np.array([0.05])), (np.array([0.4]), np.array([0.55]))
    assert RateRegions((strong, weak, strong)).comparison(GaussianDP(1.0)).exceeds
    assert not RateRegions((strong, weak, weak)).comparison(GaussianDP(1.0)).exceeds
    assert not RateRegions((strong,), failed_replays=2).comparison(GaussianDP(1.0)).exceeds


def test_accuracy_bounds_total_variation_exactly() -> None:
    evidence = GuessAccuracy(np.array([300]), np.array([500]), 0.05)
    accuracy = (1 + evidence.total_variation) / 2
    assert stats.binom.sf(299, 500, accuracy) == pytest.approx(0.05, rel=1e-6)
    assert evidence.comparison(GaussianDP(0.1)).exceeds
    assert not evidence.comparison(GaussianDP(1.0)).exceeds
    assert GuessAccuracy(np.array([0]), np.array([500]), 0.05).total_variation == 0


def test_published_and_split_selections_give_no_evidence_against_a_curve() -> None:
    scores = gaussian(4.0, 1_000)(np.random.default_rng(0))
    for selection in (AsPublished(), Split()):
        estimator = OneRun(selection=selection)
        assert estimator.bound([estimator.tally(scores)]).evidence == ()
    region = RateRegions(((np.array([0.01]), np.array([0.01])),))
    bound = Bound(0.0, 0.0, 0.95, "a sweep", Validity.AS_PUBLISHED, evidence=(region,))
    assert bound.violation_point(GaussianDP(1.0)) is None


def test_bound_that_relies_on_a_proxy_gives_no_evidence_against_a_curve() -> None:
    estimator = OneRun(delta=1e-5)
    bound = estimator.bound([estimator.tally(gaussian(4.0, 1_000)(np.random.default_rng(0)))])
    assert bound.violation_point(GaussianDP(0.5)) is not None
    assert bound.conditional_on_proxy().evidence == ()


def test_comparison_with_the_curve_is_shown_if_the_claim_is_void_at_the_bounds_delta() -> None:
    bound = Band().bound([Band().tally(gaussian(0.5, 200)(np.random.default_rng(1)))])
    comparison = bound.comparison(GaussianDP(1.0))  # no epsilon at delta = 0
    assert np.isfinite(comparison.claimed)
    assert comparison.words
    assert not comparison.exceeds
