"""Claims as users state them: a number, a pair, or a text such as "rho=0.5"; one parser for all commands."""

from __future__ import annotations

import re

from dpaudit.claims import Claim
from dpaudit.claims.curve import GaussianDP, Relation
from dpaudit.claims.renyi import RenyiDP
from dpaudit.errors import InputError, require, shortened
from dpaudit.given import fitted

SHOWN_DELTA = 1e-5
"""The delta at which a curve's claim is printed, unless the user states another one."""
ORDERS = (1.01, 1.05, 1.1, 1.25, 1.5, 1.75, *map(float, range(2, 65)), 96.0, 128.0, 256.0, 512.0, 1024.0)
"""Renyi orders of a zCDP claim: the divergence is at most rho times the order, at every order above 1."""


def claim_of(given: object, relation: Relation) -> Claim:
    """Return the claim that a user states.

    Args:
        given: A `Claim`; epsilon; (epsilon, delta); or a text: "1", "1, 1e-5", "rho=0.5", "mu=1, delta=1e-6".
        relation: The neighbouring relation; a `Claim` has its own.
    Raises: InputError for anything else.
    """
    if isinstance(given, Claim):
        return given
    if isinstance(given, str):
        return _of_text(given, relation)
    is_number, number = fitted(given, float)
    if is_number:
        return Claim(number, relation=relation)
    is_point, point = fitted(given, tuple[float, float])
    if is_point:
        epsilon, delta = point
        return Claim(epsilon, delta, relation)
    shown = shortened(given)
    raise InputError(f"a claim must be a Claim, epsilon, (epsilon, delta) or a text such as 'rho=0.5', got {shown}")


def _of_text(given: str, relation: Relation) -> Claim:
    stated: dict[str, float] = {}
    for place, part in enumerate(re.split(r"\s*[,;]\s*", given.strip())):
        name, sign, number = part.rpartition("=")
        key = name.strip().lower() if sign else ("epsilon", "delta")[min(place, 1)]
        require(key not in stated, "a claim must state each number once", claim=given, twice=key)
        try:
            stated[key] = float(number)
        except ValueError as err:
            shown = repr(shortened(given))
            raise InputError(f"a claim must be like '1', '1, 1e-5', 'rho=0.5' or 'mu=1', got {shown}") from err
    curves = stated.keys() - {"delta"}
    if len(curves) != 1 or not curves <= {"epsilon", "rho", "mu"}:
        shown = repr(shortened(given))
        raise InputError(f"a claim must state one of epsilon, rho and mu, and may state delta, got {shown}")
    (named,) = curves
    require(stated[named] > 0, f"{named} of a claim must be > 0", given=stated[named])
    if "epsilon" in stated:
        return Claim(stated["epsilon"], stated.get("delta", 0.0), relation)
    delta = stated.get("delta", SHOWN_DELTA)
    if "mu" in stated:
        return Claim.of(GaussianDP(stated["mu"]), relation=relation, delta=delta)
    return Claim.of(RenyiDP(ORDERS, tuple(stated["rho"] * order for order in ORDERS)), relation=relation, delta=delta)
