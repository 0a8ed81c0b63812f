"""Generated data with known label probabilities, such as a Beta distribution."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.typing import NDArray

from dpaudit.engine.data.size import require_size
from dpaudit.errors import require
from dpaudit.mechanisms.examples import Examples, Features
from dpaudit.registry import register


class PriorData(ABC):
    """Examples with a single feature, P[label = 1], and labels drawn from it."""

    name: str

    @abstractmethod
    def priors(self, rng: np.random.Generator) -> NDArray[np.float64]:
        """Return P[label = 1] of each example, in [0, 1], shape (n,)."""

    def load(self, *, seed: int = 0) -> Examples:
        """Return priors as features of shape (n, 1), with labels drawn from them by `seed`."""
        rng = np.random.default_rng(np.random.SeedSequence(seed))
        features = self.priors(rng).astype(np.float32)[:, None]
        # Drawn from the rounded features, so that the posterior below is exact.
        labels = (rng.random(len(features)) < features[:, 0].astype(np.float64)).astype(np.int64)
        return Examples(features, labels, 2, str(self))

    def posterior(self, features: Features) -> NDArray[np.float64]:
        """Return the exact P(y | x), shape (n, 1) to (n, 2)."""
        require(isinstance(features, np.ndarray), "features must be an array of numbers", features=type(features))
        positive = cast("NDArray[np.float64]", features)[:, 0].astype(np.float64)
        return np.stack([1 - positive, positive], axis=1)


@register("data", "beta-priors", source="Busa-Fekete et al. (2024), section 4: Beta(2, 30) and a balanced Beta")
@dataclass(frozen=True)
class BetaPriors(PriorData):
    """Generated priors P[label = 1] from Beta(a, b), with labels drawn from them. Beta(1, 1) is uniform.

    Attributes:
        a: First parameter, > 0.
        b: Second parameter, > 0.
        rows: Number of examples, >= 1.
    """

    a: float = 2.0
    b: float = 30.0
    rows: int = 100_000

    def __post_init__(self) -> None:
        require(self.a > 0, "a must be > 0", a=self.a)
        require(self.b > 0, "b must be > 0", b=self.b)
        require(self.rows >= 1, "rows must be >= 1", rows=self.rows)
        require_size(self.rows, 1)

    def priors(self, rng: np.random.Generator) -> NDArray[np.float64]:
        return rng.beta(self.a, self.b, self.rows)

    def __str__(self) -> str:
        return f"Beta({self.a:g}, {self.b:g}) priors"
