"""What the adversary of a private predictor sees before it says which answers speak for the records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class AnswerView:
    """Answers to one query in two known worlds, on draws that nothing is counted from.

    Attributes:
        world_1: How often each answer was given with the records, shape (answers,).
        world_0: The same without them.
    """

    shows: ClassVar[str] = "answers to a query in two known worlds"

    world_1: NDArray[np.int64]
    world_0: NDArray[np.int64]
