"""Compares a finding with the claim it is about; `Fits.compared` brings both under one relation."""

from __future__ import annotations

import math
from enum import StrEnum

from dpaudit.claims import Claim
from dpaudit.estimators.finding import Finding


class Verdict(StrEnum):
    """What the evidence says of the claim."""

    VIOLATION = "VIOLATION"
    """The bound exceeds the claim."""
    NO_VIOLATION = "NO VIOLATION FOUND"
    """It does not; that is no evidence of privacy."""
    UNDECIDED = "UNDECIDED"
    """It does, but the bound takes a proxy for the truth, and one that is off by so much is not excluded."""
    INCONCLUSIVE = "INCONCLUSIVE"
    """It does not, and neither would that of a mechanism with no privacy: nothing could have been seen."""
    NO_CLAIM = "NO CLAIM"
    """Nothing was claimed; the bound stands alone."""
    FAILED = "FAILED"
    """There is no bound: too much of the audit failed."""


COLOURS = {
    Verdict.VIOLATION: "#b91c1c",
    Verdict.NO_VIOLATION: "#1d4ed8",
    Verdict.INCONCLUSIVE: "#6b7280",
    Verdict.NO_CLAIM: "#475569",
    Verdict.UNDECIDED: "#a16207",
    Verdict.FAILED: "#a16207",
}
"""Of each verdict, on pages and in charts. "No violation found" is no green light."""
NEXT = {
    Verdict.VIOLATION: "Take the claim for false. Look at sensitivity, clipping, noise scale, accounting and random "
    "seeds; then run it again with another seed, before and after the change.",
    Verdict.NO_VIOLATION: "This is no proof of privacy. Other games may see what this one cannot: `dpaudit check` "
    "plays every one that fits.",
    Verdict.INCONCLUSIVE: "Nothing is learned about the claim. `dpaudit plan` says before a run what it could show.",
    Verdict.NO_CLAIM: "State a `claim` to have the bound held against it.",
    Verdict.UNDECIDED: "Do what the caution above says, and run again.",
    Verdict.FAILED: "Mend what failed and run again: what is finished is kept.",
}
"""What to do after each verdict."""


def verdict(finding: Finding | None, claim: Claim) -> Verdict:
    """What a finding says of a claim under the same relation."""
    if finding is None:
        return Verdict.FAILED
    if claim.is_point and math.isinf(claim.epsilon):
        return Verdict.NO_CLAIM
    return Verdict.VIOLATION if finding.violation_point(claim.curve) else Verdict.NO_VIOLATION
