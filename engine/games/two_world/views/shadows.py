"""What shadow models say of every point of the pool, and who was trained on it.

Shadow models come in pairs, trained on a random half of the pool and on the other half, so that each point is in
exactly half of them. Their confidences are units' results: written once, read for selecting challenge points and by
every attack.

Source: Shokri et al. (2017), arXiv:1610.05820; Carlini et al. (2022), arXiv:2112.03570, section V.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dpaudit.errors import RunError, require


@dataclass(frozen=True, eq=False)
class Shadows:
    """What the shadow models say of every point, and who was trained on it.

    Attributes:
        confidence: phi = log p_y - log(sum of the others), float32 of shape (models, queries, points): row of the pool,
            crafted challenge points behind it; query 0 = the point as it is. NaN where training failed.
        member: Whether a model was trained on a point, shape (models, points).
    """

    confidence: NDArray[np.float32]
    member: NDArray[np.bool_]

    def __post_init__(self) -> None:
        models, _, points = self.confidence.shape
        require(self.member.shape == (models, points), "member must have one bit a model and point")

    @cached_property
    def phi(self) -> NDArray[np.float64]:
        """Mean over the queries, shape (models, points); for many points take those needed first."""
        mean: NDArray[np.float64] = self.confidence.mean(1, dtype=np.float64)
        return mean

    def at(self, points: NDArray[np.int64]) -> Shadows:
        """The same models at some points, in that order."""
        return Shadows(self.confidence[:, :, points], self.member[:, points])

    def of(self, models: NDArray[np.int64] | slice) -> Shadows:
        """Some of the models."""
        return Shadows(self.confidence[models], self.member[models])


def joined_shadows(stacks: Sequence[Shadows]) -> Shadows:
    """The shadow models of several stacks; those whose training failed are left out.

    Raises: RunError when fewer than two are left.
    """
    confidence, member = stacks[0].confidence, stacks[0].member
    if len(stacks) > 1:
        confidence = np.concatenate([stack.confidence for stack in stacks])
        member = np.concatenate([stack.member for stack in stacks])
    trained = ~np.isnan(confidence[:, 0, 0])
    if trained.sum() < 2:
        raise RunError("at least two shadow models must have been trained")
    # No copy when all is well: there may be a hundred million confidences.
    return Shadows(confidence, member) if trained.all() else Shadows(confidence[trained], member[trained])
