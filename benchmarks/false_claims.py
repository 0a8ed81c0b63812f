"""Error rates of each 95 % bound above the true epsilon, for mechanisms with exactly known privacy.

    python -m benchmarks.false_claims [games | simultaneous-guess-count]

Prints the tables of docs/statistics/calibration.md. A finite-sample bound must err in at most 5 % of the games for
every mechanism; for other bounds the tables show the error rates.
"""

from __future__ import annotations

import bisect
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special, stats

from dpaudit.estimators.estimator import Estimator
from dpaudit.estimators.finding import Validity
from dpaudit.estimators.one_run.guess_band import guess_band_p_value, guess_looks, look_weights
from dpaudit.estimators.one_run.signed_scores import OneRun, OneRunFDP, OneRunTheorem16
from dpaudit.estimators.scores import Scores
from dpaudit.estimators.two_world.confusion_tables import Bayesian, ClopperPearson, Jeffreys
from dpaudit.estimators.two_world.ratio import KatzLog
from dpaudit.estimators.two_world.two_sample import Band

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


def run(games: int = 2_000) -> str:
    """Return Markdown tables with the share of `games` whose 95 % bound exceeds the exact epsilon."""
    sections = {
        f"Two samples of {TRIALS:,}, delta = 0": (TWO_SAMPLES, PURE, _two_worlds),
        f"Two samples of {TRIALS:,}, delta > 0": (TWO_SAMPLES, APPROXIMATE, _two_worlds),
        f"One run of {TRIALS:,} canaries, delta = 0": (ONE_RUN_PURE, PURE, _one_run),
        f"One run of {TRIALS:,} canaries, delta > 0": (ONE_RUN, APPROXIMATE, _one_run),
    }
    tables = [f"{title}:\n\n{_table(*section, games)}" for title, section in sections.items()]
    return "\n\n".join([*tables, f"Guess band at the truth:\n\n{guess_band()}"])


WALKS = [(canaries, epsilon) for canaries in (100, 1_000, 5_000) for epsilon in (0.0, 1.0, 3.0)]
WALKED = 4_000


def guess_band(games: int = WALKED) -> str:
    """Return the share of games in which the guess band rejects the exact epsilon.

    Every guess is correct with probability expit(epsilon), the maximum for any mechanism. A bound above epsilon rejects
    it, so the rate of false bounds is no larger.
    """
    rows = ["| canaries | epsilon | rejected at 5 % | games |", "| --- | --- | --- | --- |"]
    for (canaries, epsilon), seed in zip(WALKS, np.random.SeedSequence(21).spawn(len(WALKS)), strict=True):
        guess_counts = guess_looks(canaries)
        gaps = np.diff(guess_counts, prepend=0)
        walks = np.random.default_rng(seed).binomial(gaps, special.expit(epsilon), (games, gaps.size)).cumsum(axis=1)
        share = _rejected(epsilon, walks, guess_counts) / games
        rows.append(f"| {canaries:,} | {epsilon:g} | {share:.4f} | {games:,} |")
    return "\n".join(rows)


def _rejected(epsilon: float, walks: NDArray[np.int64], guess_counts: NDArray[np.int64]) -> int:
    """Return the number of walks with a p-value <= 0.05; the p-value increases with the smallest weighted tail."""
    tails = stats.binom.sf(walks - 1, guess_counts, special.expit(epsilon)) / look_weights(guess_counts)
    ordered = walks[np.argsort(tails.min(axis=1), kind="stable")]
    return bisect.bisect_right(ordered, 0.05, key=lambda walk: guess_band_p_value(epsilon, walk, guess_counts))


def _two_worlds(mechanism: Exact, rng: np.random.Generator) -> Scores:
    truth = np.arange(2 * TRIALS) < TRIALS
    return Scores(mechanism.scores(truth, rng), truth)


def _one_run(mechanism: Exact, rng: np.random.Generator) -> Scores:
    truth = rng.random(TRIALS) < 0.5
    return Scores(mechanism.scores(truth, rng), truth)


def _table(
    makes: Mapping[str, Make],
    mechanisms: Sequence[Exact],
    game: Callable[[Exact, np.random.Generator], Scores],
    games: int,
) -> str:
    heads = [f"{mechanism.name} (ε {mechanism.epsilon:.3g}, δ {mechanism.delta:g})" for mechanism in mechanisms]
    rows = [["estimator, selection", "validity", *heads], ["---"] * (2 + len(heads))]
    shares = [_false_claims(makes, mechanism, game, games) for mechanism in mechanisms]
    for index, name in enumerate(makes):
        cells = [f"{share[index][0]:.4f}" for share in shares]
        rows.append([name, str(shares[0][index][1]), *cells])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def _false_claims(
    makes: Mapping[str, Make],
    mechanism: Exact,
    game: Callable[[Exact, np.random.Generator], Scores],
    games: int,
) -> list[tuple[float, Validity]]:
    estimators = [make(mechanism.delta) for make in makes.values()]
    misses = np.zeros(len(estimators), dtype=np.int64)
    validity = [Validity.FINITE_SAMPLE] * len(estimators)
    for seed in np.random.SeedSequence(20).spawn(games):
        scores = game(mechanism, np.random.default_rng(seed))
        bounds = [estimator.bound([estimator.tally(scores)]) for estimator in estimators]
        misses += [bound.lower > mechanism.epsilon for bound in bounds]
        validity = [bound.validity for bound in bounds]
    return list(zip((misses / games).tolist(), validity, strict=True))


if __name__ == "__main__":
    print(
        guess_band()
        if sys.argv[1:] == ["simultaneous-guess-count"]
        else run(*(int(argument) for argument in sys.argv[1:2]))
    )
