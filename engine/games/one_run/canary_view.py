"""What the adversary of a one-run game sees of all canaries of one training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class CanaryView:
    """What the adversary sees of m canaries: outputs on the points it is shown, and nothing of the truth.

    Attributes:
        target: Class probabilities of the audited mechanism, shape (m, classes); in the attribute game, the
            probability it gives the record's label with each value of the attribute, shape (m, values).
        reference: Probabilities of the adversary's own model M' for what is at stake, of the same shape.
        labels: The labels it is shown (in the attribute game, the values), shape (m,).
    """

    target: NDArray[np.float32]
    reference: NDArray[np.float32]
    labels: NDArray[np.int64]
    shows: ClassVar[str] = "a model's answers on the canaries of one training"
