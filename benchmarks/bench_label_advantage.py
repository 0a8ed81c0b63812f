"""Label reconstruction: posteriors of a million examples in bags, and settings of the frontier on a large table."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable

import numpy as np

from dpaudit.actors.seed import Seed
from dpaudit.engine.data.gaussian_mixture import GaussianMixture
from dpaudit.engine.games.advantages.game import Utility, measure_utility
from dpaudit.estimators.label_reconstruction.advantage import llp_geometric_posterior, llp_posterior
from dpaudit.mechanisms.compute import Compute
from dpaudit.mechanisms.labels.proportions import GeometricProportions, LabelProportions
from dpaudit.mechanisms.labels.randomized_response import RandomizedResponse

EXAMPLES, ROWS = 1_000_000, 100_000
TARGETS = {8: 0.3, 512: 3.0}
SETTINGS = {
    "randomised response": RandomizedResponse(1.0),
    "exact counts of 8": LabelProportions(size=8),
    "geometric, bags of 32": GeometricProportions(size=32, epsilon=1.0),
}


def best_of(repeats: int, work: Callable[[], object]) -> float:
    """Return the seconds of the fastest of several runs."""
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def run() -> list[tuple[str, float, str]]:
    """Return (name, seconds, note) of each measurement on one core."""
    return [*posteriors(), *frontier()]


def posteriors() -> list[tuple[str, float, str]]:
    """Measure posteriors of examples in bags of one size, with priors from Beta(2, 30)."""
    rng = np.random.default_rng(0)
    rows = []
    for size, target in TARGETS.items():
        prior = rng.beta(2, 30, (EXAMPLES // size, size))
        sums = (rng.random(prior.shape) < prior).sum(axis=1)
        llp_posterior(prior[:2], sums[:2])
        exact = best_of(3, lambda prior=prior, sums=sums: llp_posterior(prior, sums))  # type: ignore[misc]
        noisy = best_of(3, lambda prior=prior, sums=sums: llp_geometric_posterior(prior, sums, epsilon=1.0))  # type: ignore[misc]
        rows.append((f"posteriors of 1,000,000 examples in bags of {size}, exact counts", exact, f"goal {target:g} s"))
        rows.append(
            (f"posteriors of 1,000,000 examples in bags of {size}, geometric noise", noisy, f"goal {target:g} s")
        )
    return rows


def frontier() -> list[tuple[str, float, str]]:
    """Measure one unit of the frontier at full size: five learning rates, three runs, a table of 100,000 rows."""
    data = GaussianMixture(2, ROWS, 28).load(seed=0)
    cut = round(0.6 * ROWS)
    target, test = data.take(np.arange(cut)), data.take(np.arange(cut, ROWS))
    rows = []
    for name, mechanism in SETTINGS.items():
        learn = functools.partial(measure_utility, mechanism, Utility(), target, test, Compute(), seed=Seed(1))
        seconds = best_of(1, learn)
        rows.append((f"15 trainings of one setting, {name}", seconds, "60,000 rows of 28 features, 5 epochs"))
    return rows
