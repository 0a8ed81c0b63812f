"""Validity and tightness of `dpaudit estimate` with its default method, against rules known beforehand.

    python -m benchmarks.estimate_default [--number TABLES] [--seconds S] [--only KIND] [--write]

Each table has one score per row. The epsilon of its law is known exactly, or infinite. Membership follows fair coins,
or exactly half of the rows in random order are members (as after a split into training and test rows), or the tables
are two samples of equal size. The mean bound is compared with those of two choices that would have to be
known beforehand: the best rule (guesses of both tails, of members alone or of non-members alone; for two samples also
all thresholds at once), and the best single threshold or number of guesses (exact binomial limits).
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping

import numpy as np
from numpy.typing import NDArray
from scipy import special

from benchmarks.campaign import measurement, rows_about
from dpaudit import estimate
from dpaudit.errors import DataError
from tools.rows import Row

SIZES = (300, 1_000, 4_000)
FAIR_COINS, HALF, TWO_SAMPLES = "fair coins", "exactly half", "two samples"
COMPARED = 60
"""Number of tables from which the choices known beforehand are computed."""
ERROR = 0.05
Floats = NDArray[np.float64]
Bits = NDArray[np.bool_]
Law = Callable[[Bits, np.random.Generator], Floats]


def response(epsilon: float) -> Law:
    """Return randomised response."""
    keep = special.expit(epsilon)
    return lambda truth, rng: np.where(rng.random(truth.size) < keep, truth, ~truth).astype(np.float64)


def standing_out(side: bool, share: float, epsilon: float = math.inf) -> Law:
    """Return scores in which this share of one side stands out, and e^-epsilon times as many of the other side."""

    def scores(truth: Bits, rng: np.random.Generator) -> Floats:
        often = np.where(truth == side, share, share * math.exp(-epsilon))
        far = np.where(rng.random(truth.size) < often, 5 + rng.random(truth.size), 0.0)
        return np.where(far > 0, far if side else -far, rng.normal(size=truth.size))

    return scores


def revealed(truth: Bits, rng: np.random.Generator) -> Floats:
    """Return scores that tell the truth about a hundredth of the rows and nothing about the others."""
    sign = np.where(truth, 1.0, -1.0)
    return np.where(rng.random(truth.size) < 0.01, 6 * sign, rng.normal(size=truth.size))


LAWS: Mapping[str, tuple[float, Law]] = {
    "no leak": (0.0, lambda truth, rng: rng.normal(size=truth.size)),
    "RR(0.5)": (0.5, response(0.5)),
    "RR(1)": (1.0, response(1.0)),
    "RR(2)": (2.0, response(2.0)),
    "RR(4)": (4.0, response(4.0)),
    "Laplace(1)": (1.0, lambda truth, rng: truth - 0.5 + rng.laplace(size=truth.size)),
    "Laplace(2)": (2.0, lambda truth, rng: truth - 0.5 + rng.laplace(0, 0.5, truth.size)),
    "a fifth of members stands out, 1": (1.0, standing_out(True, 0.2, 1.0)),
    "a tenth of non-members stands out, 2": (2.0, standing_out(False, 0.1, 2.0)),
    "normal(1)": (math.inf, lambda truth, rng: truth - 0.5 + rng.normal(size=truth.size)),
    "normal(2)": (math.inf, lambda truth, rng: 2 * truth - 1 + rng.normal(size=truth.size)),
    "a tenth of members stands out": (math.inf, standing_out(True, 0.1)),
    "a tenth of non-members stands out": (math.inf, standing_out(False, 0.1)),
    "a hundredth is told": (math.inf, revealed),
}
"""Exact epsilon and scores of each law."""


def tables(law: str, rows: int, kind: str, count: int) -> Iterator[tuple[Floats, Bits]]:
    """Yield independent tables of scores and membership."""
    rng = np.random.default_rng([rows, (TWO_SAMPLES, FAIR_COINS, HALF).index(kind), list(LAWS).index(law)])
    for _ in range(count):
        half = np.arange(rows) < rows // 2
        truth = rng.random(rows) < 0.5 if kind == FAIR_COINS else rng.permutation(half) if kind == HALF else half
        yield LAWS[law][1](truth, rng), truth


def by_rule(score: Floats, truth: Bits, kind: str) -> Floats:
    """Return the bound of each rule that would have to be known beforehand."""
    method = "simultaneous-guess-count" if kind != TWO_SAMPLES else "two-samples"
    rules: list[dict[str, str]] = [
        {"method": method, "guess": guess} for guess in ("both-tails", "member-only", "non-member-only")
    ]
    rules += [] if kind != TWO_SAMPLES else [{"method": "band"}]
    try:
        return np.array([bound(score, truth, kind, **rule) for rule in rules])
    except DataError:  # one side alone is refused if fair coins would hardly give so many members
        return np.full(len(rules), np.nan)


def bound(score: Floats, truth: Bits, kind: str, **options: str) -> float:
    """Return the bound of `estimate`."""
    if kind != TWO_SAMPLES:
        return estimate(score, truth, **options).lower  # type: ignore[arg-type]
    return estimate(in_scores=score[truth], out_scores=score[~truth], **options).lower  # type: ignore[arg-type]


def by_threshold(score: Floats, truth: Bits, kind: str) -> Floats:
    """Return separate bounds at a grid of numbers of guesses, or of thresholds for two samples."""
    shares = np.array([0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0])
    if kind != TWO_SAMPLES:
        order = np.argsort(-np.abs(score - np.median(score)), kind="stable")
        right = np.cumsum(((score > np.median(score)) == truth)[order])
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


def measured(count: int, seconds: str, only: str) -> Iterator[Row]:
    """Yield the numbers of each law, size and kind of table until the time is used up."""
    end = time.monotonic() + float(seconds or math.inf)
    kinds = (only,) if only else (FAIR_COINS, HALF, TWO_SAMPLES)
    for rows, kind, (law, (epsilon, _)) in itertools.product(SIZES, kinds, LAWS.items()):
        lower, rules, thresholds = [], [], []
        for score, truth in tables(law, rows, kind, count if math.isfinite(epsilon) else min(count, COMPARED)):
            if time.monotonic() > end:
                return
            lower.append(bound(score, truth, kind))
            if len(rules) < COMPARED:
                rules.append(by_rule(score, truth, kind))
                thresholds.append(by_threshold(score, truth, kind))
        mean = np.mean(lower[:COMPARED])
        rule, threshold = (np.nanmean(bounds, 0).max() for bounds in (rules, thresholds))
        numbers = {
            "mean bound": mean,
            "best rule, known": rule,
            "share of the best rule": mean / rule if rule > 0 else 1.0,
            "best threshold, known": threshold,
        }
        high = {"too high": str(sum(value > epsilon for value in lower))}
        subject = {"members": kind, "law": law, "rows": f"{rows:,}"}
        yield from rows_about(subject, high | {name: f"{value:.3f}" for name, value in numbers.items()}, len(lower))


if __name__ == "__main__":
    measurement(measured, number=750, seconds="no table is made later", only="a kind of table")
