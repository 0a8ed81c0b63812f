"""What a mechanism promises, and under which notion of neighbouring data sets."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from dpaudit.errors import require


class Relation(StrEnum):
    """Which data sets are neighbours."""

    ADD_REMOVE = "add-remove"
    """One record is present or absent."""
    REPLACE = "replace"
    """One record is replaced by another; the number of records is public."""
    LABEL = "label"
    """One record's protected attributes (its label) are replaced; everything else is public."""


@dataclass(frozen=True)
class Claim:
    """What the mechanism promises: (epsilon, delta)-differential privacy under a neighbouring relation.

    Attributes:
        epsilon: Privacy loss bound in nats, > 0; `inf` claims nothing.
        delta: Probability mass the bound may miss, in [0, 1).
        relation: The neighbouring relation the promise is made under.
    """

    epsilon: float
    delta: float = 0.0
    relation: Relation = Relation.LABEL

    def __post_init__(self) -> None:
        require(self.epsilon > 0, "a claimed epsilon must be > 0", epsilon=self.epsilon)
        require(0 <= self.delta < 1, "a claimed delta must be in [0, 1)", delta=self.delta)
        object.__setattr__(self, "relation", Relation(self.relation))

    def __str__(self) -> str:
        if math.isinf(self.epsilon):
            return f"no privacy claimed (epsilon = inf, {self.relation})"
        return f"epsilon <= {self.epsilon:g} at delta={self.delta:g} ({self.relation})"
