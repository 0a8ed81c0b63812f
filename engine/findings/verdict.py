"""Compares a bound with the claim it is about, under the same neighbouring relation."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from dpaudit.claims import Claim, Relation
from dpaudit.errors import SpecError
from dpaudit.estimators.bound import Bound, Validity


class Verdict(StrEnum):
    """What the evidence says of the claim."""

    VIOLATION = "VIOLATION"
    """The bound exceeds the claim."""
    NO_VIOLATION = "NO VIOLATION FOUND"
    """It does not; that is no evidence of privacy."""
    NOT_TRUSTWORTHY = "NOT TRUSTWORTHY"
    """It does, and so does the same attack on rows the mechanism never saw: what it shows is no leak."""
    NO_CLAIM = "NO CLAIM"
    """Nothing was claimed; the bound stands alone."""
    FAILED = "FAILED"
    """There is no bound: too much of the audit failed."""


@dataclass(frozen=True)
class Comparison:
    """A claim as the game's relation sees it.

    Attributes:
        claim: The claim, converted.
        note: How it was converted; "" when it was not.
    """

    claim: Claim
    note: str = ""


def comparable(claim: Claim, relation: Relation) -> Comparison:
    """The claim under the game's neighbouring relation.

    Replacing a record (or its label) is removing one and adding another: an add/remove claim of (eps, delta) implies
    (2 eps, (1 + e^eps) delta) under replace and label (two-step hybrid). Replacing a label is a way of replacing a
    record, so a replace claim covers labels as it stands.

    Raises: SpecError where the claim says nothing about the game's neighbours.
    """
    if claim.relation == relation or math.isinf(claim.epsilon):
        return Comparison(claim)
    if claim.relation == Relation.REPLACE and relation == Relation.LABEL:
        return Comparison(
            Claim(claim.epsilon, claim.delta, relation), "a replace claim covers replaced labels as it stands"
        )
    if claim.relation == Relation.ADD_REMOVE:
        delta = min((1 + math.exp(min(claim.epsilon, 700.0))) * claim.delta, 1 - 1e-12)
        converted = Claim(2 * claim.epsilon, delta, relation)
        return Comparison(
            converted,
            f"the claim (epsilon {claim.epsilon:g}, delta {claim.delta:g}) is about adding or removing a record, "
            f"the game replaces one, which costs two steps: compared with epsilon {converted.epsilon:g}, "
            f"delta {converted.delta:.3g}",
        )
    raise SpecError(
        f"a claim about {claim.relation} neighbours says nothing about a game with {relation} neighbours; "
        f"choose a game of the claim's relation, or state another `claim`"
    )


def verdict(bound: Bound | None, claim: Claim) -> Verdict:
    """What a bound says of a claim under the same relation."""
    if bound is None:
        return Verdict.FAILED
    if math.isinf(claim.epsilon):
        return Verdict.NO_CLAIM
    return Verdict.VIOLATION if bound.lower > claim.epsilon else Verdict.NO_VIOLATION


def caution(bound: Bound) -> str:
    """What a reader must know before trusting the stated confidence; "" when nothing."""
    return {
        Validity.FINITE_SAMPLE: "",
        Validity.ASYMPTOTIC: "the confidence holds for many trials only",
        Validity.CREDIBLE: "a credible bound: it exceeds the truth more often than stated for some mechanisms",
        Validity.CONDITIONAL_ON_FAMILY: "holds only if the mechanism's trade-off function belongs to the stated family",
        Validity.AS_PUBLISHED: "WARNING: chosen on the samples it is measured on, as published; not a valid bound",
    }[bound.validity]
