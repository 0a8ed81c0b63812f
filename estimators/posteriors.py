"""Posteriors as evidence: what an attacker believed of every label before a release, and after it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dpaudit.errors import require


@dataclass(frozen=True, eq=False)
class Posteriors:
    """Beliefs about binary labels around one release.

    Attributes:
        prior: P[label = 1] of each example before the release, in [0, 1], shape (n,), n >= 1.
        posterior: The same once the release is known, shape (n,).
        bag: Which bag each example is released in, shape (n,); examples of one bag share a release.
        release: Number of the release, for several independent ones.
    """

    words: ClassVar[str] = "posteriors"

    prior: NDArray[np.float64]
    posterior: NDArray[np.float64]
    bag: NDArray[np.int64]
    release: int = 0

    def __post_init__(self) -> None:
        for name in ("prior", "posterior"):
            belief = np.asarray(getattr(self, name), dtype=np.float64)
            require(belief.ndim == 1 and belief.size > 0, f"{name} must be one column", shape=belief.shape)
            inside = bool(((belief >= 0) & (belief <= 1)).all())  # refuses NaN as well
            require(inside, f"{name} must hold probabilities in [0, 1]")
            object.__setattr__(self, name, belief)
        object.__setattr__(self, "bag", np.asarray(self.bag, dtype=np.int64))
        require(
            self.prior.shape == self.posterior.shape == self.bag.shape,
            "prior, posterior and bag must be equally long",
            prior=self.prior.shape,
            posterior=self.posterior.shape,
            bag=self.bag.shape,
        )
