"""Right guesses of one training against a promised curve: Algorithm 3 with the trade-off function of the claim itself.

The number of right guesses at a number of guesses fixed beforehand has a tail that Algorithm 3 bounds for any one
trade-off function, so nothing has to pass through epsilon at one delta. The look's share of the error serves for both:
at one number of guesses either bound limits the probability of the same event, so the smaller is as valid.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dpaudit.claims import PrivacyCurve
from dpaudit.errors import require
from dpaudit.estimators.arguments import Floats, Ints
from dpaudit.estimators.bound import along_curve
from dpaudit.estimators.finding import Comparison

TANGENTS = 300
"""Lines that stand for a trade-off function: it lies nowhere below them, so they reject no more than it does."""
LARGEST_EPSILON = 50.0


@dataclass(frozen=True, eq=False)
class ReplayCounts:
    """Right guesses of one replay.

    Attributes:
        canaries: That the guesses were made on, >= 1.
        guesses: Numbers of guesses fixed beforehand, shape (looks,), looks >= 1.
        correct: Right ones, shape (looks,).
    """

    canaries: int
    guesses: Ints
    correct: Ints


@dataclass(frozen=True, eq=False)
class CountsAgainstCurve:
    """Evidence against a whole curve: more right guesses than its trade-off function allows.

    Attributes:
        replays: Those that were played, at least one.
        error: What one look of one replay may err, so that more than half of the replays do as seldom as stated.
        tau: Total variation between what is shown and its proxy, in [0, 1).
        lost: Replays that failed; they show nothing.
    """

    replays: tuple[ReplayCounts, ...]
    error: float
    tau: float = 0.0
    lost: int = 0

    def __post_init__(self) -> None:
        require(len(self.replays) > 0, "counts must be of at least one replay", replays=len(self.replays))
        require(0 < self.error < 1, "the error of a look must be in (0, 1)", error=self.error)

    def comparison(self, curve: PrivacyCurve, /) -> Comparison:
        """The share of right guesses, at the look of the replay in the middle that speaks most against the curve."""
        lines = tangents(curve)
        looks = {(replay.canaries, int(guesses)) for replay in self.replays for guesses in replay.guesses}
        allowed = {
            (canaries, guesses): most_allowed(lines, guesses, canaries=canaries, error=self.error, tau=self.tau)
            for canaries, guesses in sorted(looks)
        }
        most = sorted((self._most(replay, allowed) for replay in self.replays), key=lambda found: found[0])
        none = [(-math.inf, most[0][1])] * self.lost
        return (none + most)[(len(none) + len(most) - 1) // 2][1]

    def _most(self, replay: ReplayCounts, allowed: dict[tuple[int, int], int]) -> tuple[float, Comparison]:
        """By how many standard deviations a replay exceeds what is allowed, where it does so most, and that place."""
        limits = np.array([allowed[replay.canaries, int(guesses)] for guesses in replay.guesses])
        margins = (replay.correct - limits) / np.sqrt(replay.guesses)
        look = int(margins.argmax())
        guesses = int(replay.guesses[look])
        where = f"{guesses:,} guesses about {replay.canaries:,} canaries"
        shares = replay.correct[look] / guesses, limits[look] / guesses
        return float(margins[look]), along_curve("share of right guesses", where, *map(float, shares))


def most_allowed(lines: Floats, guesses: int, *, canaries: int, error: float, tau: float = 0.0) -> int:
    """The largest number of right guesses that Algorithm 3 does not reject; all `guesses` where it rejects none.

    Args:
        lines: The trade-off function, as `tangents` gives it.
        guesses: Fixed beforehand, 1 .. canaries.
        canaries: How many there are.
        error: Significance, in (0, 1).
        tau: As for `dpaudit.estimators.one_run.f_dp.f_dp_parameter`.
    """
    from dpaudit.estimators.one_run._f_dp_walk import lines_rejects  # compiled code is loaded when first used

    low, high = guesses // 2, guesses + 1  # chance explains half of them under any curve; more than all cannot be
    while high - low > 1:
        middle = (low + high) // 2
        rejected = lines_rejects(lines, 0.0, tau, guesses, middle, canaries, error)
        low, high = (low, middle) if rejected else (middle, high)
    return low


def tangents(curve: PrivacyCurve) -> Floats:
    """The smallest false-positive rate at each power, as the envelope of lines below it.

    (epsilon, delta)-DP alone keeps the rate at power p above e^-epsilon (p - delta) and above
    1 - delta - e^epsilon (1 - p); a curve says so for every epsilon.

    Returns: Rows: power from which a line is the highest one, its slope, its value at power 0; shape (3, lines).
    """
    floors = (curve.epsilon(floor) for floor in (0.0, 1e-12, 1e-9, 1e-6, 1e-4, 1e-2, 0.1))
    last = min(next((found for found in floors if math.isfinite(found)), LARGEST_EPSILON), LARGEST_EPSILON)
    # The steps are finer near 0, where tests of many guesses have their power.
    epsilons = last * np.linspace(0.0, 1.0, TANGENTS) ** 1.5
    deltas = np.array([min(1.0, curve.delta(float(epsilon))) for epsilon in epsilons])
    slopes = np.concatenate([[0.0], np.exp(-epsilons[::-1]), np.exp(epsilons)])
    starts = np.concatenate([[0.0], -slopes[1 : TANGENTS + 1] * deltas[::-1], 1 - deltas - np.exp(epsilons)])
    return _envelope(slopes, starts)


def _envelope(slopes: Floats, starts: Floats) -> Floats:
    """The highest of lines whose slopes do not fall."""
    kept: list[tuple[float, float, float]] = []
    for slope, start in zip(slopes.tolist(), starts.tolist(), strict=True):
        since = 0.0
        while kept:
            before, steepness, value = kept[-1]
            if steepness == slope:
                since = before if start >= value else math.inf
            else:
                since = (value - start) / (slope - steepness)
            if since > before:
                break
            kept.pop()
            since = 0.0
        if since < 1:
            kept.append((since, slope, start))
    return np.array(kept).T.copy()
