"""What the adversary of the game of a crafted crowd sees of its trainings."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dpaudit.mechanisms.training.private.private_steps import PrivateSteps

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class CrowdSteps:
    """The steps of T trainings, along the canary's own gradient at the weights of each; all in units of the clip.

    Attributes:
        released: What the noisy sum has along it, shape (T, steps).
        canary: Length of the canary's clipped gradient, shape (T, steps); 0 where it has none, and all else is 0 too.
        crowd: What the clipped gradient of one record of the crowd has along it, shape (T, steps); about -1.
    """

    released: Floats
    canary: Floats
    crowd: Floats

    def of(self, trainings: Flags) -> CrowdSteps:
        """Some of the trainings, a mask of shape (T,)."""
        return CrowdSteps(self.released[trainings], self.canary[trainings], self.crowd[trainings])


@dataclass(frozen=True, eq=False)
class CrowdSearch:
    """Trainings of known worlds to learn from.

    Attributes:
        steps: Of S trainings.
        truth: Which of them had the canary, shape (S,).
        claimed: Sampling, clipping and noise as the mechanism states them.
        records: Of the crowd.
    """

    steps: CrowdSteps
    truth: Flags
    claimed: PrivateSteps
    records: int

    def of(self, trainings: Flags) -> CrowdSearch:
        """Some of the trainings, a mask of shape (S,)."""
        return replace(self, steps=self.steps.of(trainings), truth=self.truth[trainings])


@dataclass(frozen=True, eq=False)
class CrowdView:
    """Independent trainings on a crowd, with a canary or without it.

    Attributes:
        search: Trainings to learn from.
        fresh: Trainings to be told apart.
    """

    search: CrowdSearch
    fresh: CrowdSteps
    shows: ClassVar[str] = "the steps of trainings on a crafted crowd, with a canary or without it"
