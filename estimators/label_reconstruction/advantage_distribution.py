"""The finding about label reconstruction: how much better each example's label is guessed after a release."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from dpaudit.claims import PrivacyCurve
from dpaudit.errors import require
from dpaudit.estimators.bound import format_lower
from dpaudit.estimators.finding import Comparison, FindingBase, Series, Validity
from dpaudit.estimators.label_reconstruction.advantage import label_privacy_ceiling

Kind = Literal["additive", "multiplicative", "tail"]
WORDS: Mapping[str, str] = {
    "additive": "additive advantage",
    "multiplicative": "multiplicative advantage",
    "tail": "additive advantage at one release",
}
QUANTITIES: Mapping[str, str] = {
    "additive": "mean additive advantage",
    "multiplicative": "largest multiplicative advantage",
    "tail": "largest additive advantage at one release",
}
"""What is compared with a claim: the mean additive advantage, the largest shift of log-odds, the largest gain."""

# Log-odds of posteriors carry rounding errors of some 1e-16: what is compared with a claim is lowered by far more.
_SAFE = 1 - 1e-9


APART = 3.0
"""Standard errors beyond which computed and realised advantage are said to differ."""


@dataclass(frozen=True)
class Realised:
    """The attacker played against true labels, beside what its beliefs say of itself.

    Attributes:
        computed: How much likelier its guesses are right once the release is out, by its own posteriors; mean.
        realised: How much more often they were right.
        error: Standard error of the difference, at most.
    """

    computed: float
    realised: float
    error: float

    @property
    def parts(self) -> bool:
        """Whether the two differ by more than chance."""
        return abs(self.realised - self.computed) > APART * self.error

    def __str__(self) -> str:
        said = (
            "they part: the priors are not calibrated, and advantages computed from them are off by as much"
            if self.parts
            else "no more apart than chance"
        )
        return (
            f"played against true labels the attacker gains {self.realised:.5f}, by its own beliefs "
            f"{self.computed:.5f} (difference {self.realised - self.computed:+.5f}, standard error {self.error:.5f}): "
            f"{said}"
        )


@dataclass(frozen=True)
class AdvantageDistribution(FindingBase):
    """Advantages of all examples, in absolute value; exact given the priors: no confidence.

    Attributes:
        kind: "additive": how much likelier the best guess is right, on average over releases, in [0, 1].
            "multiplicative": how far one release moves the log-odds, in nats. "tail": how much likelier the best guess
            is right at one release than before it, 0 where it is not.
        mean: Over the examples, >= 0; may be inf.
        largest: Over the examples, >= 0; may be inf.
        quantiles: Level in [0, 1] and the advantage that this share of the examples stays within.
        within: Threshold and the share of examples that stays within it.
        method: The estimator's registered name, with its variant.
        counts: Examples, bags, releases.
        notes: Sentences a reader must see beside it.
        series: What there is to draw, by name.
        realised: The attacker played against true labels; None where they are not known.
    """

    kind: Kind
    mean: float
    largest: float
    quantiles: tuple[tuple[float, float], ...]
    method: str
    within: tuple[tuple[float, float], ...] = ()
    counts: tuple[tuple[str, int], ...] = ()
    notes: tuple[str, ...] = ()
    series: Mapping[str, Series] = field(default_factory=dict, compare=False, repr=False)
    realised: Realised | None = None

    def __post_init__(self) -> None:
        require(self.kind in QUANTITIES, f"kind must be one of {', '.join(QUANTITIES)}", kind=self.kind)
        require(self.mean >= 0, "a mean of advantages must be >= 0", mean=self.mean)
        require(self.largest >= 0, "the largest advantage must be >= 0", largest=self.largest)
        if self.realised is not None:
            object.__setattr__(self, "notes", (*self.notes, str(self.realised)))

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
        return f"{QUANTITIES[self.kind]} {format_lower(self._compared, 6)}{unit}"

    def comparison(self, curve: PrivacyCurve) -> Comparison:
        """Beside the most that label privacy with the epsilon claimed at delta = 0 allows."""
        allowed = _allowed(self.kind, curve.epsilon(0.0))
        return Comparison(QUANTITIES[self.kind], "delta = 0", self._compared, allowed, self.headline)

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
            "realised": None if self.realised is None else asdict(self.realised),
            "notes": list(self.notes),
        }

    def __str__(self) -> str:
        shown = ", ".join(f"{level:g} quantile {value:.6g}" for level, value in self.quantiles)
        return f"{self.headline} (exact given the priors; {self.method}; {shown})"


def _allowed(kind: Kind, epsilon: float) -> float:
    """The most that a release with label privacy `epsilon` allows.

    A belief whose log-odds move by epsilon makes the best guess likelier right by at most e^eps/(1 + e^eps) - 1/2, from
    a prior of 1/2: half of what Wu et al. (2023) allow the mean.
    """
    if kind == "multiplicative" or math.isinf(epsilon):
        return epsilon
    return label_privacy_ceiling(epsilon) / (2 if kind == "tail" else 1)
