"""The rows that mechanisms read: labelled examples, and texts on which a language model is fine-tuned."""

from __future__ import annotations

import hashlib
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol, Self, TypeAlias, runtime_checkable

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike, NDArray

from dpaudit.errors import require
from dpaudit.field_checks import check_fields

Features: TypeAlias = "NDArray[np.float32] | pa.Table"
"""Float32 array of shape (n, d) or (n, channels, height, width), with images scaled to [0, 1].

For columns of mixed types: an Arrow table with categorical columns as strings (named in `Examples.categorical`). The
object store passes both without a copy, read-only."""


@runtime_checkable
class Rows(Protocol):
    """Data made of rows. A row is an example, a record of a table or a sequence of words."""

    @property
    def name(self) -> str:
        """Name of the data, for reports."""

    @property
    def digest(self) -> str:
        """Hash of the content, part of every unit's key."""

    def __len__(self) -> int:
        """Return the number of rows."""

    def take(self, rows: ArrayLike, /) -> Self:
        """Return the rows selected by integer positions (in that order) or by a boolean mask."""


@dataclass(frozen=True, eq=False)
class Examples:
    """Features with one label each.

    Attributes:
        features: n rows, see `Features`.
        labels: int64, shape (n,), values 0 .. classes - 1.
        classes: Number of classes K, >= 2.
        name: Name of the data, for reports.
        categorical: Names of the categorical columns, when the features are a table.
        class_names: Names of the classes, optional.
    """

    features: Features
    labels: NDArray[np.int64]
    classes: int
    name: str = "examples"
    categorical: tuple[str, ...] = ()
    class_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_fields(self)
        # NumPy would misread masked arrays, complex numbers and dates.
        labels, features = self.labels, self.features
        require(
            labels.ndim == 1 and labels.dtype.kind in "iu" and not isinstance(labels, np.ma.MaskedArray),
            "labels must hold one integer per row, without a mask",
            given=f"{type(labels).__name__} of {labels.dtype}, shape {labels.shape}",
        )
        if isinstance(features, np.ndarray):
            require(
                features.ndim >= 1 and features.dtype.kind in "biuf" and not isinstance(features, np.ma.MaskedArray),
                "features must be numbers, with one row per example and without a mask",
                given=f"{type(features).__name__} of {features.dtype}, shape {features.shape}",
            )
        require(self.classes >= 2, "classes must be >= 2", classes=self.classes)
        require(
            len(self.features) == len(self.labels),
            "features and labels must have the same number of rows",
            features=len(self.features),
            labels=len(self.labels),
        )
        if len(self.labels):
            low, high = int(self.labels.min()), int(self.labels.max())
            require(
                low >= 0 and high < self.classes, f"labels must be in 0..{self.classes - 1}", lowest=low, highest=high
            )

    @property
    def majority_share(self) -> float:
        """Share of the most frequent label: the accuracy of always predicting it."""
        return float(np.bincount(self.labels).max() / len(self))

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, rows: ArrayLike) -> Examples:
        """Return the examples selected by integer positions (in that order) or by a boolean mask."""
        positions = np.asarray(rows)
        if positions.dtype == np.bool_:
            positions = np.flatnonzero(positions)
        features = (
            self.features.take(pa.array(positions)) if isinstance(self.features, pa.Table) else self.features[positions]
        )
        return self.with_(features=features, labels=self.labels[positions])

    def with_(self, *, features: Features | None = None, labels: NDArray[np.int64] | None = None) -> Examples:
        features = self.features if features is None else features
        return replace(self, features=features, labels=self.labels if labels is None else labels)

    def with_first_labels(self, labels: NDArray[np.int64]) -> Examples:
        """Return the examples with other labels of the first rows, shape (m,)."""
        return self.with_(labels=np.concatenate([labels, self.labels[len(labels) :]]))

    def writable(self) -> Examples:
        """Return the examples with writable arrays; read-only arrays are copied."""
        copied = copy(self)  # `replace` would check the arrays again, for each of thousands of trainings
        copied.__dict__.pop("digest", None)  # of content that may change
        for name in ("features", "labels"):
            array = getattr(self, name)
            if isinstance(array, np.ndarray) and not array.flags.writeable:
                object.__setattr__(copied, name, array.copy())
        return copied

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the content, part of every unit's key."""
        hasher = hashlib.sha256(np.ascontiguousarray(self.labels).data)
        if isinstance(self.features, pa.Table):
            for batch in self.features.combine_chunks().to_batches():
                hasher.update(batch.serialize())
        else:
            hasher.update(np.ascontiguousarray(self.features).data)
        return hasher.hexdigest()


def writable_features(features: Features) -> Features:
    """Return a writable copy of `features`; tables are immutable and returned unchanged."""
    return features.copy() if isinstance(features, np.ndarray) else features


@dataclass(frozen=True, eq=False)
class Texts:
    """Texts, one row each.

    Attributes:
        texts: The texts; none is empty.
        name: Name of the data, for reports.
    """

    texts: tuple[str, ...]
    name: str = "texts"

    def __post_init__(self) -> None:
        require(all(self.texts), "every text must have at least one character", do="remove empty texts")

    def __len__(self) -> int:
        return len(self.texts)

    def take(self, rows: ArrayLike) -> Texts:
        """Return the texts selected by integer positions (in that order) or by a boolean mask."""
        where = np.asarray(rows)
        where = np.flatnonzero(where) if where.dtype == np.bool_ else where
        return replace(self, texts=tuple(self.texts[place] for place in where.tolist()))

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the texts, part of every unit's key."""
        hasher = hashlib.sha256()
        for text in self.texts:
            content = text.encode(errors="surrogatepass")
            hasher.update(len(content).to_bytes(8, "little") + content)
        return hasher.hexdigest()
