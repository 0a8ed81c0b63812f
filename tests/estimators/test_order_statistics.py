"""Order statistics: the published values, a slow twin by quadrature, coverage, and the dependence that breaks it."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from scipy import integrate, optimize, special, stats

import dpaudit
from dpaudit.claims import ComposedLaplace, GaussianDP, PureDP, SubsampledGaussian
from dpaudit.engine.answer.verdict import Verdict
from dpaudit.errors import DataError, InputError, SpecError
from dpaudit.estimators.family_bound import NamedFamily
from dpaudit.estimators.finding import Validity
from dpaudit.estimators.one_run import order_statistics
from dpaudit.estimators.one_run.guess_band import SimultaneousGuessCount
from dpaudit.estimators.one_run.order_statistics import (
    GAUSSIAN,
    LAPLACE,
    LeakFamily,
    OneRunOrderStatistics,
    _probability,
    dp_sgd,
    family_of,
    order_statistics_bound,
    order_statistics_epsilon,
    order_statistics_parameter,
)
from dpaudit.estimators.scores import Scores
from dpaudit.estimators.selection import Fixed
from tests.estimators.test_coverage import limit
from tests.nightly import nightly_games

DELTA = 1e-5
TRUTH = GaussianDP(1.0).epsilon(DELTA)


@pytest.mark.parametrize(
    ("canaries", "guesses", "wrong", "published"),
    [
        (1_000, 250, 36, 3.633),
        (1_000, 1_000, 309, 3.670),
        (10_000, 2_500, 364, 4.137),
        (10_000, 10_000, 3_085, 4.159),
        (1_000, 500, 20, 8.922),
        (10_000, 5_000, 1_721, 1.828),
    ],
)
def test_published_values(canaries: int, guesses: int, wrong: int, published: float) -> None:
    epsilon = order_statistics_epsilon(guesses, guesses - wrong, canaries=canaries, delta=DELTA, confidence=0.95)
    assert epsilon == pytest.approx(published, abs=5e-4)


# A slow twin, by quadrature over the density of one score


def gaussian_rate(mu: float, top: float) -> float:
    """Return the mean error rate of the `top` share of |x|, x ~ N(+-mu/2, 1), from the density of |x|."""

    def density(t: float) -> float:
        return (math.exp(-((t - mu / 2) ** 2) / 2) + math.exp(-((t + mu / 2) ** 2) / 2)) / math.sqrt(2 * math.pi)

    def tail(t: float) -> float:
        return float(special.ndtr(mu / 2 - t) + special.ndtr(-mu / 2 - t))

    start = optimize.brentq(lambda t: tail(t) - top, 0, 60, xtol=1e-13)
    wrong = integrate.quad(lambda t: density(t) / (1 + math.exp(mu * t)), start, mu / 2 + 40, limit=200)[0]
    return float(wrong / top)


def laplace_rate(epsilon: float, top: float) -> float:
    """Return the mean error rate of the `top` share of |loss| between Laplace laws around 0 and epsilon.

    The loss is +-epsilon with probability (1 + e^-epsilon) / 2, else its size l has the density
    e^(-epsilon / 2) cosh(l / 2) / 2.
    """
    extreme = (1 + math.exp(-epsilon)) / 2
    if top <= extreme:
        return float(special.expit(-epsilon))

    def density(loss: float) -> float:
        return math.exp(-epsilon / 2) * math.cosh(loss / 2) / 2

    def rest(start: float) -> float:
        return float(integrate.quad(density, start, epsilon)[0])

    start = optimize.brentq(lambda loss: extreme + rest(loss) - top, 0, epsilon, xtol=1e-13) if top < 1 else 0.0
    wrong = integrate.quad(lambda loss: density(loss) / (1 + math.exp(loss)), start, epsilon)[0]
    return float((extreme * special.expit(-epsilon) + wrong) / top)


def dp_sgd_rate(inverse: float, top: float, *, rate: float) -> float:
    """Return the mean error rate for one sampled Gaussian step, from the supremum over epsilon of both directions."""
    sigma = 1 / inverse
    epsilons = np.linspace(0, 12, 40_001)
    at = sigma**2 * np.log((np.exp(epsilons) - 1 + rate) / rate) + 0.5  # output with this loss of P against Q
    removing = rate * stats.norm.sf((at - 1) / sigma) + (1 - rate - np.exp(epsilons)) * stats.norm.sf(at / sigma)
    reached = np.exp(-epsilons) > 1 - rate
    under = sigma**2 * np.log(np.maximum(np.exp(-epsilons) - 1 + rate, 1e-300) / rate) + 0.5
    mixed = (1 - rate) * stats.norm.cdf(under / sigma) + rate * stats.norm.cdf((under - 1) / sigma)
    adding = np.where(reached, stats.norm.cdf(under / sigma) - np.exp(epsilons) * mixed, 0.0)
    deltas = np.maximum(removing, adding)

    def miss_rate(alarm: float) -> float:
        lines = np.maximum(1 - deltas - np.exp(epsilons) * alarm, np.exp(-epsilons) * (1 - deltas - alarm))
        return max(0.0, float(lines.max()))

    alarm = optimize.brentq(lambda alarm: alarm + 1 - miss_rate(alarm) - top, 0, 0.5, xtol=1e-14)
    return float(alarm / top)


def twin_probability(rate: Callable[[float], float], canaries: int, guesses: int, wrong: int) -> float:
    """Return E[Pr[Bin(guesses, rate of the top 1 - W) <= wrong]], W ~ Beta(canaries - guesses, guesses + 1)."""
    if guesses == canaries:
        return float(stats.binom.cdf(wrong, guesses, rate(1.0)))
    a, b = canaries - guesses, guesses + 1
    low, high = special.betaincinv(a, b, 1e-9), special.betaincinv(a, b, 1 - 1e-9)

    def integrand(w: float) -> float:
        density = math.exp((a - 1) * math.log(w) + (b - 1) * math.log1p(-w) - special.betaln(a, b))
        return density * float(special.bdtr(wrong, guesses, rate(1 - w)))

    return float(integrate.quad(integrand, low, high, epsrel=1e-7, limit=100)[0])


@pytest.mark.parametrize(
    ("family", "rate", "parameter", "counts"),
    [
        (GAUSSIAN, gaussian_rate, 1.0, (1_000, 250, 36)),
        (GAUSSIAN, gaussian_rate, 0.3, (200, 180, 70)),
        (GAUSSIAN, gaussian_rate, 3.0, (500, 50, 0)),
        (GAUSSIAN, gaussian_rate, 1.0, (300, 300, 80)),
        (GAUSSIAN, gaussian_rate, 0.8, (60, 1, 0)),
        (LAPLACE, laplace_rate, 1.0, (400, 280, 100)),
        (LAPLACE, laplace_rate, 2.0, (400, 100, 8)),
        (LAPLACE, laplace_rate, 0.5, (400, 400, 190)),
        (dp_sgd(0.2, 1), partial(dp_sgd_rate, rate=0.2), 1.5, (500, 50, 14)),
        (dp_sgd(0.2, 1), partial(dp_sgd_rate, rate=0.2), 1.0, (500, 500, 225)),
    ],
)
def test_probabilities_agree_with_quadrature(
    family: LeakFamily, rate: Callable[[float, float], float], parameter: float, counts: tuple[int, int, int]
) -> None:
    canaries, guesses, wrong = counts
    p_value = _probability(family, parameter, canaries, guesses, wrong)
    twin = twin_probability(partial(rate, parameter), canaries, guesses, wrong)
    # The table of DP-SGD and the twin's own grid differ by far more than the two quadratures.
    assert p_value == pytest.approx(twin, rel=2e-3 if "DP-SGD" in family.name else 1e-6, abs=1e-12)


@pytest.mark.parametrize("family", [GAUSSIAN, LAPLACE, dp_sgd(0.2, 40)], ids=lambda family: family.name)
@pytest.mark.parametrize("counts", [(1_000, 100, 4), (1_000, 700, 200), (300, 300, 90)])
def test_the_parameter_is_rejected_and_a_larger_one_is_not(family: LeakFamily, counts: tuple[int, int, int]) -> None:
    canaries, guesses, wrong = counts
    search = {"canaries": canaries, "family": family}
    parameter = float(order_statistics_parameter(guesses, guesses - wrong, confidence=0.95, **search))  # type: ignore[call-overload]
    assert parameter > 0
    above = parameter + 2 * family.tolerance * (1 + parameter)
    at, after = (_probability(family, value, canaries, guesses, wrong) for value in (parameter, above))
    assert at <= 0.05 < after


@pytest.mark.parametrize("parameter", [0.01, 0.5, 1.0, 4.0])
def test_epsilons_are_rounded_down(parameter: float) -> None:
    assert GAUSSIAN.epsilon(parameter, DELTA) <= GaussianDP(parameter).epsilon(DELTA)
    assert LAPLACE.epsilon(parameter, 0.0) <= parameter
    if parameter >= 0.5:  # one step in closed form: larger delta of both directions
        sigma, rate = 1 / parameter, 0.2
        epsilon = dp_sgd(rate, 1).epsilon(parameter, DELTA)
        at = sigma**2 * math.log((math.exp(epsilon) - 1 + rate) / rate) + 0.5
        delta = rate * stats.norm.sf((at - 1) / sigma) + (1 - rate - math.exp(epsilon)) * stats.norm.sf(at / sigma)
        assert DELTA <= delta <= DELTA * 1.01


def test_counts_that_show_nothing() -> None:
    for guesses, correct in ((0, 0), (100, 50), (100, 10), (1, 1)):
        assert order_statistics_epsilon(guesses, correct, canaries=200, delta=DELTA, confidence=0.95) == 0
    assert order_statistics_epsilon(500, 500, canaries=500, delta=0.0, confidence=0.95) == math.inf
    everything = order_statistics_epsilon(500, 500, canaries=500, delta=0.0, confidence=0.95, family="laplace")
    assert everything == pytest.approx(-2 * math.log(2 * (1 - 0.05 ** (1 / 500))))  # all guesses of Laplace are right


def test_large_counts_are_finite_and_increase() -> None:
    guesses = np.array([10_000, 100_000, 1_000_000])
    bounds = order_statistics_epsilon(
        guesses, np.rint(guesses * 0.9), canaries=10**6 + guesses, delta=DELTA, confidence=0.95
    )
    assert np.isfinite(bounds).all()
    assert (np.diff(np.asarray(bounds)) > 0).sum() >= 1


# Coverage, and the condition of independence


def shared_quantile(groups: int, canaries: int, rng: np.random.Generator) -> Scores:
    """Return bits released by randomised response, with the accuracy of one quantile of a 1-GDP score a group.

    Given the other bits, the channel of each bit with its score is exactly that of N(+-1/2, 1). With as many groups as
    canaries the leaks are independent.
    """
    size = np.abs(rng.normal(0.5, 1.0, groups))[np.arange(canaries) % groups]
    truth = rng.random(canaries) < 0.5
    right = rng.random(canaries) < special.expit(size)
    return Scores(np.where(right == truth, size, -size), truth)


def share_above_the_truth(estimator: OneRunOrderStatistics | SimultaneousGuessCount, groups: int, games: int) -> float:
    rng = np.random.default_rng(groups)
    tables = (shared_quantile(groups, 1_000, rng) for _ in range(games))
    return float(np.mean([estimator.bound([estimator.tally(scores)]).lower > TRUTH for scores in tables]))


@pytest.mark.parametrize("fraction", [0.1, 0.25, 1.0])
def test_independent_leaks_are_covered(fraction: float) -> None:
    """False failure < 1e-6. Defect: a confidence of 0.5."""
    games = nightly_games(400)
    estimator = OneRunOrderStatistics(selection=Fixed(fraction))
    assert share_above_the_truth(estimator, 1_000, games) <= limit(games) / games
    defect = OneRunOrderStatistics(selection=Fixed(fraction), confidence=0.5)
    assert share_above_the_truth(defect, 1_000, games) > limit(games) / games


def test_the_default_shares_are_covered_by_estimator_and_next_to_a_bound() -> None:
    games, above = nightly_games(300), np.zeros(2)
    rng, estimator = np.random.default_rng(5), OneRunOrderStatistics()
    for _ in range(games):
        tally = estimator.tally(shared_quantile(500, 500, rng))
        with_family = order_statistics_bound([tally], GAUSSIAN, delta=DELTA, confidence=0.95)
        assert with_family is not None
        assert with_family.epsilon == pytest.approx(estimator.bound([tally]).lower)
        above += estimator.bound([tally]).lower > TRUTH, with_family.epsilon > TRUTH
    assert above.max() <= limit(games)


def test_laplace_leaks_are_covered() -> None:
    games, rng, estimator = nightly_games(300), np.random.default_rng(6), OneRunOrderStatistics(0.0, family="laplace")
    above = 0
    for _ in range(games):
        truth = rng.random(500) < 0.5
        output = truth + rng.laplace(0, 1.0, 500)
        scores = Scores(np.clip(2 * output - 1, -1, 1), truth)
        above += estimator.bound([estimator.tally(scores)]).lower > 1.0
    assert 0 < above <= limit(games)


@pytest.mark.parametrize("groups", [1, 2, 10])
def test_shared_luck_breaks_it_and_not_the_main_bound(groups: int) -> None:
    """One quantile for all canaries, for half of them, or for a tenth; each bit is exactly 1-GDP in every case.

    Rates of 400 games by night: 0.38 to 0.41 for one group, 0.29 for ten. False failure < 1e-6 for the main bound.
    """
    games = nightly_games(400)
    all_guessed = OneRunOrderStatistics(selection=Fixed(1.0))
    assert share_above_the_truth(all_guessed, groups, games) > 0.15
    assert share_above_the_truth(SimultaneousGuessCount(delta=DELTA), groups, games) <= limit(games) / games


# What it says


def gaussian_scores(canaries: int, mu: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    members = rng.random(canaries) < 0.5
    return members * mu + rng.normal(size=canaries), members


def test_both_conditions_are_printed() -> None:
    scores, members = gaussian_scores(1_000)
    bound = dpaudit.estimate(scores - 0.5, members, method="one-run-order-statistics", delta=DELTA)
    assert bound.validity is Validity.CONDITIONAL_ON_FAMILY
    text = str(bound)
    assert "conditional-on-family" in text
    assert "trade-off function is Gaussian" in text
    assert "canaries leak independently" in text


@pytest.mark.parametrize("method", ["one-run-order-statistics", "one-run-f-dp"])
def test_no_claim_is_rejected_under_a_family(method: str) -> None:
    scores, members = gaussian_scores(1_000, mu=3.0)
    bound = dpaudit.estimate(scores, members, method=method, claim=(1.0, DELTA))
    assert bound.lower > 2
    assert bound.verdict is Verdict.INCONCLUSIVE
    assert "rejects no claim" in str(bound)


def test_a_family_next_to_the_bound_does_not_change_it() -> None:
    scores, members = gaussian_scores(1_000)
    plain = dpaudit.estimate(scores, members, claim=(3.0, DELTA))
    with_family = dpaudit.estimate(scores, members, claim=(3.0, DELTA), family="gaussian")
    assert with_family.under_family is not None
    assert with_family.under_family.epsilon > 3.0 > plain.lower == with_family.lower
    assert plain.verdict is with_family.verdict is not Verdict.VIOLATION
    assert "conditional-on-family: epsilon >= " in str(with_family)
    assert "leak independently" in str(with_family)
    assert "epsilon under the family Gaussian" in list(with_family.to_frame()["name"])


def test_two_samples_use_their_bands() -> None:
    scores, members = gaussian_scores(1_000)
    samples = {"in_scores": scores[members], "out_scores": scores[~members]}
    bound = dpaudit.estimate(**samples, method="two-samples", delta=DELTA, family="dp-sgd:1.0,1")
    assert bound.under_family is not None
    assert bound.lower < bound.under_family.epsilon < TRUTH
    assert not bound.under_family.independent_leaks


@pytest.mark.parametrize(
    ("family", "options", "message"),
    [
        ("gauss", {"delta": DELTA}, "family must be one of gaussian, laplace, dp-sgd:SAMPLE_RATE,STEPS"),
        ("dp-sgd:0.1", {"delta": DELTA}, "must state its sampling rate and steps"),
        ("dp-sgd:2,10", {"delta": DELTA}, "sample_rate must be in"),
        ("gaussian", {}, "state a delta > 0"),
        ("laplace", {"method": "band", "delta": DELTA}, "the family of two samples must be one of gaussian, dp-sgd"),
        ("gaussian", {"method": "clopper-pearson", "delta": DELTA}, "leave out the method"),
    ],
)
def test_unsuitable_families_are_refused(family: str, options: dict[str, object], message: str) -> None:
    scores, members = gaussian_scores(200)
    with pytest.raises(InputError, match=message):
        dpaudit.estimate(scores, members, family=family, **options)  # type: ignore[arg-type]


def test_uneven_members_and_counts_are_refused() -> None:
    scores = np.random.default_rng(0).normal(size=400)
    uneven = np.arange(400) % 5 == 0
    with pytest.raises(DataError, match="too uneven members"):
        dpaudit.estimate(scores, uneven, family="gaussian", delta=DELTA, method="simultaneous-guess-count")
    with pytest.raises(SpecError, match="left out for counts"):
        dpaudit.estimate({"guesses": [10], "correct": [9], "canaries": [20]}, family="gaussian", delta=DELTA)


def test_the_claim_determines_the_family() -> None:
    assert family_of(PureDP(1.0)) is GAUSSIAN
    assert family_of(ComposedLaplace(1.0, 1)) is LAPLACE
    assert family_of(SubsampledGaussian(1.0, 0.1, 20)).name == "DP-SGD (sampled at 0.1, 20 steps)"
    assert order_statistics.family_named(NamedFamily.parse("dp-sgd:0.1,20")) is dp_sgd(0.1, 20)


def test_a_delta_is_required_but_for_laplace() -> None:
    with pytest.raises(InputError, match="no finite epsilon at delta = 0"):
        OneRunOrderStatistics(0.0)
    tally = OneRunOrderStatistics().tally(shared_quantile(100, 100, np.random.default_rng(0)))
    assert order_statistics_bound([tally], GAUSSIAN, delta=0.0, confidence=0.95) is None
    assert order_statistics_bound([tally], LAPLACE, delta=0.0, confidence=0.95) is not None


def test_failed_replays_show_nothing() -> None:
    rng, estimator = np.random.default_rng(2), OneRunOrderStatistics()
    tallies = [estimator.tally(shared_quantile(400, 400, rng)) for _ in range(3)]
    full = order_statistics_bound(tallies, GAUSSIAN, delta=DELTA, confidence=0.95)
    failed = order_statistics_bound(tallies, GAUSSIAN, delta=DELTA, confidence=0.95, failed_replays=4)
    assert full is not None
    assert failed is not None
    assert full.epsilon > failed.epsilon == 0
