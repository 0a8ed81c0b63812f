"""Interfaces between mechanisms and the engine. Implementations are frozen dataclasses with public fields."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
from numpy.random import SeedSequence
from numpy.typing import NDArray

from dpaudit.claims import Claim
from dpaudit.mechanisms.compute import Compute, TrainingError
from dpaudit.mechanisms.examples import Examples, Features

if TYPE_CHECKING:
    from torch import nn

    from dpaudit.mechanisms.examples import Texts
    from dpaudit.mechanisms.labels.proportions import Bags
    from dpaudit.mechanisms.training.private.private_steps import ClaimedSteps, Observer, PrivateSteps, StepCanary
    from dpaudit.mechanisms.training.recipe import Recipe, StackPlan, TrainingTask


@runtime_checkable
class Claiming(Protocol):
    """A mechanism that states its claim."""

    def claim(self) -> Claim:
        """Return the privacy claim."""


@runtime_checkable
class Model(Protocol):
    """A trained classifier, used through its predicted probabilities only."""

    def probabilities(self, features: Features) -> NDArray[np.float64]:
        """Return class probabilities, shape (n, classes), with rows that sum to 1."""


@runtime_checkable
class LogitModel(Model, Protocol):
    """A trained network that also returns logits, which stay exact when probabilities round to 0."""

    @property
    def recipe(self) -> Recipe:
        """The network and the settings it was trained with."""

    def logits(self, features: Features) -> NDArray[np.float64]:
        """Return the logits before the softmax, shape (n, classes)."""


@runtime_checkable
class Trainer(Protocol):
    """A non-private way to train a classifier (registered as "model"): CatBoost, an MLP, a CNN."""

    def fit(
        self, train: Examples, *, seed: SeedSequence, compute: Compute, validation: Examples | None = None
    ) -> Model:
        """Train on `train`. `seed` alone decides the result; `validation` is public (for early stopping).

        Raises: TrainingError if training fails with this seed.
        """


@runtime_checkable
class FeatureChecker(Protocol):
    """A trainer or learner that checks before training whether it supports a kind of features."""

    def require_features(self, train: Examples) -> None:
        """Raise InputError for unsupported features; checks only their types and shape."""


@runtime_checkable
class DividedTrainer(Protocol):
    """A trainer or learner that divides the batches of a training among `Compute.processes` processes."""

    def require_divisible(self, train: Examples) -> None:
        """Raise InputError if the batches of a training on `train` cannot be divided; nothing is trained."""


@runtime_checkable
class LabelMechanism(Claiming, Protocol):
    """Releases one private label for each example (registered as "mechanism")."""

    def release(self, labels: NDArray[np.int64], *, classes: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Return one released label for each example, shape (n,) to (n,)."""


