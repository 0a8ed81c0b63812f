"""The ceiling: what a mechanism with no privacy would show in the same audit, with the same attack and estimator.

An audit whose ceiling does not exceed the claim could not have refuted it, whatever the mechanism does: that it found
no violation says nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dpaudit.claims import PrivacyCurve
from dpaudit.estimators.bound import format_upper
from dpaudit.estimators.finding import Finding


@dataclass(frozen=True)
class Ceiling:
    """What a mechanism with no privacy would show."""

    finding: Finding  # the estimator's, from its evidence
    # Whether the game was played, with what is at stake as the mechanism's answers; else every bit is told, which needs
    # no playing
    played: bool
    helps: str = ""  # what would let the audit show more; "" where nothing is known

    def exceeds(self, curve: PrivacyCurve) -> bool:
        """Whether it exceeds the claim anywhere."""
        comparison = self.finding.comparison(curve)
        return comparison.observed > comparison.claimed

    @property
    def line(self) -> str:
        """For a reader, in one line."""
        return f"maximum detectable: {self.finding.headline}, what a mechanism with no privacy would show"

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {**self.finding.to_dict(), "played": self.played, "says": self.line, "helps": self.helps}

    def too_low(self, curve: PrivacyCurve) -> str:
        """Why nothing follows from a finding below the claim, and what would help."""
        comparison = self.finding.comparison(curve)
        helps = f"; for more power: {self.helps}" if self.helps else ""
        return (
            f"this audit cannot detect a violation: even a mechanism with no privacy would show only "
            f"{comparison.quantity} {format_upper(comparison.observed)} at {comparison.where}{helps}"
        )
