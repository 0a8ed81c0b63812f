"""`Finding`: the result of an audit, in the form that reports, pages and exit codes read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from dpaudit.claims import PrivacyCurve

Series: TypeAlias = Mapping[str, Any]
"""Data of one figure: arrays, numbers and words by column name."""


class Validity(StrEnum):
    """Sense in which a finding holds; for a bound, in which `Pr[bound > truth] <= 1 - confidence`."""

    EXACT = "exact"
    """Computed, not estimated: nothing was sampled, so there is no confidence to state."""
    FINITE_SAMPLE = "finite-sample"
    """For every sample size, under the assumptions of the game alone."""
    ASYMPTOTIC = "asymptotic"
    """In the limit of many trials; the error may exceed 1 - confidence for few trials."""
    CREDIBLE = "credible"
    """Posterior probability under the stated prior; for some true epsilon the error may exceed 1 - confidence."""
    CONDITIONAL_ON_FAMILY = "conditional-on-family"
    """Only if the mechanism's trade-off function belongs to the stated family; never the reason of a VIOLATION."""
    CONDITIONAL_ON_MODEL = "conditional-on-model"
    """Only if the votes of a private predictor follow the law that answers were drawn from."""
    CONDITIONAL_ON_PROXY = "conditional-on-proxy"
    """Only if the proxy has the law of the truth; held-out rows give evidence for that, not proof."""
    AS_PUBLISHED = "as-published"
    """Best of several candidates on the same samples, uncorrected, as published; the error exceeds 1 - confidence."""


@dataclass(frozen=True)
class Comparison:
    """Comparison of a finding with a claim, at the point with the strongest evidence against the claim."""

    quantity: str  # compared quantity: "epsilon", "RDP", ...
    where: str  # point of comparison: "delta = 1e-05", "order 8"
    observed: float  # observed value there, rounded to the safe side
    claimed: float  # largest value that the claim allows there; inf if it implies nothing
    words: str  # the observation as a headline: "RDP >= 1.246163 at order 2"

    @property
    def caption(self) -> str:
        """Quantity and point of the comparison."""
        return f"{self.quantity} at {self.where}"

    @property
    def exceeds(self) -> bool:
        """True if the observed value exceeds the claimed one."""
        return self.observed > self.claimed


class CurveEvidence(Protocol):
    """Evidence against a claim's whole privacy curve, not only at one delta."""

    def comparison(self, curve: PrivacyCurve, /) -> Comparison:
        """Compare with the curve at the point with the strongest evidence against it."""


@runtime_checkable
class GaussianEvidence(CurveEvidence, Protocol):
    """Evidence that also rejects a range of Gaussian curves."""

    @property
    def mu(self) -> float:
        """Limit up to which every mu of mu-Gaussian DP is rejected, >= 0 and rounded down; 0 if none is."""


@runtime_checkable
class CurveLimits(CurveEvidence, Protocol):
    """Evidence that limits a mechanism's whole curve, at all deltas and false positive rates at once."""

    def epsilon(self, delta: float, /) -> float:
        """Return the lower bound on epsilon at a delta in [0, 1]."""

    def misses(self, alarms: NDArray[np.float64], /) -> NDArray[np.float64]:
        """Return upper limits of the trade-off function at false positive rates in [0, 1]."""


class Finding(Protocol):
    """Result of an audit. Frozen; `str` prints it with all its numbers."""

    @property
    def headline(self) -> str:
        """Finding in half a sentence: "epsilon >= 1.039 at delta=1e-05"; rounded so that it holds as printed."""

    @property
    def validity(self) -> Validity:
        """Sense in which the finding holds."""

    @property
    def confidence(self) -> float | None:
        """Stated confidence, in (0, 1); None if the finding is exact."""

    @property
    def method(self) -> str:
        """Registered name of the estimator, with its variant."""

    @property
    def selection(self) -> str:
        """Choice of the threshold, answer set or other candidate, in words."""

    @property
    def counts(self) -> tuple[tuple[str, int], ...]:
        """Integers that the finding was computed from, by name."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences that must be printed with the finding."""

    @property
    def series(self) -> Mapping[str, Series]:
        """Columns of numbers for figures, by series; `engine/figures/finding_figures.py` describes the columns."""

    def comparison(self, curve: PrivacyCurve, /) -> Comparison:
        """Compare with the claim at the point with the strongest evidence against it."""

    def violation_point(self, curve: PrivacyCurve, /) -> Comparison | None:
        """Return the comparison that rejects the claim, or None.

        Always None for a finding that is `as-published` or `conditional-on-family`.
        """

    def to_dict(self) -> Mapping[str, Any]:
        """Return plain values for JSON, without the series."""
