"""Compare the bounds of four designs with as many planted secrets, on mechanisms with known privacy.

    python -m benchmarks.secrets_power [--number GAMES] [--write]

Each game plants 500 secrets. The designs differ in what was never planted: nothing but the other side of a fair coin,
99 or 999 other candidates of each secret, as many texts that rare coins left out, or references that all secrets share.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from benchmarks.campaign import measurement
from dpaudit.claims import GaussianDP
from dpaudit.estimators.extraction.exposure import rank_epsilon, rank_slates
from dpaudit.estimators.extraction.random_subset import RandomSubset
from dpaudit.estimators.extraction.rare_canaries import RareCanaries
from dpaudit.estimators.one_run.guess_band import SimultaneousGuessCount
from dpaudit.estimators.scores import Scores
from tools.rows import Row, setting

SECRETS, GAMES = 500, 20
DELTA, CONFIDENCE = 1e-5, 0.95

Floats = NDArray[np.float64]
Bits = NDArray[np.bool_]
Attack = Callable[[Bits, np.random.Generator], Floats]
"""Scores of texts, of any shape, from whether each was planted."""


def gaussian(mu: float) -> Attack:
    """Return scores N(mu, 1) of planted texts and N(0, 1) of others: adding a text is mu-GDP."""
    return lambda planted, rng: mu * planted + rng.normal(size=planted.shape)


def laplace(epsilon: float) -> Attack:
    """Return scores with Laplace noise: adding a text is epsilon-DP."""
    return lambda planted, rng: planted + rng.laplace(0, 1 / epsilon, planted.shape)


def one_in_twenty(planted: Bits, rng: np.random.Generator) -> Floats:
    """Return scores of a training that learns one planted text in twenty by heart: no privacy."""
    return 9.0 * (planted & (rng.random(planted.shape) < 0.05)) + rng.normal(size=planted.shape)


MECHANISMS: dict[str, tuple[Attack, float]] = {
    "Gaussian, μ = 1": (gaussian(1.0), GaussianDP(1.0).epsilon(DELTA)),
    "Gaussian, μ = 3": (gaussian(3.0), GaussianDP(3.0).epsilon(DELTA)),
    "Gaussian, μ = 6": (gaussian(6.0), GaussianDP(6.0).epsilon(DELTA)),
    "Laplace, ε = 4": (laplace(4.0), 4.0),
    "1 secret in 20 by heart": (one_in_twenty, math.inf),
}


def fair_coins(attack: Attack, rng: np.random.Generator) -> float:
    """Return the bound from fair coins for twice as many texts."""
    planted = rng.random(2 * SECRETS) < 0.5
    estimator = SimultaneousGuessCount(DELTA, CONFIDENCE, "any-tail")
    return estimator.bound([estimator.tally(Scores(attack(planted, rng), planted))]).lower


def slates(candidates: int) -> Callable[[Attack, np.random.Generator], float]:
    """Return the bound from ranks among candidates of each secret's own, for adding or removing a secret."""

    def bound(attack: Attack, rng: np.random.Generator) -> float:
        planted = rng.integers(0, candidates, SECRETS)
        scores = attack(np.arange(candidates) == planted[:, None], rng)
        return rank_epsilon(rank_slates(scores, planted), delta=DELTA, confidence=CONFIDENCE)

    return bound


def rare_coins(candidates: int) -> Callable[[Attack, np.random.Generator], float]:
    """Return the bound from coins of probability 1 / candidates."""

    def bound(attack: Attack, rng: np.random.Generator) -> float:
        planted = rng.random(SECRETS * candidates) < 1 / candidates
        estimator = RareCanaries(1 / candidates, DELTA, CONFIDENCE)
        return estimator.bound([estimator.tally(Scores(attack(planted, rng), planted))]).lower

    return bound


def shared_references(attack: Attack, rng: np.random.Generator) -> float:
    """Return the bound from as many references as a hundred for each secret, shared by all."""
    planted = rng.permutation(np.arange(SECRETS * 100) < SECRETS)
    estimator = RandomSubset(DELTA, CONFIDENCE)
    return estimator.bound([estimator.tally(Scores(attack(planted, rng), planted))]).lower


DESIGNS: dict[str, Callable[[Attack, np.random.Generator], float]] = {
    "fair coins": fair_coins,
    "slates of 100": slates(100),
    "slates of 1,000": slates(1000),
    "rare coins, 1 in 100": rare_coins(100),
    "rare coins, 1 in 1,000": rare_coins(1000),
    "shared references": shared_references,
}


def compared(games: int) -> Iterator[Row]:
    """Yield the true epsilon of each mechanism and the mean bound of each design."""
    for name, (attack, truth) in MECHANISMS.items():
        exact = "∞" if math.isinf(truth) else f"{truth:.2f}"
        yield Row(setting({"mechanism": name, "design": "true ε"}), "mean bound", exact)
        for design, bound in DESIGNS.items():
            seeds = np.random.SeedSequence(0).spawn(games)
            bounds = [bound(attack, np.random.default_rng(seed)) for seed in seeds]
            conditions = {"mechanism": name, "design": design}
            spread = f"± {np.std(bounds, ddof=1):.2f}"
            yield Row(setting(conditions), "mean bound", f"{np.mean(bounds):.2f}", spread, str(games))


if __name__ == "__main__":
    measurement(compared, number=GAMES)
