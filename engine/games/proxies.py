"""Proxies: sources of counterfactual labels and of the attacker's reference model.

A proxy has a method `predictor(*, reference, data, seed, compute)`, a function from examples to class probabilities.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax, softmax

from dpaudit.errors import SpecError, require
from dpaudit.mechanisms.compute import Compute, spawned
from dpaudit.mechanisms.examples import Examples, writable_features
from dpaudit.mechanisms.learners.non_private import NonPrivate
from dpaudit.mechanisms.models.tables import LogisticRegression
from dpaudit.mechanisms.protocols import Learner, Trainer
from dpaudit.registry import register

Predictor = Callable[[Examples], NDArray[np.float64]]


@register("proxy", "model", source="arXiv:2511.14084, section 6.2")
@dataclass(frozen=True)
class ModelProxy:
    """A model M' trained without privacy on the reference part, such as a random half or the previous day.

    Attributes:
        model: Training method of M'.
    """

    model: Trainer = field(default=LogisticRegression(), metadata={"kind": "model"})

    def predictor(
        self, *, reference: Examples | None, data: Any, seed: np.random.SeedSequence, compute: Compute
    ) -> Predictor:
        """Train M' and return its predictor.

        Raises: SpecError if the reference part is empty.
        """
        if reference is None:
            raise SpecError(
                "a model proxy is trained on the reference part, which is empty. Give `split.reference` a share above 0"
            )
        model = self.model.fit(reference, seed=seed, compute=compute)
        return lambda examples: model.probabilities(writable_features(examples.features))


class KnownLaw:
    """Base class of proxies that are the true law, so that the bound does not rely on a proxy."""

    trains: ClassVar[bool] = False
    """Other proxies train a model, so their unit may hold a GPU."""


@register("proxy", "true-posterior", source="arXiv:2511.14084, appendix 11")
@dataclass(frozen=True)
class TruePosterior(KnownLaw):
    """The true distribution of the label given the features, for generated data with a known law."""

    def predictor(
        self, *, reference: Examples | None, data: Any, seed: np.random.SeedSequence, compute: Compute
    ) -> Predictor:
        """Return the data set's `posterior`.

        Raises: SpecError if the data set has none.
        """
        if not hasattr(data, "posterior"):
            raise SpecError(
                "the data must have a method `posterior`, as generated data do (gaussian-mixture). Use `proxy: model`"
            )
        return lambda examples: data.posterior(examples.features)


@register("proxy", "calibrated", source="Platt (1999); Guo et al. (2017), arXiv:1706.04599; arXiv:1901.06852")
@dataclass(frozen=True)
class CalibratedModel:
    """A model M' trained without privacy, with log-probabilities corrected on reference rows that it never saw.

    The probability of class y becomes proportional to exp(slope log M'(x)[y] + shift_y). One slope and a shift of each
    class are fitted by maximum likelihood on held-out rows, so an overconfident model is corrected: its draws of labels
    would otherwise differ from true labels, and the difference would look like a leak. Probabilities are at least
    1 / (n + K) for n held-out rows and K classes, because no number of rows proves a label certain.

    M' should be trained on no fewer rows than the learner. A learner that predicts better than M' tells true labels
    from proxy labels on rows that neither saw, which the control subtracts from the bound.

    Attributes:
        model: Training method of M'.
        held_out: Share of the reference part, in (0, 1), on which slope and shifts are fitted.
    """

    model: Trainer = field(default=LogisticRegression(), metadata={"kind": "model"})
    held_out: float = 0.2

    def __post_init__(self) -> None:
        require(0 < self.held_out < 1, "held_out must be in (0, 1)", held_out=self.held_out)

    def predictor(
        self, *, reference: Examples | None, data: Any, seed: np.random.SeedSequence, compute: Compute
    ) -> Predictor:
        """Train M' on one part of the examples, fit the correction on the other, and return the predictor.

        Raises: SpecError if either part would be empty.
        """
        rows = 0 if reference is None else len(reference)
        held_out = round(self.held_out * rows)
        if reference is None or not 0 < held_out < rows:
            raise SpecError(
                f"a calibrated model needs reference rows to train on and others to hold out, got {rows} of both. Give "
                "`split.reference` a larger share, or use `proxy: model`, which is not calibrated"
            )
        training_seed, order_seed = spawned(seed, 2)
        order = np.random.default_rng(order_seed).permutation(rows)
        unseen = reference.take(order[:held_out])
        model = self.model.fit(reference.take(order[held_out:]), seed=training_seed, compute=compute)

        def raw(examples: Examples) -> NDArray[np.float64]:
            return np.asarray(model.probabilities(writable_features(examples.features)), np.float64)

        correction = Calibration.fitted(raw(unseen), unseen.labels)
        return lambda examples: correction.apply(raw(examples))


SMALLEST_PROBABILITY = 1e-9
"""Probabilities of a model are clipped here before a logarithm is taken."""


@dataclass(frozen=True, eq=False)
class Calibration:
    """Correction of class probabilities: proportional to exp(slope log p_y + shift_y), at least `least`.

    Source: Platt (1999) for two classes; with one slope for all classes bias-corrected temperature scaling, Alexandari,
    Kundaje and Shrikumar (2020), arXiv:1901.06852.
    """

    slope: float
    shifts: NDArray[np.float64]  # shape (classes,), the first is 0
    least: float = 0.0

    @classmethod
    def fitted(cls, probabilities: NDArray[np.float64], labels: NDArray[np.int64]) -> Calibration:
        """Return the correction of largest likelihood.

        One more row counts equally for every class, so that slope and shifts are finite for separable rows and for
        classes without rows.

        Args:
            probabilities: Predictions for rows that the model never saw, shape (n, classes).
            labels: Their labels, shape (n,).
        """
        rows, classes = probabilities.shape
        logs = _logs(probabilities)
        targets = (np.eye(classes)[labels] + 1 / (rows * classes)) / (1 + 1 / rows)

        def loss(parameters: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
            logits = parameters[0] * logs + np.concatenate([[0.0], parameters[1:]])
            log_p = log_softmax(logits, axis=1)
            error = np.exp(log_p) - targets
            gradient = np.concatenate([[np.sum(error * logs)], error[:, 1:].sum(axis=0)])
            return -float(np.sum(targets * log_p)) / rows, gradient / rows

        from scipy.optimize import minimize  # slow to import

        start = np.concatenate([[1.0], np.zeros(classes - 1)])
        fit = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=[(0.0, None)] + [(None, None)] * (classes - 1))
        return cls(float(fit.x[0]), np.concatenate([[0.0], fit.x[1:]]), 1 / (rows + classes))

    def apply(self, probabilities: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return corrected probabilities, shape (n, classes)."""
        clipped = np.maximum(softmax(self.slope * _logs(probabilities) + self.shifts, axis=1), self.least)
        return np.asarray(clipped / clipped.sum(axis=1, keepdims=True))


def _logs(probabilities: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.log(np.maximum(probabilities, SMALLEST_PROBABILITY))


@register("proxy", "checkpoint", source="arXiv:2511.14084, section 5, incremental setting")
@dataclass(frozen=True)
class Checkpoint:
    """An earlier model of the learner, trained on the oldest rows, while the audit runs on newer ones.

    It is for data in order of time with `split.order: given`, where the reference part is the oldest. No additional
    model is needed. Changes since the checkpoint are a shift, which the control measures.

    Attributes:
        learner: Learner that trains the checkpoint: the audited learner of the spec with its privacy, or another one.
        share: Share of the reference part, from its start, on which the checkpoint is trained, in (0, 1].
    """

    learner: Learner = field(default=NonPrivate(), metadata={"kind": "mechanism"})
    share: float = 1.0

    def __post_init__(self) -> None:
        require(0 < self.share <= 1, "share must be in (0, 1]", share=self.share)
        require(
            hasattr(self.learner, "fit"),
            "the learner of a checkpoint must train a model",
            learner=type(self.learner).__name__,
        )

    def predictor(
        self, *, reference: Examples | None, data: Any, seed: np.random.SeedSequence, compute: Compute
    ) -> Predictor:
        """Train the checkpoint and return its predictor.

        Raises: SpecError if there are no rows to train on.
        """
        rows_seen = 0 if reference is None else round(self.share * len(reference))
        if reference is None or not rows_seen:
            raise SpecError(
                "the reference part has no rows to train a checkpoint. Give `split.reference` a larger share"
            )
        model = self.learner.fit(reference.take(np.arange(rows_seen)), seed=seed, compute=compute)
        return lambda examples: model.probabilities(writable_features(examples.features))
