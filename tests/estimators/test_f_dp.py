"""Algorithm 3 against its listing with 40 digits, published values, closed forms and simulated games."""

from __future__ import annotations

import math
from collections.abc import Callable

import mpmath as mp
import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import binom, norm

from dpaudit.claims import ApproximateDP, GaussianDP
from dpaudit.errors import InputError
from dpaudit.estimators.one_run import f_dp
from dpaudit.estimators.one_run.f_dp import _epsilon, best_f_dp, f_dp_epsilon, f_dp_parameter
from dpaudit.estimators.one_run.guessing_game import Family
from tests.nightly import by_day, too

GAMES = by_day(500, by_night=3_000)


def slow_rate(family: str, parameter: float, delta: float, r: mp.mpf) -> mp.mpf:
    """f^-1(1 - r) from the definition of f, in the working precision."""
    p, x = mp.mpf(parameter), 1 - r
    if family == "gaussian":
        return mp.ncdf(mp.sqrt(2) * mp.erfinv(2 * r - 1) - p)
    if family == "laplace":
        scale = mp.exp(-p)
        return 1 - x / scale if x < scale / 2 else (scale / (4 * x) if x <= 0.5 else scale * r)
    return max(mp.mpf(0), mp.exp(-p) * (r - mp.mpf(delta)), 1 - mp.mpf(delta) - mp.exp(p) * x)


def slow_rejects(
    family: str, parameter: float, delta: float, tau: float, guesses: int, correct: int, canaries: int, alpha: float
) -> bool:
    """The listing of Algorithm 3 to its last step. Only a sum of 1 or more, where f^-1 ends, stops it early."""
    with mp.workdps(40):
        target = mp.mpf(guesses) / canaries
        r, h = mp.mpf(alpha) * correct / canaries, mp.mpf(alpha) * (guesses - correct) / canaries
        for i in range(correct - 1, -1, -1):
            raised = max(mp.mpf(0), slow_rate(family, parameter, delta, r) - mp.mpf(tau))
            r, h = r + mp.mpf(i) / (guesses - i) * (raised - h), raised
            if r + h >= target:
                return True
        return False


