"""A training function of one's own, whatever it does inside."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.random import SeedSequence
from numpy.typing import NDArray

from dpaudit.claims import Claim
from dpaudit.errors import InputError
from dpaudit.locations import location
from dpaudit.mechanisms.adapters.randomness import global_randomness, whole_number
from dpaudit.mechanisms.adapters.user_code import OwnFunction, checked_probabilities, stated
from dpaudit.mechanisms.compute import Compute
from dpaudit.mechanisms.examples import Examples, Features
from dpaudit.mechanisms.models.tables import columns
from dpaudit.mechanisms.protocols import Model
from dpaudit.registry import register


@register("mechanism", "callable", source="one's own code")
@register("model", "callable", source="one's own code")
@dataclass(frozen=True)
class OwnTraining(OwnFunction):
    """A function `train(X, y, seed)` that gives a trained model: a model inside any learner, or with a claim a learner.

    X is a float32 array, or a data frame where columns are categorical (as text); y holds classes 0 .. K - 1; seed is a
    whole number below 2^31, and the global generators of Python, NumPy and torch are seeded as well. What it gives has
    `predict_proba(X)`, or is a function of X: one probability for each example and class.

    Attributes:
        train: The function, or where it is: "module:function".
        parameters: Keyword arguments it is called with besides.
        claimed: What it promises, for a learner; a model needs none.
    """

    def claim(self) -> Claim:
        """The claim it was given.

        Raises: InputError when it has none.
        """
        return stated(self.claimed, adapter="from_callable")

    def fit(
        self, train: Examples, *, seed: SeedSequence, compute: Compute, validation: Examples | None = None
    ) -> Model:
        """Calls the function; `validation` is not used. Its own exceptions pass.

        Raises: InputError when what it gives cannot be asked for probabilities.
        """
        from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

        rows = _rows(train.features, train.categorical)
        with global_randomness(seed), threadpool_limits(compute.threads):
            model = self.train(rows, train.labels.copy(), whole_number(seed), **self.parameters)
        return OwnModel(_predictor(model, location(self.train)), train, location(self.train))


@dataclass(frozen=True, eq=False)
class _Predictor:
    """What is asked, and the class of each column of its answer; None = one column for each class of the data."""

    ask: Callable[[Any], Any]
    columns: NDArray[np.int64] | None


@dataclass(frozen=True, eq=False)
class OwnModel:
    """What one's own training gave.

    Attributes:
        predictor: What is asked.
        train: What it was trained on.
        code: Where the training is, for messages.
    """

    predictor: _Predictor
    train: Examples
    code: str

    def probabilities(self, features: Features) -> NDArray[np.float64]:
        """Class probabilities, shape (n, classes).

        Raises: InputError when the answer has another shape.
        """
        return checked_probabilities(
            self.predictor.ask(_rows(features, self.train.categorical)),
            rows=len(features),
            classes=self.train.classes,
            columns=self.predictor.columns,
            code=f"the model of {self.code}",
        )


def _predictor(model: Any, code: str) -> _Predictor:
    if callable(getattr(model, "predict_proba", None)):
        seen = getattr(model, "classes_", None)  # scikit-learn's word for the columns' classes
        return _Predictor(model.predict_proba, None if seen is None else np.asarray(seen, np.int64))
    if callable(model):
        return _Predictor(model, None)
    raise InputError(
        f"{code} must give something with predict_proba(X), or a function of X, got {type(model).__name__}"
    )


def _rows(features: Features, categorical: tuple[str, ...]) -> Any:
    """A copy, since what workers share is read-only: an array of the same shape, or a data frame."""
    return np.array(features) if isinstance(features, np.ndarray) else columns(features, categorical)


def from_callable(train: Callable[..., Any], claim: Claim | None = None, **parameters: Any) -> OwnTraining:
    """A training function `train(X, y, seed)` for an audit; see `OwnTraining`.

    Args:
        train: Gives something with `predict_proba(X)`, or a function from X to probabilities.
        claim: What it promises, where it is the mechanism.
        parameters: Keyword arguments it is called with besides.
    Raises: InputError when it cannot be called so, or not be sent to a worker.
    """
    return OwnTraining(train, parameters, claim)
