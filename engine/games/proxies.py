"""Proxies: sources of counterfactual labels and of the attacker's reference model.

A proxy has a method `predictor(*, reference, data, seed, compute)`, a function from examples to class probabilities.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dpaudit.errors import SpecError, require
from dpaudit.mechanisms.compute import Compute, spawned
from dpaudit.mechanisms.examples import Examples, writable_features
from dpaudit.mechanisms.learners.non_private import NonPrivate
from dpaudit.mechanisms.models.tables import CatBoost, LogisticRegression
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


@register("proxy", "calibrated", source="Busa-Fekete et al. (2024), section 4; Zadrozny and Elkan (2002)")
@dataclass(frozen=True)
class CalibratedModel:
    """A model trained without privacy and calibrated by isotonic regression, for two classes.

    The regression is fitted on out-of-fold predictions. Probabilities are clipped to [1/(n + 2), 1 - 1/(n + 2)] for n
    examples, because no number of examples proves a label certain.

    Attributes:
        model: Training method of the model.
        folds: Number of cross-fitting folds for the calibration, >= 2.
    """

    model: Trainer = field(default=CatBoost(learning_rate=0.1, depth=6), metadata={"kind": "model"})
    folds: int = 5

    def __post_init__(self) -> None:
        require(self.folds >= 2, "folds must be >= 2", folds=self.folds)

    def predictor(
        self, *, reference: Examples | None, data: Any, seed: np.random.SeedSequence, compute: Compute
    ) -> Predictor:
        """Train the model on all examples and the calibration on out-of-fold predictions; return the predictor.

        Raises: SpecError for fewer examples than folds, or more than two classes.
        """
        if reference is None or len(reference) < self.folds:
            raise SpecError(
                f"a calibrated model needs at least {self.folds} examples. Give `split.reference` a larger share"
            )
        if reference.classes != 2:
            raise SpecError(f"a calibrated model needs two classes, got {reference.classes}. Use `proxy: model`")
        from sklearn.isotonic import IsotonicRegression

        whole, *parts, shuffled = spawned(seed, self.folds + 2)
        fold = np.random.default_rng(shuffled).permutation(len(reference)) % self.folds
        unseen = np.empty(len(reference))
        for part, part_seed in enumerate(parts):
            model = self.model.fit(reference.take(fold != part), seed=part_seed, compute=compute)
            unseen[fold == part] = _positive(model, reference.take(fold == part))
        edge = 1 / (len(reference) + 2)
        calibration = IsotonicRegression(y_min=edge, y_max=1 - edge, out_of_bounds="clip")
        calibration.fit(unseen, reference.labels)
        model = self.model.fit(reference, seed=whole, compute=compute)

        def predict(examples: Examples) -> NDArray[np.float64]:
            positive = np.asarray(calibration.predict(_positive(model, examples)), np.float64)
            return np.stack([1 - positive, positive], axis=1)

        return predict


def _positive(model: Any, examples: Examples) -> NDArray[np.float64]:
    return np.asarray(model.probabilities(writable_features(examples.features))[:, 1])


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
