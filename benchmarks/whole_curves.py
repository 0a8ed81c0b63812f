"""Bounds at several deltas from one classifier of ML-Audit: one output set, and all of its thresholds at once.

    python -m benchmarks.whole_curves [--number RUNS] [--write]

A count moves by 1 and has noise. The classifier learns on as many trainings as it then scores. "One output set" is the
threshold that is best on half of the scored trainings at each delta, measured on the other half.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from benchmarks.campaign import measurement
from dpaudit.claims import GaussianDP, PrivacyCurve
from dpaudit.claims.composition import ComposedLaplace
from dpaudit.engine.attacks.output_set import OutputSet, SummaryView
from dpaudit.estimators.scores import Scores
from dpaudit.estimators.selection import Split
from dpaudit.estimators.two_world.confusion_tables import ClopperPearson
from dpaudit.estimators.two_world.fair_coins import FairCoins
from dpaudit.estimators.two_world.two_sample import Band, RateRegions
from tools.rows import Row, setting

Floats = NDArray[np.float64]
TRAININGS = 20_000
DELTAS = (0.0, 1e-5, 1e-3, 0.01, 0.1)
MECHANISMS: dict[str, tuple[Callable[[np.random.Generator, int], Floats], PrivacyCurve]] = {
    "Laplace, ε = 1": (lambda rng, count: rng.laplace(size=count), ComposedLaplace(1.0, 1)),
    "Gaussian, μ = 1": (lambda rng, count: rng.normal(size=count), GaussianDP(1.0)),
}


def scores_of(noise: Callable[[np.random.Generator, int], Floats], rng: np.random.Generator) -> Scores:
    """Return the scores of fresh trainings by the classifier of ML-Audit."""
    truth = rng.random(2 * TRAININGS) < 0.5
    summaries = (truth + noise(rng, truth.size))[:, None]
    view = SummaryView(summaries[:TRAININGS], truth[:TRAININGS], summaries[TRAININGS:])
    return Scores(OutputSet(("linear", "laplace")).score(view), truth[TRAININGS:])


def curves_of(scores: Scores) -> dict[str, Floats]:
    """Return the bounds at `DELTAS` by method."""
    curves = {"one output set, each δ alone": np.array([_by_one_set(scores, delta) for delta in DELTAS])}
    for name, band in {"all thresholds, all δ at once": Band(), "the same by fair-coins": FairCoins().band}.items():
        regions: RateRegions = band.regions([band.tally(scores)])
        curves[name] = regions.profile(DELTAS)
    return curves


def _by_one_set(scores: Scores, delta: float) -> float:
    estimator = ClopperPearson(delta=delta, selection=Split())
    return float(estimator.bound([estimator.tally(scores)]).lower)


def rows(number: int) -> Iterator[Row]:
    """Yield the median bound of each method at each delta, and the share of runs with a bound above the truth."""
    for mechanism, (noise, curve) in MECHANISMS.items():
        truth = np.array([curve.epsilon(delta) for delta in DELTAS])
        bounds: dict[str, list[Floats]] = defaultdict(list)
        for run in range(number):
            for method, values in curves_of(scores_of(noise, np.random.default_rng([1, run]))).items():
                bounds[method].append(values)
        conditions = {"mechanism": mechanism}
        for place, delta in enumerate(DELTAS):
            at = {**conditions, "delta": f"{delta:g}"}
            yield Row(setting({**at, "method": "truth"}), "median bound", f"{truth[place]:.2f}")
            for method, values in bounds.items():
                median = float(np.median(np.array(values)[:, place]))
                yield Row(setting({**at, "method": method}), "median bound", f"{median:.2f}", "", f"{number}")
        for method, values in bounds.items():
            wrong = int((np.array(values) > truth).any(axis=1).sum())
            where = setting({**conditions, "delta": "any", "method": method})
            yield Row(where, "above the truth", f"{wrong}", "", f"{number}")


if __name__ == "__main__":
    measurement(rows, number=200)
