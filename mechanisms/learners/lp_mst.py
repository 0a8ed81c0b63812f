"""LP-MST: releases labels by randomised response in one stage (LP-1ST) or more, then trains without privacy.

Each later stage restricts randomised response to the most likely labels under the model of the earlier stages. LP-1ST
with a domain prior restricts it to the likely labels of similar examples, by noisy class shares in clusters.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
import pyarrow as pa
from numpy.random import SeedSequence
from numpy.typing import NDArray

from dpaudit.claims import Claim
from dpaudit.errors import require
from dpaudit.mechanisms.compute import Compute, limited_threads, spawned
from dpaudit.mechanisms.examples import Examples, Features
from dpaudit.mechanisms.labels.randomized_response import RandomizedResponse, best_k, rr_with_prior
from dpaudit.mechanisms.models.tables import CatBoost, tabular_input
from dpaudit.mechanisms.protocols import LabelMechanism, Model, Trainer
from dpaudit.mechanisms.ranges import require_at_least, require_epsilon, require_positive
from dpaudit.registry import register

UNLABELLED = -1  # label of an example whose stage is still to come, or that was dropped
MAX_CLUSTERED = 100_000  # examples used by k-means; the others join the nearest centre


@register("mechanism", "lp-1st", source="Ghazi et al. (2021), arXiv:2102.06062, LP-1ST with a uniform prior")
@dataclass(frozen=True)
class LP1ST:
    """Trains on labels released once by randomised response.

    Attributes:
        epsilon: Privacy loss in nats, > 0.
        model: Trains the model on the released labels.
    """

    epsilon: float
    model: Trainer = field(default=CatBoost(), metadata={"kind": "model"})

    def __post_init__(self) -> None:
        require_epsilon(self.epsilon)

    def claim(self) -> Claim:
        """Claim (epsilon, 0)-label-DP: post-processing of randomised response."""
        return Claim(self.epsilon)

    def fit(
        self, train: Examples, *, seed: SeedSequence, compute: Compute, validation: Examples | None = None
    ) -> Model:
        learner = ReleasedLabels(RandomizedResponse(self.epsilon), self.model)
        return learner.fit(train, seed=seed, compute=compute, validation=validation)


@register("mechanism", "lp-1st-noise-correction", source="arXiv:2511.14084, section 6.4; Wu et al. (2023)")
class LP1STNoiseCorrection(LP1ST):
    """LP-1ST with predictions corrected for the noise in the training labels."""

    def fit(
        self, train: Examples, *, seed: SeedSequence, compute: Compute, validation: Examples | None = None
    ) -> Model:
        """Train as LP-1ST and correct its predictions, which is post-processing."""
        noisy = super().fit(train, seed=seed, compute=compute, validation=validation)
        return NoiseCorrectedModel(noisy, self.epsilon)


@dataclass(frozen=True, eq=False)
class NoiseCorrectedModel:
    """Predicts true labels from a model of labels released by randomised response."""

    noisy: Model  # model trained on the released labels
    epsilon: float  # privacy loss of the randomised response, > 0

    def probabilities(self, features: Features) -> NDArray[np.float64]:
        return correct_for_noise(self.noisy.probabilities(features), self.epsilon)


def correct_for_noise(noisy: NDArray[np.float64], epsilon: float) -> NDArray[np.float64]:
    """Return probabilities of true labels from those of labels released by randomised response; both (n, K).

    Computes p T^-1 with the (K, K) transition matrix T, clips to [0, 1] and scales rows to sum to 1.
    """
    flip_odds = math.exp(-epsilon)
    classes = noisy.shape[1]
    inverted = (noisy * (1 + (classes - 1) * flip_odds) - flip_odds) / -math.expm1(-epsilon)
    clipped: NDArray[np.float64] = np.clip(inverted, 0.0, 1.0)
    clipped /= clipped.sum(axis=1, keepdims=True)
    return clipped


@register("mechanism", "released-labels", source="post-processing; arXiv:2102.06062 with any label mechanism")
@dataclass(frozen=True)
class ReleasedLabels:
    """Trains on labels released once by a label mechanism; has the claim of that mechanism.

    Attributes:
        labels: The mechanism that releases the labels.
        model: Trains the model on the released labels.
    """

    labels: LabelMechanism = field(default=RandomizedResponse(1.0), metadata={"kind": "mechanism"})
    model: Trainer = field(default=CatBoost(), metadata={"kind": "model"})

    def claim(self) -> Claim:
        """Return the claim of the label mechanism; training is post-processing."""
        return self.labels.claim()

    def fit(
        self, train: Examples, *, seed: SeedSequence, compute: Compute, validation: Examples | None = None
    ) -> Model:
        noise, training = spawned(seed, 2)
        released = self.labels.release(train.labels, classes=train.classes, rng=np.random.default_rng(noise))
        return self.model.fit(train.with_(labels=released), seed=training, compute=compute, validation=validation)


@register("mechanism", "lp-2st", source="Ghazi et al. (2021), arXiv:2102.06062, LP-MST; Wu et al. (2023) for Criteo")
@dataclass(frozen=True)
class LP2ST:
    """Multi-stage training. The defaults are the Criteo version: two halves, the stage-1 model as prior.

    The examples are split at random. The first part is released by randomised response. Each later part is released by
    RRWithPrior, with the predictions of a model trained on all released labels as prior. Each label is released once,
    so all stages together cost epsilon.

    The image version of Ghazi et al. uses, for epsilon 1, 2, 4 and 8, shares (.8, .2), (.7, .3), (.6, .4), (.6, .4),
    temperature .6, .5, .5, .5, and `drop_unlikely`.

    Attributes:
        epsilon: Privacy loss in nats, > 0.
        shares: Share of the examples in each stage, each > 0, summing to 1.
        temperature: T > 0; the prior is softmax(logits / T) of the earlier model, sharper for T < 1.
        drop_unlikely: Drop examples of earlier stages if the model does not rank their released label among the
            `int(mean k*)` most likely ones. `k*` is the number of labels that RRWithPrior keeps for an example of the
            current stage.
        model: Trains the model of each stage and the final model.
    """

    epsilon: float
    shares: tuple[float, ...] = (0.5, 0.5)
    temperature: float = 1.0
    drop_unlikely: bool = False
    model: Trainer = field(default=CatBoost(), metadata={"kind": "model"})

    def __post_init__(self) -> None:
        object.__setattr__(self, "shares", tuple(self.shares))
        require_epsilon(self.epsilon)
        require(
            min(self.shares, default=0) > 0 and abs(sum(self.shares) - 1) < 1e-9,
            "shares must be > 0 and sum to 1",
            shares=self.shares,
        )
        require_positive(self, "temperature")

    def claim(self) -> Claim:
        """Claim (epsilon, 0)-label-DP: each label is released once, given the earlier releases."""
        return Claim(self.epsilon)

    def fit(
        self, train: Examples, *, seed: SeedSequence, compute: Compute, validation: Examples | None = None
    ) -> Model:
        splitting, *stages = self.stage_seeds(seed)
        released = np.full(len(train), UNLABELLED)
        model: Model | None = None
        for rows, stage in zip(self._split(len(train), splitting), stages, strict=True):
            answering, training = spawned(stage, 2)
            prior = self._prior(train.take(rows), model)
            labelled = released != UNLABELLED
            if self.drop_unlikely and model is not None and len(rows):
                likely = int(best_k(prior, self.epsilon).mean())
                probabilities = model.probabilities(train.take(labelled).features)
                order = np.argsort(-probabilities, axis=1, kind="stable")
                stays = (order[:, :likely] == released[labelled][:, None]).any(axis=1)
                released[labelled] = np.where(stays, released[labelled], UNLABELLED)
            rng = np.random.default_rng(answering)
            released[rows] = rr_with_prior(train.labels[rows], prior, self.epsilon, rng)
            labelled = released != UNLABELLED
            labelled = train.take(labelled).with_(labels=released[labelled])
            model = self.model.fit(labelled, seed=training, compute=compute, validation=validation)
        assert model is not None
        return model

    def stage_seeds(self, seed: SeedSequence) -> list[SeedSequence]:
        """Return the seed of the split, then that of each stage."""
        return spawned(seed, 1 + len(self.shares))

    def _split(self, examples: int, seed: SeedSequence) -> list[NDArray[np.int64]]:
        """Return the rows of each stage, ascending; a random partition by `shares`."""
        ends = np.rint(np.cumsum(self.shares[:-1]) * examples).astype(np.int64)
        order = np.random.default_rng(seed).permutation(examples)
        return [np.sort(part) for part in np.split(order, ends)]

    def _prior(self, stage: Examples, model: Model | None) -> NDArray[np.float64]:
        """Return the prior weights of a stage: uniform in the first, else from the current model; shape (n, K)."""
        if model is None:
            return np.ones((len(stage), stage.classes))
        probabilities = model.probabilities(stage.features)
        # Divide by the largest first: small temperatures would underflow whole rows to 0.
        return np.asarray((probabilities / probabilities.max(axis=1, keepdims=True)) ** (1 / self.temperature))


@runtime_checkable
class Embedder(Protocol):
    """Maps features to vectors with meaningful distances (registered as "embedder").

    It must depend on features only. An embedder fitted on other data, or on none, gives an out-of-domain prior.
    """

    def embed(self, features: Features, categorical: tuple[str, ...]) -> NDArray[np.float64]:
        """Return one vector for each example, shape (n, d)."""


@register("embedder", "numbers", source="stand-in: how the tables of arXiv:2511.14084 were clustered is not published")
@dataclass(frozen=True)
class Numbers:
    """The numeric columns or pixels, scaled to mean 0 and variance 1; missing values become the mean."""

    def embed(self, features: Features, categorical: tuple[str, ...]) -> NDArray[np.float64]:
        if isinstance(features, pa.Table):
            names = [name for name in features.column_names if name not in categorical]
            require(
                len(names) > 0, "clustering by numbers needs a numeric column", do="name a categorical one in group_by"
            )
            raw = features.select(names).to_pandas().to_numpy(dtype=np.float64, na_value=np.nan)
        else:
            raw = features.reshape(len(features), -1).astype(np.float64)
        finite = np.isfinite(raw)
        counts = np.maximum(finite.sum(axis=0), 1)
        centred = np.where(finite, raw - np.where(finite, raw, 0).sum(axis=0) / counts, 0.0)
        deviation = np.sqrt((centred**2).sum(axis=0) / counts)
        return np.asarray(centred / np.where(deviation > 0, deviation, 1.0))


@register("embedder", "principal-components", source="in place of the in-domain BYOL network of arXiv:2102.06062")
@dataclass(frozen=True)
class PrincipalComponents:
    """Leading principal components of the examples: an in-domain embedding without training.

    Attributes:
        dimensions: Maximum number of components, >= 1.
    """

    dimensions: int = 32

    def __post_init__(self) -> None:
        require_at_least(1, self, "dimensions")

    def embed(self, features: Features, categorical: tuple[str, ...]) -> NDArray[np.float64]:
        from sklearn.decomposition import PCA

        numbers = Numbers().embed(features, categorical)
        components = min(self.dimensions, *numbers.shape)
        with limited_threads(1):  # one order of summation on every machine
            return np.asarray(PCA(components, svd_solver="randomized", random_state=0).fit_transform(numbers))


@register("embedder", "random-convolutions", source="Coates, Lee and Ng (2011), with random filters")
@dataclass(frozen=True)
class RandomConvolutions:
    """Pooled responses of random convolution filters: an embedding of images fitted on no data.

    Attributes:
        filters: Number of filters, >= 1.
        size: Side of a filter in pixels, >= 1.
        seed: Seed of the filters.
    """

    filters: int = 64
    size: int = 5
    seed: int = 0

    def __post_init__(self) -> None:
        require_at_least(1, self, "filters", "size")

    def embed(self, features: Features, categorical: tuple[str, ...]) -> NDArray[np.float64]:
        """Return the mean response in each quarter of the image, shape (n, 4 filters)."""
        import torch
        from torch.nn.functional import adaptive_avg_pool2d, conv2d, relu

        shaped = not isinstance(features, pa.Table) and features.ndim == 4 and min(features.shape[2:]) >= self.size
        require(shaped, f"random-convolutions needs images of at least {self.size} pixels a side")
        images = np.asarray(features, dtype=np.float32)
        filters = np.random.default_rng(self.seed).normal(size=(self.filters, images.shape[1], self.size, self.size))
        filters -= filters.mean(axis=(1, 2, 3), keepdims=True)  # contrast, not brightness
        kernels = torch.from_numpy(filters.astype(np.float32))
        pooled = []
        with torch.inference_mode():
            for start in range(0, len(images), 1000):
                batch = torch.tensor(images[start : start + 1000])
                pooled.append(adaptive_avg_pool2d(relu(conv2d(batch, kernels)), 2).flatten(1).numpy())
        return Numbers().embed(np.concatenate(pooled), ())


@register(
    "mechanism", "lp-1st-domain-prior", source="Ghazi et al. (2021), arXiv:2102.06062, LP-1ST with in-domain prior"
)
@dataclass(frozen=True)
class LP1STDomainPrior:
    """LP-1ST with candidate labels that are likely in the example's cluster.

    Clusters depend on features alone. `prior_epsilon` is spent on the noisy class counts of the clusters, the rest of
    `epsilon` on the labels. The clustering of the published Criteo experiments is not known. This implementation uses
    k-means on the numeric columns, or the values of one categorical column.

    Attributes:
        epsilon: Total privacy loss in nats, > prior_epsilon.
        prior_epsilon: Part of `epsilon` spent on the class counts, > 0.
        clusters: Maximum number of k-means clusters, >= 1.
        group_by: A categorical column whose values are the clusters, instead of k-means.
        embedder: Computes the vectors for k-means.
        model: Trains the model on the released labels.
    """

    epsilon: float
    prior_epsilon: float = 0.05
    clusters: int = 100
    group_by: str | None = None
    embedder: Embedder = field(default=Numbers(), metadata={"kind": "embedder"})
    model: Trainer = field(default=CatBoost(), metadata={"kind": "model"})

    def __post_init__(self) -> None:
        require_positive(self, "prior_epsilon")
        require(
            self.labels_epsilon > 0,
            "epsilon must be greater than prior_epsilon",
            epsilon=self.epsilon,
            prior_epsilon=self.prior_epsilon,
        )
        require_at_least(1, self, "clusters")

    @property
    def labels_epsilon(self) -> float:
        """Part of `epsilon` spent on the labels."""
        return self.epsilon - self.prior_epsilon

    def claim(self) -> Claim:
        """Claim (epsilon, 0)-label-DP: a label counts in one cluster and is released once."""
        return Claim(self.epsilon)

    def fit(
        self, train: Examples, *, seed: SeedSequence, compute: Compute, validation: Examples | None = None
    ) -> Model:
        clustering, counting, answering, training = spawned(seed, 4)
        if self.group_by is not None:
            cluster = category_codes(train, self.group_by)
        else:
            embeddings = self.embedder.embed(train.features, train.categorical)
            cluster = nearest_centres(embeddings, self.clusters, clustering)
        shares = noisy_class_shares(
            cluster, train.labels, train.classes, self.prior_epsilon, np.random.default_rng(counting)
        )
        rng = np.random.default_rng(answering)
        released = rr_with_prior(train.labels, shares[cluster], self.labels_epsilon, rng)
        return self.model.fit(train.with_(labels=released), seed=training, compute=compute, validation=validation)


@register(
    "mechanism", "lp-1st-out-of-domain-prior", source="Ghazi et al. (2021), arXiv:2102.06062, out-of-domain prior"
)
@dataclass(frozen=True)
class LP1STOutOfDomainPrior(LP1STDomainPrior):
    """LP-1ST with a domain prior, its clusters from an embedding that was not fitted on the training data.

    The paper embeds images with a network trained on other images. The default here is random filters.
    """

    prior_epsilon: float = 0.025
    clusters: int = 50
    embedder: Embedder = field(default=RandomConvolutions(), metadata={"kind": "embedder"})


def noisy_class_shares(
    cluster: NDArray[np.int64], labels: NDArray[np.int64], classes: int, epsilon: float, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Return the share of each class in each cluster, computed from noisy counts; shape (C, classes).

    `cluster`, shape (n,) with values 0 .. C - 1, must not depend on the labels. Changing a label moves one unit between
    two counts of a cluster, an L1 distance of 2, so the discrete Laplace noise has rate eps / 2. If no noisy count of a
    cluster is positive, its shares are equal.
    """
    clusters = int(cluster.max()) + 1 if len(cluster) else 0
    counts = np.bincount(cluster * classes + labels, minlength=clusters * classes).reshape(clusters, classes)
    noisy = np.maximum(counts + discrete_laplace(epsilon / 2, counts.shape, rng), 0).astype(np.float64)
    noisy[noisy.sum(axis=1) == 0] = 1
    return np.asarray(noisy / noisy.sum(axis=1, keepdims=True))


