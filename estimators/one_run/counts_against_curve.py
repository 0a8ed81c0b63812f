"""Right guesses of one training against a promised curve: Algorithm 3 with the trade-off function of the claim itself.

The number of right guesses at a number of guesses fixed beforehand has a tail that Algorithm 3 bounds for any one
trade-off function, so nothing has to pass through epsilon at one delta. A candidate's share of the error serves for
both: at one number of guesses either bound limits the probability of the same event, so the smaller is as valid.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dpaudit.claims import PrivacyCurve
from dpaudit.errors import require
from dpaudit.estimators.arguments import Floats
from dpaudit.estimators.bound import along_curve
from dpaudit.estimators.finding import Comparison
from dpaudit.estimators.one_run.right_guesses import OneRunTally

TANGENTS = 300
"""Lines that stand for a trade-off function: it lies nowhere below them, so they reject no more than it does."""
LARGEST_EPSILON = 50.0


@dataclass(frozen=True, eq=False)
class CountsAgainstCurve:
    """Evidence against a whole curve: more right guesses than its trade-off function allows."""

    replays: tuple[OneRunTally, ...]  # those that were played, at least one
    error: float  # what one candidate of one replay may err, so that more than half of the replays do as stated
    tau: float = 0.0  # total variation between what is shown and its proxy, in [0, 1)
    lost: int = 0  # replays that failed; they show nothing

    def __post_init__(self) -> None:
        require(len(self.replays) > 0, "counts must be of at least one replay", replays=len(self.replays))
        require(0 < self.error < 1, "the error of a candidate must be in (0, 1)", error=self.error)

    def comparison(self, curve: PrivacyCurve, /) -> Comparison:
        """The share of right guesses, at the candidate of the middle replay that speaks most against the curve."""
        lines = tangents(curve)
        candidates = {(replay.canaries, int(guesses)) for replay in self.replays for guesses in replay.guesses}
        allowed = {
            (canaries, guesses): most_allowed(lines, guesses, canaries=canaries, error=self.error, tau=self.tau)
            for canaries, guesses in sorted(candidates)
        }
        most = sorted((self._most(replay, allowed) for replay in self.replays), key=lambda found: found[0])
        none = [(-math.inf, most[0][1])] * self.lost
        return (none + most)[(len(none) + len(most) - 1) // 2][1]

    def _most(self, replay: OneRunTally, allowed: dict[tuple[int, int], int]) -> tuple[float, Comparison]:
        """By how many standard deviations a replay exceeds what is allowed, where it does so most, and that place."""
        limits = np.array([allowed[replay.canaries, int(guesses)] for guesses in replay.guesses])
        margins = (replay.correct - limits) / np.sqrt(replay.guesses)
        most = int(margins.argmax())
        guesses = int(replay.guesses[most])
        where = f"{guesses:,} guesses about {replay.canaries:,} canaries"
        shares = replay.correct[most] / guesses, limits[most] / guesses
        return float(margins[most]), along_curve("share of right guesses", where, *map(float, shares))


def most_allowed(lines: Floats, guesses: int, *, canaries: int, error: float, tau: float = 0.0) -> int:
    """The largest number of right guesses that Algorithm 3 does not reject; all `guesses` where it rejects none.

    `lines` are `tangents`; tau is as for `dpaudit.estimators.one_run.f_dp.f_dp_parameter`.
    """
    from dpaudit.estimators.one_run._f_dp_walk import rejects_by  # compiled code is loaded when first used

    rejects = rejects_by("lines")
    low, high = guesses // 2, guesses + 1  # chance explains half of them under any curve; more than all cannot be
    while high - low > 1:
        middle = (low + high) // 2
        rejected = rejects(lines, 0.0, tau, guesses, middle, canaries, error)
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
