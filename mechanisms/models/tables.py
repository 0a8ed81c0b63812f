"""Tables as numbers for networks: categories one-hot, missing numbers their column's mean."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dpaudit.mechanisms.examples import Examples, Features
from dpaudit.mechanisms.models.catboost import columns


def one_hot_numbers(train: Examples, test: Examples, *, categories: int = 20) -> tuple[Examples, Examples]:
    """Both as float32 arrays, coded by what the features of `train` hold; arrays stay as they are."""
    if not isinstance(train.features, pa.Table):
        return train, test
    from sklearn.compose import make_column_transformer
    from sklearn.impute import SimpleImputer
    from sklearn.preprocessing import OneHotEncoder

    encoder = OneHotEncoder(
        max_categories=categories, handle_unknown="infrequent_if_exist", sparse_output=False, dtype=np.float32
    )
    numbers = [name for name in train.features.column_names if name not in train.categorical]
    coder = make_column_transformer((SimpleImputer(), numbers), (encoder, list(train.categorical)))
    coder.fit(columns(train.features, train.categorical))
    coded = (
        part.with_(features=np.asarray(coder.transform(columns(part.features, part.categorical)), np.float32))
        for part in (train, test)
    )
    first, second = coded
    return first, second


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
