"""Gradient-boosted trees, the model of the paper's Criteo experiments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dpaudit.errors import require
from dpaudit.mechanisms.compute import Compute, TrainingError
from dpaudit.mechanisms.examples import Examples, Features
from dpaudit.mechanisms.models.constant import single_class
from dpaudit.mechanisms.protocols import Model
from dpaudit.registry import register

if TYPE_CHECKING:
    import pandas as pd

MISSING = "unknown"
"""What a missing category becomes: a category of its own."""


@register("model", "catboost", source="Prokhorenkova et al. (2018); settings of arXiv:2511.14084, section 6.4")
@dataclass(frozen=True)
class CatBoost:
    """CatBoost trees for tables and flat arrays, on a GPU when the work was given one.

    With validation examples the model is cut after its best iteration, that iteration included.

    Attributes:
        iterations: Trees at most, >= 1.
        learning_rate: Step size, in (0, 1].
        depth: Depth of each tree, 1 .. 16.
    """

    iterations: int = 100
    learning_rate: float = 0.4
    depth: int = 8

    def __post_init__(self) -> None:
        require(self.iterations >= 1, "iterations must be >= 1", iterations=self.iterations)
        require(0 < self.learning_rate <= 1, "learning_rate must be in (0, 1]", learning_rate=self.learning_rate)
        require(1 <= self.depth <= 16, "depth must be in 1..16", depth=self.depth)

    def fit(
        self, train: Examples, *, seed: np.random.SeedSequence, compute: Compute, validation: Examples | None = None
    ) -> Model:
        """Trains with the log loss (two classes) or the softmax loss.

        Raises: TrainingError with CatBoost's message when it gives up.
        """
        import catboost

        constant = single_class(train)
        if constant is not None:  # CatBoost refuses such labels
            return constant
        binary = train.classes == 2
        classifier = catboost.CatBoostClassifier(
            iterations=self.iterations,
            learning_rate=self.learning_rate,
            depth=self.depth,
            loss_function="Logloss" if binary else "MultiClass",
            classes_count=None if binary else train.classes,  # a class without examples keeps its column
            random_seed=int(seed.generate_state(1)[0] >> 1),  # CatBoost wants a signed int
            thread_count=compute.threads,
            use_best_model=validation is not None,
            allow_writing_files=False,
            verbose=False,
            **_device(compute.device),
        )
        try:
            pools = [_pool(part) for part in (train, validation) if part is not None]
            classifier.fit(pools[0], eval_set=pools[1:] or None)
        except catboost.CatBoostError as err:
            raise TrainingError(f"CatBoost gave up: {str(err).strip().splitlines()[-1]}") from err
        return CatBoostModel(classifier, train.categorical, compute.threads)


@dataclass(frozen=True, eq=False)
class CatBoostModel:
    """Trained trees."""

    classifier: Any  # catBoost's own object
    categorical: tuple[str, ...]  # names of the categorical columns
    threads: int  # CPU threads to predict with

    def probabilities(self, features: Features) -> NDArray[np.float64]:
        """Class probabilities, shape (n, classes)."""
        predicted = self.classifier.predict_proba(columns(features, self.categorical), thread_count=self.threads)
        return cast(NDArray[np.float64], np.asarray(predicted, dtype=np.float64))


def columns(features: Features, categorical: tuple[str, ...]) -> pd.DataFrame | NDArray[np.float32]:
    """Features as CatBoost and scikit-learn read them: rows of numbers, or a data frame with categories as strings."""
    if not isinstance(features, pa.Table):
        return features.reshape(len(features), -1)
    for name in categorical:
        filled = pc.fill_null(features[name].cast(pa.string()), MISSING)
        features = features.set_column(features.column_names.index(name), name, filled)
    return cast("pd.DataFrame", features.to_pandas())


def _pool(examples: Examples) -> Any:
    import catboost

    data = columns(examples.features, examples.categorical)
    return catboost.Pool(data, examples.labels, cat_features=list(examples.categorical) or None)


def _device(device: str) -> dict[str, str]:
    """CatBoost's words for a device of torch: "cuda:1" is the GPU "1"."""
    kind, _, index = device.partition(":")
    return {"task_type": "GPU", "devices": index or "0"} if kind == "cuda" else {}
