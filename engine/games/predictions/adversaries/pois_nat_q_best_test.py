"""The mislabelled test record that votes most often on natural queries of Private-kNN."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpaudit.engine.games.predictions.adversaries.hits import expected_hits, neighbours_of
from dpaudit.engine.games.predictions.adversaries.protocol import Crafted, Target
from dpaudit.registry import register

NAME = "pois-nat-q-best-test"


@register("adversary", "pois-nat-q-best-test", source="Chadha et al. (2024), appendix D.3: Pois-NatQ (Test)")
@dataclass(frozen=True)
class PoisNatQBestTest:
    """The query with the largest expected number of votes, with the label that has the most votes but one on it."""

    def craft(self, target: Target, rng: np.random.Generator) -> Crafted:
        """Draws nothing."""
        hits = expected_hits(neighbours_of(target, adversary=NAME), target, target.queries)
        best = int(hits.argmax())
        return Crafted.of_one(target, target.queries.take([best]).with_(labels=target.second[[best]]))
