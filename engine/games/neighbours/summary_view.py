"""What the adversary of the game `neighbours` sees: runs summed up as vectors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class SummaryView:
    """Runs whose world is known, to learn from, and fresh ones, whose world is not.

    Attributes:
        search: Summaries of the known ones, shape (m, width).
        search_truth: Their worlds, shape (m,).
        fresh: Summaries of the others, shape (n, width).
    """

    search: NDArray[np.float64]
    search_truth: NDArray[np.bool_]
    fresh: NDArray[np.float64]
    shows: ClassVar[str] = "summaries of independent runs on neighbouring data sets"
