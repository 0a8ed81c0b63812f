"""Compute, fit and validate the local level of the bands in `estimators/two_world/bands.py`.

    python -m benchmarks.band_levels LEVELS.jsonl [seconds at most]

The program computes crossing probabilities for many numbers of scores and levels, one line of JSON each, and reuses
lines in the file. It fits the logarithm of the level as a polynomial in the logarithms of the number and the error. It
then validates the fit elsewhere: the recursion gives the share of the error that the fitted level spends.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np

from dpaudit.estimators.two_world import bands as fitted
from dpaudit.estimators.two_world.bands import crossing_probability

WEIGHT = "low"
NUMBERS = tuple(int(n) for n in np.geomspace(2_500, 2.4e6, 11))
ERRORS = tuple(np.geomspace(4e-6, 0.6, 10))
"""Errors near the computed levels; the fit is valid between them."""
MAX_FITTED = 0.36
TRIED, TRIED_UP_TO = 24, 300_000


def compute(file: Path, seconds: float) -> list[tuple[int, float, float]]:
    """Return (number of scores, level, crossing probability) of all computed levels."""
    began = time.monotonic()
    lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    computed = {(n, level) for n, level, _ in lines}
    for n in NUMBERS:
        for error in ERRORS:
            level = float(f"{error * _share(n):.6g}")
            if (n, level) in computed or time.monotonic() - began > seconds:
                continue
            lines.append([n, level, crossing_probability(n, level, WEIGHT, coarse=False)])
            with file.open("a") as out:
                out.write(json.dumps(lines[-1]) + "\n")
    return [(int(n), float(level), float(error)) for n, level, error in lines]


def _share(n: int) -> float:
    """Return a rough ratio of the level to the error."""
    return float(np.exp(np.interp(np.log(n), np.log([1e3, 1e4, 1e5, 1e6]), np.log([0.0061, 0.002, 0.00066, 0.00021]))))


def main(file: Path, seconds: float = 1e9) -> None:
    """Print the coefficients, their residuals, and the error spent at other numbers and errors."""
    points = compute(file, seconds)
    points = [point for point in points if point[2] < MAX_FITTED]
    n, level, error = (np.array(column) for column in zip(*points, strict=True))
    terms = fitted.terms(n, error)
    coefficients, *_ = np.linalg.lstsq(terms, np.log(level), rcond=None)
    off = terms @ coefficients - np.log(level)
    print(f"{len(points)} points, off by {off.min():.4f} .. {off.max():.4f}, {off.std():.4f} on average")
    print(", ".join(f"{value:.8g}" for value in coefficients))


def tried(seed: int = 0) -> None:
    """Print the share of the error that the fitted level spends, at random numbers and errors."""
    rng = np.random.default_rng(seed)
    for _ in range(TRIED):
        n = int(np.exp(rng.uniform(*np.log([fitted.FITTED_FROM, TRIED_UP_TO]))))
        error = float(np.exp(rng.uniform(*np.log([fitted.LEAST_ERROR, fitted.MAX_ERROR]))))
        level = fitted.fitted_level(n, error, WEIGHT)
        assert level is not None
        spent = crossing_probability(n, level, WEIGHT, coarse=False) / error
        print(f"n = {n:,}, error {error:.3g}: {spent:.4f} of it spent")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(float, sys.argv[2:]))
    tried()
