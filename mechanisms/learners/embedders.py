"""What examples are clustered by: vectors that depend on features alone, which are public."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dpaudit.errors import require
from dpaudit.mechanisms.examples import Features
from dpaudit.registry import register


@runtime_checkable
class Embedder(Protocol):
    """Turns features into vectors whose distances mean something (registered as "embedder").

    It must look at features only. One that was fitted on other data, or on none, makes an out-of-domain prior.
    """

    def embed(self, features: Features, categorical: tuple[str, ...]) -> NDArray[np.float64]:
        """One vector for each example, shape (n, d)."""
        ...


@register("embedder", "numbers", source="stand-in: how the tables of arXiv:2511.14084 were clustered is not published")
@dataclass(frozen=True)
class Numbers:
    """The numeric columns or pixels themselves, each scaled to mean 0 and variance 1; missing ones become the mean."""

    def embed(self, features: Features, categorical: tuple[str, ...]) -> NDArray[np.float64]:
        """One vector for each example, shape (n, numeric columns)."""
        if isinstance(features, pa.Table):
            names = [name for name in features.column_names if name not in categorical]
            require(
                len(names) > 0, "clustering by numbers needs a numeric column", do="name a categorical one in group_by"
            )
            raw = features.select(names).to_pandas().to_numpy(dtype=np.float64, na_value=np.nan)
        else:
            raw = features.reshape(len(features), -1).astype(np.float64)
        known = np.isfinite(raw)
        counts = np.maximum(known.sum(axis=0), 1)
        centred = np.where(known, raw - np.where(known, raw, 0).sum(axis=0) / counts, 0.0)
        deviation = np.sqrt((centred**2).sum(axis=0) / counts)
        return np.asarray(centred / np.where(deviation > 0, deviation, 1.0))


@register("embedder", "principal-components", source="in place of the in-domain BYOL network of arXiv:2102.06062")
@dataclass(frozen=True)
class PrincipalComponents:
    """The leading principal components of the examples themselves: an in-domain embedding without training.

    Attributes:
        dimensions: Components kept at most, >= 1.
    """

    dimensions: int = 32

    def __post_init__(self) -> None:
        require(self.dimensions >= 1, "dimensions must be >= 1", dimensions=self.dimensions)

    def embed(self, features: Features, categorical: tuple[str, ...]) -> NDArray[np.float64]:
        """One vector for each example, shape (n, min(dimensions, d, n))."""
        from sklearn.decomposition import PCA
        from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

        numbers = Numbers().embed(features, categorical)
        kept = min(self.dimensions, *numbers.shape)
        with threadpool_limits(1):  # sums in one order, whatever machine this runs on
            return np.asarray(PCA(kept, svd_solver="randomized", random_state=0).fit_transform(numbers))


@register("embedder", "random-convolutions", source="Coates, Lee and Ng (2011), with random filters")
@dataclass(frozen=True)
class RandomConvolutions:
    """Pooled responses of random convolution filters: an embedding of images that has seen no data at all.

    Attributes:
        filters: Number of filters, >= 1.
        size: Side of a filter in pixels, >= 1.
        seed: Decides the filters.
    """

    filters: int = 64
    size: int = 5
    seed: int = 0

    def __post_init__(self) -> None:
        require(self.filters >= 1, "filters must be >= 1", filters=self.filters)
        require(self.size >= 1, "size must be >= 1", size=self.size)

    def embed(self, features: Features, categorical: tuple[str, ...]) -> NDArray[np.float64]:
        """One vector for each image, shape (n, 4 filters): mean response in each quarter of the picture."""
        import torch
        from torch.nn.functional import adaptive_avg_pool2d, conv2d, relu

        shaped = not isinstance(features, pa.Table) and features.ndim == 4 and min(features.shape[2:]) >= self.size
        require(shaped, f"random-convolutions needs images of at least {self.size} pixels a side")
        images = np.asarray(features, dtype=np.float32)
        drawn = np.random.default_rng(self.seed).normal(size=(self.filters, images.shape[1], self.size, self.size))
        drawn -= drawn.mean(axis=(1, 2, 3), keepdims=True)  # contrast, not brightness
        kernels = torch.from_numpy(drawn.astype(np.float32))
        pooled = []
        with torch.inference_mode():
            for start in range(0, len(images), 1000):
                batch = torch.tensor(images[start : start + 1000])
                pooled.append(adaptive_avg_pool2d(relu(conv2d(batch, kernels)), 2).flatten(1).numpy())
        return Numbers().embed(np.concatenate(pooled), ())
