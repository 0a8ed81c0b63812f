"""The betting test: its speed, and how many trainings it saves.

It is compared with a fixed-size audit planned before the leak is known: the smallest audit that rejects a claim of
epsilon 1 in 90 % of 40 runs if the mechanism is randomised response with epsilon 2. A second comparison is the smallest
audit that succeeds in half of 40 runs on the learner itself, which is known only in hindsight.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from dpaudit.estimators.scores import Scores
from dpaudit.estimators.two_world.betting import EPSILONS, Betting, BettingState
from dpaudit.estimators.two_world.confusion_tables import ClopperPearson
from dpaudit.estimators.two_world.two_sample import Band

Floats = NDArray[np.float64]
Draw = Callable[[int, np.random.Generator], tuple[Floats, Floats]]


def gaussian(gap: float) -> Draw:
    """Return a sampler of likelihood-ratio scores whose worlds are `gap` deviations apart."""
    return lambda pairs, rng: (rng.normal(gap, 1, pairs), rng.normal(0, 1, pairs))


def partly_memorised(pairs: int, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Draw scores of a challenge that four in ten trainings memorise."""
    remembered = rng.random(pairs) < 0.4
    return np.where(remembered, rng.normal(8, 1, pairs), rng.normal(0, 1, pairs)), rng.normal(0, 1, pairs)


def randomised_response(epsilon: float) -> Draw:
    """Return a sampler of the exact mechanism, with scores 1 and -1."""
    keep = 1 / (1 + math.exp(-epsilon))

    def draw(pairs: int, rng: np.random.Generator) -> tuple[Floats, Floats]:
        with_record, without = (np.where(rng.random(pairs) < keep, 1.0, -1.0) for _ in range(2))
        return with_record, -without

    return draw


LEARNERS = {
    "non-private, 8 deviations apart": gaussian(8),
    "non-private, 4 deviations apart": gaussian(4),
    "non-private, 3 deviations apart": gaussian(3),
    "non-private, 40 % remembered": partly_memorised,
    "randomised response, epsilon 2": randomised_response(2),
}


def rows(ones: Floats, zeros: Floats) -> Scores:
    """Return trials that alternate between the two worlds."""
    score = np.column_stack([ones, zeros]).ravel()
    return Scores(score, np.arange(score.size) % 2 == 0)


def sequential_trials(draw: Draw, runs: int = 20) -> float:
    """Return the median over runs of the number of trials that prove epsilon > 1."""
    needed = []
    for seed in range(runs):
        state = Betting().update(BettingState(), rows(*draw(2_000, np.random.default_rng(seed))))
        rejections = np.flatnonzero(state.rejected > np.count_nonzero(EPSILONS <= 1))
        needed.append(2 * (int(rejections[0]) + 1) if rejections.size else math.inf)
    return float(np.median(needed))


def fixed_trials(estimator: Band | ClopperPearson, draw: Draw, *, power: float, runs: int = 40) -> int:
    """Return the smallest even number of trials at which a share `power` of audits proves epsilon > 1, to about 3 %."""
    pairs = 8
    while True:
        audits = (rows(*draw(pairs, np.random.default_rng(10_000 + seed))) for seed in range(runs))
        rejected = sum(estimator.bound([estimator.tally(audit)]).lower > 1 for audit in audits)
        if rejected >= power * runs:
            return 2 * pairs
        pairs += max(1, pairs // 30)


def run() -> list[tuple[str, float, str]]:
    """Return (name, value, note) of each measurement, after compilation on a small stream."""
    draw = gaussian(3)
    Betting().update(BettingState(), rows(*draw(20, np.random.default_rng(0))))
    results = []
    for pairs, target in ((1_000, ""), (100_000, "target < 5 s on one core")):
        stream = rows(*draw(pairs, np.random.default_rng(1)))
        start = time.perf_counter()
        Betting(delta=1e-5).update(BettingState(), stream)
        results.append((f"betting on {2 * pairs:,} trials, seconds", time.perf_counter() - start, target))
    planned = {
        name: fixed_trials(estimator, randomised_response(2), power=0.9)
        for name, estimator in (("clopper-pearson", ClopperPearson()), ("band", Band()))
    }
    results += [
        (f"trials of the planned audit, {name}", size, "90 % power at epsilon 2") for name, size in planned.items()
    ]
    for name, learner in LEARNERS.items():
        trials = sequential_trials(learner)
        hindsight = fixed_trials(Band(), learner, power=0.5)
        note = (
            f"{min(planned.values()) / trials:.1f} times fewer than planned, {hindsight / trials:.1f} than in hindsight"
        )
        results.append((f"trials until epsilon > 1 is shown, {name}", trials, note))
    return results


if __name__ == "__main__":
    for what, value, note in run():
        print(f"{what:<70} {value:10.3f}  {note}")
