"""Training functions of the user, which return a model or a vector, or expose the steps of DP-SGD."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.random import SeedSequence
from numpy.typing import NDArray

from dpaudit.claims import Claim, Relation
from dpaudit.claims.composition import SubsampledGaussian
from dpaudit.errors import InputError
from dpaudit.locations import location
from dpaudit.mechanisms.adapters.user_code import ClaimedByUser, ModelOfUserCode, global_randomness, take_code
from dpaudit.mechanisms.compute import Compute, limited_threads
from dpaudit.mechanisms.examples import Examples, Features
from dpaudit.mechanisms.models.tables import tabular_input
from dpaudit.mechanisms.protocols import Model
from dpaudit.mechanisms.ranges import require_delta, require_positive
from dpaudit.mechanisms.training.inputs import as_array
from dpaudit.mechanisms.training.private.private_steps import ClaimedSteps, PrivateSteps, StepCanary
from dpaudit.registry import register
from dpaudit.tensors import numpy_of


@dataclass(frozen=True)
class _OwnFunction(ClaimedByUser):
    """A user's function `train(X, y, seed)` and its claim.

    Attributes:
        train: The function, or its import path "module:function".
        parameters: Further keyword arguments of the function.
    """

    train: Any
    parameters: Mapping[str, Any] = field(default_factory=dict)
    claimed: Claim | None = None

    def __post_init__(self) -> None:
        take_code(self, "train", "X", "y", "seed", parameters=self.parameters)


@register("mechanism", "callable", source="your own code")
@register("model", "callable", source="your own code")
class OwnTraining(_OwnFunction):
    """A function `train(X, y, seed)` that returns a trained model: a model inside any learner, or a learner itself.

    X is a float32 array, or a data frame if columns are categorical (as text). y holds classes 0 .. K - 1. seed is a
    whole number below 2^31, and the global generators of Python, NumPy and torch are seeded as well. The returned
    object has `predict_proba(X)`, or is a function of X: one probability for each example and class. Without a
    claim, an audit measures how much the model leaks.
    """

    made_by = "from_callable"

    def fit(
        self, train: Examples, *, seed: SeedSequence, compute: Compute, validation: Examples | None = None
    ) -> Model:
        """Train the model. Raises: InputError if it cannot predict probabilities; exceptions of the function pass."""
        rows = _rows(train.features, train.categorical)
        with global_randomness(seed) as number, limited_threads(compute.threads):
            model = self.train(rows, train.labels.copy(), number, **self.parameters)
        ask, classes = getattr(model, "predict_proba", None), getattr(model, "classes_", None)
        code = location(self.train)
        if not callable(ask):
            ask, classes = model, None
        if not callable(ask):
            raise InputError(
                f"{code} must return an object with predict_proba(X), or a function of X, got {type(model).__name__}"
            )
        columns = None if classes is None else np.asarray(classes, np.int64)
        answer = partial(_answer, ask, train.categorical)
        return ModelOfUserCode(answer, train.classes, f"the model of {code}", columns)


def _answer(ask: Callable[[Any], object], categorical: tuple[str, ...], features: Features) -> object:
    return ask(_rows(features, categorical))


def _rows(features: Features, categorical: tuple[str, ...]) -> Any:
    """Return a writable copy of shared data: an array of the same shape, or a data frame."""
    return np.array(features) if isinstance(features, np.ndarray) else tabular_input(features, categorical)


def from_callable(train: Callable[..., Any], claim: Claim | None = None, **parameters: Any) -> OwnTraining:
    """Return a mechanism or model for a training function `train(X, y, seed)`; see `OwnTraining`.

    Args:
        train: Returns an object with `predict_proba(X)`, or a function from X to probabilities.
        claim: The claim of the function, if it is the mechanism.
        parameters: Further keyword arguments of the function.
    Raises: InputError if it cannot be called with these arguments, or not be pickled for a worker.
    """
    return OwnTraining(train, parameters, claim)


@register("mechanism", "summary", source="your own code")
class OwnSummary(_OwnFunction):
    """A function `train(X, y, seed)` that trains and returns a vector of numbers, for the game `neighbours`.

    X is a writable float32 array of shape (n, d). y holds classes 0 .. K - 1. seed is a whole number below 2^31, and
    the global generators of Python, NumPy and torch are seeded as well. The vector may hold any released numbers, such
    as coefficients, tables or predictions. Its length must not depend on the seed.
    """

    made_by = "from_summary"

    def summarise(
        self, train: Examples, points: NDArray[np.float32], *, seed: SeedSequence, compute: Compute
    ) -> NDArray[np.float64]:
        with global_randomness(seed) as number:
            vector = self.train(train.features, train.labels, number, **self.parameters)
        return numpy_of(vector).astype(np.float64)


def from_summary(train: Callable[..., Any], claim: Claim | None = None, **parameters: Any) -> OwnSummary:
    """Return a mechanism for a function `train(X, y, seed) -> vector`; see `OwnSummary`.

    Args:
        train: Trains and returns a vector of numbers.
        claim: The claim of the function.
        parameters: Further keyword arguments of the function.
    Raises: InputError if it cannot be called with these arguments, or not be pickled for a worker.
    """
    return OwnSummary(train, parameters, claim)


@register("mechanism", "own-steps", source="your own code")
@dataclass(frozen=True)
class OwnSteps:
    """A function `train(X, y, seed, canary)` that trains by DP-SGD and adds a canary to its steps.

    X is a float32 array, y holds classes 0 .. K - 1, seed is a whole number below 2^31. At each step, numbered from 0:

        gradients = canary.join(step, gradients)    # one row for each example, before clipping
        noisy = ...                                 # clip, sum, add noise, divide
        canary.observe(step, noisy)                 # the gradient of the update, one vector

    Attributes:
        train: The function, or its import path "module:function". Its return value is ignored.
        noise_multiplier: Standard deviation of the noise on a sum, divided by `clip`, > 0.
        steps: Number of steps, >= 1.
        clip: Largest norm of one example's gradient, > 0.
        sample_rate: Probability that an example is in a step, in (0, 1].
        divisor: Divisor of each noisy sum, > 0.
        delta: The delta at which the claim of the whole training is printed, in (0, 1).
    """

    train: Any
    noise_multiplier: float
    steps: int
    clip: float = 1.0
    sample_rate: float = 1.0
    divisor: float = 1.0
    delta: float = 1e-5

    def __post_init__(self) -> None:
        take_code(self, "train", "X", "y", "seed", "canary")
        require_positive(self, "noise_multiplier")
        require_delta(self.delta)
        self.claimed_steps(0)  # checks the others

    def claim(self) -> Claim:
        curve = SubsampledGaussian(self.noise_multiplier, self.sample_rate, self.steps)
        return Claim.of(curve, relation=Relation.ADD_REMOVE, delta=self.delta)

    def claimed_steps(self, rows: int) -> ClaimedSteps:
        private = PrivateSteps(self.clip, self.noise_multiplier, self.sample_rate)
        return ClaimedSteps(private, self.steps, self.divisor)

    def show_steps(self, train: Examples, canary: StepCanary, *, seed: SeedSequence, compute: Compute) -> None:
        with global_randomness(seed) as number, limited_threads(compute.threads):
            self.train(np.array(as_array(train.features)), train.labels.copy(), number, canary)


def from_steps(train: Callable[..., Any], *, noise_multiplier: float, steps: int, **stated: Any) -> OwnSteps:
    """Return a mechanism for a DP-SGD loop `train(X, y, seed, canary)`, audited step by step; see `OwnSteps`.

    Args:
        train: Adds the canary to its steps and shows each noisy gradient.
        noise_multiplier: Standard deviation of the noise on a sum, divided by the clip, > 0.
        steps: Number of steps, >= 1.
        stated: clip, sample_rate, divisor, delta.
    Raises: InputError if it cannot be called with these arguments, or not be pickled for a worker.
    """
    return OwnSteps(train, noise_multiplier, steps, **stated)
