"""A claim under the neighbouring relation of the game that is to test it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dpaudit.claims.claim import Claim
from dpaudit.claims.relation import Relation
from dpaudit.claims.two_steps import two_step_missed, two_steps
from dpaudit.errors import SpecError


@dataclass(frozen=True)
class ConvertedClaim:
    """A claim as the game's relation sees it.

    Attributes:
        claim: The claim, converted.
        note: How it was converted; "" when it was not.
    """

    claim: Claim
    note: str = ""


def claim_under(claim: Claim, relation: Relation, *, audit: str = "") -> ConvertedClaim:
    """The claim under the game's neighbouring relation.

    Replacing a record (or its label) is removing one and adding another: an add/remove claim of (eps, delta) implies
    (2 eps, (1 + e^eps) delta) under replace and label, a curve implies its `two_steps`. A claim whose epsilon is its
    curve's keeps its delta; one that states an epsilon of its own is converted as these two numbers are. Replacing a
    label is a way of replacing a record, so a replace claim covers labels as it stands.

    Args:
        claim: As stated.
        relation: Of the game.
        audit: The audit's name, for the message.
    Raises: SpecError where the claim says nothing about the game's neighbours.
    """
    if claim.relation == relation or (claim.is_point and math.isinf(claim.epsilon)):
        return ConvertedClaim(claim)
    if claim.relation == Relation.REPLACE and relation == Relation.LABEL:
        return ConvertedClaim(
            Claim(claim.epsilon, claim.delta, relation, claim.curve),
            "a replace claim covers replaced labels as it stands",
        )
    if claim.relation == Relation.ADD_REMOVE:
        return _two_step_claim(claim, relation)
    raise SpecError(
        f"{audit + ': ' if audit else ''}the claim is about {claim.relation} neighbours ({claim}) and says nothing "
        f"about a game with {relation} neighbours; if the mechanism promises it for those too, say so: "
        f"`Claim({claim.epsilon:g}, {claim.delta:g}, Relation.{relation.name})`, in a spec `claim: {{epsilon: "
        f"{claim.epsilon:g}, delta: {claim.delta:g}, relation: {relation}}}`; or choose a game with {claim.relation} "
        "neighbours"
    )


def _two_step_claim(claim: Claim, relation: Relation) -> ConvertedClaim:
    curve = two_steps(claim.curve)
    if claim.is_point or claim.epsilon > claim.curve.epsilon(claim.delta):  # stated in two numbers of its own
        delta = min(two_step_missed(claim.epsilon, claim.delta), 1 - 1e-12)
        converted = Claim(max(2 * claim.epsilon, curve.epsilon(delta)), delta, relation, curve)
    else:
        converted = Claim.of(curve, relation=relation, delta=claim.delta)
    kind = "" if claim.is_point else f"{claim.curve}: "
    return ConvertedClaim(
        converted,
        f"the claim ({kind}epsilon {claim.epsilon:g}, delta {claim.delta:g}) is about adding or removing a record, "
        f"the game replaces one, which costs two steps: compared with epsilon {converted.epsilon:g}, "
        f"delta {converted.delta:.3g}",
    )
