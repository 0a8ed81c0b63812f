"""What the adversary of label reconstruction sees of bags of one size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class BagView:
    """What the adversary sees of B bags of k examples: what it believed of them, and what their release may mean.

    Attributes:
        prior: P[label = 1] of each example by its features alone, shape (B, k).
        released: The numbers released for label 1, shape (B,).
        law: log P[released | s labels are 1] for s = 0 .. k, up to a constant in each bag, shape (B, k + 1).
    """

    prior: NDArray[np.float64]
    released: NDArray[np.float64]
    law: NDArray[np.float64]
    shows: ClassVar[str] = "what a release says of bags of labels"
