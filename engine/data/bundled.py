"""The small data sets that come with scikit-learn: no file to fetch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dpaudit.mechanisms.examples import Examples
from dpaudit.registry import register


@register("data", "digits", source="scikit-learn; UCI Optical Recognition of Handwritten Digits")
@dataclass(frozen=True)
class Digits:
    """1,797 handwritten digits, images (n, 1, 8, 8) in [0, 1], 10 classes.

    Attributes:
        flat: Features of shape (n, 64) instead, for models of tables.
    """

    flat: bool = False

    def load(self, *, seed: int = 0) -> Examples:
        """All images in their published order; `seed` is not used."""
        from sklearn.datasets import load_digits

        bunch = load_digits()
        pixels = np.asarray(bunch.data, np.float32) / np.float32(16)
        return _examples(bunch, pixels if self.flat else pixels.reshape(-1, 1, 8, 8), "digits")


@dataclass(frozen=True)
class _Table:
    """A table of numbers with a class for each row.

    Attributes:
        standardise: Columns with mean 0 and deviation 1 over the published rows; otherwise their own units.
    """

    standardise: bool = True
    loader: ClassVar[str]

    def load(self, *, seed: int = 0) -> Examples:
        """All rows in their published order (often by class: split at random); `seed` is not used."""
        import sklearn.datasets

        bunch = getattr(sklearn.datasets, f"load_{self.loader}")()
        columns = np.asarray(bunch.data, np.float64)
        if self.standardise:
            columns = (columns - columns.mean(axis=0)) / columns.std(axis=0)
        return _examples(bunch, columns.astype(np.float32), self.loader.replace("_", "-"))


@register("data", "breast-cancer", source="scikit-learn; UCI Breast Cancer Wisconsin (Diagnostic)")
@dataclass(frozen=True)
class BreastCancer(_Table):
    """569 tumours, 30 measures, malignant or benign."""

    loader: ClassVar[str] = "breast_cancer"


@register("data", "iris", source="scikit-learn; Fisher (1936)")
@dataclass(frozen=True)
class Iris(_Table):
    """150 irises, 4 measures in centimetres, 3 species."""

    loader: ClassVar[str] = "iris"


@register("data", "wine", source="scikit-learn; UCI Wine, Forina et al. (1991)")
@dataclass(frozen=True)
class Wine(_Table):
    """178 wines, 13 measures, 3 growers."""

    loader: ClassVar[str] = "wine"


def _examples(bunch: Any, features: NDArray[np.float32], name: str) -> Examples:
    class_names = tuple(str(one) for one in bunch.target_names)
    return Examples(features, np.asarray(bunch.target, np.int64), len(class_names), name, class_names=class_names)
