"""Duration of one-run bounds: one bound at a million guesses, and the best of many fractions over many replays."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from dpaudit.estimators.one_run.f_dp import best_f_dp, f_dp_parameter
from dpaudit.estimators.one_run.guess_band import SimultaneousGuessCount, cached_epsilon
from dpaudit.estimators.one_run.guesses import one_run_epsilon
from dpaudit.estimators.scores import Scores

MILLION = 10**6
CANARIES = 200_000


def run() -> list[tuple[str, float, str]]:
    """Return (name, seconds, note) of each measurement: the best of 3, after compilation."""
    correct = np.arange(600_000, 610_000)
    guesses, right = gaussian_sweep(replays=100, fractions=100)
    return [
        (
            "one-run bound, delta = 1e-5, 1e6 guesses (Algorithm 3)",
            best_of_three(lambda: one_run_epsilon(MILLION, 731_058, canaries=MILLION, delta=1e-5, confidence=0.95)),
            "goal < 0.010 s",
        ),
        (
            "one-run bound, delta = 1e-5, 1e6 guesses (Theorem 16)",
            best_of_three(
                lambda: one_run_epsilon(
                    MILLION, 731_058, canaries=MILLION, delta=1e-5, confidence=0.95, method="theorem-16"
                )
            ),
            "goal < 0.010 s",
        ),
        (
            "one-run bounds, delta = 0, 10,000 counts at 1e6 guesses (binomial)",
            best_of_three(lambda: one_run_epsilon(MILLION, correct, canaries=MILLION, delta=0.0, confidence=0.95)),
            "one call on an array",
        ),
        (
            "f-DP parameter, Gaussian, 1e6 guesses",
            best_of_three(lambda: f_dp_parameter(MILLION, 691_462, canaries=MILLION, confidence=0.95)),
            "one bound",
        ),
        (
            "best of 100 fractions x 100 replays, Gaussian, 200,000 canaries",
            best_of_three(lambda: best_f_dp(guesses, right, canaries=CANARIES, confidence=0.975)),
            "goal < 20 s",
        ),
        (
            "best of 100 fractions x 100 replays, (epsilon, 1e-5), 200,000 canaries",
            best_of_three(
                lambda: best_f_dp(guesses, right, canaries=CANARIES, confidence=0.975, family="approx-dp", delta=1e-5)
            ),
            "goal < 20 s",
        ),
        *guess_band(),
    ]


def guess_band() -> list[tuple[str, float, str]]:
    """Measure one bound from a million scores, and a hundred replays, without results cached by earlier calls."""
    million = gaussian_scores(MILLION, np.random.default_rng(0))
    many = [gaussian_scores(CANARIES, np.random.default_rng(seed), replay=seed) for seed in range(100)]
    sure = Scores(np.where(million.truth, 1.0, -1.0), million.truth)

    def bound(estimator: SimultaneousGuessCount, replays: list[Scores]) -> None:
        cached_epsilon.cache_clear()
        estimator.bound([estimator.tally(scores) for scores in replays])

    return [
        (
            "guess band, normals 1 apart, 1e6 guesses",
            best_of_three(lambda: bound(SimultaneousGuessCount(), [million])),
            "goal < 5 s",
        ),
        (
            "guess band, all of 1e6 guesses right",
            best_of_three(lambda: bound(SimultaneousGuessCount(), [sure])),
            "goal < 5 s",
        ),
        (
            "guess band, delta = 1e-8, normals 1 apart, 1e6 guesses",
            best_of_three(lambda: bound(SimultaneousGuessCount(delta=1e-8), [million])),
            "goal < 5 s",
        ),
        (
            "guess band, 100 replays of 200,000 canaries, from scores",
            seconds_of(lambda: bound(SimultaneousGuessCount(), many)),
            "goal < 20 s; one call",
        ),
    ]


def gaussian_scores(canaries: int, rng: np.random.Generator, replay: int = 0) -> Scores:
    """Return one score for each canary, from normals 1 apart."""
    truth = rng.random(canaries) < 0.5
    return Scores(rng.normal(size=canaries) + truth - 0.5, truth, replay)


def best_of_three(work: Callable[[], object]) -> float:
    """Return the seconds of the fastest of three calls, after one call for compilation."""
    work()
    return min(seconds_of(work) for _ in range(3))


def seconds_of(work: Callable[[], object]) -> float:
    """Return the seconds of one call."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


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


if __name__ == "__main__":
    for what, seconds, note in run():
        print(f"{seconds:10.6f} s  {what}  ({note})")
