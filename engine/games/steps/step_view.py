"""What the adversary of a game of steps sees when it has to guess about one of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class StepView:
    """A step that has just been released, and all before it, whose coins are known by now.

    Attributes:
        products: What each released gradient has along the canary, in clips, shape (steps so far,), >= 1 of them; NaN
            where it was not finite.
        coins: Whether the canary was let in, shape (steps so far - 1,).
    """

    products: NDArray[np.float64]
    coins: NDArray[np.bool_]
    shows: ClassVar[str] = "the steps of one training, one after another"