@pytest.mark.parametrize("seed", [*range(60), *too(*range(60, 150))])
def test_the_parameter_is_where_the_listing_turns(seed: int) -> None:
    """Rejected at the bound, accepted 2.2e-9 (1 + bound) above it: the search's width plus its safety margin."""
    rng = np.random.default_rng(seed)
    family = ("gaussian", "laplace", "approx-dp")[seed % 3]
    canaries = int(rng.choice([3, 20, 60, 120]))
    guesses = int(rng.integers(1, canaries + 1))
    correct = int(rng.integers(guesses // 2, guesses + 1))
    confidence = float(rng.choice([0.2, 0.5, 0.95, 0.999, 1 - 1e-8]))
    tau = float(rng.choice([0, 0, 0.01, 0.1]))
    delta = float(rng.choice([0, 1e-5, 1e-2])) if family == "approx-dp" else None
    bound = f_dp_parameter(
        guesses, correct, canaries=canaries, confidence=confidence, family=family, tau=tau, delta=delta
    )
    counts = (delta or 0.0, tau, guesses, correct, canaries, 1 - confidence)
    assert bound == 0 or slow_rejects(family, bound, *counts)
    assert not slow_rejects(family, bound + 2.2e-9 * (1 + bound), *counts)


@pytest.mark.parametrize("family", ["gaussian", "laplace", "approx-dp"])
def test_early_verdict_equals_the_full_verdict(family: str) -> None:
    """Stopping at the target, at the first decrease, and by the geometric bound: the plain listing agrees, in floats.

    Parameters are within 1e-3 of the turning point, where walks are longest. The test above covers ties at 1e-9.
    """
    from dpaudit.estimators.one_run._f_dp_walk import RATES, REJECTS

    rejects, rate = REJECTS[family], RATES[family]
    rng = np.random.default_rng(5)
    for _ in range(60):
        canaries = int(rng.choice([2000, 5000]))
        guesses = int(rng.integers(canaries // 50, canaries))
        correct = int(rng.integers(int(0.55 * guesses), guesses + 1))
        delta = 1e-5 if family == "approx-dp" else None
        turn = f_dp_parameter(guesses, correct, canaries=canaries, confidence=0.95, family=family, delta=delta)
        for step in (-1e-3, -1e-5, -1e-7, 1e-7, 1e-5, 1e-3):
            tried = max(0.0, turn + step)
            target, r, h = guesses / canaries, 0.05 * correct / canaries, 0.05 * (guesses - correct) / canaries
            for i in range(correct - 1, -1, -1):
                raised = rate(r, tried, 1e-5)
                r, h = r + i / (guesses - i) * (raised - h), raised
                if r + h >= target:
                    break
            assert rejects(tried, 1e-5, 0.0, guesses, correct, canaries, 0.05) == (r + h >= target)


def gaussian_accuracy(share: float) -> float:
    """Return the accuracy of guesses by sign on the share of canaries with the largest |likelihood ratio| at mu = 1."""
    if share == 1:
        return float(norm.cdf(0.5))
    cut = brentq(lambda t: norm.cdf(0.5 - t) + norm.cdf(-0.5 - t) - share, 0, 10)
    return float(norm.cdf(0.5 - cut) / share)


def test_bound_from_guesses_on_all_canaries_is_not_tight_for_any_number() -> None:
    """The limit Phi^-1(alpha a) - Phi^-1(alpha (1 - a)) = 0.3415 at accuracy a = Phi(1/2), not mu = 1."""
    a = norm.cdf(0.5)
    limit = norm.ppf(0.05 * a) - norm.ppf(0.05 * (1 - a))
    bounds = f_dp_parameter(
        [10**4, 10**6, 10**8], [6915, 691462, 69146246], canaries=[10**4, 10**6, 10**8], confidence=0.95
    )
    assert bounds[1] == pytest.approx(0.342, abs=1e-3)
    assert bounds == pytest.approx(limit, abs=2e-4)
    assert bounds[2] == pytest.approx(limit, abs=2e-8)


@pytest.mark.parametrize(("epsilon", "claimed"), [(1, 1.65), (2, 3.43), (4, 6.87)])
def test_gaussian_family_is_not_a_bound_for_randomised_response(epsilon: int, claimed: float) -> None:
    """Pure epsilon-DP, a million canaries; the unconditional family stays below the truth."""
    correct = round(10**6 / (1 + math.exp(-epsilon)))
    counts = {"canaries": 10**6, "delta": 1e-5, "confidence": 0.95}
    assert f_dp_epsilon(10**6, correct, **counts) == pytest.approx(claimed, abs=5.1e-3)
    assert f_dp_epsilon(10**6, correct, family="approx-dp", **counts) < epsilon


@pytest.mark.parametrize("mu", [0.01, 0.3, 1.0, 5.0, 20.0])
@pytest.mark.parametrize("delta", [1e-12, 1e-5, 0.3])
def test_gaussian_epsilon_is_the_root_of_its_profile(mu: float, delta: float) -> None:
    epsilon = _epsilon("gaussian", mu, delta)
    with mp.workdps(40):

        def profile(e: float) -> mp.mpf:
            x = mp.mpf(e)
            return mp.ncdf(mu / mp.mpf(2) - x / mu) - mp.exp(x) * mp.ncdf(-mu / mp.mpf(2) - x / mu)

        assert epsilon == 0 or profile(epsilon) > delta
        assert profile(epsilon + 1e-10 * (1 + epsilon)) <= delta
    if mu == 1.0 and delta == 1e-5:
        assert epsilon == pytest.approx(4.377, abs=5e-4)


@pytest.mark.parametrize("mu", [1e-9, 1e-6, 1e-5, 8.86e-5, 1.2e-4])
@pytest.mark.parametrize("share", [1e-6, 0.1, 0.35])
def test_gaussian_epsilon_of_a_barely_leaking_mechanism(mu: float, share: float) -> None:
    """Delta as a share of mu; the total variation is 0.3989 mu."""
    delta = share * mu
    epsilon = _epsilon("gaussian", mu, delta)
    with mp.workdps(40):

        def profile(e: float) -> mp.mpf:
            x = mp.mpf(e)
            return mp.ncdf(mu / mp.mpf(2) - x / mu) - mp.exp(x) * mp.ncdf(-mu / mp.mpf(2) - x / mu)

        assert epsilon == 0 or profile(epsilon) > delta
        assert profile(epsilon + 4e-12) <= delta


def test_very_weak_evidence_has_an_epsilon() -> None:
    """152 more right guesses of 30,000 than a coin makes: mu >= 8.86e-5."""
    counts = {"canaries": 30_000, "confidence": 0.95}
    assert f_dp_parameter(30_000, 15_152, **counts) == pytest.approx(8.8609e-5, rel=1e-4)
    assert 0 < f_dp_epsilon(30_000, 15_152, delta=1e-5, **counts) < 8.9e-5


@pytest.mark.parametrize("family", ["gaussian", "laplace", "approx-dp"])
def test_compiled_rates_and_epsilons_are_those_of_the_curves(family: Family) -> None:
    from dpaudit.estimators.one_run._f_dp_walk import RATES

    parameter = 1.3
    scale = math.exp(-parameter)

    def laplace(x: float) -> float:
        return 1 - x / scale if x < scale / 2 else scale / (4 * x) if x <= 0.5 else scale * (1 - x)

    curve = GaussianDP(parameter) if family == "gaussian" else ApproximateDP(parameter, 1e-3)
    miss_rate = laplace if family == "laplace" else curve.miss_rate
    for power in (1e-9, 1e-4, 0.2, 0.5, 0.7, 0.99):
        alarm = miss_rate(1 - power)  # symmetric: its own inverse
        assert RATES[family](power, parameter, 1e-3) == pytest.approx(alarm, rel=1e-6, abs=1e-12)
    for delta in (0.01, 0.2, 0.999) if family != "approx-dp" else ():
        losses = [math.log(max(1e-300, 1 - miss_rate(x) - delta) / x) for x in np.exp(np.linspace(-20, 0, 20_001))]
        epsilon = _epsilon(family, parameter, delta)
        assert epsilon - 1e-3 < max(0.0, *losses) <= epsilon + 1e-9


def test_epsilon_is_infinite_only_without_pure_dp() -> None:
    assert _epsilon("gaussian", 1.0, 0.0) == math.inf
    assert _epsilon("gaussian", 0.0, 0.0) == 0.0
    assert _epsilon("laplace", 1.5, 0.0) == 1.5
    assert _epsilon("approx-dp", 1.5, 1e-3) == 1.5


def test_large_shift_removes_the_evidence_of_few_guesses() -> None:
    """Theorem 10 rejects nothing once guesses / canaries <= 1 - f(tau), nor for tau >= alpha (2 c - c') / m = 0.049."""
    shifts = [0.0, 0.01, 0.02, 0.045, 0.048, 0.049]
    bounds = f_dp_parameter(1000, 990, canaries=1000, confidence=0.95, tau=shifts)
    assert np.all(np.diff(bounds) < 0)
    assert bounds[-2] > 0
    assert bounds[-1] == 0
    for guesses in (30, 100, 300):
        mu = f_dp_parameter(guesses, guesses, canaries=1000, confidence=0.5, tau=0.01)
        assert mu > 0
        assert guesses / 1000 > 1 - GaussianDP(mu).miss_rate(0.01)


def test_shift_holds_if_the_multiplicative_correction_fails() -> None:
    """Epsilon = 0 and tau = 0.1: guesses are always right on the label that the proxy never draws."""
    guesses = np.random.default_rng(3).binomial(10_000, 0.05, 200)
    for family, delta in (("gaussian", None), ("approx-dp", 0.0)):
        bounds = f_dp_parameter(guesses, guesses, canaries=10_000, confidence=0.95, family=family, tau=0.1, delta=delta)
        assert np.all(bounds == 0)


def test_sweep_equals_the_maximum_over_all_candidates() -> None:
    rng = np.random.default_rng(4)
    guesses = np.broadcast_to(np.array([20, 50, 100, 200, 500, 1000]), (8, 6))
    correct = rng.binomial(guesses, np.linspace(0.97, 0.7, 6))
    for family, delta in (("gaussian", None), ("laplace", None), ("approx-dp", 1e-4)):
        best = best_f_dp(guesses, correct, canaries=1000, confidence=0.95, family=family, delta=delta)
        every = f_dp_parameter(guesses, correct, canaries=1000, confidence=0.95, family=family, delta=delta)
        assert best.parameter == pytest.approx(every.max(axis=1), abs=5e-9)
        assert np.array_equal(best.candidate, every.argmax(axis=1))
    single = best_f_dp([10, 20], [0, 0], canaries=100, confidence=0.95)
    assert (single.candidate.shape, float(single.parameter)) == ((), 0.0)


def test_sweep_needs_about_one_verdict_for_each_candidate(monkeypatch: pytest.MonkeyPatch) -> None:
    """100 fractions of a Gaussian game: one search of about 35 verdicts, and one verdict for each other candidate."""
    calls = 0
    original = f_dp._rejects

    def counting(family: object) -> Callable[..., bool]:
        rejects = original(family)  # type: ignore[arg-type]

        def count(*arguments: float) -> bool:
            nonlocal calls
            calls += 1
            return rejects(*arguments)  # type: ignore[arg-type]

        return count

    monkeypatch.setattr(f_dp, "_rejects", counting)
    guesses = np.arange(1, 101) * 2000
    correct = np.array([int(g * gaussian_accuracy(g / 200_000)) for g in guesses])
    best_f_dp(guesses, correct, canaries=200_000, confidence=0.95)
    assert calls < 100 + 4 * 40


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"confidence": 0.0}, "confidence must be in (0, 1), got 0.0"),
        ({"tau": -0.1}, "tau must be in [0, 1], got -0.1"),
        ({"tau": float("nan")}, "tau must be in [0, 1]"),
        ({"family": "cauchy"}, "family must be one of gaussian, laplace, approx-dp"),
        ({"family": "approx-dp"}, 'family "approx-dp" needs its delta'),
        ({"family": "approx-dp", "delta": 1.0}, "delta must be in [0, 1), got 1.0"),
        ({"delta": 1e-5}, 'delta must be None but for family "approx-dp"'),
        ({"correct": 11}, "correct must be <= guesses"),
    ],
)
def test_bad_input_is_refused_in_one_sentence(change: dict[str, object], message: str) -> None:
    arguments = {"guesses": 10, "correct": 9, "canaries": 100, "confidence": 0.95} | change
    with pytest.raises(InputError) as raised:
        f_dp_parameter(arguments.pop("guesses"), arguments.pop("correct"), **arguments)
    assert message in str(raised.value)


