"""The attack by the loss that the base model does not predict."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpaudit.estimators.arguments import Floats
from dpaudit.language_models.canary_texts.view import TextView
from dpaudit.registry import register


@register("text-attack", "calibrated-loss", source="a regression form of arXiv:2012.07805")
@dataclass(frozen=True)
class CalibratedLoss:
    """Log-probability of the secret beyond its prediction from the base model, and a reference model if there is one.

    The prediction is a least-squares fit over all texts, planted or not, so no coin is used. Its slope is near 1 if the
    base model knows how likely each secret is, as with `loss-difference`. It is near 0 if the base model does not, as
    with tokens that it has never seen. Without a base model, secrets are compared with the mean log-probability of
    tokens.
    """

    needs: ClassVar[tuple[str, ...]] = ()
    needs_moments: ClassVar[bool] = False

    def score(self, view: TextView) -> Floats:
        log_probability = view.trained.log_probability
        tokens = np.isfinite(log_probability).sum(axis=1).astype(np.float64)
        others = [model.log_probability for model in (view.base, view.reference) if model is not None]
        predictors = [tokens, *(np.nansum(other, axis=1) for other in others)]
        inputs, target = np.column_stack(predictors), np.nansum(log_probability, axis=1)
        slopes = np.linalg.lstsq(inputs, target, rcond=None)[0]
        return np.asarray(target - inputs @ slopes)
