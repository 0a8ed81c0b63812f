"""Evidence from posteriors: an attacker's belief about every label before and after a release."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dpaudit.errors import require


@dataclass(frozen=True, eq=False)
class Posteriors:
    """Beliefs P[label = 1] about binary labels before and after one release.

    Attributes:
        prior: Belief before the release, in [0, 1], shape (n,), n >= 1.
        posterior: Belief after the release, in [0, 1], shape (n,).
        bag: Number of each example's bag, shape (n,); the examples of one bag share a release. -1 marks examples about
            which nothing is released; at least one example must have a bag.
        release: Number of the release, if there are several independent ones.
        shift: Change of the log-odds by the release, in nats, shape (n,), may be infinite. None computes it from the
            posterior, which is inaccurate near 0 and 1.
        expected: Additive advantage of each example, averaged over all releases of its bag, in [0, 1), shape (n,); None
            if only this release is known.
        labels: True labels, 0 or 1, shape (n,); None if they are unknown.
    """

    words: ClassVar[str] = "posteriors"
    ROWS: ClassVar[bool] = True

    prior: NDArray[np.float64]
    posterior: NDArray[np.float64]
    bag: NDArray[np.int64]
    release: int = field(default=0, metadata={"stored": "int32"})
    shift: NDArray[np.float64] | None = field(default=None, metadata={"stored": "float64"})
    expected: NDArray[np.float64] | None = field(default=None, metadata={"stored": "float64"})
    labels: NDArray[np.int64] | None = field(default=None, metadata={"stored": "int8"})

    def __post_init__(self) -> None:
        for name in ("prior", "posterior"):
            belief = np.asarray(getattr(self, name), dtype=np.float64)
            require(belief.size > 0 and belief.ndim == 1, f"{name} must be one column", shape=belief.shape)
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
        require(bool((self.bag >= -1).all()), "bag must hold numbers >= 0, or -1 for examples without a release")
        require(bool((self.bag >= 0).any()), "something must be released about at least one example")
        for name, column in (("shift", self.shift), ("expected", self.expected), ("labels", self.labels)):
            fits = column is None or column.shape == self.bag.shape
            require(fits, f"{name} must be as long as prior", prior=self.prior.shape)
        require(self.labels is None or bool(np.isin(self.labels, (0, 1)).all()), "labels must be 0 or 1")
        if self.labels is not None:
            object.__setattr__(self, "labels", np.asarray(self.labels, dtype=np.int64))
