"""A record that changes the curvature of a regression, and hardly its slope."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpaudit.claims import Relation
from dpaudit.engine.games.neighbours.poisonings.worlds import Worlds, features_of, replaced
from dpaudit.engine.games.two_world.canaries.clip_bkd import last_direction
from dpaudit.mechanisms.examples import Examples
from dpaudit.registry import register


@register("poisoning", "curvature", source="Ours: the Jacobian of objective perturbation, Chaudhuri et al. (2011)")
@dataclass(frozen=True)
class Curvature:
    """The longest rows are zero in world 0; in world 1 they are as long as ever, where the others vary least.

    A row of zeros adds nothing to the curvature x x^T of a regression, a long one where there is little adds most.
    Without noise both may fit alike: what changes is how densely the noise is squeezed.
    """

    relation: ClassVar[Relation] = Relation.REPLACE

    def worlds(self, data: Examples, copies: int, rng: np.random.Generator) -> Worlds:
        """Draws nothing."""
        flat = features_of(data).astype(np.float64)
        lengths = np.linalg.norm(flat, axis=1)
        rows = np.argsort(-lengths, kind="stable")[:copies]
        point = (lengths.max() * last_direction(np.delete(flat, rows, 0))).astype(np.float32)[None]
        honest = data.take(rows)
        nothing = honest.with_(features=np.zeros((copies, flat.shape[1]), np.float32))
        long = honest.with_(features=np.repeat(point, copies, 0))
        return replaced(data, rows, nothing, long, np.concatenate([point, np.zeros_like(point)]))
