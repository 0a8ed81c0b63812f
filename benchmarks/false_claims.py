"""Error rates of each 95 % bound above the true epsilon, for mechanisms with exactly known privacy.

    python -m benchmarks.false_claims [--number GAMES] [--write]

A finite-sample bound must err in at most 5 % of the games for every mechanism; of other bounds the error rates are
shown. The guess band is also measured at the truth, on random walks of right guesses.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special, stats

from benchmarks.campaign import measurement, rows_about
from dpaudit.estimators.bound import Bound
from dpaudit.estimators.estimator import Estimator
from dpaudit.estimators.one_run.guess_band import guess_band_p_value, guess_looks, look_weights
from dpaudit.estimators.one_run.signed_scores import OneRun, OneRunFDP, OneRunTheorem16
from dpaudit.estimators.scores import Scores
from dpaudit.estimators.two_world.confusion_tables import Bayesian, ClopperPearson, Jeffreys
from dpaudit.estimators.two_world.ratio import KatzLog
from dpaudit.estimators.two_world.two_sample import Band
from tools.rows import Row

TRIALS = 1_000
"""Trials in each world (two samples), canaries (one run)."""


@dataclass(frozen=True)
class Exact:
    """A mechanism and its exact privacy.

    Attributes:
        name: Name in the table.
        delta: Delta of the bound.
        epsilon: The exact epsilon at `delta`.
        scores: Function from bits to optimal scores, increasing in the likelihood ratio and 0 at a ratio of 1.
    """

    name: str
    delta: float
    epsilon: float
    scores: Callable[[NDArray[np.bool_], np.random.Generator], NDArray[np.float64]]


def randomised_response(epsilon: float) -> Exact:
    keep = special.expit(epsilon)
    return Exact(
        f"RR {epsilon:g}",
        0.0,
        epsilon,
        lambda truth, rng: _sign(truth) * np.where(rng.random(truth.size) < keep, 1, -1),
    )


def laplace(epsilon: float) -> Exact:
    return Exact(
        f"Laplace {epsilon:g}",
        0.0,
        epsilon,
        lambda truth, rng: _sign(truth) / 2 + rng.laplace(0, 1 / epsilon, truth.size),
    )


def gaussian(mu: float, delta: float) -> Exact:
    epsilon = _epsilon_at(
        delta, lambda eps: special.ndtr(mu / 2 - eps / mu) - math.exp(eps) * special.ndtr(-mu / 2 - eps / mu)
    )
    return Exact(
        f"Gauss {mu:g}", delta, epsilon, lambda truth, rng: mu * _sign(truth) / 2 + rng.normal(size=truth.size)
    )


def subsampled_gaussian(rate: float, mu: float, delta: float) -> Exact:
    """Return (1 - rate) N(0, 1) + rate N(mu, 1) against N(0, 1); the adversary sees the draw."""

    def log_ratio(x: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.logaddexp(math.log1p(-rate), math.log(rate) + mu * x - mu * mu / 2)

    def delta_of(epsilon: float) -> float:
        x = np.linspace(-12, 12 + mu, 400_001)
        density = np.exp(-x * x / 2) / math.sqrt(2 * math.pi)
        ratio = np.exp(log_ratio(x))
        gap = [np.maximum(ratio - math.exp(epsilon), 0), np.maximum(1 - math.exp(epsilon) * ratio, 0)]
        return max(float(np.trapezoid(density * part, x)) for part in gap)

    def scores(truth: NDArray[np.bool_], rng: np.random.Generator) -> NDArray[np.float64]:
        return log_ratio(rng.normal(size=truth.size) + mu * (truth & (rng.random(truth.size) < rate)))

    return Exact(f"subsampled Gauss {rate:g}, {mu:g}", delta, _epsilon_at(delta, delta_of), scores)


def worst_case(epsilon: float, delta: float) -> Exact:
    """Return the worst (epsilon, delta) mechanism: the bit itself with probability delta, else randomised response."""
    keep = special.expit(epsilon)

    def scores(truth: NDArray[np.bool_], rng: np.random.Generator) -> NDArray[np.float64]:
        answer = np.where(rng.random(truth.size) < keep, 1, -1)
        return _sign(truth) * np.where(rng.random(truth.size) < delta, 2, answer)

    return Exact(f"worst case {epsilon:g}", delta, epsilon, scores)


def _sign(truth: NDArray[np.bool_]) -> NDArray[np.float64]:
    return np.where(truth, 1.0, -1.0)


def _epsilon_at(delta: float, delta_of: Callable[[float], float]) -> float:
    return float(optimize.brentq(lambda epsilon: delta_of(epsilon) - delta, 0.0, 60.0, xtol=1e-12))


NOTHING = Exact("no leak", 0.0, 0.0, lambda truth, rng: rng.normal(size=truth.size))

PURE = (NOTHING, randomised_response(1.0), randomised_response(4.0), laplace(1.0))
APPROXIMATE = (
    gaussian(1.0, 1e-2),
    gaussian(3.0, 1e-3),
    subsampled_gaussian(0.1, 3.0, 1e-2),
    worst_case(1.0, 1e-2),
)

Make = Callable[[float], Estimator]

TWO_SAMPLES: Mapping[str, Make] = {
    "band": lambda delta: Band(delta),
    "band, flat": lambda delta: Band(delta, selection="band:flat"),
    **{
        f"{name}, {chosen}": lambda delta, kind=kind, chosen=chosen: kind(delta, selection=chosen)
        for name, kind in {
            "clopper-pearson": ClopperPearson,
            "jeffreys": Jeffreys,
            "bayesian": Bayesian,
            "katz-log": KatzLog,
        }.items()
        for chosen in ("fixed:0", "grid", "as-published")
    },
    "clopper-pearson, split": lambda delta: ClopperPearson(delta, selection="split"),
    "clopper-pearson, bonferroni": lambda delta: ClopperPearson(delta, selection="bonferroni"),
}

ONE_RUN: Mapping[str, Make] = {
    **{
        f"one-run, {chosen}": lambda delta, chosen=chosen: OneRun(delta, selection=chosen)
        for chosen in ("fixed:0.1", "fixed:1", "grid", "bonferroni", "as-published")
    },
    "one-run-theorem-16, grid": lambda delta: OneRunTheorem16(delta),
    "one-run-f-dp gaussian, grid": lambda delta: OneRunFDP(delta),
    "one-run-f-dp laplace, grid": lambda delta: OneRunFDP(delta, family="laplace"),
    "one-run-f-dp approx-dp, grid": lambda delta: OneRunFDP(delta, family="approx-dp"),
}

ONE_RUN_PURE: Mapping[str, Make] = {
    **{name: make for name, make in ONE_RUN.items() if "gaussian" not in name and "16" not in name},
    "one-run, split": lambda delta: OneRun(delta, selection="split"),
    "one-run, grid, member-only": lambda delta: OneRun(delta, guess="member-only"),
    "one-run, grid, both-tails": lambda delta: OneRun(delta, guess="both-tails"),
}


Game = Callable[[Exact, np.random.Generator], Scores]


def two_worlds(mechanism: Exact, rng: np.random.Generator) -> Scores:
    """Return scores of as many trials in each world."""
    truth = np.arange(2 * TRIALS) < TRIALS
    return Scores(mechanism.scores(truth, rng), truth)


def one_run(mechanism: Exact, rng: np.random.Generator) -> Scores:
    """Return scores of one run, whose canaries are members by fair coins."""
    truth = rng.random(TRIALS) < 0.5
    return Scores(mechanism.scores(truth, rng), truth)


SECTIONS: Mapping[str, tuple[Game, Mapping[str, Make], Sequence[Exact]]] = {
    f"two samples of {TRIALS:,}; delta=0": (two_worlds, TWO_SAMPLES, PURE),
    f"two samples of {TRIALS:,}; delta>0": (two_worlds, TWO_SAMPLES, APPROXIMATE),
    f"one run of {TRIALS:,} canaries; delta=0": (one_run, ONE_RUN_PURE, PURE),
    f"one run of {TRIALS:,} canaries; delta>0": (one_run, ONE_RUN, APPROXIMATE),
}


def false_claims(games: int) -> Iterator[Row]:
    """Yield the share of games whose 95 % bound exceeds the exact epsilon, for each estimator and mechanism."""
    for section, (game, makes, mechanisms) in SECTIONS.items():
        for mechanism in mechanisms:
            estimators = [make(mechanism.delta) for make in makes.values()]
            misses = np.zeros(len(estimators), dtype=np.int64)
            bounds: list[Bound] = []
            for seed in np.random.SeedSequence(20).spawn(games):
                scores = game(mechanism, np.random.default_rng(seed))
                bounds = [estimator.bound([estimator.tally(scores)]) for estimator in estimators]
                misses += [bound.lower > mechanism.epsilon for bound in bounds]
            exact = f"{mechanism.name} (ε {mechanism.epsilon:.3g}, δ {mechanism.delta:g})"
            for name, bound, missed in zip(makes, bounds, misses, strict=True):
                subject = f"game={section}; estimator={name}; validity={bound.validity}; mechanism={exact}"
                yield from rows_about(subject, {"share of bounds above the truth": f"{missed / games:.4f}"})


WALKS = [(canaries, epsilon) for canaries in (100, 1_000, 5_000) for epsilon in (0.0, 1.0, 3.0)]


def guess_band(games: int) -> Iterator[Row]:
    """Yield the share of games in which the guess band rejects the exact epsilon.

    Every guess is correct with probability expit(epsilon), the maximum for any mechanism. A bound above epsilon rejects
    it, so the rate of false bounds is no larger.
    """
    for (canaries, epsilon), seed in zip(WALKS, np.random.SeedSequence(21).spawn(len(WALKS)), strict=True):
        guess_counts = guess_looks(canaries)
        gaps = np.diff(guess_counts, prepend=0)
        walks = np.random.default_rng(seed).binomial(gaps, special.expit(epsilon), (games, gaps.size)).cumsum(axis=1)
        share = _rejected(epsilon, walks, guess_counts) / games
        subject = {"canaries": f"{canaries:,}", "epsilon": f"{epsilon:g}"}
        yield from rows_about(subject, {"rejected at 5 %": f"{share:.4f}"}, games)


def _rejected(epsilon: float, walks: NDArray[np.int64], guess_counts: NDArray[np.int64]) -> int:
    """Return the number of walks with a p-value <= 0.05; the p-value increases with the smallest weighted tail."""
    tails = stats.binom.sf(walks - 1, guess_counts, special.expit(epsilon)) / look_weights(guess_counts)
    ordered = walks[np.argsort(tails.min(axis=1), kind="stable")]
    return bisect.bisect_right(ordered, 0.05, key=lambda walk: guess_band_p_value(epsilon, walk, guess_counts))


if __name__ == "__main__":
    measurement(false_claims, number=2_000)
    measurement(guess_band, file="guess-band-at-the-truth.csv", number=4_000)
