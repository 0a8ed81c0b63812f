"""Bayesian lower bounds at every threshold of a score table, and the best over a million of them."""

from __future__ import annotations

import time

import numpy as np
from numpy.typing import NDArray

from dpaudit.estimators.two_world.confusion import best_epsilon, epsilon_interval

Tables = tuple[NDArray[np.int64], ...]


def thresholds(scores: int, *, seed: int) -> Tables:
    """Return confusion tables (tp, fp, tn, fn) at all thresholds of `scores` scores from two unit normals one apart."""
    rng = np.random.default_rng(seed)
    half = scores // 2
    values = np.concatenate([rng.normal(1, 1, half), rng.normal(0, 1, half)])
    in_world_1 = np.argsort(-values) < half
    tp, fp = np.cumsum(in_world_1), np.cumsum(~in_world_1)
    return tp, fp, half - fp, half - tp


def run() -> list[tuple[str, float, str]]:
    """Return (name, seconds, note) of each target, after compilation on a small table."""
    small = thresholds(1_000, seed=0)
    epsilon_interval(*small, delta=1e-5, confidence=0.95, side="lower")
    best_epsilon(*small, delta=1e-5, confidence=0.95)

    tables = thresholds(10_000, seed=1)
    start = time.perf_counter()
    epsilon_interval(*tables, delta=1e-5, confidence=0.95, side="lower")
    every = time.perf_counter() - start

    tables = thresholds(1_000_000, seed=2)
    start = time.perf_counter()
    best_epsilon(*tables, delta=1e-5, confidence=0.95)
    best = time.perf_counter() - start
    return [
        ("Bayesian lower bound at every threshold of 10,000 scores", every, "target < 1 s on 2 cores"),
        ("best Bayesian lower bound over 1,000,000 scores", best, "target < 30 s on 2 cores"),
    ]
