"""A model that memorises its training labels, and learners that return the posterior of each label."""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import blake2b

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from scipy.special import softmax

from dpaudit.claims import Claim
from dpaudit.errors import require
from dpaudit.mechanisms.compute import Compute, spawned
from dpaudit.mechanisms.examples import Examples, Features
from dpaudit.mechanisms.labels.proportions import LEFT_OUT, GeometricProportions
from dpaudit.mechanisms.labels.randomized_response import OneHotLaplace
from dpaudit.mechanisms.protocols import BagMechanism, Model
from dpaudit.registry import register


@register("model", "recall", source="worst case: what the learner released, before a model blurs it")
@dataclass(frozen=True)
class Recall:
    """Predicts the label shares of each training example, and equal shares for any other example.

    It reveals the labels that a learner trains on, so an audit of the learner can be as tight as its claim.
    """

    def fit(
        self, train: Examples, *, seed: np.random.SeedSequence, compute: Compute, validation: Examples | None = None
    ) -> Model:
        return build_recall_model(train.features, np.eye(train.classes)[train.labels])


@dataclass(frozen=True, eq=False)
class RecallModel:
    """Memorised class probabilities."""

    rows: NDArray[np.uint64]  # fingerprints of the distinct training examples, ascending, shape (m,)
    answers: NDArray[np.float64]  # their class probabilities, shape (m, classes)

    def probabilities(self, features: Features) -> NDArray[np.float64]:
        classes = self.answers.shape[1]
        probabilities = np.full((len(features), classes), 1 / classes)
        if len(self.rows):
            keys = fingerprints(features)
            place = np.searchsorted(self.rows, keys).clip(max=len(self.rows) - 1)
            is_known = self.rows[place] == keys
            probabilities[is_known] = self.answers[place[is_known]]
        return probabilities


def build_recall_model(features: Features, answers: NDArray[np.float64]) -> RecallModel:
    """Build a model that memorises `answers` (n, classes); examples with equal features share their mean answer."""
    rows, place = np.unique(fingerprints(features), return_inverse=True)
    sums = np.zeros((len(rows), answers.shape[1]))
    np.add.at(sums, place, answers)
    return RecallModel(rows, sums / np.bincount(place, minlength=len(rows))[:, None])


def fingerprints(features: Features) -> NDArray[np.uint64]:
    """Return a 64-bit hash of each example's features, the same in every process; shape (n,)."""
    if isinstance(features, pa.Table):
        from pandas.util import hash_pandas_object

        return np.asarray(hash_pandas_object(features.to_pandas(), index=False), dtype=np.uint64)
    digests = b"".join(blake2b(row.tobytes(), digest_size=8).digest() for row in features)
    return np.frombuffer(digests, dtype="<u8").astype(np.uint64)


@register("mechanism", "aggregated-labels", source="Busa-Fekete et al. (2024), section 4; ours as a learner")
@dataclass(frozen=True)
class AggregatedLabels:
    """Returns the posterior of every training label given the release about its bag; two classes.

    It lets games about labels audit a release of sums. The posterior holds everything that a model trained on the
    release can learn.

    Attributes:
        labels: The mechanism that releases the sums.
        positives: Prior probability of label 1, in (0, 1): 0.5 for labels planted at random.
    """

    labels: BagMechanism = field(default=GeometricProportions(), metadata={"kind": "mechanism"})
    positives: float = 0.5

    def __post_init__(self) -> None:
        require(0 < self.positives < 1, "positives must be in (0, 1)", positives=self.positives)

    def claim(self) -> Claim:
        """Return the claim of the release; a posterior is post-processing."""
        return self.labels.claim()

    def fit(
        self, train: Examples, *, seed: np.random.SeedSequence, compute: Compute, validation: Examples | None = None
    ) -> Model:
        """Release once and memorise the posteriors; rejects more than two classes and ignores `validation`."""
        require(train.classes == 2, "aggregated-labels is for two classes", classes=train.classes)
        division, noise = (np.random.default_rng(child) for child in spawned(seed, 2))
        bags = self.labels.bags(train, rng=division)
        released = self.labels.release_counts(bags.counts(train.labels, 2), rng=noise)[:, 1]
        inside = bags.assignment != LEFT_OUT
        positive = np.full(len(train), self.positives)
        positive[inside] = self._posterior(released, bags.sizes)[bags.assignment[inside]]
        return build_recall_model(train.features, np.stack([1 - positive, positive], axis=1))

    def _posterior(self, released: NDArray[np.float64], sizes: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return P[label = 1] of the members of each bag: the expected share of positives, shape (B,)."""
        from scipy.stats import binom  # slow to import

        posterior = np.empty(sizes.size)
        for size in np.unique(sizes):
            has_size = sizes == size
            sums = np.arange(size + 1)
            prior = binom.logpmf(sums, size, self.positives)
            posterior[has_size] = (
                softmax(prior + self.labels.log_likelihood(released[has_size], int(size)), axis=1) @ sums / size
            )
        return posterior


@register(
    "mechanism", "noisy-one-hot-labels", source="Malek et al. (2021), arXiv:2106.03408, ALIBI without its training"
)
@dataclass(frozen=True)
class NoisyOneHotLabels:
    """Returns the posterior of every training label given its noisy one-hot row, under a uniform prior.

    ALIBI trains on these rows alone. For two classes, the posterior has its extreme odds, e^eps, for a quarter of the
    examples, so an audit can be tight.

    Attributes:
        labels: The mechanism that releases the noisy rows.
    """

    labels: OneHotLaplace = field(default=OneHotLaplace(1.0), metadata={"kind": "mechanism"})

    def claim(self) -> Claim:
        """Return the claim of the release, which is tight."""
        return self.labels.claim()

    def fit(
        self, train: Examples, *, seed: np.random.SeedSequence, compute: Compute, validation: Examples | None = None
    ) -> Model:
        observed = self.labels.observe(train.labels, classes=train.classes, rng=np.random.default_rng(seed))
        return build_recall_model(train.features, self.labels.posterior(observed, np.zeros(train.classes)))
