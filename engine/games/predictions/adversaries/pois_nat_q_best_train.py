"""The record of the data that votes most often on natural queries of Private-kNN, once more and mislabelled."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpaudit.engine.games.predictions.adversaries.hits import expected_hits, least_expected, neighbours_of
from dpaudit.engine.games.predictions.adversaries.protocol import Crafted, Target
from dpaudit.registry import register

NAME = "pois-nat-q-best-train"


@register("adversary", "pois-nat-q-best-train", source="Chadha et al. (2024), appendix D.3: Pois-NatQ (Train)")
@dataclass(frozen=True)
class PoisNatQBestTrain:
    """The record with the largest expected number of votes, with the label that has the most votes but one over all."""

    def craft(self, target: Target, rng: np.random.Generator) -> Crafted:
        """Draws nothing."""
        hits = expected_hits(neighbours_of(target, adversary=NAME), target, target.data)
        best, label = int(hits.argmax()), least_expected(target)
        return Crafted.of_one(target, target.data.take([best]).with_(labels=np.array([label])))
