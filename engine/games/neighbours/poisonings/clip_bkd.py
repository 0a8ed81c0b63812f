"""ClipBKD: poisoned rows along the direction in which the data vary least, whose class differs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpaudit.claims import Relation
from dpaudit.engine.games.neighbours.poisonings.protocol import other_class
from dpaudit.engine.games.neighbours.poisonings.worlds import Worlds, features_of, replaced
from dpaudit.engine.games.two_world.canaries.clip_bkd import ClipBackdoor
from dpaudit.errors import require
from dpaudit.mechanisms.examples import Examples
from dpaudit.registry import register


@register("poisoning", "clip-bkd", source="Jagielski et al. (2020), arXiv:2006.07709, Algorithm 2; its code")
@dataclass(frozen=True)
class ClipBackdoorPair:
    """In both worlds some rows stand on the last principal direction; in world 1 with their least likely class.

    Trained models are asked about that point, about zero, and about some rows of the data.

    Attributes:
        norm: Length of the point, > 0; None takes the median length of the rows.
        asked: Rows of the data that models are asked about as well, >= 0.
    """

    relation: ClassVar[Relation] = Relation.LABEL

    norm: float | None = None
    asked: int = 4

    def __post_init__(self) -> None:
        require(self.asked >= 0, "asked must be >= 0", asked=self.asked)
        ClipBackdoor(norm=self.norm)

    def worlds(self, data: Examples, copies: int, rng: np.random.Generator) -> Worlds:
        """Draws which rows are taken, and which are asked about."""
        challenge = ClipBackdoor(norm=self.norm).choose(data, None, rng).examples
        rows = np.sort(rng.choice(len(data), copies, replace=False))
        poisoned = challenge.take(np.zeros(copies, np.int64))
        honest = poisoned.with_(labels=other_class(poisoned.labels, data.classes))
        asked = features_of(data)[rng.choice(len(data), min(self.asked, len(data)), replace=False)]
        point = features_of(challenge)
        return replaced(data, rows, honest, poisoned, np.concatenate([point, np.zeros_like(point), asked]))
