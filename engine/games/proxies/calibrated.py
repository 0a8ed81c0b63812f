"""Proxy with calibrated probabilities, used as prior of label inference advantages."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpaudit.engine.games.proxies.model import Predictor
from dpaudit.errors import SpecError, require
from dpaudit.mechanisms.compute import Compute, spawned
from dpaudit.mechanisms.examples import Examples, writable_features
from dpaudit.mechanisms.models.tables import CatBoost
from dpaudit.mechanisms.protocols import Trainer
from dpaudit.registry import register


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
