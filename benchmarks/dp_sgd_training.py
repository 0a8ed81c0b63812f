"""The game `dp-sgd-training`: claims at the truth, simulated, and planted defects, trained.

    python -m benchmarks.dp_sgd_training RUNS.jsonl [--seeds 20] [--write]

A simulated game has coins about records of an exactly known mechanism, the Poisson-subsampled Gaussian of 100 steps. A
trained one has ten networks of 4,810 weights on 60 digits, at a claim of 2. Bounds have 95 % confidence.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.campaign import by_case, campaign
from dpaudit.actors.seed import Seed
from dpaudit.claims.composition import SubsampledGaussian
from dpaudit.engine.data.bundled import Digits
from dpaudit.engine.games.steps.dp_sgd_training import SampledStep, StepLikelihood, train_with_records
from dpaudit.estimators.one_run.guess_band import SimultaneousGuessCount
from dpaudit.estimators.scores import Scores
from dpaudit.mechanisms.compute import Compute
from dpaudit.mechanisms.learners.dp_sgd import DpSgd
from dpaudit.mechanisms.models.networks import Mlp
from dpaudit.mechanisms.planted.dp_sgd import HalfTheNoiseDpSgd
from dpaudit.mechanisms.training.private.private_steps import PrivateSteps, dp_sgd_noise_multiplier
from tests.bank.planted_dp_sgd import (
    AccountedForOneEpochDpSgd,
    ClipDoubledDpSgd,
    FixedBatchesDpSgd,
    NoNoiseInLastStepDpSgd,
    SampledTwiceAsOftenDpSgd,
    ShuffledBatchesDpSgd,
)

DELTA, RATE, STEPS = 1e-5, 0.1, 100
SIMULATED = {f"simulated, epsilon {epsilon:g}": epsilon for epsilon in (0.5, 2.0, 8.0)}
GAMES, COINS = 100, 1_000
"""Simulated games for each seed, and coins of each."""
TRAINED: dict[str, type[DpSgd]] = {
    "honest": DpSgd,
    "half the noise": HalfTheNoiseDpSgd,
    "clip doubled": ClipDoubledDpSgd,
    "sampled at twice the rate": SampledTwiceAsOftenDpSgd,
    "one of ten epochs accounted for": AccountedForOneEpochDpSgd,
    "no noise in the last of 100 steps": NoNoiseInLastStepDpSgd,
    "shuffled batches": ShuffledBatchesDpSgd,
    "batches of fixed size": FixedBatchesDpSgd,
}
MODEL = Mlp(hidden=(64,), epochs=10, learning_rate=0.5, momentum=0.0)
WEIGHTS, TRAININGS = 4_810, 10


def run(case: str, seed: int) -> dict[str, Any]:
    """Return the bounds of the games of a seed, and how many reject the claim."""
    if case in SIMULATED:
        noise = dp_sgd_noise_multiplier(SIMULATED[case], sample_rate=RATE, steps=STEPS, delta=DELTA, accountant="pld")
        curve = SubsampledGaussian(noise, RATE, STEPS)
        games = list(simulated(PrivateSteps(1.0, noise, RATE), np.random.default_rng([seed, 1])))
    else:
        mechanism = TRAINED[case](2.0, DELTA, sample_rate=RATE, accountant="pld", model=MODEL)
        rows, options = Digits(flat=True).load().take(np.arange(60)), {"first": 0, "last": TRAININGS}
        games = [
            train_with_records(mechanism, StepLikelihood(), rows, Compute(), coins=WEIGHTS, seed=Seed(seed), **options)
        ]
        curve = mechanism.claim().curve
    estimator = SimultaneousGuessCount(delta=DELTA)
    bounds, _ = estimator.best([estimator.tally(scores) for scores in games], len(games), alone=True)
    return {"bounds": bounds.tolist(), "rejected": int((bounds > curve.epsilon(DELTA)).sum())}


def simulated(steps: PrivateSteps, rng: np.random.Generator) -> Iterator[Scores]:
    """Yield the scores of games against the exactly known mechanism."""
    truth = rng.random((GAMES, COINS)) < 0.5
    scores = np.zeros(truth.shape)
    for _ in range(STEPS):
        joined = truth & (rng.random(truth.shape) < steps.sample_rate)
        sums = joined + steps.noise_multiplier * rng.standard_normal(truth.shape, np.float32)
        scores += StepLikelihood().score(SampledStep(sums.ravel().astype(np.float32), steps)).reshape(truth.shape)
    yield from map(Scores, scores, truth)


def cases(seeds: int) -> Iterator[dict[str, Any]]:
    """Yield case and seed of each run; planted defects get a quarter of the seeds."""
    for seed in range(seeds):
        for case in (*SIMULATED, *TRAINED):
            if 4 * seed < seeds or case in SIMULATED or case == "honest":
                yield {"case": case, "seed": seed}


def columns(runs: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return numbers of games and of rejected claims, and the median bound."""
    bounds = np.concatenate([line["bounds"] for line in runs])
    return {
        "games": str(bounds.size),
        "claim rejected": str(sum(line["rejected"] for line in runs)),
        "median bound": f"{np.median(bounds):.2f}",
    }


if __name__ == "__main__":
    campaign(cases, run, columns, groups=by_case("case"), seeds=20, counted=False)
