"""What every audit ends in, whatever was measured: the one face through which reports, pages and exit codes read it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol, TypeAlias

from dpaudit.claims import PrivacyCurve

Series: TypeAlias = Mapping[str, Any]
"""Numbers to draw: arrays, numbers and words by the name of their column."""


class Validity(StrEnum):
    """In what sense a finding holds; of a bound: in what sense `Pr[bound > truth] <= 1 - confidence` does."""

    EXACT = "exact"
    """Computed, not estimated: nothing was sampled, so there is no confidence to state."""
    FINITE_SAMPLE = "finite-sample"
    """For every sample size, under the assumptions of the game alone."""
    ASYMPTOTIC = "asymptotic"
    """In the limit of many trials; may err more often for few."""
    CREDIBLE = "credible"
    """Posterior probability under the stated prior; may err more often than 1 - confidence for some true epsilon."""
    CONDITIONAL_ON_FAMILY = "conditional-on-family"
    """Only if the mechanism's trade-off function belongs to the stated family."""
    CONDITIONAL_ON_MODEL = "conditional-on-model"
    """Only if the votes of a private predictor have the law that answers were drawn from."""
    CONDITIONAL_ON_PROXY = "conditional-on-proxy"
    """Only as far as the proxy has the law of the truth; what held-out rows say of that is evidence, not proof."""
    AS_PUBLISHED = "as-published"
    """The best of several candidates on the same samples, uncorrected, as published; errs more often than it says."""


@dataclass(frozen=True)
class Comparison:
    """How a finding stands to a claim, at the point where it speaks most against it."""

    quantity: str  # what is compared: "epsilon", "RDP",
    where: str  # at which point: "delta = 1e-05", "order 8"
    observed: float  # what was found there, on the safe side of rounding
    claimed: float  # the most that the claim allows there; inf where it implies nothing
    words: str  # the observation at that point as a headline: "RDP >= 1.246163 at order 2"

    @property
    def caption(self) -> str:
        """What the numbers are, and where."""
        return f"{self.quantity} at {self.where}"

    @property
    def exceeds(self) -> bool:
        """Whether more was observed than is claimed."""
        return self.observed > self.claimed


class CurveEvidence(Protocol):
    """Evidence that speaks about the whole of a claim's curve at once, not at one delta alone."""

    def comparison(self, curve: PrivacyCurve, /) -> Comparison:
        """Observed against claimed, where on the curve it speaks most against the claim."""


class Finding(Protocol):
    """What an audit found. Frozen; `str` prints it with all its numbers."""

    @property
    def headline(self) -> str:
        """The finding in half a sentence: "epsilon >= 1.039 at delta=1e-05"; rounded so that it holds as printed."""

    @property
    def validity(self) -> Validity:
        """In what sense it holds."""

    @property
    def confidence(self) -> float | None:
        """Stated confidence, in (0, 1); None where it is exact."""

    @property
    def method(self) -> str:
        """The estimator's registered name, with its variant."""

    @property
    def selection(self) -> str:
        """How what had to be chosen (a threshold, a set of answers) was chosen, in words."""

    @property
    def counts(self) -> tuple[tuple[str, int], ...]:
        """The integers it rests on, by name."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences a reader must see beside it."""

    @property
    def series(self) -> Mapping[str, Series]:
        """Columns of numbers for figures, by what they show; `engine/finding_figures.py` describes the columns."""

    def comparison(self, curve: PrivacyCurve, /) -> Comparison:
        """Observed against claimed, at the point that speaks most against the claim."""

    def violation_point(self, curve: PrivacyCurve, /) -> Comparison | None:
        """The comparison that rejects the claim; None if none does. Always None for an `as-published` finding."""

    def to_dict(self) -> Mapping[str, Any]:
        """Plain values for JSON, without the series."""
