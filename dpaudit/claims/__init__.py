"""Privacy claims: a privacy curve, its neighbouring relation, and the (epsilon, delta) at which it is printed.

`claim_under` converts a claim to the neighbouring relation of a game. Rarely used curves are imported on first use.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

from dpaudit.claims.curve import (
    ApproximateDP,
    GaussianDP,
    PrivacyCurve,
    PureDP,
    Relation,
    TwoSteps,
    two_steps,
)
from dpaudit.errors import SpecError, require
from dpaudit.field_checks import check_fields, checked_argument

if TYPE_CHECKING:
    from dpaudit.claims.composition import AccountedEvent, ComposedLaplace, PrivacyProfile, SubsampledGaussian
    from dpaudit.claims.renyi import RenyiDP

__all__ = [
    "AccountedEvent",
    "ApproximateDP",
    "Claim",
    "ComposedLaplace",
    "ConvertedClaim",
    "GaussianDP",
    "PrivacyCurve",
    "PrivacyProfile",
    "PureDP",
    "Relation",
    "RenyiDP",
    "SubsampledGaussian",
    "TwoSteps",
    "claim_under",
    "two_steps",
]

_LAZY_NAMES = {
    "composition": ("AccountedEvent", "ComposedLaplace", "PrivacyProfile", "SubsampledGaussian"),
    "renyi": ("RenyiDP",),
}


def __getattr__(name: str) -> Any:
    home = next((module for module, names in _LAZY_NAMES.items() if name in names), None)
    if home is None:
        raise AttributeError(f"module 'dpaudit.claims' has no attribute {name!r}")
    return getattr(import_module(f"dpaudit.claims.{home}"), name)


@dataclass(frozen=True)
class Claim:
    """Privacy guarantee that a mechanism claims: a privacy curve under a neighbouring relation.

    `Claim(epsilon=1.0)` claims pure DP, `Claim(1.0, 1e-5)` one point, `Claim.of(GaussianDP(1.0), ...)` a curve.

    Attributes:
        epsilon: Privacy loss bound in nats at `delta`, > 0; `inf` claims nothing. Default: the curve's epsilon.
        delta: Probability mass that may exceed the bound, in [0, 1).
        relation: Neighbouring relation of the claim.
        curve: Full privacy curve, at most `epsilon` at `delta`. Default: the one point (epsilon, delta).
    """

    epsilon: float = None  # type: ignore[assignment]  # filled in from the curve
    delta: float = 0.0
    relation: Relation = Relation.LABEL
    curve: PrivacyCurve = field(default=None, metadata={"kind": "curve"})  # type: ignore[assignment]  # filled in

    def __post_init__(self) -> None:
        check_fields(self)
        epsilon, curve = cast(float | None, self.epsilon), cast(PrivacyCurve | None, self.curve)
        require(0 <= self.delta < 1, "a claimed delta must be in [0, 1)", delta=self.delta)
        if curve is None:
            require(
                epsilon is not None,
                "a claim must state epsilon, or a curve",
                do="write Claim(epsilon=1.0), or Claim.of(GaussianDP(1.0), relation=..., delta=1e-5)",
            )
            require(self.epsilon > 0, "a claimed epsilon must be > 0", epsilon=epsilon)
            object.__setattr__(self, "curve", _point_curve(self.epsilon, self.delta))
            return
        require(
            self.relation == Relation.ADD_REMOVE or not getattr(curve, "only_add_remove", False),
            f"a claim with the curve {curve} must have Relation.ADD_REMOVE",
            relation=self.relation,
        )
        promised: float = checked_argument("the epsilon of a curve", curve.epsilon(self.delta), float)
        if epsilon is None:
            object.__setattr__(self, "epsilon", promised)
        require(
            promised <= self.epsilon * (1 + 1e-6),
            "the epsilon of a claim's curve must not exceed the claim's epsilon",
            epsilon=epsilon,
            curve=f"{promised:g} at delta = {self.delta:g}",
        )

    @classmethod
    def of(cls, curve: PrivacyCurve, *, relation: Relation, delta: float = 0.0) -> Claim:
        """Return the claim of `curve` under `relation`, printed as its epsilon at `delta` in [0, 1)."""
        return cls(delta=delta, relation=relation, curve=curve)

    @property
    def is_point(self) -> bool:
        """True if the claim is only the point (epsilon, delta)."""
        return self.epsilon > 0 and self.curve == _point_curve(self.epsilon, self.delta)

    def __str__(self) -> str:
        if self.is_point and math.isinf(self.epsilon):
            return f"no privacy claimed (epsilon = inf, {self.relation})"
        curve = "" if self.is_point else f"{self.curve}; "
        return f"epsilon <= {self.epsilon:g} at delta={self.delta:g} ({curve}{self.relation})"

    def to_dict(self) -> dict[str, object]:
        """Return plain values for JSON; the curve is its description."""
        return {"epsilon": self.epsilon, "delta": self.delta, "relation": self.relation.value, "curve": str(self.curve)}


def _point_curve(epsilon: float, delta: float) -> PureDP | ApproximateDP:
    return PureDP(epsilon) if delta == 0 else ApproximateDP(epsilon, delta)


@dataclass(frozen=True)
class ConvertedClaim:
    """A claim converted to the neighbouring relation of a game."""

    claim: Claim
    note: str = ""  # explains the conversion
    # Neighbouring steps of the original claim between the two worlds: one a record, two if a record is replaced.
    steps: int = 1
    differ_in: str = ""  # difference of two neighbours in words; "" for one record or label


def claim_under(claim: Claim, relation: Relation, *, records: int = 1, audit: str = "") -> ConvertedClaim:
    """Return `claim` converted to the relation of a game whose worlds differ in `records` records.

    Replacing a record (or its label) is one removal and one addition. So an add/remove claim of (eps, delta) implies
    (2 eps, (1 + e^eps) delta) under replace and label, and a curve implies its `two_steps`. If the claim's epsilon is
    that of its curve, delta stays the same; if the claim states a larger epsilon, the pair (eps, delta) is converted.
    Replacing a label is a special case of replacing a record, so a replace claim covers labels unchanged.

    Args:
        claim: The claim as stated.
        relation: Neighbouring relation of the game.
        records: Number of records in which the two worlds differ: 1, 2, 4, 8, ....
        audit: Name of the audit, for the error message.
    Raises: SpecError if the claim implies nothing for the game's relation.
    """
    require(records >= 1 and records & (records - 1) == 0, "records must be 1, 2, 4, 8, ...", records=records)
    if claim.is_point and math.isinf(claim.epsilon):  # says nothing about any two worlds
        return ConvertedClaim(replace(claim, relation=relation))
    converted = _convert_relation(_group_claim(claim, records), relation, audit)
    if records == 1:
        return converted
    grouped = converted.claim
    note = (
        f"compared with epsilon {grouped.epsilon:g}, delta {grouped.delta:.3g} by group privacy: the two worlds "
        f"differ in {records} records"
    )
    return ConvertedClaim(grouped, f"{note}; {converted.note}" if converted.note else note, records * converted.steps)


def _group_claim(claim: Claim, records: int) -> Claim:
    """Return the claim for groups of k records.

    A point becomes (k eps, delta (e^{k eps} - 1) / (e^eps - 1)); a curve is doubled by `two_steps`, log2(k) times.
    """
    if records == 1:
        return claim
    if claim.is_point:
        missed = claim.delta * sum(math.exp(min(step * claim.epsilon, 700.0)) for step in range(records))
        return Claim(records * claim.epsilon, min(missed, 1 - 1e-12), claim.relation)
    curve = claim.curve
    for _ in range(records.bit_length() - 1):
        curve = two_steps(curve)
    return Claim.of(curve, relation=claim.relation, delta=claim.delta)


def _convert_relation(claim: Claim, relation: Relation, audit: str) -> ConvertedClaim:
    """Return `claim` converted to `relation`, for worlds one neighbouring step of `relation` apart."""
    if claim.relation == relation:
        return ConvertedClaim(claim)
    if claim.relation == Relation.REPLACE and relation == Relation.LABEL:
        return ConvertedClaim(
            Claim(claim.epsilon, claim.delta, relation, claim.curve),
            "a replace claim covers replaced labels unchanged",
        )
    if claim.relation == Relation.ADD_REMOVE:
        curve = two_steps(claim.curve)
        if claim.is_point or claim.epsilon > claim.curve.epsilon(claim.delta):  # stated as a pair, not by the curve
            delta = min(TwoSteps.missed(claim.epsilon, claim.delta), 1 - 1e-12)
            converted = Claim(max(2 * claim.epsilon, curve.epsilon(delta)), delta, relation, curve)
        else:
            converted = Claim.of(curve, relation=relation, delta=claim.delta)
        return ConvertedClaim(
            converted,
            f"compared with epsilon {converted.epsilon:g}, delta {converted.delta:.3g}: the game replaces a "
            "record, which is two steps: a removal and an addition",
            steps=2,
        )
    raise SpecError(
        f"{audit + ': ' if audit else ''}the claim is about {claim.relation} neighbours ({claim}) and says nothing "
        f"about a game with {relation} neighbours. If the mechanism guarantees it for those too, claim "
        f"`Claim({claim.epsilon:g}, {claim.delta:g}, Relation.{relation.name})`, in a spec `claim: {{epsilon: "
        f"{claim.epsilon:g}, delta: {claim.delta:g}, relation: {relation}}}`. Otherwise choose a game with "
        f"{claim.relation} neighbours"
    )
