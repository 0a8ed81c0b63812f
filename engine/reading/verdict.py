"""Compares a finding with the claim it is about; `Fits.compared` brings both under one relation."""

from __future__ import annotations

import math
from enum import StrEnum

from dpaudit.claims import Claim
from dpaudit.estimators.finding import Finding, Validity


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
    Verdict.NO_VIOLATION: "#15803d",
    Verdict.INCONCLUSIVE: "#6b7280",
    Verdict.NO_CLAIM: "#475569",
    Verdict.UNDECIDED: "#a16207",
    Verdict.FAILED: "#a16207",
}
"""Of each verdict, on pages and in charts."""


def verdict(finding: Finding | None, claim: Claim) -> Verdict:
    """What a finding says of a claim under the same relation."""
    if finding is None:
        return Verdict.FAILED
    if claim.is_point and math.isinf(claim.epsilon):
        return Verdict.NO_CLAIM
    return Verdict.VIOLATION if finding.violation_point(claim.curve) else Verdict.NO_VIOLATION


def caution(validity: Validity) -> str:
    """What a reader must know before trusting the stated confidence; "" when nothing."""
    return {
        Validity.EXACT: "",
        Validity.FINITE_SAMPLE: "",
        Validity.ASYMPTOTIC: "valid for many trials only",
        Validity.CREDIBLE: "a credible bound: for some mechanisms it exceeds the truth more often than stated",
        Validity.CONDITIONAL_ON_FAMILY: "valid only if the mechanism's trade-off function belongs to the stated family",
        Validity.CONDITIONAL_ON_MODEL: "valid only if the votes have the distribution that answers were drawn from: "
        "it was fitted to several trainings, or stands for sampled records",
        Validity.CONDITIONAL_ON_PROXY: "valid only if the proxy matches the true label distribution; held-out rows "
        "support this, they cannot prove it",
        Validity.AS_PUBLISHED: "WARNING: chosen on the samples it is measured on, as published; not a valid bound",
    }[validity]
