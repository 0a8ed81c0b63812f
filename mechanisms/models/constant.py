"""The model that is left when the training labels are all the same."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpaudit.mechanisms.examples import Examples, Features


@dataclass(frozen=True)
class ConstantModel:
    """Predicts the same for every example."""

    prediction: tuple[float, ...]  # one probability for each class, summing to 1

    def probabilities(self, features: Features) -> NDArray[np.float64]:
        """Class probabilities, shape (n, classes)."""
        return np.tile(np.asarray(self.prediction), (len(features), 1))


def single_class(train: Examples) -> ConstantModel | None:
    """The constant model of labels that hold one class or none, else None.

    Probabilities are (count + 1) / (n + K), so that the log loss on any other label stays finite, as it does for the
    libraries that refuse such labels.
    """
    counts = np.bincount(train.labels, minlength=train.classes)
    if np.count_nonzero(counts) > 1:
        return None
    return ConstantModel(tuple(float(p) for p in (counts + 1) / (len(train) + train.classes)))
