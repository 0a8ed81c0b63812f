"""A training function of one's own that gives a vector: what a user of the model sees of it, or a part of that."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.random import SeedSequence
from numpy.typing import NDArray

from dpaudit.claims import Claim
from dpaudit.mechanisms.adapters.randomness import global_randomness, whole_number
from dpaudit.mechanisms.adapters.user_code import OwnFunction, stated
from dpaudit.mechanisms.compute import Compute
from dpaudit.mechanisms.examples import Examples
from dpaudit.registry import register


@register("mechanism", "summary", source="one's own code")
@dataclass(frozen=True)
class OwnSummary(OwnFunction):
    """A function `train(X, y, seed)` that trains and gives a vector of numbers, for the game `neighbours`.

    X is a float32 array of shape (n, d) that may be written to, y holds classes 0 .. K - 1, seed is a whole number
    below 2^31; the global generators of Python, NumPy and torch are seeded as well. Anything released may go into the
    vector: coefficients, tables, answers. Its length must not depend on the seed.

    Attributes:
        train: The function, or where it is: "module:function".
        parameters: Keyword arguments it is called with besides.
        claimed: What it promises.
    """

    def claim(self) -> Claim:
        """The claim it was given.

        Raises: InputError when it has none.
        """
        return stated(self.claimed, adapter="from_summary")

    def summarise(
        self, train: Examples, points: NDArray[np.float32], *, seed: SeedSequence, compute: Compute
    ) -> NDArray[np.float64]:
        """Calls the function; its own exceptions pass."""
        with global_randomness(seed):
            given = self.train(train.features, train.labels, whole_number(seed), **self.parameters)
        return np.asarray(given, np.float64)


def from_summary(train: Callable[..., Any], claim: Claim | None = None, **parameters: Any) -> OwnSummary:
    """A function `train(X, y, seed) -> vector` for an audit; see `OwnSummary`.

    Args:
        train: Trains, and gives a vector of numbers.
        claim: What it promises.
        parameters: Keyword arguments it is called with besides.
    Raises: InputError when it cannot be called so, or not be sent to a worker.
    """
    return OwnSummary(train, parameters, claim)