def gaussian_counts(rng: np.random.Generator, games: int, guesses: int, canaries: int) -> np.ndarray:
    """Return the right guesses in games on the Gaussian mechanism with mu = 1, surest canaries first."""
    shifted = rng.normal(0.5, 1.0, (games, canaries))  # the score in the direction of the truth
    surest = np.argsort(-np.abs(shifted), axis=1)[:, :guesses]
    return np.sum(np.take_along_axis(shifted, surest, axis=1) > 0, axis=1)


def test_bound_holds_with_its_stated_probability() -> None:
    """False failure < 1e-6: the limit is the 1 - 1e-6 quantile of Binomial(games, 0.05), at exactly mu = 1."""
    counts = gaussian_counts(np.random.default_rng(6), GAMES, 60, 600)
    bounds = f_dp_parameter(60, counts, canaries=600, confidence=0.95)
    assert np.sum(bounds > 1.0) <= binom.ppf(1 - 1e-6, GAMES, 0.05)


def test_planted_defects_are_detected() -> None:
    """The point estimate instead of the bound, and bits without fair coins, err more often than stated.

    False failure < 1e-6 each: both err in more than 0.3 of the games.
    """
    rng, limit = np.random.default_rng(7), binom.ppf(1 - 1e-6, GAMES, 0.05)
    counts = gaussian_counts(rng, GAMES, 60, 600)
    share = np.clip(counts / 60, 0, 59.5 / 60)
    # Every guess taken for a fair coin's: the Gaussian with this accuracy at its surest guesses, without a confidence.
    assert np.sum(2 * norm.ppf(share) > 1.0) > limit
    already_known = counts + rng.binomial(60 - counts, 0.9)  # nine in ten of the rest were known beforehand
    assert np.sum(f_dp_parameter(60, already_known, canaries=600, confidence=0.95) > 1.0) > limit


def test_every_approximate_dp_mechanism_satisfies_its_family() -> None:
    """False failure < 1e-6: a mechanism that names a bit with probability delta, else RR, is the worst one."""
    rng = np.random.default_rng(8)
    named = rng.binomial(300, 0.01, GAMES)
    counts = named + rng.binomial(300 - named, 1 / (1 + math.exp(-1.0)))
    bounds = f_dp_epsilon(300, counts, canaries=300, delta=0.01, confidence=0.95, family="approx-dp")
    assert np.sum(bounds > 1.0) <= binom.ppf(1 - 1e-6, GAMES, 0.05)
    wrong_family = f_dp_epsilon(300, counts, canaries=300, delta=0.01, confidence=0.95, family="gaussian")
    assert np.median(wrong_family) > np.median(bounds)
