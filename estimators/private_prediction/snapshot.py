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
from dpaudit.estimators.arguments import Floats, require_levels
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


@register("estimator", "snapshot", source="After Xia et al. (2026), arXiv:2511.13502; Maurer and Pontil (2009)")
@dataclass(frozen=True)
class Snapshot(Estimator[VoteSnapshot, VoteSnapshot]):
    """Probabilities of an answer given the votes of independent runs, corrected for the few runs.

    Attributes:
        delta: Delta at which the bound is stated, in [0, 1).
        confidence: Stated confidence of the bound and of the verdict on a whole curve, in (0, 1).
    """

    evidence: ClassVar[type[Any]] = VoteSnapshot
    independent_trials: ClassVar[bool] = True
    tally_type: ClassVar[type[Any]] = VoteSnapshot

    delta: float = 0.0
    confidence: float = 0.95

    def __post_init__(self) -> None:
        require_levels(self.delta, self.confidence)

    def tally(self, evidence: VoteSnapshot) -> VoteSnapshot:
        return evidence

    def rates(self, tally: VoteSnapshot, error: float) -> tuple[Floats, Floats]:
        """Return upper limits of the false positive and the miss rate of the set and of its complement, shape (2,)."""
        logarithm, limits = math.log(8 / error), []  # four limits share the error
        for rates in (tally.without, tally.with_record):
            width = math.sqrt(2 * rates.var(ddof=1) * logarithm / rates.size) + 7 * logarithm / (3 * (rates.size - 1))
            limits.append(np.clip([rates.mean() - width, rates.mean() + width], 1e-300, 1.0))
        (low_0, high_0), (low_1, high_1) = limits
        return np.array([high_0, 1 - low_0]), np.array([1 - low_1, high_1])

    def lower(self, tally: VoteSnapshot, error: float) -> Floats:
        return epsilon_of_limits(*self.rates(tally, error), self.delta)

    def details(self, replays: Replays[VoteSnapshot]) -> Mapping[str, Any]:
        """Return the numbers of runs, and the rates as evidence against whole curves."""
        count = replays.every.size
        rates = tuple(self.rates(tally, self._error_of_each(tally, count)) for tally in replays.tallies)
        runs = {
            name: sum(getattr(tally, name).size for tally in replays.tallies) for name in ("without", "with_record")
        }
        counts = replays.counted({f"runs {name.replace('_', ' ')}": number for name, number in runs.items()})
        return {"counts": counts, "evidence": (RateRegions(rates, replays.failed),)}
