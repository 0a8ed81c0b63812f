"""Small data sets that come with scikit-learn, read from its files, because importing it takes seconds."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dpaudit.errors import DataError
from dpaudit.mechanisms.examples import Examples
from dpaudit.registry import register


@register("data", "digits", source="scikit-learn; UCI Optical Recognition of Handwritten Digits")
@dataclass(frozen=True)
class Digits:
    """1,797 handwritten digits, images (n, 1, 8, 8) in [0, 1], 10 classes.

    Attributes:
        flat: True for features of shape (n, 64), for tabular models.
    """

    flat: bool = False

    def load(self, *, seed: int = 0) -> Examples:
        """Return all images in their published order; `seed` is not used."""
        rows = np.loadtxt(_file("digits.csv.gz"), delimiter=",", dtype=np.float32)
        pixels = rows[:, :-1] / np.float32(16)
        names = [str(digit) for digit in range(10)]
        return _examples(pixels if self.flat else pixels.reshape(-1, 1, 8, 8), rows[:, -1], names, "digits")


@dataclass(frozen=True)
class _Table:
    """A table of numbers with a class for each row.

    Attributes:
        standardise: True to scale columns to mean 0 and standard deviation 1 over all rows.
    """

    standardise: bool = True
    file: ClassVar[str]
    registered_name: ClassVar[str]

    def load(self, *, seed: int = 0) -> Examples:
        """Return all rows in their published order, often sorted by class, so split at random; `seed` is not used."""
        path = _file(self.file)
        with path.open(encoding="utf-8") as file:
            _, _, *names = file.readline().strip().split(",")  # numbers of rows and columns, then the classes
            rows = np.loadtxt(file, delimiter=",")
        columns = np.ascontiguousarray(rows[:, :-1])
        if self.standardise:
            columns = (columns - columns.mean(axis=0)) / columns.std(axis=0)
        return _examples(columns.astype(np.float32), rows[:, -1], names, self.registered_name)


@register("data", "breast-cancer", source="scikit-learn; UCI Breast Cancer Wisconsin (Diagnostic)")
@dataclass(frozen=True)
class BreastCancer(_Table):
    """569 tumours, 30 measures, malignant or benign."""

    file: ClassVar[str] = "breast_cancer.csv"


@register("data", "iris", source="scikit-learn; Fisher (1936)")
@dataclass(frozen=True)
class Iris(_Table):
    """150 irises, 4 measures in centimetres, 3 species."""

    file: ClassVar[str] = "iris.csv"


@register("data", "wine", source="scikit-learn; UCI Wine, Forina et al. (1991)")
@dataclass(frozen=True)
class Wine(_Table):
    """178 wines, 13 measures, 3 growers."""

    file: ClassVar[str] = "wine_data.csv"


def _file(name: str) -> Path:
    """Return the path of a file of scikit-learn, without importing it."""
    spec = importlib.util.find_spec("sklearn")
    folders = [Path(folder) for folder in (spec and spec.submodule_search_locations) or ()]
    for folder in folders:
        if (path := folder / "datasets" / "data" / name).is_file():
            return path
    raise DataError(
        f"{name} of scikit-learn is missing in {', '.join(map(str, folders)) or 'any folder'}. Reinstall it"
    )


def _examples(
    features: NDArray[np.float32], labels: NDArray[np.floating[Any]], names: Sequence[str], name: str
) -> Examples:
    return Examples(features, labels.astype(np.int64), len(names), name, class_names=tuple(names))
