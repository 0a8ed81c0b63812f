"""Evidence over nights: how many honest series are refuted, and after how many nights a weak leak is.

    python -m benchmarks.honest_nights [series] [nights] [calls a night]

Each night's calls are made anew, on either side of a fair coin, and scored as the best attack would. Honest mechanisms
spend exactly what they claim. Half of the error of a check is that of all nights together: a series is refuted where
its evidence reaches 2 / error. The table is written to `docs/data/evidence-over-nights.csv`.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from benchmarks.rows import DATA, measured_here, note_origin, table_rows, write
from dpaudit import Claim
from dpaudit.claims import GaussianDP, Relation
from dpaudit.estimators.scores import Scores
from dpaudit.estimators.two_world.nights import Won, log_evidence, points_of

Draw = Callable[[np.ndarray, np.random.Generator], np.ndarray]


@dataclass(frozen=True)
class Series:
    """Nights of one mechanism."""

    draw: Draw  # scores of calls, by the world of each
    claim: Claim
    error: float  # of a check with this evidence


def laplace(epsilon: float) -> Draw:
    return lambda truth, rng: truth + rng.laplace(0, 1 / epsilon, truth.size)


def response(epsilon: float, bare: float = 0.0) -> Draw:
    """Randomised response, with a share of calls that tell the truth and say so."""

    def draw(truth: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        said = np.where(truth == (rng.random(truth.size) < 1 / (1 + math.exp(-epsilon))), 1.0, -1.0)
        return np.where(rng.random(truth.size) < bare, np.where(truth, 2.0, -2.0), said)

    return draw


def gaussian(mu: float) -> Draw:
    return lambda truth, rng: mu * truth + rng.standard_normal(truth.size)


CURVE = Claim.of(GaussianDP(1.0), relation=Relation.ADD_REMOVE, delta=1e-5)
SERIES = {
    "Laplace noise, epsilon 1": Series(laplace(1.0), Claim(1.0), 0.05),
    "randomised response, epsilon 1": Series(response(1.0), Claim(1.0), 0.05),
    "randomised response, epsilon 0.3": Series(response(0.3), Claim(0.3), 0.05),
    "the truth in 5 %, else epsilon 1": Series(response(1.0, 0.05), Claim(1.0, 0.05), 0.05),
    "Gaussian noise, mu 1": Series(gaussian(1.0), CURVE, 0.05),
    "Laplace noise, epsilon 1.1": Series(laplace(1.1), Claim(1.0), 0.001),
    "Laplace noise, epsilon 1.2": Series(laplace(1.2), Claim(1.0), 0.001),
    "randomised response, epsilon 1.1": Series(response(1.1), Claim(1.0), 0.001),
    "the truth in 7 %, else epsilon 1": Series(response(1.0, 0.07), Claim(1.0, 0.05), 0.001),
    "Gaussian noise, mu 1.1": Series(gaussian(1.1), CURVE, 0.001),
}
"""The first five keep their claim."""


def refuted_in(series: Series, nights: int, calls: int, rng: np.random.Generator) -> int:
    """The night in which one series refutes its claim; 0 where none does."""
    points, won = points_of(series.claim), Won.nothing()
    for number in range(1, nights + 1):
        truth = rng.random(calls) < 0.5
        won += Won.on(Scores(series.draw(truth, rng), truth))
        if log_evidence([(won, points)]) >= math.log(2 / series.error):
            return number
    return 0


def main(series: int = 2_000, nights: int = 30, calls: int = 1_000) -> None:
    """Prints the table."""
    columns = ("claim", "error", "series", f"refuted in {nights} nights", "in the first", "median night")
    rows = [f"| mechanism | calls a night | {' | '.join(columns)} |", "| --- " * (len(columns) + 2) + "|"]
    print(*rows, sep="\n")
    for place, (name, one) in enumerate(SERIES.items()):
        rng = np.random.default_rng([1, place])
        found = np.array([refuted_in(one, nights, calls, rng) for _ in range(series)])
        told = np.where(found > 0, found, nights + 1)
        median = f"{np.median(told):.0f}" if np.median(told) <= nights else ""
        claim = f"mu {one.claim.curve.mu:g}" if isinstance(one.claim.curve, GaussianDP) else f"{one.claim.epsilon:g}"
        claim += f", delta {one.claim.delta:g}" if one.claim.is_point and one.claim.delta else ""
        cells = (claim, f"{one.error:g}", f"{series}", f"{(found > 0).sum()}", f"{(found == 1).sum()}", median)
        rows.append(f"| {name} | {calls} | {' | '.join(cells)} |")
        print(rows[-1], flush=True)
    write(DATA / "evidence-over-nights.csv", list(table_rows(rows, keys=2)))
    note_origin(measured_here("evidence-over-nights.csv", "python -m benchmarks.honest_nights"))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
