"""A mislabelled record where the voters agree least, and natural queries."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpaudit.engine.games.predictions.adversaries.protocol import Crafted, Target
from dpaudit.registry import register


@register("adversary", "pois-nat-q-unconfident", source="Chadha et al. (2024), appendix D.2: Pois-NatQ (Unconfident)")
@dataclass(frozen=True)
class PoisNatQUnconfident:
    """The query whose two most voted labels are nearest, with the second of them, is added; all are asked."""

    def craft(self, target: Target, rng: np.random.Generator) -> Crafted:
        """Draws among queries of equal gaps."""
        ranked = np.sort(target.votes, axis=1)
        gap = ranked[:, -1] - ranked[:, -2]
        query = int(rng.choice(np.flatnonzero(gap == gap.min())))
        return Crafted.of_one(target, target.queries.take([query]).with_(labels=target.second[[query]]))
