"""Choice of a sweep's game, if its spec names none, by the power of each game that also measures utility."""

from __future__ import annotations

import math
from dataclasses import replace

from dpaudit.engine.planning.plan import make_plan
from dpaudit.engine.planning.power import planned_outlook
from dpaudit.engine.request.audit_spec import Audit, AuditSpec
from dpaudit.errors import AuditError

GAMES = ("label-canaries", "label-inference", "membership", "observational-membership")
"""Games with one training that report its utility."""


def strongest_game(audit: Audit, seed: int) -> str:
    """Return the game that detects the smallest reduction of the noise for this mechanism, claim and data.

    Games that assume a proxy come last, since their bounds cannot reject a claim on their own. Returns the default game
    of an audit if none can be planned, so that its error is reported.
    """
    ranks = {name: rank for name in GAMES if (rank := _rank(audit, name, seed)) is not None}
    return min(ranks, key=lambda name: ranks[name], default=str(audit.game))


def _rank(audit: Audit, game: str, seed: int) -> tuple[bool, bool, float, float] | None:
    """Return a sort key, smaller for a stronger game; None if the game does not fit."""
    try:
        (entry,) = make_plan(AuditSpec((replace(audit, game=game),), seed=seed)).audits
        outlook = planned_outlook(entry)
    except AuditError:
        return None
    if outlook is None:
        return None
    factor = 1.0 if outlook.factor is None else outlook.factor
    return outlook.ceiling <= outlook.claimed < math.inf, entry.game.conditional, factor, -outlook.ceiling
