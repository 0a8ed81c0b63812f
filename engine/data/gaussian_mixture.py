"""Balanced classes of Gaussian features, whose true posterior is known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from dpaudit.engine.data.size import require_size
from dpaudit.errors import require
from dpaudit.mechanisms.examples import Examples, Features
from dpaudit.registry import register


@register("data", "gaussian-mixture", source="Observational auditing of label privacy (2025), section 6.6, appendix 11")
@dataclass(frozen=True)
class GaussianMixture:
    """Generated data: label y uniform over the classes, features from N(e_y, I), with the exact posterior.

    The paper has 5 dimensions for 2, 5 and 10 classes, but e_y needs one dimension for each class. So the features have
    max(dimensions, classes) dimensions.

    Attributes:
        classes: Number of classes k, >= 2.
        rows: Number of examples n, >= 1.
        dimensions: Smallest number of dimensions, >= 1.
    """

    classes: int = 2
    rows: int = 1_000_000
    dimensions: int = 5

    def __post_init__(self) -> None:
        require(self.classes >= 2, "classes must be >= 2", classes=self.classes)
        require(self.rows >= 1, "rows must be >= 1", rows=self.rows)
        require(self.dimensions >= 1, "dimensions must be >= 1", dimensions=self.dimensions)
        require_size(self.rows, max(self.dimensions, self.classes))

    def load(self, *, seed: int = 0) -> Examples:
        """Return examples determined by `seed`, with float32 features of shape (rows, max(dimensions, classes))."""
        rng = np.random.default_rng(np.random.SeedSequence(seed))
        labels = rng.integers(self.classes, size=self.rows)
        features = rng.standard_normal((self.rows, max(self.dimensions, self.classes)), dtype=np.float32)
        features[np.arange(self.rows), labels] += 1
        return Examples(features, labels, self.classes, "gaussian-mixture")

    def posterior(self, features: Features) -> NDArray[np.float64]:
        """Return the exact P(y | x), shape (n, d) to (n, classes)."""
        # All classes have weight 1/k and |x - e_y|^2 = |x|^2 - 2 x_y + 1, so log P(y | x) is x_y plus a constant.
        require(isinstance(features, np.ndarray), "features must be an array of numbers", features=type(features))
        return cast("NDArray[np.float64]", softmax(features[:, : self.classes].astype(np.float64), axis=1))
