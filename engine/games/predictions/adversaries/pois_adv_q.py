"""A mislabelled record, and a query that is the record itself, asked again and again: the strongest adversary."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpaudit.engine.games.predictions.adversaries.protocol import Crafted, Target
from dpaudit.registry import register


@register("adversary", "pois-adv-q", source="Chadha et al. (2024), section 4.1: Pois-AdvQ")
@dataclass(frozen=True)
class PoisAdvQ:
    """A query with the label that has the most votes but one is the record that is added, and is asked again."""

    def craft(self, target: Target, rng: np.random.Generator) -> Crafted:
        """Draws nothing."""
        return Crafted.query_by_query(target, target.second)
