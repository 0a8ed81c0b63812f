"""Cost of each valid way to choose a threshold: mean 95 % lower bounds, with two-sample and one-run scores.

    python -m benchmarks.compare_selection [two-samples | one-run]

Every column except the uncorrected one is valid. `grid 20` has ten rates, each as a false-alarm rate and as a miss
rate. Sizes are trials in each world (two samples) and canaries (one run).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from dpaudit.estimators.estimator import Estimator
from dpaudit.estimators.one_run.guess_band import SimultaneousGuessCount
from dpaudit.estimators.one_run.signed_scores import OneRun
from dpaudit.estimators.scores import Scores
from dpaudit.estimators.selection import AsPublished, Bonferroni, Fixed, Grid, SimultaneousBand, Split
from dpaudit.estimators.two_world.confusion_tables import ClopperPearson
from dpaudit.estimators.two_world.two_sample import Band

Attack = Callable[[NDArray[np.bool_], np.random.Generator], NDArray[np.float64]]

ATTACKS: Mapping[str, Attack] = {
    "normals 1 apart": lambda truth, rng: truth + rng.normal(size=truth.size) - 0.5,
    "normals 3 apart": lambda truth, rng: 3 * truth + rng.normal(size=truth.size) - 1.5,
    "Laplace 1 apart": lambda truth, rng: truth + rng.laplace(size=truth.size) - 0.5,
    "1 in 20 leaks": lambda truth, rng: (
        np.where(rng.random(truth.size) < 0.05, 5.0 * (2 * truth - 1), 0.0) + rng.normal(size=truth.size)
    ),
    "1 in 100 members leaks": lambda truth, rng: (
        6.0 * (truth & (rng.random(truth.size) < 0.01)) + rng.normal(size=truth.size)
    ),
    "randomised response, 2": lambda truth, rng: (
        np.where(rng.random(truth.size) < 1 / (1 + np.exp(2)), -1.0, 1.0) * (2 * truth - 1)
    ),
}

RATES = (0.001, 0.003, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7)

TWO_SAMPLES: Mapping[str, Estimator] = {
    "band, low (default)": Band(selection=SimultaneousBand("low")),
    "band, flat": Band(selection=SimultaneousBand("flat")),
    "band, tails": Band(selection=SimultaneousBand("tails")),
    "band, lowest": Band(selection=SimultaneousBand("lowest")),
    "grid 20": ClopperPearson(selection=Grid(RATES)),
    "split": ClopperPearson(selection=Split()),
    "Bonferroni": ClopperPearson(selection=Bonferroni()),
    "uncorrected (invalid)": ClopperPearson(selection=AsPublished()),
}

ONE_RUN: Mapping[str, Estimator] = {
    "guess band (default)": SimultaneousGuessCount(),
    "guess band, both tails": SimultaneousGuessCount(guess="both-tails"),
    "grid": OneRun(selection=Grid()),
    "grid 7": OneRun(selection=Grid((0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0))),
    "split": OneRun(selection=Split()),
    "split, a fifth chooses": OneRun(selection=Split(0.2)),
    "Bonferroni, 100 fractions": OneRun(selection=Bonferroni()),
    "fixed 10 %": OneRun(selection=Fixed(0.1)),
    "uncorrected (invalid)": OneRun(selection=AsPublished()),
}

GAMES = {100: 100, 512: 60, 1_000: 40, 10_000: 8, 100_000: 2}
"""Games averaged for each size."""


def run(which: str = "") -> str:
    """Return the requested comparisons, or both, as Markdown tables."""
    tables = {
        "two-samples": lambda: "Two samples, trials a side, delta = 0:\n\n" + _table(TWO_SAMPLES, two_sample_game),
        "one-run": lambda: "One run, canaries, delta = 0:\n\n" + _table(ONE_RUN, one_run_game),
    }
    return "\n\n".join(make() for name, make in tables.items() if which in name)


def two_sample_game(attack: Attack, size: int, rng: np.random.Generator) -> Scores:
    """Return scores of `size` trials in each world."""
    truth = np.arange(2 * size) < size
    return Scores(attack(truth, rng), truth)


def one_run_game(attack: Attack, size: int, rng: np.random.Generator) -> Scores:
    """Return scores of `size` canaries, each a member by a fair coin."""
    truth = rng.random(size) < 0.5
    return Scores(attack(truth, rng), truth)


def _table(estimators: Mapping[str, Estimator], game: Callable[[Attack, int, np.random.Generator], Scores]) -> str:
    rows = [["attack", "n", *estimators], ["---"] * (2 + len(estimators))]
    for name, attack in ATTACKS.items():
        for size, games in GAMES.items():
            means = _mean_bounds(estimators, lambda rng, a=attack, n=size: game(a, n, rng), games)
            rows.append([name, f"{size:,}", *(f"{mean:.2f}" for mean in means)])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def _mean_bounds(
    estimators: Mapping[str, Estimator], game: Callable[[np.random.Generator], Scores], games: int
) -> Sequence[float]:
    bounds = []
    for seed in range(games):
        scores = game(np.random.default_rng(seed))
        bounds.append([chosen.bound([chosen.tally(scores)]).lower for chosen in estimators.values()])
    return [float(mean) for mean in np.mean(bounds, axis=0)]


if __name__ == "__main__":
    print(run(*sys.argv[1:]))
