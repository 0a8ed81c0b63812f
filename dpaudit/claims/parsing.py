"""Parser of claims as users state them: a number, a pair, or a text such as "rho=0.5"."""

from __future__ import annotations

import re

from dpaudit.claims import Claim
from dpaudit.claims.curve import GaussianDP, Relation
from dpaudit.claims.renyi import RenyiDP
from dpaudit.errors import InputError, require, shortened
from dpaudit.field_checks import try_convert

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
