"""Training functions of one's own, whatever they do inside: those that give a model, and those that give a vector."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.random import SeedSequence
from numpy.typing import NDArray

from dpaudit.claims import Claim
from dpaudit.errors import InputError
from dpaudit.given import check_fields
from dpaudit.locations import location
from dpaudit.mechanisms.adapters.user_code import (
    ClaimedByUser,
    checked_probabilities,
    code_of,
    global_randomness,
    whole_number,
)
from dpaudit.mechanisms.compute import Compute
from dpaudit.mechanisms.examples import Examples, Features
from dpaudit.mechanisms.models.catboost import columns
from dpaudit.mechanisms.protocols import Model
from dpaudit.registry import register


@dataclass(frozen=True)
class _OwnFunction(ClaimedByUser):
    """A function `train(X, y, seed)` of the user's, and what it promises."""

    train: Any
    parameters: Mapping[str, Any] = field(default_factory=dict)
    claimed: Claim | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        object.__setattr__(self, "train", code_of(self.train, field="train", arguments=("X", "y", "seed")))


@register("mechanism", "callable", source="one's own code")
@register("model", "callable", source="one's own code")
@dataclass(frozen=True)
class OwnTraining(_OwnFunction):
    """A function `train(X, y, seed)` that gives a trained model: a model inside any learner, or with a claim a learner.

    X is a float32 array, or a data frame where columns are categorical (as text); y holds classes 0 .. K - 1; seed is a
    whole number below 2^31, and the global generators of Python, NumPy and torch are seeded as well. What it gives has
    `predict_proba(X)`, or is a function of X: one probability for each example and class.

    Attributes:
        train: The function, or where it is: "module:function".
        parameters: Keyword arguments it is called with besides.
        claimed: What it promises, for a learner; a model needs none.
    """

    made_by = "from_callable"

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
        ask, seen, code = getattr(model, "predict_proba", None), None, location(self.train)
        if callable(ask):
            seen = getattr(model, "classes_", None)  # scikit-learn's word for the columns' classes
        elif callable(model):
            ask = model
        else:
            raise InputError(
                f"{code} must give something with predict_proba(X), or a function of X, got {type(model).__name__}"
            )
        return _OwnModel(ask, None if seen is None else np.asarray(seen, np.int64), train, code)


@dataclass(frozen=True, eq=False)
class _OwnModel:
    """What one's own training gave."""

    ask: Callable[[Any], Any]
    columns: NDArray[np.int64] | None  # the class of each column of an answer; None: one for each class of the data
    train: Examples
    code: str  # where the training is

    def probabilities(self, features: Features) -> NDArray[np.float64]:
        """Class probabilities, shape (n, classes).

        Raises: InputError when the answer has another shape.
        """
        return checked_probabilities(
            self.ask(_rows(features, self.train.categorical)),
            rows=len(features),
            classes=self.train.classes,
            columns=self.columns,
            code=f"the model of {self.code}",
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


@register("mechanism", "summary", source="one's own code")
@dataclass(frozen=True)
class OwnSummary(_OwnFunction):
    """A function `train(X, y, seed)` that trains and gives a vector of numbers, for the game `neighbours`.

    X is a float32 array of shape (n, d) that may be written to, y holds classes 0 .. K - 1, seed is a whole number
    below 2^31; the global generators of Python, NumPy and torch are seeded as well. Anything released may go into the
    vector: coefficients, tables, answers. Its length must not depend on the seed.

    Attributes:
        train: The function, or where it is: "module:function".
        parameters: Keyword arguments it is called with besides.
        claimed: What it promises.
    """

    made_by = "from_summary"

    def summarise(
        self, train: Examples, points: NDArray[np.float32], *, seed: SeedSequence, compute: Compute
    ) -> NDArray[np.float64]:
        """Calls the function; its own exceptions pass."""
        with global_randomness(seed):
            given = self.train(train.features, train.labels, whole_number(seed), **self.parameters)
        return np.asarray(given, np.float64)


def from_summary(train: Callable[..., Any], claim: Claim | None = None, **parameters: Any) -> OwnSummary:
    """A function `train(X, y, seed) -> vector` for an audit; see `OwnSummary`.

    Args:
        train: Trains, and gives a vector of numbers.
        claim: What it promises.
        parameters: Keyword arguments it is called with besides.
    Raises: InputError when it cannot be called so, or not be sent to a worker.
    """
    return OwnSummary(train, parameters, claim)
