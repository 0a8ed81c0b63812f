"""Rejection rates of claimed curves, against those of the bound at the printed delta, for true and false claims.

The scores are simulated: a canary in a Poisson-subsampled Gaussian (the Neyman-Pearson attack, or the sum of dot
products), and a Gaussian mechanism. Run: python benchmarks/claims_as_curves.py [games of each case, default 400].
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpaudit.claims import GaussianDP, PrivacyCurve, SubsampledGaussian
from dpaudit.estimators.estimator import Estimator
from dpaudit.estimators.one_run.signed_scores import OneRun
from dpaudit.estimators.scores import Scores
from dpaudit.estimators.two_world.fair_coins import FairCoins
from dpaudit.estimators.two_world.two_sample import Band

DELTA, RATE, STEPS, NOISE = 1e-5, 0.1, 100, 0.99
REFUTED_GAMES = 20
"""Games of a case with a false claim."""


@dataclass(frozen=True)
class Case:
    """Scores with a known law, and the claim of the mechanism behind them."""

    name: str
    draw_scores: Callable[[np.random.Generator], Scores]
    claim: PrivacyCurve
    honest: bool


def gaussian(mu: float, rows: int) -> Callable[[np.random.Generator], Scores]:
    def draw_scores(rng: np.random.Generator) -> Scores:
        truth = rng.random(rows) < 0.5
        return Scores(rng.normal(0, 1, rows) + mu * (truth - 0.5), truth)

    return draw_scores


def dp_sgd(rows: int, *, noise: float, norm: float, dot: bool) -> Callable[[np.random.Generator], Scores]:
    def draw_scores(rng: np.random.Generator) -> Scores:
        truth, score = rng.random(rows) < 0.5, np.zeros(rows)
        for _ in range(STEPS):
            products = rng.normal(0, noise, rows) + norm * (truth & (rng.random(rows) < RATE))
            likelihood = np.log1p(-RATE + RATE * np.exp((2 * norm * products - norm**2) / (2 * noise**2)))
            score += products if dot else likelihood
        return Scores(score, truth)

    return draw_scores


def cases(rows: int) -> list[Case]:
    claim = SubsampledGaussian(noise_multiplier=NOISE, sample_rate=RATE, steps=STEPS)
    cases = [
        Case("Gaussian, mu 1 claimed, 1 true", gaussian(1.0, rows), GaussianDP(1.0), True),
        Case("Gaussian, mu 1 claimed, 2 true", gaussian(2.0, rows), GaussianDP(1.0), False),
    ]
    for dot, attack in ((False, "Neyman-Pearson"), (True, "dot products")):
        for name, noise, norm in (
            ("honest", NOISE, 1.0),
            ("half the noise", NOISE / 2, 1.0),
            ("norm 1.5 clips", NOISE, 1.5),
        ):
            draw_scores = dp_sgd(rows, noise=noise, norm=norm, dot=dot)
            cases.append(Case(f"DP-SGD, {name}, {attack}", draw_scores, claim, name == "honest"))
    return cases


ESTIMATORS: dict[str, Estimator[Any, Any]] = {
    "band": Band(delta=DELTA),
    "fair-coins": FairCoins(delta=DELTA),
    "one-run": OneRun(delta=DELTA, guess="both-tails"),
}


def main(games: int) -> None:
    print("| case | trials | estimator | games | mean bound at 1e-5 | refuted at 1e-5 | refuted as a curve | seen at |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for rows in (256, 512, 1024):
        for case in cases(rows):
            if case.honest and rows != 512:
                continue
            played = games if case.honest else REFUTED_GAMES
            seeds = np.random.SeedSequence(rows).spawn(played)
            scores = [case.draw_scores(np.random.default_rng(seed)) for seed in seeds]
            for name, estimator in ESTIMATORS.items():
                bounds = [estimator.bound([estimator.tally(sample)]) for sample in scores]
                claimed = case.claim.epsilon(DELTA)
                breaches = [
                    violation_point for bound in bounds if (violation_point := bound.violation_point(case.claim))
                ]
                mean = np.mean([bound.lower for bound in bounds])
                printed = sum(bound.lower > claimed for bound in bounds)
                example = f"{breaches[0].words}, {breaches[0].claimed:.3g} claimed" if breaches else ""
                print(
                    f"| {case.name} | {rows} | {name} | {played} | {mean:.2f} of {claimed:.2f} | {printed} | "
                    f"{len(breaches)} | {example} |",
                    flush=True,
                )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 400)
