"""Epsilon from guesses of a secret: membership, an attribute and whole records are secrets with N likely values.

The challenger draws the secret z uniformly and runs the mechanism once, and the attacker guesses. Let s be the
probability of a right guess. The reconstruction advantage is s - 1/N, the gain over a guess without the release. Runs
with different secrets are those of neighbours, with trade-off function f.

"The guess is z" is a test of runs with secret z against runs with another secret. If a_z is the mean chance of this
guess under the other secrets, the test's miss rate is at least f(a_z), because f is convex. The probabilities of all
guesses add up to 1 in each run, so the mean of a_z is (1 - s) / (N - 1). By convexity again,

    1 - s >= f((1 - s) / (N - 1)).

Randomised response over N values attains it for every epsilon at delta = 0, and for N = 2 it is the limit of total
variation. A secret of several records has the trade-off function of as many steps.

Source: after Guerra-Balboa et al. (2026), arXiv:2603.12142, and Kulynych et al. (2025), arXiv:2507.06969, by their
abstracts; the derivation is ours.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from dpaudit.claims import GaussianDP, PrivacyCurve
from dpaudit.errors import require
from dpaudit.estimators.arguments import Floats, require_levels
from dpaudit.estimators.bisection import last_true, last_true_from
from dpaudit.estimators.bound import curve_comparison, format_lower
from dpaudit.estimators.estimator import Estimator, Replays
from dpaudit.estimators.finding import Comparison
from dpaudit.estimators.proportions.binomial import clopper_pearson
from dpaudit.estimators.two_world.fair_coins import GuessAccuracy
from dpaudit.registry import register


def largest_success(curve: PrivacyCurve, values: int) -> float:
    """Return the largest probability of a right guess that a curve allows, rounded up; in [1 / values, 1].

    Slow twin: `largest_success` of tests/twins/secrets_twin.py.
    """
    chance = 1 - 1 / values

    def refused(miss: float) -> bool:
        return miss < curve.miss_rate(miss / (values - 1))

    return 1 - last_true(refused, 0.0, chance, absolute=1e-13) if refused(0.0) else 1.0


def success_epsilon(success: float, values: int, delta: float) -> float:
    """Return the smallest epsilon >= 0, rounded down, at which (epsilon, delta)-DP allows this probability of success.

    It is the larger solution of both lines of the trade-off function, 1 - delta - e^epsilon a and
    e^-epsilon (1 - delta - a), at a = (1 - success) / (values - 1).
    """
    miss = (1 - success) * (1 + 1e-11)
    if miss <= 0:
        return math.inf
    odds = max((1 - delta - miss) * (values - 1), 1 - delta - miss / (values - 1)) / miss
    return max(0.0, math.log(odds)) if odds > 0 else 0.0


@dataclass(frozen=True)
class SecretGuesses:
    """Counts of guesses of secrets in independent runs.

    Attributes:
        right: Number of right guesses, in 0 .. trials.
        trials: Number of runs, >= 1, each with one guess.
        values: Number of equally likely values of a secret, >= 2.
        replay: Number of the replay.
    """

    words: ClassVar[str] = "guesses of secrets"

    right: int
    trials: int
    values: int
    replay: int = 0

    def __post_init__(self) -> None:
        require(0 <= self.right <= self.trials > 0, "right must be in 0 .. trials", right=self.right)
        require(self.values >= 2, "a secret must have at least two values", values=self.values)


@dataclass(frozen=True, eq=False)
class SecretSuccess(GuessAccuracy):
    """Evidence against a whole curve: right guesses of secrets with `values` equally likely values."""

    values: int = 2

    @property
    def mu(self) -> float:
        def rejected(mu: float) -> bool:
            return mu == 0 or largest_success(GaussianDP(mu), self.values) < self.success

        return last_true_from(rejected, largest=100.0, relative=1e-9)

    def comparison(self, curve: PrivacyCurve, /) -> Comparison:
        chance = 1 / self.values
        observed, allowed = max(0.0, self.success - chance), largest_success(curve, self.values) - chance
        return curve_comparison("reconstruction advantage", f"{self.values} values", observed, allowed)


@register("estimator", "reconstruction", source="After Guerra-Balboa et al. (2026), arXiv:2603.12142; proof ours")
@dataclass(frozen=True)
class Reconstruction(Estimator[SecretGuesses, SecretGuesses]):
    """Guesses of secrets with several equally likely values: the reconstruction advantage, and the epsilon it shows.

    Attributes:
        delta: Delta at which the bound is stated, in [0, 1).
        confidence: Stated confidence of the bound and of the verdict on a whole curve, in (0, 1).
    """

    evidence: ClassVar[type[Any]] = SecretGuesses
    tally_type: ClassVar[type[Any]] = SecretGuesses

    delta: float = 0.0
    confidence: float = 0.95

    def __post_init__(self) -> None:
        require_levels(self.delta, self.confidence)

    def tally(self, evidence: SecretGuesses) -> SecretGuesses:
        return evidence

    def lower(self, tally: SecretGuesses, error: float) -> Floats:
        success = float(clopper_pearson(tally.right, tally.trials, confidence=1 - error, side="lower").lower)
        return np.array([success_epsilon(success, tally.values, self.delta)])

    def details(self, replays: Replays[SecretGuesses]) -> Mapping[str, Any]:
        tallies = replays.tallies
        right, trials = (
            np.array([getattr(tally, name) for tally in tallies], np.int64) for name in ("right", "trials")
        )
        values = tallies[0].values
        error = self._error_of_each(tallies[0], replays.every.size)
        success = SecretSuccess(right, trials, error, replays.failed, values)
        counts = {"right guesses": int(right.sum()), "guesses": int(trials.sum()), "values": values}
        advantage = format_lower(max(0.0, success.success - 1 / values))
        note = f"reconstruction advantage >= {advantage} over {1 / values:.4g} by chance, at the same confidence"
        return {"counts": replays.counted(counts), "evidence": (success,), "notes": (note,)}
