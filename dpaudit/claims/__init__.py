"""Privacy claims: a privacy curve, its neighbouring relation, and the (epsilon, delta) at which it is printed.

`claim_under` converts a claim to the neighbouring relation of a game, `parse_claim` reads claims as users state them,
and `Scope` says what a test is about. Composed curves are imported on first use.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

from dpaudit.claims.curve import (
    ApproximateDP,
    GaussianDP,
    PrivacyCurve,
    PureDP,
    Relation,
    RenyiDP,
    TwoSteps,
    two_steps,
)
from dpaudit.errors import InputError, SpecError, require, shortened
from dpaudit.field_checks import check_fields, checked_argument, try_convert

if TYPE_CHECKING:
    from dpaudit.claims.composition import AccountedEvent, ComposedLaplace, PrivacyProfile, SubsampledGaussian

__all__ = ["ApproximateDP", "GaussianDP", "PrivacyCurve", "PureDP", "Relation", "RenyiDP", "TwoSteps", "two_steps"]
__all__ += ["AccountedEvent", "ComposedLaplace", "PrivacyProfile", "SubsampledGaussian"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'dpaudit.claims' has no attribute {name!r}")
    return getattr(import_module("dpaudit.claims.composition"), name)


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
            self.relation in (Relation.ADD_REMOVE, Relation.ZERO_OUT) or not getattr(curve, "only_add_remove", False),
            f"a claim with the curve {curve} must have Relation.ADD_REMOVE or Relation.ZERO_OUT",
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


def claim_under(
    claim: Claim, relation: Relation, *, records: int = 1, audit: str = "", zeroes_out: bool = False
) -> ConvertedClaim:
    """Return `claim` converted to the relation of a game whose worlds differ in `records` records.

    Replacing a record (or its label) is one removal and one addition, or two contributions replaced by zero one after
    the other. So an add/remove or zero-out claim of (eps, delta) implies (2 eps, (1 + e^eps) delta) under replace and
    label, and a curve implies its `two_steps`. If the claim's epsilon is that of its curve, delta stays the same; if
    the claim states a larger epsilon, the pair (eps, delta) is converted. Replacing a label is a special case of
    replacing a record, so a replace claim covers labels unchanged. Neither add/remove nor replace implies zero-out or
    follows from it: removing a record changes their number, and no record need contribute zero.

    Args:
        claim: The claim as stated.
        relation: Neighbouring relation of the game.
        records: Number of records in which the two worlds differ: 1, 2, 4, 8, ....
        audit: Name of the audit, for the error message.
        zeroes_out: True if the worlds of an add/remove game differ by a contribution that is zero in one of them, at
            the same number of records, so that a zero-out claim covers it unchanged.
    Raises: SpecError if the claim implies nothing for the game's relation.
    """
    require(records >= 1 and records & (records - 1) == 0, "records must be 1, 2, 4, 8, ...", records=records)
    if claim.is_point and math.isinf(claim.epsilon):  # says nothing about any two worlds
        return ConvertedClaim(replace(claim, relation=relation))
    if zeroes_out and claim.relation is Relation.ZERO_OUT:
        note = "a zero-out claim covers the game unchanged: the contribution of the record is zero in one world"
        covered = Claim(claim.epsilon, claim.delta, relation, claim.curve)
        return replace(claim_under(covered, relation, records=records, audit=audit), note=note)
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
    if claim.relation in (Relation.ADD_REMOVE, Relation.ZERO_OUT) and relation in (Relation.REPLACE, Relation.LABEL):
        curve = two_steps(claim.curve)
        if claim.is_point or claim.epsilon > claim.curve.epsilon(claim.delta):  # stated as a pair, not by the curve
            delta = min(TwoSteps.missed(claim.epsilon, claim.delta), 1 - 1e-12)
            converted = Claim(max(2 * claim.epsilon, curve.epsilon(delta)), delta, relation, curve)
        else:
            converted = Claim.of(curve, relation=relation, delta=claim.delta)
        steps = "a removal and an addition" if claim.relation == Relation.ADD_REMOVE else "to zero and from zero"
        return ConvertedClaim(
            converted,
            f"compared with epsilon {converted.epsilon:g}, delta {converted.delta:.3g}: the game replaces a "
            f"record, which is two steps: {steps}",
            steps=2,
        )
    why = ". Zero-out keeps the number of records and what sums are divided by, and no record need contribute zero"
    why = why if Relation.ZERO_OUT in (claim.relation, relation) else ""
    raise SpecError(
        f"{audit + ': ' if audit else ''}the claim is about {claim.relation} neighbours ({claim}) and says nothing "
        f"about a game with {relation} neighbours{why}. If the mechanism guarantees it for those too, claim "
        f"`Claim({claim.epsilon:g}, {claim.delta:g}, Relation.{relation.name})`, in a spec `claim: {{epsilon: "
        f"{claim.epsilon:g}, delta: {claim.delta:g}, relation: {relation}}}`. Otherwise choose a game with "
        f"{claim.relation} neighbours"
    )


class Scope(StrEnum):
    """Subject of a test. Scopes other than `CLAIM` lead to side findings, which count only if `strict` names them."""

    CLAIM = "claim"
    """Rows that the schema or the relation allows, with outputs as real numbers."""
    FLOATING_POINT = "floating-point"
    """Digits of an output far below the scale of its noise."""
    BEYOND_SCHEMA = "beyond-schema"
    """Rows that the schema does not allow: out of range, NaN, missing values, new categories."""
    AVERAGE_RECORD = "average-record"
    """An ordinary record among ordinary ones, in place of the worst one."""
    STATED_NOISE = "stated-noise"
    """Noise that does not follow the stated distribution."""


NO_FRACTIONS = "No result has a fraction, so the test on unrounded results tests the claim itself."
"""Reported for a leak in the full digits when the digits cannot explain it."""
STRICT_SCOPES = (Scope.FLOATING_POINT, Scope.BEYOND_SCHEMA)
"""Scopes that `strict` can make part of the verdict."""
SIDE_SCOPES = (*STRICT_SCOPES, Scope.AVERAGE_RECORD)
"""Scopes of tests that do not share the error of the verdict."""
ALL = "all"


def strict_scopes(strict: str | Iterable[str]) -> tuple[Scope, ...]:
    """Return the scopes that `strict` names, in the order of `STRICT_SCOPES`.

    Args:
        strict: Scopes as a comma-separated text or a sequence; "all" names every scope, "" none.
    Raises: InputError for any other name.
    """
    texts = [strict] if isinstance(strict, str) else [str(text) for text in strict]
    names = [name for text in texts for part in text.split(",") if (name := part.strip())]
    allowed = [scope.value for scope in STRICT_SCOPES]
    for name in names:
        if name not in (*allowed, ALL):
            raise InputError(f"strict must name {', '.join(allowed)} or {ALL}, got {shortened(name)!r}")
    return tuple(scope for scope in STRICT_SCOPES if ALL in names or scope.value in names)


DEFAULT_DELTA = 1e-5
"""Delta at which the claim of a curve is printed by default."""
ZCDP_ORDERS = (1.01, 1.05, 1.1, 1.25, 1.5, 1.75, *map(float, range(2, 65)), 96.0, 128.0, 256.0, 512.0, 1024.0)
"""Renyi orders at which a rho-zCDP claim is evaluated; its divergence is at most rho times the order."""


def parse_claim(value: object, relation: Relation, *, delta: float = 0.0) -> Claim:
    """Return the claim that a user states.

    Args:
        value: A `Claim`, epsilon, (epsilon, delta), or a text: "1", "1, 1e-5", "rho=0.5" or "mu=1, delta=1e-6".
        relation: Neighbouring relation of the claim; ignored if `value` is a `Claim`.
        delta: Delta of the claim if `value` is epsilon alone, as a number.
    Raises: InputError for anything else.
    """
    if isinstance(value, Claim):
        return value
    if isinstance(value, str):
        return _parse_text(value, relation)
    is_number, number = try_convert(value, float)
    if is_number:
        return Claim(number, delta, relation)
    is_point, point = try_convert(value, tuple[float, float])
    if is_point:
        epsilon, delta = point
        return Claim(epsilon, delta, relation)
    raise InputError(
        f"a claim must be a Claim, epsilon, (epsilon, delta) or a text such as 'rho=0.5', got {shortened(value)}"
    )


def _parse_text(text: str, relation: Relation) -> Claim:
    stated: dict[str, float] = {}
    for place, part in enumerate(re.split(r"\s*[,;]\s*", text.strip())):
        name, sign, number = part.rpartition("=")
        key = name.strip().lower() if sign else ("epsilon", "delta")[min(place, 1)]
        require(key not in stated, "a claim must state each number once", claim=text, twice=key)
        try:
            stated[key] = float(number)
        except ValueError as err:
            raise InputError(
                f"a claim must be like '1', '1, 1e-5', 'rho=0.5' or 'mu=1', got {shortened(text)!r}"
            ) from err
    curves = stated.keys() - {"delta"}
    if len(curves) != 1 or not curves <= {"epsilon", "rho", "mu"}:
        raise InputError(f"a claim must state one of epsilon, rho and mu, and may state delta, got {shortened(text)!r}")
    (parameter,) = curves
    require(stated[parameter] > 0, f"{parameter} of a claim must be > 0", given=stated[parameter])
    if "epsilon" in stated:
        return Claim(stated["epsilon"], stated.get("delta", 0.0), relation)
    delta = stated.get("delta", DEFAULT_DELTA)
    if "mu" in stated:
        return Claim.of(GaussianDP(stated["mu"]), relation=relation, delta=delta)
    return Claim.of(
        RenyiDP(ZCDP_ORDERS, tuple(stated["rho"] * order for order in ZCDP_ORDERS)), relation=relation, delta=delta
    )
