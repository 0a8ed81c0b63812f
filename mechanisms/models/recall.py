"""The model that hides nothing: it recalls the labels it was trained on."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dpaudit.mechanisms.compute import Compute
from dpaudit.mechanisms.examples import Examples, Features
from dpaudit.mechanisms.protocols import Model
from dpaudit.registry import register


@register("model", "recall", source="worst case: what the learner released, before a model blurs it")
@dataclass(frozen=True)
class Recall:
    """Answers a training example with the shares of the labels it was given for it, any other with equal shares.

    The labels a learner trains on are then seen as they are, so an audit of the learner can be as tight as its claim.
    """

    def fit(
        self, train: Examples, *, seed: np.random.SeedSequence, compute: Compute, validation: Examples | None = None
    ) -> Model:
        return recalling(train.features, np.eye(train.classes)[train.labels])


@dataclass(frozen=True, eq=False)
class RecallModel:
    """What was learned by heart."""

    rows: NDArray[np.uint64]  # fingerprint of each different training example, ascending, shape (m,)
    answers: NDArray[np.float64]  # its class probabilities, shape (m, classes)

    def probabilities(self, features: Features) -> NDArray[np.float64]:
        classes = self.answers.shape[1]
        probabilities = np.full((len(features), classes), 1 / classes)
        if len(self.rows):
            asked = fingerprints(features)
            place = np.searchsorted(self.rows, asked).clip(max=len(self.rows) - 1)
            known = self.rows[place] == asked
            probabilities[known] = self.answers[place[known]]
        return probabilities


def recalling(features: Features, answers: NDArray[np.float64]) -> RecallModel:
    """The model that gives each example its answer (n, classes), examples with the same features their mean answer."""
    rows, place = np.unique(fingerprints(features), return_inverse=True)
    sums = np.zeros((len(rows), answers.shape[1]))
    np.add.at(sums, place, answers)
    return RecallModel(rows, sums / np.bincount(place, minlength=len(rows))[:, None])


def fingerprints(features: Features) -> NDArray[np.uint64]:
    """64 bits of each example's features, the same in every process; shape (n,)."""
    if isinstance(features, pa.Table):
        from pandas.util import hash_pandas_object

        return np.asarray(hash_pandas_object(features.to_pandas(), index=False), dtype=np.uint64)
    digests = b"".join(blake2b(row.tobytes(), digest_size=8).digest() for row in features)
    return np.frombuffer(digests, dtype="<u8").astype(np.uint64)
