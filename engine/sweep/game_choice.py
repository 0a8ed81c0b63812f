"""Choice of a sweep's game, if its spec names none, by the power of each game for its learner."""

from __future__ import annotations

import math
from dataclasses import replace

from dpaudit.engine.planning.plan import make_plan
from dpaudit.engine.planning.power import planned_outlook
from dpaudit.engine.request.audit_spec import Audit, AuditSpec, default_game
from dpaudit.engine.request.build import build
from dpaudit.engine.request.check import matching_tests
from dpaudit.errors import AuditError
from dpaudit.mechanisms.learners.pate import PATE
from dpaudit.mechanisms.models.networks import Mlp, Network

CRAFTED = "label-crafted"
"""Game that searches training data whose model gives single labels away: the strongest for a claim about labels, as a
model of ordinary rows remembers few of them. It trains hundreds of times on few rows, which takes seconds except for
large networks and for many teachers.
"""
ONE_TRAINING = ("label-canaries", "label-inference", "membership", "observational-membership")
"""Games with one training."""


def most_powerful_game(audit: Audit, seed: int) -> str:
    """Return the game with the most power for this mechanism, claim and data.

    `label-crafted` comes first if it fits and each training is quick. Then come games with one training, by the
    smallest reduction of the noise that they detect. Those with another relation than the claim's, and those that
    assume a proxy, come last. Returns the default game of an audit if no game can be planned: planning it reports the
    error.
    """
    if _is_quick(audit) and _rank(audit, CRAFTED, seed) is not None:
        return CRAFTED
    ranks = {name: rank for name in ONE_TRAINING if (rank := _rank(audit, name, seed)) is not None}
    return min(ranks, key=lambda name: ranks[name], default=default_game(audit))


def _is_quick(audit: Audit) -> bool:
    """Return True if `check` would play `label-crafted` on the mechanism, and it trains one model, no large network."""
    try:
        mechanism = build("mechanism", audit.mechanism, location="mechanism")
    except AuditError:
        return False
    model, claim = getattr(mechanism, "model", None), audit.claim
    is_large = isinstance(model, Network) and not isinstance(model, Mlp)
    if model is None or is_large or isinstance(mechanism, PATE) or isinstance(claim, str):
        return False
    tests = matching_tests(mechanism, mechanism.claim() if claim is None else claim)[0]
    return any(test.game == CRAFTED for test in tests)


def _rank(audit: Audit, game: str, seed: int) -> tuple[bool, bool, bool, float] | None:
    """Return a sort key, smaller for a stronger game; None if the game does not fit."""
    try:
        (entry,) = make_plan(AuditSpec((replace(audit, game=game),), seed=seed)).audits
        outlook = planned_outlook(entry)
    except AuditError:
        return None
    if outlook is None:
        return False, False, entry.game.conditional, 1.0
    is_blind = outlook.ceiling <= outlook.claimed < math.inf
    converted = entry.audit.game.traits.compared(entry.effective_claim).steps > 1
    return is_blind, converted, entry.game.conditional, 1.0 if outlook.factor is None else outlook.factor
