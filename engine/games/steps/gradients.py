"""Gradient canaries: vectors that join the sum of DP-SGD like an example's clipped gradient."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpaudit.errors import require
from dpaudit.registry import register


@register("canary", "dirac-gradient", source="Nasr et al. (2023), arXiv:2302.07956, section 4")
@dataclass(frozen=True)
class DiracGradient:
    """All of the clip norm on one weight, drawn at random unless it is given.

    Attributes:
        weight: Which weight, >= 0; one whose own gradient is always 0 makes the sharpest canary.
    """

    weight: int | None = None

    def gradient(self, parameters: int, rng: np.random.Generator) -> NDArray[np.float32]:
        """1 at one weight, else 0; shape (parameters,)."""
        weight = int(rng.integers(parameters)) if self.weight is None else self.weight
        require(0 <= weight < parameters, f"weight must be in 0..{parameters - 1}", weight=weight)
        gradient = np.zeros(parameters, np.float32)
        gradient[weight] = 1.0
        return gradient


@register("canary", "random-gradient", source="Andrew et al. (2024), arXiv:2302.03098; Nasr et al. (2023)")
@dataclass(frozen=True)
class RandomGradient:
    """A random direction: nearly orthogonal to what the data's gradients do."""

    def gradient(self, parameters: int, rng: np.random.Generator) -> NDArray[np.float32]:
        """Uniform on the sphere of radius 1, shape (parameters,)."""
        drawn = rng.standard_normal(parameters)
        return (drawn / np.linalg.norm(drawn)).astype(np.float32)
