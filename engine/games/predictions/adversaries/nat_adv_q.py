"""Is a natural record among the data? The query is the record itself, asked again and again."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpaudit.engine.games.predictions.adversaries.protocol import Crafted, Target
from dpaudit.registry import register


@register("adversary", "nat-adv-q", source="Chadha et al. (2024), section 4.1: Nat-AdvQ")
@dataclass(frozen=True)
class NatAdvQ:
    """A query with its true label is the record that is added; it is asked again and again."""

    def craft(self, target: Target, rng: np.random.Generator) -> Crafted:
        """Draws nothing."""
        return Crafted.query_by_query(target, target.queries.labels)
