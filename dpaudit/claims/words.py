"""Claims as people state them: a number, two numbers, "rho=0.5" (zCDP), "mu=1" (Gaussian DP)."""

from __future__ import annotations

import re
from collections.abc import Sequence

from dpaudit.claims import Claim, GaussianDP, Relation, RenyiDP
from dpaudit.errors import InputError, require
from dpaudit.given import is_number

SHOWN_DELTA = 1e-5
"""Where a curve's claim is printed, if nothing else is said."""
ORDERS = (1.01, 1.05, 1.1, 1.25, 1.5, 1.75, *map(float, range(2, 65)), 96.0, 128.0, 256.0, 512.0, 1024.0)
"""Renyi orders that a zCDP claim is held to: rho times the order at every order above 1."""


def claim_of(given: object, relation: Relation) -> Claim:
    """The claim that is meant.

    Args:
        given: A `Claim`; epsilon; (epsilon, delta); or a text: "1", "1, 1e-5", "rho=0.5", "mu=1, delta=1e-6".
        relation: Which tables are neighbours; a `Claim` has its own.
    Raises: InputError for anything else.
    """
    if isinstance(given, Claim):
        return given
    if is_number(given):
        return Claim(float(given), relation=relation)  # type: ignore[arg-type]
    if isinstance(given, str):
        return _in_words(given, relation)
    if isinstance(given, Sequence) and len(given) == 2 and all(map(is_number, given)):
        return Claim(float(given[0]), float(given[1]), relation)
    raise InputError(f"a claim must be a Claim, epsilon, (epsilon, delta) or a text such as 'rho=0.5', got {given!r}")


def _in_words(given: str, relation: Relation) -> Claim:
    stated: dict[str, float] = {}
    for place, part in enumerate(re.split(r"\s*[,;]\s*", given.strip())):
        name, sign, number = part.rpartition("=")
        try:
            stated[name.strip().lower() if sign else ("epsilon", "delta")[min(place, 1)]] = float(number)
        except ValueError as err:
            raise InputError(f"a claim must be like '1', '1, 1e-5', 'rho=0.5' or 'mu=1', got {given!r}") from err
    curves = stated.keys() - {"delta"}
    if len(curves) != 1 or not curves <= {"epsilon", "rho", "mu"}:
        raise InputError(f"a claim must state one of epsilon, rho and mu, and may state delta, got {given!r}")
    (named,) = curves
    require(stated[named] > 0, f"{named} of a claim must be > 0", given=stated[named])
    if "epsilon" in stated:
        return Claim(stated["epsilon"], stated.get("delta", 0.0), relation)
    delta = stated.get("delta", SHOWN_DELTA)
    if "mu" in stated:
        return Claim.of(GaussianDP(stated["mu"]), relation=relation, delta=delta)
    return Claim.of(RenyiDP(ORDERS, tuple(stated["rho"] * order for order in ORDERS)), relation=relation, delta=delta)
