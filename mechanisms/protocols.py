"""What the engine asks of a mechanism. Implementations are frozen dataclasses whose fields are public facts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
from numpy.random import SeedSequence
from numpy.typing import NDArray

from dpaudit.claims import Claim
from dpaudit.mechanisms.compute import Compute, TrainingError
from dpaudit.mechanisms.examples import Examples, Features
from dpaudit.mechanisms.labels.bags import Bags

if TYPE_CHECKING:
    from dpaudit.mechanisms.training.private.private_steps import ClaimedSteps, Observer, PrivateSteps, StepCanary
    from dpaudit.mechanisms.training.recipe import Recipe, StackPlan, TrainingTask


@runtime_checkable
class Claiming(Protocol):
    """A mechanism that states its claim."""

    def claim(self) -> Claim:
        """What it promises."""


@runtime_checkable
class Model(Protocol):
    """A trained classifier: all that is looked at are its probabilities."""

    def probabilities(self, features: Features) -> NDArray[np.float64]:
        """Class probabilities, shape (n, classes), rows summing to 1."""


@runtime_checkable
class LogitModel(Model, Protocol):
    """A trained network, whose logits say more than probabilities that round to 0; many are asked in one pass."""

    @property
    def recipe(self) -> Recipe:
        """What it was trained by."""

    def logits(self, features: Features) -> NDArray[np.float64]:
        """Logits before the softmax, shape (n, classes)."""


@runtime_checkable
class Trainer(Protocol):
    """A non-private way to train a classifier (registered as "model"): CatBoost, an MLP, a CNN."""

    def fit(
        self, train: Examples, *, seed: SeedSequence, compute: Compute, validation: Examples | None = None
    ) -> Model:
        """Trains on `train`, decided by `seed` alone; `validation` is nobody's secret (early stopping).

        Raises: TrainingError when this seed's training failed.
        """


@runtime_checkable
class FeatureChecker(Protocol):
    """A trainer or learner that tells whether it can be trained on features of a kind, before any training."""

    def require_features(self, train: Examples) -> None:
        """Raises InputError for features that no training can take; only their types and shape are looked at."""


@runtime_checkable
class LabelMechanism(Claiming, Protocol):
    """Releases one privatised label for each example (registered as "mechanism")."""

    def release(self, labels: NDArray[np.int64], *, classes: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """One released label for each example, shape (n,) to (n,), drawn once."""


@runtime_checkable
class BagMechanism(Claiming, Protocol):
    """Releases numbers about bags of labels (registered as "mechanism"); where a bag is one example, about its label.

    The division into bags is public and looks at no label.
    """

    def bags(self, train: Examples, *, rng: np.random.Generator) -> Bags:
        """Which examples are released together."""

    def release_counts(self, counts: NDArray[np.int64], *, rng: np.random.Generator) -> NDArray[np.float64]:
        """What is released, drawn once; counts of each label in each bag, shape (B, classes) to (B, classes)."""

    def log_likelihood(self, released: NDArray[np.float64], size: int) -> NDArray[np.float64]:
        """The exact law, of two classes: log P[released | s of `size` labels are 1], up to a constant for each bag.

        From the numbers released for label 1 of bags of one size, shape (B,), to (B, size + 1); -inf where impossible.
        """

    def targets(self, released: NDArray[np.float64]) -> NDArray[np.float64]:
        """What a model's mean answer in each bag is trained towards: post-processing, shape (B, classes)."""


@runtime_checkable
class Learner(Claiming, Trainer, Protocol):
    """Trains a model whose training data it protects as its claim says (registered as "mechanism")."""


@runtime_checkable
class SampledLearner(Claiming, Protocol):
    """A learner whose trained models, summed up as vectors, can be drawn many at a time (see `SummarisedLearner`)."""

    def sample_summaries(
        self, train: Examples, points: NDArray[np.float32], count: int, *, seed: SeedSequence, compute: Compute
    ) -> NDArray[np.float64]:
        """`count` >= 0 independent trainings on `train`, summed up, with the law of one training after another.

        Models may be asked about `points`, shape (m, d); parameters need none. Shape (count, width).

        Raises: TrainingError when the trainings failed.
        """


@runtime_checkable
class SummarisedLearner(Claiming, Protocol):
    """A learner whose trained model is summed up as one vector: all that its users see of it, or a part of it."""

    def summarise(
        self, train: Examples, points: NDArray[np.float32], *, seed: SeedSequence, compute: Compute
    ) -> NDArray[np.float64]:
        """One training, summed up; shape (width,), the same for every seed; other arguments as `sample_summaries`.

        Raises: TrainingError when this seed's training failed; other people's exceptions pass.
        """


@runtime_checkable
class StatedLaw(Protocol):
    """A learner that says how its summaries are distributed: an attack need not learn from samples what it is told."""

    def log_density(self, train: Examples, summaries: NDArray[np.float64], *, compute: Compute) -> NDArray[np.float64]:
        """Of each summary of a training on `train`, shape (n, width) to (n,); -inf where it is impossible.

        Up to a term that is the same for all training data of one shape of summaries. They come rounded to 32 bits.
        """


@runtime_checkable
class StackLearner(Protocol):
    """Trains many models side by side: a network, or a learner that trains one (see `StackTrainer`)."""

    @property
    def recipe(self) -> Recipe:
        """The network, and how it is trained."""

    def stack_plan(self, shape: tuple[int, ...], *, classes: int, models: int, compute: Compute) -> StackPlan:
        """How `models` models for examples of `shape` are grouped by a rule, so that it is the same at any time."""

    def fit_stack(
        self,
        features: Features,
        tasks: Sequence[TrainingTask],
        *,
        classes: int,
        compute: Compute,
        plan: StackPlan | None = None,
    ) -> Sequence[Model | TrainingError]:
        """One model, or its error, for each task; arguments as in `train_stack`."""


@runtime_checkable
class ObservableLearner(StackLearner, Protocol):
    """A learner of the DP-SGD family: an attacker may watch its steps, and insert a gradient as a canary."""

    def private_steps(self) -> PrivateSteps:
        """Sampling, clipping and noise."""

    def fit_stack(
        self, features: Features, tasks: Sequence[TrainingTask], **settings: Any
    ) -> Sequence[Model | TrainingError]:
        """One model, or its error, for each task; `settings` as in `train_private_stack`."""


@runtime_checkable
class WatchedLearner(Claiming, Protocol):
    """A learner of the DP-SGD family whose steps may be watched: the weights before each, and its noisy gradient."""

    @property
    def recipe(self) -> Recipe:
        """The network, and how it is trained."""

    def claimed_steps(self, rows: int) -> ClaimedSteps:
        """What a training on so many rows says of its steps."""

    def watch(
        self, features: Features, tasks: Sequence[TrainingTask], *, classes: int, compute: Compute, observer: Observer
    ) -> Sequence[Model | TrainingError]:
        """One model, or its error, for each task; the observer is shown every step, its sum divided as is claimed."""


@runtime_checkable
class StepLearner(Claiming, Protocol):
    """A learner of the DP-SGD family that lets a canary into its steps and shows the noisy gradient of each."""

    def claimed_steps(self, rows: int) -> ClaimedSteps | None:
        """What a training on so many rows says of its steps; None where it says nothing."""

    def show_steps(self, train: Examples, canary: StepCanary, *, seed: SeedSequence, compute: Compute) -> None:
        """Trains on `train` and the canary; what is learned is left in the canary.

        A training that goes wrong just shows fewer steps.
        """
