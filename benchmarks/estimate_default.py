"""Validity and tightness of `dpaudit estimate` with its default method, against the best threshold.

    python -m benchmarks.estimate_default [tables of each kind] [seconds at most]

Each table has one score per row. The epsilon of its law is known exactly, or infinite (normals). Membership follows
fair coins, or the tables are two samples of equal size. The mean bound is compared with that of the best single
threshold or number of guesses, as if known beforehand (exact binomial limits).
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from scipy import special

from dpaudit import estimate

LAWS = ("RR(1)", "RR(2)", "RR(4)", "Laplace(1)", "normal(1)", "normal(2)")
SIZES = (100, 1_000, 10_000)
ERROR = 0.05
Floats = NDArray[np.float64]


def epsilon_of(law: str) -> float:
    """Return the epsilon of the law."""
    return math.inf if law.startswith("normal") else float(law[law.index("(") + 1 : -1])


def draw_scores(law: str, truth: NDArray[np.bool_], rng: np.random.Generator) -> Floats:
    """Return one score for each row."""
    sign, much = np.where(truth, 1.0, -1.0), float(law[law.index("(") + 1 : -1])
    if law.startswith("RR"):
        return sign * np.where(rng.random(truth.size) < special.expit(much), 1.0, -1.0)
    if law.startswith("Laplace"):
        return sign / 2 + rng.laplace(0, 1 / much, truth.size)
    return sign * much / 2 + rng.normal(size=truth.size)


def tables(law: str, rows: int, fair: bool, count: int) -> Iterator[tuple[Floats, NDArray[np.bool_]]]:
    """Yield independent tables of scores and membership."""
    rng = np.random.default_rng([rows, fair, LAWS.index(law)])
    for _ in range(count):
        truth = rng.random(rows) < 0.5 if fair else np.arange(rows) < rows // 2
        yield draw_scores(law, truth, rng), truth


def known_beforehand(score: Floats, truth: NDArray[np.bool_], fair: bool) -> Floats:
    """Return separate bounds at a grid of numbers of guesses (fair coins) or of thresholds (two samples)."""
    shares = np.array([0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0])
    if fair:
        order = np.argsort(-np.abs(score), kind="stable")
        right = np.cumsum(((score > 0) == truth)[order])
        guesses = np.maximum(1, (shares * score.size).astype(int))
        correct = np.maximum(right[guesses - 1], 1)
        return np.maximum(special.logit(special.betaincinv(correct, guesses - correct + 1, ERROR)), 0.0)
    inside, outside = np.sort(score[truth])[::-1], score[~truth]
    limits = inside[np.maximum(1, (shares * inside.size).astype(int)) - 1]
    bounds = []
    for limit in limits:
        hits, misses = int((inside >= limit).sum()), int((outside >= limit).sum())
        at_least = special.betaincinv(hits, inside.size - hits + 1, ERROR / 2) if hits else 0.0
        at_most = special.betaincinv(misses + 1, outside.size - misses, 1 - ERROR / 2) if misses < outside.size else 1.0
        bounds.append(max(0.0, math.log(at_least / at_most)) if at_least > 0 else 0.0)
    return np.array(bounds)


def main(count: int = 4_000, seconds: float = 1e9) -> None:
    """Print a row for each kind of table until the time is used up."""
    began = time.monotonic()
    print(
        "| members | law | rows | tables | too high | mean bound | best threshold, known | ratio |\n"
        + "| --- " * 8
        + "|"
    )
    for rows in SIZES:
        for fair in (True, False):
            for law in LAWS:
                correct, best = [], []
                for score, truth in tables(law, rows, fair, count):
                    if time.monotonic() - began > seconds:
                        return
                    estimated = (
                        estimate(score, truth) if fair else estimate(in_scores=score[truth], out_scores=score[~truth])
                    )
                    correct.append(estimated.lower)
                    if len(best) < 400:
                        best.append(known_beforehand(score, truth, fair))
                high = sum(lower > epsilon_of(law) for lower in correct)
                best = float(np.mean(best, 0).max())
                mean = float(np.mean(correct))
                ratio = "" if best == 0 else f"{mean / best:.3f}"
                who = "fair coins" if fair else "two samples"
                print(
                    f"| {who} | {law} | {rows:,} | {len(correct):,} | {high} | {mean:.3f} | {best:.3f} | {ratio} |",
                    flush=True,
                )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]))
