"""`Bound`: a lower bound on epsilon with its evidence and the sense in which it holds."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

from dpaudit.claims import GaussianDP, PrivacyCurve
from dpaudit.errors import require
from dpaudit.estimators.bisection import last_true_from
from dpaudit.estimators.finding import Comparison, CurveEvidence, Finding, GaussianEvidence, Series, Validity

NEVER_REJECT = (Validity.AS_PUBLISHED, Validity.CONDITIONAL_ON_FAMILY)
"""Validities of findings that never give VIOLATION."""


class FindingBase:
    """Methods that all findings of dpaudit share."""

    def violation_point(self: Finding, curve: PrivacyCurve) -> Comparison | None:
        """Return the comparison that rejects the claim, or None.

        A bound chosen on the samples that it is measured on errs more often than it says, and no data show that a
        mechanism belongs to a family, so such bounds reject no claim.
        """
        compared = self.comparison(curve)
        return compared if compared.exceeds and self.validity not in NEVER_REJECT else None

    def _common_fields(self: Finding) -> dict[str, Any]:
        """Return the fields that every finding has, as plain values for JSON."""
        return {
            "confidence": self.confidence,
            "method": self.method,
            "selection": self.selection,
            "validity": self.validity.value,
            "counts": dict(self.counts),
            "notes": list(self.notes),
        }

    def __str__(self: Finding) -> str:
        return f"{self.headline} ({self.confidence:.6g} confidence, {self.validity}; {self.method}, {self.selection})"


@dataclass(frozen=True)
class Bound(FindingBase):
    """A bound on epsilon with the evidence for it.

    Attributes:
        lower: Lower bound on epsilon in nats, >= 0; `inf` only if the evidence excludes every finite epsilon.
        upper: Upper end of a two-sided interval in nats; None if the method has none. It bounds what *this attack* can
            show, never the mechanism's privacy loss.
        delta: Delta at which the bound is stated, in [0, 1].
        confidence: Stated confidence, in (0, 1).
        method: Registered name of the estimator, with its variant.
        selection: How the threshold, fraction or candidate was chosen, in words.
        validity: Sense in which the confidence holds.
        counts: Integers that the bound was computed from, by name.
        notes: Sentences that must be printed with the bound.
        series: Columns of numbers for figures, by name; ignored in comparisons of bounds.
        evidence: Evidence of the same data against whole privacy curves, at the same error as the bound; ignored in
            comparisons of bounds.
    """

    lower: float
    delta: float
    confidence: float
    method: str
    validity: Validity
    upper: float | None = None
    selection: str = "fixed beforehand"
    counts: tuple[tuple[str, int], ...] = ()
    notes: tuple[str, ...] = ()
    series: Mapping[str, Series] = field(default_factory=dict, compare=False, repr=False)
    evidence: tuple[CurveEvidence, ...] = field(default=(), compare=False, repr=False)

    def __post_init__(self) -> None:
        require(self.lower >= 0, "a lower bound on epsilon must be >= 0", lower=self.lower)
        require(
            self.upper is None or self.upper >= self.lower, "upper must be >= lower", lower=self.lower, upper=self.upper
        )
        require(0 <= self.delta <= 1, "delta must be in [0, 1]", delta=self.delta)
        require(0 < self.confidence < 1, "confidence must be in (0, 1)", confidence=self.confidence)

    @property
    def headline(self) -> str:
        text = f"epsilon >= {format_lower(self.lower)} at delta={self.delta:g}"
        if self.upper is not None and math.isfinite(self.upper):
            text += f", <= {format_upper(self.upper)} for this attack"
        return text

    def comparison(self, curve: PrivacyCurve) -> Comparison:
        """Compare with the claim at the bound's delta.

        Elsewhere on the curve if only that point rejects the claim, or if the claim implies nothing at the bound's
        delta.
        """
        at_delta = self.comparison_at_delta(curve)
        if at_delta.exceeds or not self.evidence:
            return at_delta
        along_curves = [evidence.comparison(curve) for evidence in self.evidence]
        silent = math.isinf(at_delta.claimed) and curve.delta(0.0) < 1  # a total variation of 1 implies nothing
        return next(
            (comparison for comparison in along_curves if comparison.exceeds), along_curves[0] if silent else at_delta
        )

    def comparison_at_delta(self, curve: PrivacyCurve) -> Comparison:
        """Compare the lower bound with the epsilon claimed at its delta."""
        return Comparison("epsilon", f"delta = {self.delta:g}", self.lower, curve.epsilon(self.delta), self.headline)

    @property
    def mu(self) -> float:
        """Limit up to which every mu of mu-Gaussian DP is rejected, >= 0 and rounded down; 0 if none is.

        The bound and its evidence hold together at the stated confidence, so the largest of their limits holds at that
        confidence too, and no family is assumed: a mechanism of any law satisfies no smaller mu. mu-Gaussian DP implies
        (epsilon, delta)-DP at each point of its curve, so a bound at delta > 0 rejects mu as well.
        """
        if self.validity in NEVER_REJECT:
            return 0.0
        limits = [evidence.mu for evidence in self.evidence if isinstance(evidence, GaussianEvidence)]
        if 0 < self.delta < 1 and 0 < self.lower < math.inf:
            limits.append(
                last_true_from(
                    lambda mu: mu == 0 or GaussianDP(mu).epsilon(self.delta) < self.lower, largest=100.0, relative=1e-9
                )
            )
        return max(limits, default=0.0)

    def conditional_on_proxy(self) -> Bound:
        """Return this bound with a validity conditional on the proxy; a weaker validity of the method becomes a note.

        A control corrects only the bound, so evidence against whole curves is dropped.
        """
        if self.validity is Validity.AS_PUBLISHED:
            return self
        also = () if self.validity is Validity.FINITE_SAMPLE else (f"without the proxy it would be {self.validity}",)
        return replace(self, validity=Validity.CONDITIONAL_ON_PROXY, notes=(*self.notes, *also), evidence=())

    def to_dict(self) -> Mapping[str, Any]:
        return {"lower": self.lower, "upper": self.upper, "delta": self.delta, **self._common_fields()}


def mu_of_rates(alarm: NDArray[np.float64], miss: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the limits up to which rates reject every mu: Phi^-1(1 - alarm) - Phi^-1(miss), rounded down.

    Args:
        alarm, miss: Upper limits of both error rates of one test, in (0, 1], of one shape.
    """
    limits = -special.ndtri(np.minimum(alarm * (1 + 1e-11), 1.0)) - special.ndtri(np.minimum(miss * (1 + 1e-11), 1.0))
    return np.asarray(np.maximum(0.0, np.where(np.isfinite(limits), limits, 0.0) - 1e-9))


def mu_of_total_variation(distance: float) -> float:
    """Return the limit up to which a total variation rejects every mu: 2 Phi^-1((1 + distance) / 2), rounded down."""
    rate = (1 - max(0.0, distance)) / 2
    return float(mu_of_rates(np.array(rate), np.array(rate))) if 0 < rate < 0.5 else 0.0


def curve_comparison(quantity: str, where: str, observed: float, claimed: float) -> Comparison:
    """Return the comparison of a lower limit anywhere on a curve; the printed limit is rounded down."""
    return Comparison(quantity, where, observed, claimed, f"{quantity} >= {format_lower(observed)} at {where}")


def format_lower(value: float, digits: int = 3) -> str:
    """Return `value` with `digits` decimals, rounded down: a printed lower bound must hold as printed."""
    return _rounded(math.floor, value, digits)


def format_upper(value: float, digits: int = 3) -> str:
    """Return `value` with `digits` decimals, rounded up."""
    return _rounded(math.ceil, value, digits)


def _rounded(direction: Callable[[float], int], value: float, digits: int) -> str:
    if not math.isfinite(value):
        return "inf" if value > 0 else "nan"
    scale = 10**digits
    return f"{direction(value * scale) / scale:.{digits}f}"