def discrete_laplace(rate: float, shape: tuple[int, ...], rng: np.random.Generator) -> NDArray[np.int64]:
    """Draw integers t with probability proportional to e^(-rate |t|): differences of two geometric variables."""
    success = -np.expm1(-rate)
    return np.asarray(rng.geometric(success, shape) - rng.geometric(success, shape), dtype=np.int64)


def category_codes(train: Examples, column: str) -> NDArray[np.int64]:
    """Return an integer code for each example's value in a categorical column; missing values are one category."""
    require(
        isinstance(train.features, pa.Table) and column in train.categorical,
        f"group_by must be one of the categorical columns ({', '.join(train.categorical) or 'there are none'})",
        group_by=column,
    )
    table: Any = train.features
    frame: Any = tabular_input(table.select([column]), (column,))
    return np.asarray(np.unique(np.asarray(frame[column], str), return_inverse=True)[1], dtype=np.int64)


def nearest_centres(vectors: NDArray[np.float64], clusters: int, seed: SeedSequence) -> NDArray[np.int64]:
    """Return the k-means cluster of each vector, numbered without gaps; shape (n, d) to (n,)."""
    from sklearn.cluster import KMeans

    unique, place = np.unique(vectors, axis=0, return_inverse=True)
    if clusters >= len(unique):  # each distinct vector is a cluster
        return np.asarray(place, dtype=np.int64)
    rng = np.random.default_rng(seed)
    chosen = rng.permutation(len(vectors))[:MAX_CLUSTERED]
    means = KMeans(min(clusters, len(chosen)), n_init=1, random_state=int(rng.integers(2**31)))
    with limited_threads(1):  # one order of summation on every machine
        labels = means.fit(vectors[chosen]).predict(vectors)
    return np.asarray(np.unique(labels, return_inverse=True)[1], dtype=np.int64)
