"""Duration of one-run bounds: one bound at a million guesses, and the best of many fractions over many replays."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
from numpy.typing import NDArray

from benchmarks import Measured, least_seconds
from dpaudit.estimators.one_run.f_dp import best_f_dp, f_dp_parameter
from dpaudit.estimators.one_run.guess_band import SimultaneousGuessCount, cached_epsilon
from dpaudit.estimators.one_run.guesses import one_run_epsilon
from dpaudit.estimators.scores import Scores

MILLION = 10**6
CANARIES = 200_000


def run() -> Iterator[Measured]:
    """Yield (name, seconds, note) of each measurement: the best of 3, after compilation."""
    correct = np.arange(600_000, 610_000)
    guesses, right = gaussian_sweep(replays=100, fractions=100)
    million = partial(one_run_epsilon, MILLION, canaries=MILLION, confidence=0.95)
    sweep = partial(best_f_dp, guesses, right, canaries=CANARIES, confidence=0.975)
    works: dict[str, tuple[Callable[[], object], str]] = {
        "one-run bound, delta = 1e-5, 1e6 guesses (Algorithm 3)": (
            lambda: million(731_058, delta=1e-5),
            "goal < 0.010 s",
        ),
        "one-run bound, delta = 1e-5, 1e6 guesses (Theorem 16)": (
            lambda: million(731_058, delta=1e-5, method="theorem-16"),
            "goal < 0.010 s",
        ),
        "one-run bounds, delta = 0, 10,000 counts at 1e6 guesses (binomial)": (
            lambda: million(correct, delta=0.0),
            "one call on an array",
        ),
        "f-DP parameter, Gaussian, 1e6 guesses": (
            lambda: f_dp_parameter(MILLION, 691_462, canaries=MILLION, confidence=0.95),
            "one bound",
        ),
        "best of 100 fractions x 100 replays, Gaussian, 200,000 canaries": (sweep, "goal < 20 s"),
        "best of 100 fractions x 100 replays, (epsilon, 1e-5), 200,000 canaries": (
            partial(sweep, family="approx-dp", delta=1e-5),
            "goal < 20 s",
        ),
    }
    for what, (work, note) in works.items():
        yield what, least_seconds(work, 3, warm=True), note
    yield from guess_band()


def guess_band() -> Iterator[Measured]:
    """Measure one bound from a million scores, and a hundred replays, without results cached by earlier calls."""
    million = gaussian_scores(MILLION, np.random.default_rng(0))
    many = [gaussian_scores(CANARIES, np.random.default_rng(seed), replay=seed) for seed in range(100)]
    sure = Scores(np.where(million.truth, 1.0, -1.0), million.truth)

    def bound(estimator: SimultaneousGuessCount, replays: list[Scores]) -> None:
        cached_epsilon.cache_clear()
        estimator.bound([estimator.tally(scores) for scores in replays])

    for what, estimator, scores in (
        ("normals 1 apart, 1e6 guesses", SimultaneousGuessCount(), million),
        ("all of 1e6 guesses right", SimultaneousGuessCount(), sure),
        ("delta = 1e-8, normals 1 apart, 1e6 guesses", SimultaneousGuessCount(delta=1e-8), million),
    ):
        yield f"guess band, {what}", least_seconds(partial(bound, estimator, [scores]), 3, warm=True), "goal < 5 s"
    seconds = least_seconds(partial(bound, SimultaneousGuessCount(), many))
    yield "guess band, 100 replays of 200,000 canaries, from scores", seconds, "goal < 20 s; one call"


def gaussian_scores(canaries: int, rng: np.random.Generator, replay: int = 0) -> Scores:
    """Return one score for each canary, from normals 1 apart."""
    truth = rng.random(canaries) < 0.5
    return Scores(rng.normal(size=canaries) + truth - 0.5, truth, replay)


def gaussian_sweep(*, replays: int, fractions: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return guesses and correct guesses of shape (replays, fractions), on a Gaussian mechanism with mu = 1."""
    rng = np.random.default_rng(0)
    guesses = CANARIES * np.arange(1, fractions + 1) // fractions
    right = np.empty((replays, fractions), dtype=np.int64)
    for replay in range(replays):
        towards_truth = rng.normal(0.5, 1.0, CANARIES)
        order = np.argsort(-np.abs(towards_truth))
        right[replay] = np.cumsum(towards_truth[order] > 0)[guesses - 1]
    return np.broadcast_to(guesses, right.shape), right
