"""A mislabelled record where the voters agree most, and natural queries."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpaudit.engine.games.predictions.adversaries.protocol import Crafted, Target
from dpaudit.registry import register


@register("adversary", "pois-nat-q-confident", source="Chadha et al. (2024), appendix D.2: Pois-NatQ (Confident)")
@dataclass(frozen=True)
class PoisNatQConfident:
    """The query on which most voters agree, with the label that has the most votes but one, is added; all are asked."""

    def craft(self, target: Target, rng: np.random.Generator) -> Crafted:
        """Draws among queries that are agreed upon alike."""
        most = target.votes.max(axis=1)
        query = int(rng.choice(np.flatnonzero(most == most.max())))
        return Crafted.of_one(target, target.queries.take([query]).with_(labels=target.second[[query]]))
