"""Records that pull a logistic regression towards other coefficients."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from dpaudit.claims import Relation
from dpaudit.engine.games.neighbours.poisonings.influence import PENALTY, Surrogate, penalty_of
from dpaudit.engine.games.neighbours.poisonings.protocol import nearest_to_a_corner
from dpaudit.engine.games.neighbours.poisonings.worlds import Worlds, features_of, replaced
from dpaudit.errors import require
from dpaudit.mechanisms.examples import Examples
from dpaudit.registry import register


@register(
    "poisoning", "coefficient-target", source="Ma, Zhu and Hsu (2019), in the form of Lu et al. (2022), section 5"
)
@dataclass(frozen=True)
class CoefficientTarget:
    """Rows become the record that pulls the coefficients of a logistic regression at right angles to what they are.

    The direction is the coefficients turned in the plane of their two largest coordinates; the record lies along it, as
    long as the longest row, with the class whose loss pulls there.

    Attributes:
        penalty: Of the squared length in the mean objective, > 0; None takes the learner's, else 0.01.
    """

    relation: ClassVar[Relation] = Relation.REPLACE

    penalty: float | None = None

    def __post_init__(self) -> None:
        require(self.penalty is None or self.penalty > 0, "penalty must be > 0", penalty=self.penalty)

    def for_mechanism(self, mechanism: Any) -> CoefficientTarget:
        """With the learner's penalty, where it states one and none was given."""
        return self if self.penalty is not None else replace(self, penalty=penalty_of(mechanism))

    def worlds(self, data: Examples, copies: int, rng: np.random.Generator) -> Worlds:
        """Draws nothing.

        Raises: InputError for data with one feature: nothing is at right angles.
        """
        surrogate = Surrogate.of(data, 1, self.penalty or PENALTY)
        weights = surrogate.weights[:-1]
        require(len(weights) >= 2, "coefficient-target needs at least two features", features=len(weights))
        first, second = np.argsort(-np.abs(weights))[:2]
        turned = np.zeros(len(weights))
        turned[first], turned[second] = -weights[second], weights[first]
        point = surrogate.longest * turned / max(float(np.linalg.norm(turned)), 1e-300)
        rows = nearest_to_a_corner(data)[:copies]
        honest = data.take(rows)
        crafted = np.repeat(point[None].astype(np.float32), copies, 0)
        poisoned = honest.with_(features=crafted, labels=np.ones(copies, np.int64))
        return replaced(data, rows, honest, poisoned, np.concatenate([crafted[:1], features_of(honest)]))
