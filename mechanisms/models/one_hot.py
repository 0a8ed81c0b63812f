"""Tables as numbers for networks: categories one-hot, missing numbers their column's mean."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from dpaudit.mechanisms.examples import Examples
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
