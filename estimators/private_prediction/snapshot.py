"""Epsilon from a snapshot of votes: for each run, the probability that the noisy answer lies in a set fixed beforehand.

A private predictor first collects votes, which vary from run to run (parts, samples, the order of a prompt), and then
adds noise of a known law. The probability of an answer is the mean, over runs, of its probability given the votes of a
run. So the noise needs no trials, and few runs are enough if their votes hardly vary. The snapshot is still a sample:
its mean is corrected by the empirical Bernstein inequality. With probability 1 - p, the mean of n independent values in
[0, 1] with sample variance V exceeds the true one by at most sqrt(2 V L / n) + 7 L / (3 (n - 1)), where L = log(2 / p).

Source: after Xia et al. (2026), arXiv:2511.13502 (SnapAudit), by its abstract; Maurer and Pontil (2009),
arXiv:0907.3740, theorem 4. The noise must have the stated law: only the votes are measured.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dpaudit.errors import require
from dpaudit.estimators.arguments import Floats, Ints, require_levels
from dpaudit.estimators.estimator import Estimator, Replays
from dpaudit.estimators.two_world.two_sample import RateRegions, epsilon_of_limits
from dpaudit.registry import register


@dataclass(frozen=True, eq=False)
class VoteSnapshot:
    """Probabilities of a set of answers, fixed beforehand, given the votes of independent runs.

    Attributes:
        without: Probability of the set in each run of world 0, in [0, 1], shape (n,), n >= 2.
        with_record: Probability of the set in each run of world 1, shape (m,), m >= 2.
        replay: Number of the replay.
    """

    words: ClassVar[str] = "probabilities of answers"

    without: NDArray[np.float64]
    with_record: NDArray[np.float64]
    replay: int = 0

    def __post_init__(self) -> None:
        for name in ("without", "with_record"):
            values = np.asarray(getattr(self, name), np.float64)
            inside = values.ndim == 1 and values.size >= 2 and bool(((values >= 0) & (values <= 1)).all())
            require(inside, f"{name} must be probabilities in [0, 1] of two runs or more", shape=values.shape)
            object.__setattr__(self, name, values)


@dataclass(frozen=True, eq=False)
class SnapshotTally:
    """Probabilities of the set in one replay; arrays of shape (2,), for worlds 0 and 1."""

    replay: int
    runs: Ints  # number of runs, >= 2
    mean: Floats  # mean probability over the runs
    variance: Floats  # sample variance of the probabilities


@register("estimator", "snapshot", source="After Xia et al. (2026), arXiv:2511.13502; Maurer and Pontil (2009)")
@dataclass(frozen=True)
class Snapshot(Estimator[VoteSnapshot, SnapshotTally]):
    """Probabilities of an answer given the votes of independent runs, corrected for the few runs.

    Attributes:
        delta: Delta at which the bound is stated, in [0, 1).
        confidence: Stated confidence of the bound and of the verdict on a whole curve, in (0, 1).
    """

    evidence: ClassVar[type[Any]] = VoteSnapshot
    independent_trials: ClassVar[bool] = True
    tally_type: ClassVar[type[Any]] = SnapshotTally

    delta: float = 0.0
    confidence: float = 0.95

    def __post_init__(self) -> None:
        require_levels(self.delta, self.confidence)

    def tally(self, evidence: VoteSnapshot) -> SnapshotTally:
        worlds = evidence.without, evidence.with_record
        runs, mean, variance = zip(*((world.size, world.mean(), world.var(ddof=1)) for world in worlds), strict=True)
        return SnapshotTally(evidence.replay, np.array(runs), np.array(mean), np.array(variance))

    def rates(self, tally: SnapshotTally, error: float) -> tuple[Floats, Floats]:
        """Return upper limits of the false positive and the miss rate of the set and of its complement, shape (2,)."""
        logarithm = math.log(8 / error)  # four limits share the error
        width = np.sqrt(2 * tally.variance * logarithm / tally.runs) + 7 * logarithm / (3 * (tally.runs - 1))
        low, high = np.clip([tally.mean - width, tally.mean + width], 1e-300, 1.0)
        return np.array([high[0], 1 - low[0]]), np.array([1 - low[1], high[1]])

    def lower(self, tally: SnapshotTally, error: float) -> Floats:
        return epsilon_of_limits(*self.rates(tally, error), self.delta)

    def details(self, replays: Replays[SnapshotTally]) -> Mapping[str, Any]:
        """Return the numbers of runs, and the rates as evidence against whole curves."""
        count = replays.every.size
        rates = tuple(self.rates(tally, self._error_of_each(tally, count)) for tally in replays.tallies)
        runs = np.sum([tally.runs for tally in replays.tallies], axis=0)
        counts = replays.counted({"runs without": int(runs[0]), "runs with": int(runs[1])})
        return {"counts": counts, "evidence": (RateRegions(rates, replays.failed),)}