@runtime_checkable
class BagMechanism(Claiming, Protocol):
    """Releases numbers about bags of labels (registered as "mechanism"). A bag may be a single example.

    The assignment to bags is public and must not depend on labels.
    """

    def bags(self, train: Examples, *, rng: np.random.Generator) -> Bags:
        """Return the bags whose labels are released together."""

    def release_counts(self, counts: NDArray[np.int64], *, rng: np.random.Generator) -> NDArray[np.float64]:
        """Return the released counts, given the count of each label in each bag; shape (B, classes) to (B, classes)."""

    def log_likelihood(self, released: NDArray[np.float64], size: int) -> NDArray[np.float64]:
        """Return log P[released | s of `size` labels are 1] for s = 0 .. size, up to a constant for each bag.

        Two classes only. `released` has the numbers released for label 1 in bags of `size` examples, shape (B,).
        Returns shape (B, size + 1), -inf where impossible.
        """

    def targets(self, released: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the training target for the model's mean prediction in each bag, shape (B, classes)."""


@runtime_checkable
class Learner(Claiming, Trainer, Protocol):
    """Trains a model and protects the training data as claimed (registered as "mechanism")."""


@runtime_checkable
class SampledLearner(Claiming, Protocol):
    """A learner that can draw summaries of many independently trained models at once (see `SummarisedLearner`)."""

    def sample_summaries(
        self, train: Examples, points: NDArray[np.float32], count: int, *, seed: SeedSequence, compute: Compute
    ) -> NDArray[np.float64]:
        """Return summaries of `count` >= 0 independent trainings on `train`, shape (count, width).

        They are distributed as if the models were trained one after another. A summary may hold the model's
        predictions at `points`, shape (m, d), or its parameters.

        Raises: TrainingError if training fails.
        """


@runtime_checkable
class SummarisedLearner(Claiming, Protocol):
    """A learner whose trained model has a summary: a vector of all or part of what its users see."""

    def summarise(
        self, train: Examples, points: NDArray[np.float32], *, seed: SeedSequence, compute: Compute
    ) -> NDArray[np.float64]:
        """Return the summary of one trained model, shape (width,); the width does not depend on the seed.

        Arguments as in `sample_summaries`.

        Raises: TrainingError if training fails with this seed; exceptions of other libraries pass through.
        """


@runtime_checkable
class StatedLaw(Protocol):
    """A learner with a known density of its summaries, so that an attack need not estimate it from samples."""

    def log_density(self, train: Examples, summaries: NDArray[np.float64], *, compute: Compute) -> NDArray[np.float64]:
        """Return the log-density of each summary after training on `train`, shape (n, width) to (n,).

        -inf where impossible. Correct up to a term that depends only on the shape of the summaries, which are rounded
        to 32 bits.
        """


@runtime_checkable
class StartingLearner(Claiming, Protocol):
    """A learner of a torch network that can start from given weights.

    Its `fit` has a further keyword `initial`, or it trains stacks, whose tasks have that field: weights of shape (P,),
    in the order of the network's parameters. The claim must hold for any such weights.
    """

    def initial_network(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """Return the network before a training on examples of `shape`, with weights from the global generator."""


@runtime_checkable
class StackLearner(Protocol):
    """Trains many models together: a network, or a learner that trains a network (see `StackTrainer`)."""

    @property
    def recipe(self) -> Recipe:
        """The network and its training settings."""

    def stack_plan(
        self, shape: tuple[int, ...], *, classes: int, models: int, rows: int, compute: Compute
    ) -> StackPlan:
        """Return how `models` models for `rows` examples of `shape` are grouped into stacks, by a fixed rule."""

    def fit_stack(
        self,
        features: Features,
        tasks: Sequence[TrainingTask],
        *,
        classes: int,
        compute: Compute,
        plan: StackPlan | None = None,
    ) -> Sequence[Model | TrainingError]:
        """Return a model or its error for each task; arguments as in `train_stack`."""


@runtime_checkable
class ObservableLearner(StackLearner, Protocol):
    """A DP-SGD learner that lets an attacker observe its steps and insert a canary gradient."""

    def private_steps(self) -> PrivateSteps:
        """Return the sampling rate, clipping norm and noise."""

    def fit_stack(
        self, features: Features, tasks: Sequence[TrainingTask], **settings: Any
    ) -> Sequence[Model | TrainingError]:
        """Return a model or its error for each task; `settings` as in `train_private_stack`."""


@runtime_checkable
class WatchedLearner(Claiming, Protocol):
    """A DP-SGD learner whose steps can be observed: the weights before each step, and its noisy gradient."""

    @property
    def recipe(self) -> Recipe:
        """The network and its training settings."""

    def claimed_steps(self, rows: int) -> ClaimedSteps:
        """Return the steps claimed for a training set of `rows` rows."""

    def watch(
        self, features: Features, tasks: Sequence[TrainingTask], *, classes: int, compute: Compute, observer: Observer
    ) -> Sequence[Model | TrainingError]:
        """Return a model or its error for each task; `observer` sees every step, with the sum divided as claimed."""


@runtime_checkable
class StepLearner(Claiming, Protocol):
    """A DP-SGD learner that admits a canary to its steps and reveals the noisy gradient of each step."""

    def claimed_steps(self, rows: int) -> ClaimedSteps | None:
        """Return the steps claimed for a training set of `rows` rows; None if there is no such claim."""

    def show_steps(self, train: Examples, canary: StepCanary, *, seed: SeedSequence, compute: Compute) -> None:
        """Train on `train` and the canary. The canary records the observations.

        If training fails, fewer steps are observed.
        """


@runtime_checkable
class TextStepLearner(Claiming, Protocol):
    """A fine-tuning by DP-SGD that admits a canary to its steps and reveals the noisy gradient of each step."""

    @property
    def shows_steps(self) -> bool:
        """True if the steps are those of DP-SGD with noise, and can be seen."""

    def claimed_steps(self, rows: int) -> ClaimedSteps | None:
        """Return the steps claimed for a training on `rows` texts; None if there is no such claim."""

    def show_text_steps(self, train: Texts, canary: StepCanary, *, seed: SeedSequence, compute: Compute) -> None:
        """Fine-tune on the texts and the canary. The canary records the observations."""


@runtime_checkable
class WithDefaultData(Protocol):
    """A mechanism that names data of its own for a check without data."""

    def default_data(self) -> Mapping[str, Any]:
        """Return the spec of the data, `{"name": ..., fields}`."""
