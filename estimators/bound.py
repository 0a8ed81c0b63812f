"""The finding about epsilon: a bound that carries its evidence and says in what sense it is valid."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from dpaudit.claims import PrivacyCurve
from dpaudit.errors import require
from dpaudit.estimators.finding import Comparison, CurveEvidence, Finding, Series, Validity


class FindingBase:
    """What the findings of dpaudit share."""

    def violation_point(self: Finding, curve: PrivacyCurve) -> Comparison | None:
        """Return the comparison that rejects the claim, or None.

        A bound chosen on the samples that it is measured on errs more often than it says, so it rejects no claim.
        """
        compared = self.comparison(curve)
        return compared if compared.exceeds and self.validity is not Validity.AS_PUBLISHED else None

    def _said(self: Finding) -> dict[str, Any]:
        """What every finding says of itself, as plain values for JSON."""
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
    """A bound on epsilon beside the evidence it rests on.

    Attributes:
        lower: Lower bound on epsilon in nats, >= 0; `inf` only where the evidence excludes every finite epsilon.
        upper: Upper end of a two-sided interval in nats, or None where the method has none. It bounds what *this
            attack* can show, never the mechanism's privacy loss.
        delta: The delta the bound is stated at, in [0, 1].
        confidence: Stated confidence, in (0, 1).
        method: The estimator's registered name, with its variant.
        selection: How the threshold, fraction or candidate was chosen, in words.
        validity: In what sense the confidence holds.
        counts: The integers the bound was computed from, by name.
        notes: Sentences a reader must see beside the number.
        series: What there is to draw, by name; two bounds that differ in this alone are equal.
        evidence: What the same data say of a whole curve, under the same error as the bound; as for series.
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
        shown = f"epsilon >= {format_lower(self.lower)} at delta={self.delta:g}"
        if self.upper is not None and math.isfinite(self.upper):
            shown += f", <= {format_upper(self.upper)} for this attack"
        return shown

    def comparison(self, curve: PrivacyCurve) -> Comparison:
        """At its delta; elsewhere on the curve where only that breaks it, or where the claim is silent here."""
        here = self.at_its_delta(curve)
        if here.exceeds or not self.evidence:
            return here
        along = [evidence.comparison(curve) for evidence in self.evidence]
        silent = math.isinf(here.claimed) and curve.delta(0.0) < 1  # a total variation of 1 claims nothing anywhere
        return next((found for found in along if found.exceeds), along[0] if silent else here)

    def at_its_delta(self, curve: PrivacyCurve) -> Comparison:
        """The lower bound beside the epsilon that is claimed at its delta."""
        return Comparison("epsilon", f"delta = {self.delta:g}", self.lower, curve.epsilon(self.delta), self.headline)

    def on_a_proxy(self) -> Bound:
        """The same bound where the game takes a proxy for the truth; what makes it weaker still stays a note.

        A control corrects the bound alone: what was evidence against a whole curve is left out.
        """
        if self.validity is Validity.AS_PUBLISHED:
            return self
        also = () if self.validity is Validity.FINITE_SAMPLE else (f"without the proxy it would be {self.validity}",)
        return replace(self, validity=Validity.CONDITIONAL_ON_PROXY, notes=(*self.notes, *also), evidence=())

    def to_dict(self) -> Mapping[str, Any]:
        return {"lower": self.lower, "upper": self.upper, "delta": self.delta, **self._said()}


def along_curve(quantity: str, where: str, observed: float, claimed: float) -> Comparison:
    """A standing of a lower limit anywhere on a curve, its words rounded down."""
    return Comparison(quantity, where, observed, claimed, f"{quantity} >= {format_lower(observed)} at {where}")


def format_lower(value: float, digits: int = 3) -> str:
    """`value` with `digits` decimals, never above it: a printed lower bound must hold as printed."""
    return _at(math.floor, value, digits)


def format_upper(value: float, digits: int = 3) -> str:
    """`value` with `digits` decimals, never below it."""
    return _at(math.ceil, value, digits)


def _at(direction: Callable[[float], int], value: float, digits: int) -> str:
    if not math.isfinite(value):
        return "inf" if value > 0 else "nan"
    scale = 10**digits
    return f"{direction(value * scale) / scale:.{digits}f}"
