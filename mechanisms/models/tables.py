"""What models of tables share: how columns are read, and the model of labels that are all the same."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dpaudit.mechanisms.examples import Examples, Features

if TYPE_CHECKING:
    import pandas as pd

MISSING = "unknown"
"""What a missing category becomes: a category of its own."""


def columns(features: Features, categorical: tuple[str, ...]) -> pd.DataFrame | NDArray[np.float32]:
    """Features as CatBoost and scikit-learn read them: rows of numbers, or a data frame with categories as strings."""
    if not isinstance(features, pa.Table):
        return features.reshape(len(features), -1)
    for name in categorical:
        filled = pc.fill_null(features[name].cast(pa.string()), MISSING)
        features = features.set_column(features.column_names.index(name), name, filled)
    return cast("pd.DataFrame", features.to_pandas())


def one_hot_numbers(train: Examples, test: Examples) -> tuple[Examples, Examples]:
    """Both as float32 arrays for a network, coded by what `train` holds; arrays stay as they are.

    Categories become one-hot, the rare ones of a column together; missing numbers their column's mean.
    """
    if not isinstance(train.features, pa.Table):
        return train, test
    from sklearn.compose import make_column_transformer
    from sklearn.impute import SimpleImputer
    from sklearn.preprocessing import OneHotEncoder

    encoder = OneHotEncoder(
        max_categories=20, handle_unknown="infrequent_if_exist", sparse_output=False, dtype=np.float32
    )
    numbers = [name for name in train.features.column_names if name not in train.categorical]
    coder = make_column_transformer((SimpleImputer(), numbers), (encoder, list(train.categorical)))
    coder.fit(columns(train.features, train.categorical))

    def coded(part: Examples) -> Examples:
        table = columns(part.features, part.categorical)
        return part.with_(features=np.asarray(coder.transform(table), np.float32))

    return coded(train), coded(test)


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
