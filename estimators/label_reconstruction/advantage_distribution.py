"""The finding about label reconstruction: how much better each example's label is guessed after a release."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from dpaudit.claims import PrivacyCurve
from dpaudit.errors import require
from dpaudit.estimators.bound import rounded_down
from dpaudit.estimators.finding import Breach, Standing, Validity, breach_at
from dpaudit.estimators.label_reconstruction.advantage import label_privacy_ceiling
from dpaudit.estimators.series import Series

Kind = Literal["additive", "multiplicative"]
QUANTITIES: Mapping[Kind, str] = {
    "additive": "mean additive advantage",
    "multiplicative": "largest multiplicative advantage",
}
"""What is compared with a claim: the mean of the additive advantages, the largest shift of log-odds."""

# Log-odds of posteriors carry rounding errors of some 1e-16: what is compared with a claim is lowered by far more.
_SAFE = 1 - 1e-9


@dataclass(frozen=True)
class AdvantageDistribution:
    """Advantages of all examples, in absolute value; exact given the priors: no confidence.

    Attributes:
        kind: "additive": how much likelier the best guess is right, on average over releases, in [0, 1].
            "multiplicative": how far one release moves the log-odds, in nats.
        mean: Over the examples, >= 0; may be inf.
        largest: Over the examples, >= 0; may be inf.
        quantiles: Level in [0, 1] and the advantage that this share of the examples stays within.
        within: Threshold and the share of examples that stays within it.
        method: The estimator's registered name, with its variant.
        counts: Examples, bags, releases.
        notes: Sentences a reader must see beside it.
        series: What there is to draw.
    """

    kind: Kind
    mean: float
    largest: float
    quantiles: tuple[tuple[float, float], ...]
    method: str
    within: tuple[tuple[float, float], ...] = ()
    counts: tuple[tuple[str, int], ...] = ()
    notes: tuple[str, ...] = ()
    series: tuple[Series, ...] = field(default=(), compare=False, repr=False)

    def __post_init__(self) -> None:
        require(self.kind in QUANTITIES, f"kind must be one of {', '.join(QUANTITIES)}", kind=self.kind)
        require(self.mean >= 0, "a mean of advantages must be >= 0", mean=self.mean)
        require(self.largest >= 0, "the largest advantage must be >= 0", largest=self.largest)

    @property
    def validity(self) -> Validity:
        """Exact: nothing was sampled."""
        return Validity.EXACT

    @property
    def confidence(self) -> None:
        """None: there is nothing to be confident about."""
        return None

    @property
    def selection(self) -> str:
        """Nothing was chosen."""
        return "every example"

    @property
    def _compared(self) -> float:
        return (self.mean if self.kind == "additive" else self.largest) * _SAFE

    @property
    def headline(self) -> str:
        """What is compared with a claim."""
        unit = " nats" if self.kind == "multiplicative" else ""
        return f"{QUANTITIES[self.kind]} {rounded_down(self._compared, 6)}{unit}"

    def standing(self, curve: PrivacyCurve) -> Standing:
        """Beside the most that label privacy with the epsilon claimed at delta = 0 allows."""
        epsilon = curve.epsilon(0.0)
        allowed = epsilon
        if self.kind == "additive":
            allowed = math.inf if math.isinf(epsilon) else label_privacy_ceiling(epsilon)
        return Standing(QUANTITIES[self.kind], "delta = 0", self._compared, allowed, self.headline)

    def breach(self, curve: PrivacyCurve) -> Breach | None:
        """Where the claim broke; None where it did not."""
        return breach_at(self.standing(curve), self.validity)

    def to_dict(self) -> Mapping[str, Any]:
        """Plain values for JSON, without the series."""
        return {
            "kind": self.kind,
            "mean": self.mean,
            "largest": self.largest,
            "quantiles": [list(pair) for pair in self.quantiles],
            "within": [list(pair) for pair in self.within],
            "confidence": None,
            "method": self.method,
            "selection": self.selection,
            "validity": self.validity.value,
            "counts": dict(self.counts),
            "notes": list(self.notes),
        }

    def __str__(self) -> str:
        shown = ", ".join(f"{level:g} quantile {value:.6g}" for level, value in self.quantiles)
        return f"{self.headline} (exact given the priors; {self.method}; {shown})"
