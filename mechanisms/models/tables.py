"""Models for tables: gradient-boosted trees and logistic regression."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dpaudit.errors import require
from dpaudit.mechanisms.compute import Compute, TrainingError, limited_threads
from dpaudit.mechanisms.examples import Examples, Features
from dpaudit.mechanisms.protocols import Model
from dpaudit.mechanisms.ranges import require_at_least, require_positive
from dpaudit.registry import register

if TYPE_CHECKING:
    import pandas as pd

_MISSING = "unknown"  # category of missing values
CATBOOST_GPU_SHARE = 0.95  # CatBoost's default share of a whole GPU's memory


@register("model", "catboost", source="Prokhorenkova et al. (2018); settings of arXiv:2511.14084, section 6.4")
@dataclass(frozen=True)
class CatBoost:
    """CatBoost trees for tables and flat arrays, on a GPU if the compute device is one.

    With validation examples, the model is truncated after its best iteration.

    Attributes:
        iterations: Maximum number of trees, >= 1.
        learning_rate: Step size, in (0, 1].
        depth: Depth of each tree, 1 .. 16.
    """

    iterations: int = 100
    learning_rate: float = 0.4
    depth: int = 8

    def __post_init__(self) -> None:
        require_at_least(1, self, "iterations")
        require(0 < self.learning_rate <= 1, "learning_rate must be in (0, 1]", learning_rate=self.learning_rate)
        require(1 <= self.depth <= 16, "depth must be in 1..16", depth=self.depth)

    def fit(
        self, train: Examples, *, seed: np.random.SeedSequence, compute: Compute, validation: Examples | None = None
    ) -> Model:
        import catboost

        constant = constant_model(train)
        if constant is not None:  # CatBoost rejects such labels
            return constant
        binary, gpu = train.classes == 2, dict[str, Any]()
        kind, _, index = compute.device.partition(":")
        if kind == "cuda":  # "cuda:1" is GPU "1" of CatBoost
            ram_part = CATBOOST_GPU_SHARE * compute.device_share
            gpu = {"task_type": "GPU", "devices": index or "0", "gpu_ram_part": ram_part}
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
            **gpu,
        )
        try:
            pools = [
                catboost.Pool(
                    tabular_input(part.features, part.categorical),
                    part.labels,
                    cat_features=list(part.categorical) or None,
                )
                for part in (train, validation)
                if part is not None
            ]
            classifier.fit(pools[0], eval_set=pools[1:] or None)
        except catboost.CatBoostError as err:
            raise TrainingError(f"CatBoost failed: {str(err).strip().splitlines()[-1]}") from err
        return CatBoostModel(classifier, train.categorical, compute.threads)


@dataclass(frozen=True, eq=False)
class CatBoostModel:
    """Trained trees."""

    classifier: Any  # a catboost.CatBoostClassifier
    categorical: tuple[str, ...]  # names of the categorical columns
    threads: int  # CPU threads for predictions

    def probabilities(self, features: Features) -> NDArray[np.float64]:
        predicted = self.classifier.predict_proba(tabular_input(features, self.categorical), thread_count=self.threads)
        return cast(NDArray[np.float64], np.asarray(predicted, dtype=np.float64))


@register("model", "logistic-regression", source="scikit-learn's defaults, as in arXiv:2511.14084, section 11")
@dataclass(frozen=True)
class LogisticRegression:
    """Logistic regression with scikit-learn's default hyper-parameters.

    Missing numbers become the mean of their column. Categories are one-hot encoded; rare categories of a column share
    one.

    Attributes:
        standardise: Scale each numeric column to mean 0 and variance 1 first.
        inverse_penalty: scikit-learn's C, > 0.
        iterations: Maximum number of solver steps, >= 1.
        categories: Maximum number of one-hot columns for each categorical column, >= 2.
    """

    standardise: bool = False
    inverse_penalty: float = 1.0
    iterations: int = 100
    categories: int = 100

    def __post_init__(self) -> None:
        require_positive(self, "inverse_penalty")
        require_at_least(1, self, "iterations")
        require_at_least(2, self, "categories")

    def fit(
        self, train: Examples, *, seed: np.random.SeedSequence, compute: Compute, validation: Examples | None = None
    ) -> Model:
        import warnings

        from sklearn.exceptions import ConvergenceWarning

        constant = constant_model(train)
        if constant is not None:
            return constant
        pipeline = self._pipeline(train)
        with limited_threads(compute.threads), warnings.catch_warnings():
            # The reference model of the paper stops after the default number of steps too.
            warnings.simplefilter("ignore", ConvergenceWarning)
            pipeline.fit(tabular_input(train.features, train.categorical), train.labels)
        if not np.isfinite(pipeline[-1].coef_).all():
            raise TrainingError("the coefficients of the logistic regression are not finite")
        return LogisticModel(pipeline, train.classes, train.categorical)

    def _pipeline(self, train: Examples) -> Any:
        from sklearn.compose import make_column_transformer
        from sklearn.impute import SimpleImputer
        from sklearn.linear_model import LogisticRegression as Solver
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import OneHotEncoder, StandardScaler

        names = train.features.column_names if isinstance(train.features, pa.Table) else None
        steps: list[Any] = [StandardScaler()] if self.standardise else []
        if names is None:
            steps = [SimpleImputer(keep_empty_features=True), *steps]
        else:
            numeric = make_pipeline(SimpleImputer(), *steps)
            encoder = OneHotEncoder(max_categories=self.categories, handle_unknown="infrequent_if_exist")
            numbers = [name for name in names if name not in train.categorical]
            steps = [make_column_transformer((numeric, numbers), (encoder, list(train.categorical)))]
        return make_pipeline(*steps, Solver(C=self.inverse_penalty, max_iter=self.iterations))


@dataclass(frozen=True, eq=False)
class LogisticModel:
    """A fitted logistic regression."""

    pipeline: Any  # a scikit-learn pipeline
    classes: int  # number of classes K; classes without a training example have probability 0
    categorical: tuple[str, ...]  # names of the categorical columns

    def probabilities(self, features: Features) -> NDArray[np.float64]:
        predicted = np.zeros((len(features), self.classes))
        predicted[:, self.pipeline.classes_] = self.pipeline.predict_proba(tabular_input(features, self.categorical))
        predicted /= predicted.sum(axis=1, keepdims=True)  # scikit-learn returns float32 for float32 features
        return predicted


def tabular_input(features: Features, categorical: tuple[str, ...]) -> pd.DataFrame | NDArray[np.float32]:
    """Return input for CatBoost and scikit-learn: an array (n, d), or a data frame with categories as strings."""
    if not isinstance(features, pa.Table):
        return features.reshape(len(features), -1)
    for name in categorical:
        filled = pc.fill_null(features[name].cast(pa.string()), _MISSING)
        features = features.set_column(features.column_names.index(name), name, filled)
    return cast("pd.DataFrame", features.to_pandas())


@dataclass(frozen=True)
class ConstantModel:
    """Predicts the same probabilities for every example."""

    prediction: tuple[float, ...]  # one probability for each class, summing to 1

    def probabilities(self, features: Features) -> NDArray[np.float64]:
        return np.tile(np.asarray(self.prediction), (len(features), 1))


def constant_model(train: Examples) -> ConstantModel | None:
    """Return a constant model, (count + 1) / (n + K), for labels of at most one class; None for other labels."""
    counts = np.bincount(train.labels, minlength=train.classes)
    if np.count_nonzero(counts) > 1:
        return None
    return ConstantModel(tuple(float(p) for p in (counts + 1) / (len(train) + train.classes)))
