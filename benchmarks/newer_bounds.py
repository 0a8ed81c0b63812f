"""Compare bounds published since the estimators were written with ours, on the same scores of one run.

    python -m benchmarks.newer_bounds [--number RUNS] [--write]

The privacy of each mechanism is known exactly, so a bound above it is an error. The methods:

- arXiv:2509.08704 (order statistics) is in the package: `one-run-order-statistics`.
- arXiv:2503.07199 (adaptive guesses) keeps the binomial bound at delta = 0 and lets the adversary learn earlier bits
  before it guesses the next one, as `adaptive_guesses` does.
- arXiv:2606.12733 (white-box, asymptotic) models the scores of present and absent canaries as two Gaussians. Its text
  could not be read in full. `gaussian_pair_epsilon` is the simplest test of that model: one spread for both.
- arXiv:2410.06186 (last iterate) is no bound: it says what an adversary who sees only the last iterate should find.
- arXiv:2509.07055 (e-values) bets on a kernel statistic. `kernel_pairs` is a test of that kind, by its abstract.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special, stats

from benchmarks.campaign import measurement
from dpaudit.claims import GaussianDP, SubsampledGaussian
from dpaudit.estimators.one_run.guess_band import SimultaneousGuessCount
from dpaudit.estimators.one_run.guesses import one_run_epsilon
from dpaudit.estimators.one_run.order_statistics import OneRunOrderStatistics
from dpaudit.estimators.scores import Scores
from dpaudit.estimators.selection import Fixed
from dpaudit.estimators.two_world.betting import Betting
from tools.rows import Row, setting

CANARIES, RUNS = 1_000, 400
DELTA, CONFIDENCE = 1e-5, 0.95
GUESSED = (0.25, 1.0)
"""Shares of canaries that order statistics guess."""

Floats = NDArray[np.float64]
Draw = Callable[[int, np.random.Generator], Scores]
Method = Callable[[Scores], float]


# Mechanisms with known privacy


def gaussian(canaries: int, rng: np.random.Generator) -> Scores:
    """Return scores N(1/2, 1) of members and N(-1/2, 1) of others, independent: each canary is exactly 1-GDP."""
    truth = rng.random(canaries) < 0.5
    return Scores(np.where(truth, 0.5, -0.5) + rng.normal(size=canaries), truth)


def randomised_response(canaries: int, rng: np.random.Generator) -> Scores:
    """Return bits released by randomised response with epsilon = 1, independent."""
    truth = rng.random(canaries) < 0.5
    right = rng.random(canaries) < special.expit(1.0)
    return Scores(np.where(right == truth, 1.0, -1.0), truth)


def shared_quantile(canaries: int, rng: np.random.Generator) -> Scores:
    """Return bits released with the accuracy of one quantile of the Gaussian score, drawn once for the run.

    Given the other bits, the channel of each bit is exactly 1-GDP.
    """
    size = abs(rng.normal(0.5, 1.0))
    truth = rng.random(canaries) < 0.5
    right = rng.random(canaries) < special.expit(size)
    return Scores(np.where(right == truth, size, -size), truth)


def adaptive_guesses(scores: Scores) -> Scores:
    """Return the guesses, +1 or -1, of an adversary who learns each bit after its guess, as scores.

    It reverses its guesses while fewer than half of the earlier ones, unreversed, were right. No guess is left out:
    whether one counts must not depend on its own bit.
    """
    sign = np.where(scores.score > 0, 1.0, -1.0)
    right = (sign > 0) == scores.truth
    before = np.concatenate([[0], np.cumsum(right)[:-1]])
    return Scores(np.where(2 * before >= np.arange(right.size), sign, -sign), scores.truth)


@dataclass(frozen=True)
class Mechanism:
    """A mechanism whose privacy is known.

    Attributes:
        name: Name in the table.
        draw: Draws the scores of one run.
        exact: Epsilon at delta, by delta.
    """

    name: str
    draw: Draw
    exact: Mapping[float, float]


GAUSSIAN_EXACT = {0.0: math.inf, DELTA: GaussianDP(1.0).epsilon(DELTA)}
MECHANISMS = (
    Mechanism("Gaussian, independent", gaussian, GAUSSIAN_EXACT),
    # At a delta > 0 its epsilon is smaller, by less than 1e-4.
    Mechanism("randomised response, ε = 1", randomised_response, {0.0: 1.0, DELTA: 1.0}),
    Mechanism("shared quantile, 1-GDP", shared_quantile, GAUSSIAN_EXACT),
)


# Methods


def gaussian_pair_epsilon(scores: Scores, *, delta: float, confidence: float) -> float:
    """Return epsilon of the smallest distance of two Gaussians with one spread that the scores do not reject.

    The limit is exact for normal scores: t with a noncentral t distribution. Other scores have no guarantee.
    """
    members, others = scores.score[scores.truth], scores.score[~scores.truth]
    if min(members.size, others.size) < 2:
        return 0.0
    freedom = members.size + others.size - 2
    pooled = math.sqrt(((members.size - 1) * members.var(ddof=1) + (others.size - 1) * others.var(ddof=1)) / freedom)
    root = math.sqrt(members.size * others.size / (members.size + others.size))
    observed = float(members.mean() - others.mean()) / max(pooled, 1e-300) * root
    if stats.t.sf(observed, freedom) > 1 - confidence:
        return 0.0

    def excess(distance: float) -> float:
        return float(stats.nct.sf(observed, freedom, distance * root)) - (1 - confidence)

    distance = optimize.brentq(excess, 0.0, observed / root + 1.0, xtol=1e-9)
    return GaussianDP(distance).epsilon(delta) if distance > 0 else 0.0


def binomial_bound(guesses: Scores) -> float:
    """Return the bound at delta = 0 from all guesses."""
    count, right = guesses.score.size, int(((guesses.score > 0) == guesses.truth).sum())
    return float(one_run_epsilon(count, right, canaries=count, delta=0.0, confidence=CONFIDENCE))


def _by(estimator: Any) -> Method:
    return lambda scores: float(estimator.bound([estimator.tally(scores)]).lower)


METHODS: Sequence[tuple[str, float, Method]] = (
    ("simultaneous-guess-count (ours)", 0.0, _by(SimultaneousGuessCount(0.0, CONFIDENCE))),
    ("simultaneous-guess-count (ours)", DELTA, _by(SimultaneousGuessCount(DELTA, CONFIDENCE))),
    ("adaptive guesses, 2503.07199", 0.0, lambda scores: binomial_bound(adaptive_guesses(scores))),
    *(
        (
            f"order statistics of {100 * share:g} %, 2509.08704",
            DELTA,
            _by(OneRunOrderStatistics(DELTA, CONFIDENCE, selection=Fixed(share))),
        )
        for share in GUESSED
    ),
    (
        "two Gaussians, after 2606.12733",
        DELTA,
        lambda scores: gaussian_pair_epsilon(scores, delta=DELTA, confidence=CONFIDENCE),
    ),
)


def compared(runs: int = RUNS, canaries: int = CANARIES, seed: int = 0) -> Iterator[Row]:
    """Yield median bound and share of bounds above the truth, for each mechanism and method on the same scores."""
    for mechanism in MECHANISMS:
        tables = [mechanism.draw(canaries, np.random.default_rng([seed, run])) for run in range(runs)]
        for name, delta, method in METHODS:
            bounds = np.array([method(scores) for scores in tables])
            exact = mechanism.exact[delta]
            conditions = setting({"mechanism": mechanism.name, "method": name, "delta": f"{delta:g}"})
            yield Row(conditions, "true ε", "∞" if math.isinf(exact) else f"{exact:.2f}")
            yield Row(conditions, "median bound", f"{np.floor(100 * np.median(bounds)) / 100:.2f}", "", f"{runs}")
            above = float((bounds > exact).mean())
            yield Row(conditions, "above the truth", f"{100 * above:.1f} %", "", f"{runs}")


# Betting tests


def kernel_pairs(
    members: Floats, others: Floats, *, epsilon: float, confidence: float = CONFIDENCE, width: float = 1.0
) -> int | None:
    """Return the number of pairs after which a kernel bet rejects (epsilon, 0)-DP; None if it never does.

    The bettor's payoff is f(x) - f(y) - tau, with f the witness function of past pairs in the unit ball of a Gaussian
    kernel, and tau = sqrt(2) (e^epsilon - 1) / (e^epsilon + 1), which bounds the kernel distance under epsilon-DP. The
    wealth averages fixed stakes.
    """
    tau = math.sqrt(2) * math.tanh(epsilon / 2)
    reach = math.sqrt(2) + tau  # the largest loss of a unit stake
    stakes = np.array([0.05, 0.1, 0.2, 0.4, 0.8]) / reach
    log_wealth = np.zeros(stakes.size)
    norm_squared = 0.0  # squared norm of the sum of k(x, .) - k(y, .) over past pairs

    def kernel(points: Floats, at: float) -> Floats:
        return np.exp(-0.5 * ((points - at) / width) ** 2)

    for pair, (x, y) in enumerate(zip(members, others, strict=True)):
        at_x = float(kernel(members[:pair], x).sum() - kernel(others[:pair], x).sum())
        at_y = float(kernel(members[:pair], y).sum() - kernel(others[:pair], y).sum())
        if norm_squared > 0:
            payoff = (at_x - at_y) / math.sqrt(norm_squared) - tau
            log_wealth += np.log1p(stakes * payoff)
            if special.logsumexp(log_wealth) - math.log(stakes.size) >= -math.log(1 - confidence):
                return pair + 1
        norm_squared += 2 * (at_x - at_y) + 2 - 2 * math.exp(-0.5 * ((x - y) / width) ** 2)
    return None


def betting_pairs(members: Floats, others: Floats, *, epsilon: float, confidence: float = CONFIDENCE) -> int | None:
    """Return the number of pairs after which `betting` rejects (epsilon, 0)-DP; None if it never does."""
    estimator = Betting(confidence=confidence)
    scores = np.stack([members, others], axis=1).ravel()
    truth = np.tile([True, False], members.size)
    state = estimator.update(estimator.start(), Scores(scores, truth))
    needed = math.floor(epsilon * 512) + 1  # grid epsilons up to the claim, which must all be rejected
    reached = np.flatnonzero(state.rejected >= needed)
    return int(reached[0]) + 1 if reached.size else None


BETS = ((0.1, 10.0), (0.5, 2.0), (1.0, 2.0))
"""Claims of a Laplace mechanism, and the factor by which its noise is too small."""
MOST_PAIRS, BET_RUNS = 1_000, 20


def bets(runs: int = BET_RUNS, pairs: int = MOST_PAIRS, seed: int = 1) -> Iterator[Row]:
    """Yield the median number of pairs until each betting test rejects the claim, and rejections of true claims."""
    tests = {"betting (ours)": betting_pairs, "kernel bet, after 2509.07055": kernel_pairs}
    for claim, factor in (*BETS, (1.0, 1.0)):
        ends: dict[str, list[float]] = {name: [] for name in tests}
        for run in range(runs):
            rng = np.random.default_rng([seed, run])
            members, others = (rng.laplace(center, 1 / (factor * claim), pairs) for center in (1.0, 0.0))
            for name, test in tests.items():
                ended = test(members, others, epsilon=claim)
                ends[name].append(math.inf if ended is None else ended)
        for name, numbers in ends.items():
            conditions = setting({"claim": f"ε = {claim:g}", "noise": f"1/{factor:g} of it", "test": name})
            middle = float(np.median(numbers))
            yield Row(conditions, "pairs to reject", f"over {pairs:,}" if math.isinf(middle) else f"{middle:,.0f}")
            yield Row(conditions, "rejected", f"{np.isfinite(numbers).sum()}", "", f"{runs}")


# The last iterate


def last_iterate_epsilon(noise_multiplier: float, sample_rate: float, steps: int, delta: float) -> float:
    """Return the heuristic epsilon at `delta` of DP-SGD whose last iterate alone is seen, for a linear loss.

    The adversary compares Bin(T, q) + N(0, sigma^2 T) with N(0, sigma^2 T), in both directions. No guarantee.
    Source: Steinke et al. (2025), arXiv:2410.06186.
    """
    spread = noise_multiplier * math.sqrt(steps)
    counts = np.arange(steps + 1)
    weights = stats.binom.pmf(counts, steps, sample_rate)
    counts, weights = counts[weights > 1e-18], weights[weights > 1e-18]
    grid = np.linspace(-12 * spread, counts[-1] + 12 * spread, 40_001)
    # Log density ratio of the mixture: terms k y / s^2 - k^2 / (2 s^2), averaged over k.
    log_null = stats.norm.logpdf(grid, scale=spread)
    terms = (np.outer(grid, counts) - 0.5 * counts**2) / spread**2
    loss = special.logsumexp(terms, b=weights, axis=1)
    step = grid[1] - grid[0]

    def excess(epsilon: float) -> float:
        first = np.exp(log_null + loss) * -np.expm1(np.minimum(0.0, epsilon - loss))
        second = np.exp(log_null) * -np.expm1(np.minimum(0.0, epsilon + loss))
        return float(max(first.sum(), second.sum()) * step) - delta

    high = 1.0
    while excess(high) > 0:
        high *= 2
    return float(optimize.brentq(excess, 0.0, high, xtol=1e-6)) if excess(0.0) > 0 else 0.0


TRAININGS = ((1.0, 0.01, 1_000), (1.0, 0.1, 100), (2.0, 0.1, 400), (4.0, 1.0, 16))
"""Noise multiplier, sampling rate and steps of DP-SGD."""


def last_iterates() -> Iterator[Row]:
    """Yield epsilon of DP-SGD's claim and of the heuristic for the last iterate."""
    for noise, rate, steps in TRAININGS:
        conditions = setting({"noise": f"{noise:g}", "sampling": f"{rate:g}", "steps": f"{steps:,}"})
        claim = GaussianDP(math.sqrt(steps) / noise) if rate == 1 else SubsampledGaussian(noise, rate, steps)
        yield Row(conditions, "claim, all steps seen", f"{claim.epsilon(DELTA):.2f}")
        yield Row(conditions, "last iterate, heuristic", f"{last_iterate_epsilon(noise, rate, steps, DELTA):.2f}")


if __name__ == "__main__":
    measurement(compared, program="benchmarks.newer_bounds", file="newer-bounds.csv", number=RUNS)
    measurement(lambda _: bets(), program="benchmarks.newer_bounds", file="newer-bets.csv")
    measurement(lambda _: last_iterates(), program="benchmarks.newer_bounds", file="last-iterate.csv")
