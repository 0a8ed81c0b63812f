"""Multinomial logistic regression, the proxy of the paper's synthetic experiments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dpaudit.errors import require
from dpaudit.mechanisms.compute import Compute, TrainingError
from dpaudit.mechanisms.examples import Examples, Features
from dpaudit.mechanisms.models.catboost import columns
from dpaudit.mechanisms.models.constant import single_class
from dpaudit.mechanisms.protocols import Model
from dpaudit.registry import register


@register("model", "logistic-regression", source="scikit-learn's defaults, as in arXiv:2511.14084, section 11")
@dataclass(frozen=True)
class LogisticRegression:
    """Logistic regression with scikit-learn's default hyper-parameters.

    Numbers are used as they are (missing ones become their column's mean); categories are one-hot encoded, the rare
    ones of a column together.

    Attributes:
        standardise: Scale each numeric column to mean 0 and variance 1 first.
        inverse_penalty: scikit-learn's C, > 0.
        iterations: Steps of the solver at most, >= 1.
        categories: One-hot columns for each categorical column at most, >= 2.
    """

    standardise: bool = False
    inverse_penalty: float = 1.0
    iterations: int = 100
    categories: int = 100

    def __post_init__(self) -> None:
        require(self.inverse_penalty > 0, "inverse_penalty must be > 0", inverse_penalty=self.inverse_penalty)
        require(self.iterations >= 1, "iterations must be >= 1", iterations=self.iterations)
        require(self.categories >= 2, "categories must be >= 2", categories=self.categories)

    def fit(
        self, train: Examples, *, seed: np.random.SeedSequence, compute: Compute, validation: Examples | None = None
    ) -> Model:
        """Fits by L-BFGS, which draws nothing: `seed` changes nothing, nor does `validation`.

        Raises: TrainingError when the solver gives coefficients that are not finite.
        """
        import warnings

        from sklearn.exceptions import ConvergenceWarning
        from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

        constant = single_class(train)
        if constant is not None:
            return constant
        pipeline = self._pipeline(train)
        with threadpool_limits(compute.threads), warnings.catch_warnings():
            # Stopping after the default number of steps is what the paper's reference model does.
            warnings.simplefilter("ignore", ConvergenceWarning)
            pipeline.fit(columns(train.features, train.categorical), train.labels)
        if not np.isfinite(pipeline[-1].coef_).all():
            raise TrainingError("logistic regression gave coefficients that are not finite")
        return LogisticModel(pipeline, train.classes, train.categorical)

    def _pipeline(self, train: Examples) -> Any:
        from sklearn.compose import make_column_transformer
        from sklearn.impute import SimpleImputer
        from sklearn.linear_model import LogisticRegression as Solver
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import OneHotEncoder, StandardScaler

        names = train.features.column_names if isinstance(train.features, pa.Table) else None
        steps: list[Any] = [StandardScaler()] if self.standardise else []
        if names is not None:
            numeric = make_pipeline(SimpleImputer(), *steps)
            encoder = OneHotEncoder(max_categories=self.categories, handle_unknown="infrequent_if_exist")
            numbers = [name for name in names if name not in train.categorical]
            steps = [make_column_transformer((numeric, numbers), (encoder, list(train.categorical)))]
        return make_pipeline(*steps, Solver(C=self.inverse_penalty, max_iter=self.iterations))


@dataclass(frozen=True, eq=False)
class LogisticModel:
    """A fitted regression."""

    pipeline: Any  # scikit-learn's own object
    classes: int  # number of classes K; those without a training example have probability 0
    categorical: tuple[str, ...]  # names of the categorical columns

    def probabilities(self, features: Features) -> NDArray[np.float64]:
        """Class probabilities, shape (n, classes)."""
        predicted = np.zeros((len(features), self.classes))
        predicted[:, self.pipeline.classes_] = self.pipeline.predict_proba(columns(features, self.categorical))
        predicted /= predicted.sum(axis=1, keepdims=True)  # scikit-learn answers float32 features in float32
        return predicted
