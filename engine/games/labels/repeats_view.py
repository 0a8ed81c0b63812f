"""What the adversary of the repeats game sees: the same labels, but for one of them, released again and again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class RepeatsView:
    """Releases of n rows, of which one, the canary, had the first of two labels in world 1 and the second in world 0.

    Attributes:
        search: Releases whose world is known, shape (releases, n).
        worlds: Their worlds, shape (releases,).
        fresh: Releases to be told apart, shape (trials, n).
        canary: The row of the canary.
        classes: Number of classes K.
    """

    search: Ints
    worlds: NDArray[np.bool_]
    fresh: Ints
    canary: int
    classes: int
    shows: ClassVar[str] = "the same labels but for one, released again and again"
