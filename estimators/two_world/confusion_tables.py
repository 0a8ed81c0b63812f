"""Estimators that compute one confusion table for each threshold, or read tables of confusion counts (`confusion`)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpaudit.errors import require
from dpaudit.estimators.arguments import Floats
from dpaudit.estimators.bound import Bound
from dpaudit.estimators.counts import CONFUSION, Column, CountEstimator, Table, TextTable, bound_rows, count_columns
from dpaudit.estimators.finding import Validity
from dpaudit.estimators.two_world.confusion import epsilon_interval, epsilon_posterior_cdf, epsilon_posterior_pdf
from dpaudit.estimators.two_world.two_sample import TwoSample, TwoSampleTally
from dpaudit.registry import register


class ConfusionTables(CountEstimator):
    """Bounds from confusion counts by `epsilon_interval`, at thresholds of scores or in rows of a table."""

    columns: ClassVar[tuple[str, ...]] = CONFUSION

    delta: float
    confidence: float
    method: str
    validity: Validity

    def lower(self, tally: TwoSampleTally, error: float) -> Floats:
        """Return the one-sided limit at each threshold; tests/twins/confusion_twin.py states the three laws slowly."""
        interval = epsilon_interval(
            *tally.errors, delta=self.delta, confidence=1 - error, method=self.method, side="lower"
        )
        return np.asarray(interval.lower, dtype=np.float64)

    def read(self, table: Table) -> Sequence[Bound]:
        """Return a two-sided interval for each row of counts, whose threshold was fixed beforehand."""
        counts = count_columns(table, CONFUSION)
        interval = epsilon_interval(*counts.values(), delta=self.delta, confidence=self.confidence, method=self.method)
        return bound_rows(self, interval.lower, counts, upper=interval.upper)


@register("estimator", "clopper-pearson", source="Jagielski et al. (2020); Nasr et al. (2021)")
@dataclass(frozen=True)
class ClopperPearson(ConfusionTables, TwoSample):
    """Two-sample scores: exact one-sided limits for both error rates, with the error split over the two."""

    threshold_s: ClassVar[float] = 1.5e-5


@register("estimator", "jeffreys", source="Brown, Cai and DasGupta (2001)")
@dataclass(frozen=True)
class Jeffreys(ConfusionTables, TwoSample):
    """Two-sample scores: Jeffreys limits for both error rates, closer on average, without a coverage guarantee."""

    threshold_s: ClassVar[float] = 1.5e-5
    validity = Validity.ASYMPTOTIC


@register("estimator", "bayesian", source="Zanella-Beguelin et al. (2023)")
@dataclass(frozen=True)
class Bayesian(ConfusionTables, TwoSample):
    """Two-sample scores: posterior quantile of epsilon under Jeffreys priors; credible, not a confidence bound."""

    threshold_s: ClassVar[float] = 3.5e-5
    validity = Validity.CREDIBLE


@register("estimator", "bayesian-posterior", source="Zanella-Beguelin et al. (2023), section 3.3")
@dataclass(frozen=True)
class BayesianPosterior(CountEstimator):
    """Counts tp, fp, tn, fn: the CDF and density of the posterior of epsilon under Jeffreys priors, at stated points.

    Attributes:
        delta: In [0, 1).
        epsilon: Points, in nats, >= 0.
    """

    columns: ClassVar[tuple[str, ...]] = CONFUSION

    delta: float = 0.0
    epsilon: tuple[float, ...] = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0)

    def __post_init__(self) -> None:
        require(0 <= self.delta < 1, "delta must be in [0, 1)", delta=self.delta)
        good = len(self.epsilon) > 0 and all(0 <= at < math.inf for at in self.epsilon)
        require(good, "epsilon must be finite points >= 0", epsilon=self.epsilon)

    def read(self, table: Table) -> Sequence[TextTable]:
        counts = np.stack(list(count_columns(table, CONFUSION).values()))
        points = np.array(self.epsilon)
        return [
            TextTable(
                f"posterior of epsilon at delta={self.delta:g}, tp {row[0]}, fp {row[1]}, tn {row[2]}, fn {row[3]}",
                (
                    Column("epsilon", self.epsilon),
                    Column("cdf", tuple(np.asarray(epsilon_posterior_cdf(points, *row, delta=self.delta)).tolist())),
                    Column("pdf", tuple(np.asarray(epsilon_posterior_pdf(points, *row, delta=self.delta)).tolist())),
                ),
                notes=("credible, no confidence; the mass at epsilon = 0 is the cdf there",),
            )
            for row in counts.T
        ]
