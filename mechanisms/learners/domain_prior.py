"""LP-1ST with a prior from the class shares of each cluster of similar examples, released with noise."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from numpy.random import SeedSequence
from numpy.typing import NDArray

from dpaudit.claims import Claim
from dpaudit.errors import require
from dpaudit.mechanisms.compute import Compute
from dpaudit.mechanisms.examples import Examples
from dpaudit.mechanisms.labels.rr_with_prior import rr_with_prior
from dpaudit.mechanisms.learners.embedders import Embedder, Numbers, RandomConvolutions
from dpaudit.mechanisms.models.catboost import MISSING, CatBoost
from dpaudit.mechanisms.protocols import Model, Trainer
from dpaudit.mechanisms.seeds import spawned
from dpaudit.registry import register

CLUSTERED_AT_MOST = 100_000
"""Examples that k-means looks at; the others join the nearest centre."""


@register(
    "mechanism", "lp-1st-domain-prior", source="Ghazi et al. (2021), arXiv:2102.06062, LP-1ST with in-domain prior"
)
@dataclass(frozen=True)
class LP1STDomainPrior:
    """LP-1ST whose labels are answered among those likely in the example's cluster.

    Clusters depend on features alone. Of `epsilon`, `prior_epsilon` pays for the noisy class counts of the clusters and
    the rest for the labels. How the published Criteo experiments clustered is not known; here it is k-means on the
    numeric columns, or the values of one categorical column.

    Attributes:
        epsilon: Privacy loss of all together in nats, > prior_epsilon.
        prior_epsilon: Part of it spent on the class counts, > 0.
        clusters: Number of k-means clusters at most, >= 1.
        group_by: A categorical column whose values are the clusters, instead of k-means.
        embedder: What k-means runs on.
        model: How the model is trained on the released labels.
    """

    epsilon: float
    prior_epsilon: float = 0.05
    clusters: int = 100
    group_by: str | None = None
    embedder: Embedder = field(default=Numbers(), metadata={"kind": "embedder"})
    model: Trainer = field(default=CatBoost(), metadata={"kind": "model"})

    def __post_init__(self) -> None:
        require(self.prior_epsilon > 0, "prior_epsilon must be > 0", prior_epsilon=self.prior_epsilon)
        require(
            self.labels_epsilon > 0,
            "epsilon must be greater than prior_epsilon",
            epsilon=self.epsilon,
            prior_epsilon=self.prior_epsilon,
        )
        require(self.clusters >= 1, "clusters must be >= 1", clusters=self.clusters)

    @property
    def labels_epsilon(self) -> float:
        """What is left for the labels themselves."""
        return self.epsilon - self.prior_epsilon

    def claim(self) -> Claim:
        """(epsilon, 0)-label-DP: a label is in one cluster's counts, then answered once."""
        return Claim(self.epsilon)

    def fit(
        self, train: Examples, *, seed: SeedSequence, compute: Compute, validation: Examples | None = None
    ) -> Model:
        """Clusters, releases the class counts, then the labels, then trains on these."""
        clustering, counting, answering, training = spawned(seed, 4)
        cluster = self._cluster(train, clustering)
        shares = noisy_class_shares(
            cluster, train.labels, train.classes, self.prior_epsilon, np.random.default_rng(counting)
        )
        rng = np.random.default_rng(answering)
        released = rr_with_prior(train.labels, shares[cluster], self.labels_epsilon, rng)
        return self.model.fit(train.with_(labels=released), seed=training, compute=compute, validation=validation)

    def _cluster(self, train: Examples, seed: SeedSequence) -> NDArray[np.int64]:
        if self.group_by is not None:
            return values_of(train, self.group_by)
        return nearest_centres(self.embedder.embed(train.features, train.categorical), self.clusters, seed)


@register(
    "mechanism", "lp-1st-out-of-domain-prior", source="Ghazi et al. (2021), arXiv:2102.06062, out-of-domain prior"
)
@dataclass(frozen=True)
class LP1STOutOfDomainPrior(LP1STDomainPrior):
    """LP-1ST with a domain prior whose clusters come from an embedding made without data of this kind.

    The paper's embedding is a network trained on other pictures; where there is none, random filters stand in.
    """

    prior_epsilon: float = 0.025
    clusters: int = 50
    embedder: Embedder = field(default=RandomConvolutions(), metadata={"kind": "embedder"})


def noisy_class_shares(
    cluster: NDArray[np.int64],
    labels: NDArray[np.int64],
    classes: int,
    epsilon: float,
    rng: np.random.Generator,
) -> NDArray[np.float64]:
    """Share of each class in each cluster, from counts with noise.

    The noise is discrete Laplace, its probability of t in proportion to e^(-|t| eps / 2).
    Changing a label moves one unit between two counts of one cluster, an L1 distance of 2: epsilon-label-DP. Counts
    below 0 become 0; a cluster with nothing left gets equal shares.

    Args:
        cluster: Cluster of each example, 0 .. C - 1, shape (n,); independent of the labels.
        labels: Values 0 .. classes - 1, shape (n,).
        epsilon: Privacy loss in nats, > 0.
    Returns: Rows of shares, shape (C, classes).
    """
    clusters = int(cluster.max()) + 1 if len(cluster) else 0
    counts = np.bincount(cluster * classes + labels, minlength=clusters * classes).reshape(clusters, classes)
    noisy = np.maximum(counts + discrete_laplace(epsilon / 2, counts.shape, rng), 0).astype(np.float64)
    noisy[noisy.sum(axis=1) == 0] = 1
    return np.asarray(noisy / noisy.sum(axis=1, keepdims=True))


def discrete_laplace(rate: float, shape: tuple[int, ...], rng: np.random.Generator) -> NDArray[np.int64]:
    """Integers t with probability in proportion to e^(-rate |t|): the difference of two geometric counts."""
    success = -np.expm1(-rate)
    return np.asarray(rng.geometric(success, shape) - rng.geometric(success, shape), dtype=np.int64)


def values_of(train: Examples, column: str) -> NDArray[np.int64]:
    """Number of each example's value in a categorical column; missing values are a value."""
    require(
        isinstance(train.features, pa.Table) and column in train.categorical,
        f"group_by must be one of the categorical columns ({', '.join(train.categorical) or 'there are none'})",
        group_by=column,
    )
    values = train.features[column].cast(pa.string()).fill_null(MISSING).to_numpy(zero_copy_only=False)  # type: ignore[call-overload]
    return np.asarray(np.unique(values.astype(str), return_inverse=True)[1], dtype=np.int64)


def nearest_centres(vectors: NDArray[np.float64], clusters: int, seed: SeedSequence) -> NDArray[np.int64]:
    """k-means cluster of each vector, numbered without gaps; shape (n, d) to (n,)."""
    from sklearn.cluster import KMeans
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    different, place = np.unique(vectors, axis=0, return_inverse=True)
    if clusters >= len(different):  # nothing to put together
        return np.asarray(place, dtype=np.int64)
    rng = np.random.default_rng(seed)
    chosen = rng.permutation(len(vectors))[:CLUSTERED_AT_MOST]
    means = KMeans(min(clusters, len(chosen)), n_init=1, random_state=int(rng.integers(2**31)))
    with threadpool_limits(1):  # sums in one order, whatever machine this runs on
        clusters_found = means.fit(vectors[chosen]).predict(vectors)
    return np.asarray(np.unique(clusters_found, return_inverse=True)[1], dtype=np.int64)
