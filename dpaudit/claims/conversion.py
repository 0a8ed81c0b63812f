"""A claim under the neighbouring relation of the game that is to test it, about as many records as differ there."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dpaudit.claims.claim import Claim
from dpaudit.claims.relation import Relation
from dpaudit.claims.two_steps import two_step_missed, two_steps
from dpaudit.errors import SpecError, require


@dataclass(frozen=True)
class ConvertedClaim:
    """A claim as the game's relation sees it.

    Attributes:
        claim: The claim, converted.
        note: How it was converted; "" when it was not.
        steps: Steps of the claim's own relation between the two worlds, >= 1: records that differ, twice where each
            is removed and another one added.
    """

    claim: Claim
    note: str = ""
    steps: int = 1


def claim_under(claim: Claim, relation: Relation, *, records: int = 1, audit: str = "") -> ConvertedClaim:
    """The claim under the game's neighbouring relation, about worlds that differ in so many records.

    Replacing a record (or its label) is removing one and adding another: an add/remove claim of (eps, delta) implies
    (2 eps, (1 + e^eps) delta) under replace and label, a curve implies its `two_steps`. A claim whose epsilon is its
    curve's keeps its delta; one that states an epsilon of its own is converted as these two numbers are. Replacing a
    label is a way of replacing a record, so a replace claim covers labels as it stands.

    Args:
        claim: As stated.
        relation: Of the game.
        records: In which the two worlds differ: 1, 2, 4, 8, ....
        audit: The audit's name, for the message.
    Raises: SpecError where the claim says nothing about the game's neighbours.
    """
    require(records >= 1 and records & (records - 1) == 0, "records must be 1, 2, 4, 8, ...", records=records)
    if claim.is_point and math.isinf(claim.epsilon):
        return ConvertedClaim(claim)
    converted = _about_one_record(_about_group(claim, records), relation, audit)
    if records == 1:
        return converted
    grouped = converted.claim
    note = (
        f"the two worlds differ in {records} records, what is claimed is about one (epsilon {claim.epsilon:g}, delta "
        f"{claim.delta:g}): by group privacy compared with epsilon {grouped.epsilon:g}, delta {grouped.delta:.3g}"
    )
    return ConvertedClaim(grouped, f"{note}; {converted.note}" if converted.note else note, records * converted.steps)


def _about_group(claim: Claim, records: int) -> Claim:
    """Group privacy: a point becomes (k eps, delta (e^{k eps} - 1) / (e^eps - 1)), a curve its two steps, again."""
    if records == 1:
        return claim
    if claim.is_point:
        missed = claim.delta * sum(math.exp(min(step * claim.epsilon, 700.0)) for step in range(records))
        return Claim(records * claim.epsilon, min(missed, 1 - 1e-12), claim.relation)
    curve = claim.curve
    for _ in range(records.bit_length() - 1):
        curve = two_steps(curve)
    return Claim.of(curve, relation=claim.relation, delta=claim.delta)


def _about_one_record(claim: Claim, relation: Relation, audit: str) -> ConvertedClaim:
    """The claim under another relation, whatever it calls a record."""
    if claim.relation == relation:
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
        steps=2,
    )
