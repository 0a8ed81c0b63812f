"""Counts against a stated epsilon: how surprising are they, how credible is it?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from dpaudit.errors import require
from dpaudit.estimators.counts import CONFUSION, GUESSES, Column, CountEstimator, Table, TextTable, count_columns
from dpaudit.estimators.one_run.f_dp import f_dp_p_value
from dpaudit.estimators.one_run.guesses import METHODS, Method, one_run_p_value
from dpaudit.estimators.two_world.confusion import epsilon_posterior_cdf, epsilon_posterior_pdf
from dpaudit.registry import register


@register("estimator", "one-run-p-value", source="Kalemaj et al., Theorems 16 and 17 and Algorithm 3")
@dataclass(frozen=True)
class OneRunPValue(CountEstimator):
    """Counts of one training run: p-values of the hypothesis that the mechanism is (epsilon, delta)-private.

    Attributes:
        epsilon: The hypothesis, in nats, finite and >= 0; with a family its parameter.
        delta: In [0, 1).
        method: "auto", "binomial", "theorem-16" or "f-dp".
        likelihood_ratio: Pointwise ratio >= 1 of the two laws of a canary; "binomial" only, at delta = 0.
        family: "gaussian" or "laplace" for the hypothesis that the mechanism lies in that family; None for neither.
        tau: Total variation of the shift (Theorem 10), for a family only; in [0, 1).
    """

    columns: ClassVar[tuple[str, ...]] = GUESSES

    epsilon: float
    delta: float = 0.0
    method: Method = "auto"
    likelihood_ratio: float = 1.0
    family: Literal["gaussian", "laplace"] | None = None
    tau: float = 0.0

    def __post_init__(self) -> None:
        require(math.isfinite(self.epsilon) and self.epsilon >= 0, "epsilon must be >= 0", epsilon=self.epsilon)
        require(0 <= self.delta < 1, "delta must be in [0, 1)", delta=self.delta)
        require(self.method in METHODS, f"method must be one of {', '.join(METHODS)}", method=self.method)
        require(self.likelihood_ratio >= 1, "likelihood_ratio must be >= 1", likelihood_ratio=self.likelihood_ratio)
        require(0 <= self.tau < 1, "tau must be in [0, 1)", tau=self.tau)
        require(not self.tau or self.family is not None, "tau needs a family", do="name one", tau=self.tau)

    def read(self, table: Table) -> Sequence[TextTable]:
        """One finding for the whole table, a line a row."""
        guesses, correct, canaries = count_columns(table, GUESSES).values()
        values: object
        if self.family is None:
            named = f"epsilon {self.epsilon:g} at delta={self.delta:g} ({self.method})"
            values = one_run_p_value(
                guesses,
                correct,
                epsilon=self.epsilon,
                canaries=canaries,
                delta=self.delta,
                method=self.method,
                likelihood_ratio=self.likelihood_ratio,
            )
        else:
            named = f"{self.family} parameter {self.epsilon:g}"
            values = f_dp_p_value(
                guesses, correct, canaries=canaries, parameter=self.epsilon, family=self.family, tau=self.tau
            )
        shown = [tuple(str(count) for count in column) for column in (guesses, correct, canaries)]
        columns = [Column(name, column) for name, column in zip(GUESSES, shown, strict=True)]
        p_values = Column("p-value", tuple(np.asarray(values).tolist()))
        return [TextTable(f"p-values of {named}, each row by itself", (*columns, p_values))]


@register("estimator", "bayesian-posterior", source="Zanella-Beguelin et al. (2023), section 3.3")
@dataclass(frozen=True)
class BayesianPosterior(CountEstimator):
    """Counts tp,fp,tn,fn: the posterior of epsilon under Jeffreys priors, its CDF and density at stated points.

    Attributes:
        delta: In [0, 1).
        epsilon: The points, nats >= 0.
    """

    columns: ClassVar[tuple[str, ...]] = CONFUSION

    delta: float = 0.0
    epsilon: tuple[float, ...] = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0)

    def __post_init__(self) -> None:
        require(0 <= self.delta < 1, "delta must be in [0, 1)", delta=self.delta)
        good = len(self.epsilon) > 0 and all(0 <= at < math.inf for at in self.epsilon)
        require(good, "epsilon must be finite points >= 0", epsilon=self.epsilon)

    def read(self, table: Table) -> Sequence[TextTable]:
        """One finding a row."""
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
