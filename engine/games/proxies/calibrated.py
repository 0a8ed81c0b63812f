"""A model whose probabilities mean what they say, for priors that others are measured against."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpaudit.engine.games.proxies.model import Predictor
from dpaudit.errors import SpecError, require
from dpaudit.mechanisms.compute import Compute, spawned
from dpaudit.mechanisms.examples import Examples, own_features
from dpaudit.mechanisms.models.tables import CatBoost
from dpaudit.mechanisms.protocols import Trainer
from dpaudit.registry import register


@register("proxy", "calibrated", source="Busa-Fekete et al. (2024), section 4; Zadrozny and Elkan (2002)")
@dataclass(frozen=True)
class CalibratedModel:
    """A model trained without privacy whose answers are then calibrated by isotonic regression; two classes.

    The regression is fitted on answers to examples that the model that gave them had not seen. Probabilities keep
    1/(n + 2) away from 0 and 1, n the examples: no number of examples shows a label to be certain.

    Attributes:
        model: How it is trained.
        folds: Parts the examples are divided into for the answers the calibration learns from, >= 2.
    """

    model: Trainer = field(default=CatBoost(learning_rate=0.1, depth=6), metadata={"kind": "model"})
    folds: int = 5

    def __post_init__(self) -> None:
        require(self.folds >= 2, "folds must be >= 2", folds=self.folds)

    def predictor(
        self, *, reference: Examples | None, data: Any, seed: np.random.SeedSequence, compute: Compute
    ) -> Predictor:
        """Trains the model on all of them, and its calibration on its answers to parts it had not seen.

        Raises: SpecError when there are fewer examples than folds, or more than two classes.
        """
        if reference is None or len(reference) < self.folds:
            raise SpecError(f"a calibrated model needs at least {self.folds} examples; give `split.reference` more")
        if reference.classes != 2:
            raise SpecError(f"a calibrated model is for two classes, got {reference.classes}; use `proxy: model`")
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
    return np.asarray(model.probabilities(own_features(examples.features))[:, 1])
