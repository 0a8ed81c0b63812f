"""What the audited mechanism answers about the points of a one-run game."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class CanaryView:
    """What the adversary sees of m canaries: outputs on the points it is shown, and nothing of the truth."""

    # class probabilities of the audited mechanism, shape (m, classes); in the attribute game, the probability it gives
    # the record's label with each value of the attribute, shape (m, values)
    target: NDArray[np.float32]
    # probabilities of the adversary's own model M' for what is at stake, of the same shape
    reference: NDArray[np.float32]
    labels: NDArray[np.int64]  # the labels it is shown (in the attribute game, the values), shape (m,)
    shows: ClassVar[str] = "a model's answers on the canaries of one training"


@dataclass(frozen=True, eq=False)
class Predictions:
    """Answers of a trained model."""

    # of the classes, or whatever else the game asks the model for; shape (n, classes)
    probabilities: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.probabilities)

    @classmethod
    def uninformative(cls, count: int, classes: int) -> Predictions:
        """The same probability for every class."""
        return cls(np.full((count, classes), 1 / classes, np.float32))

    @classmethod
    def revealing(cls, labels: NDArray[np.int64], classes: int) -> Predictions:
        return cls(np.eye(classes, dtype=np.float32)[labels])

    def at(self, points: NDArray[np.int64] | slice) -> Predictions:
        return Predictions(self.probabilities[points])

    def view(self, reference: NDArray[np.float32], labels: NDArray[np.int64]) -> CanaryView:
        return CanaryView(self.probabilities, reference, labels)


@dataclass(frozen=True, eq=False)
class LabelRelease:
    """What a label mechanism released."""

    labels: NDArray[np.int64]  # one label for each of n points, shape (n,), in 0 .. classes - 1.
    classes: int  # number of classes K
    informative: bool = True  # whether the labels say something; otherwise they are the same for everybody

    def __len__(self) -> int:
        return len(self.labels)

    @cached_property
    def probabilities(self) -> NDArray[np.float32]:
        """The same for adversaries that read models: certain of the released label, or of none; shape (n, classes)."""
        if not self.informative:
            return Predictions.uninformative(len(self), self.classes).probabilities
        return Predictions.revealing(self.labels, self.classes).probabilities

    @classmethod
    def uninformative(cls, count: int, classes: int) -> LabelRelease:
        """The same label for everybody, whatever theirs."""
        return cls(np.zeros(count, np.int64), classes, informative=False)

    @classmethod
    def revealing(cls, labels: NDArray[np.int64], classes: int) -> LabelRelease:
        return cls(labels, classes)

    def at(self, points: NDArray[np.int64] | slice) -> LabelRelease:
        return replace(self, labels=self.labels[points])

    def view(self, reference: NDArray[np.float32], labels: NDArray[np.int64]) -> ReleaseView:
        return ReleaseView(self.probabilities, reference, labels, self)


@dataclass(frozen=True, eq=False)
class ReleaseView(CanaryView):
    """What the adversary sees of m canaries of a label mechanism; `target` is certain of the released label."""

    release: LabelRelease  # the released labels themselves
    shows: ClassVar[str] = "the labels a label mechanism released"
