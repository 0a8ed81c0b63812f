"""The attack by the gradient of a text and the change of the model's weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpaudit.estimators.arguments import Floats
from dpaudit.language_models.canary_texts.view import TextView
from dpaudit.registry import register

SHARES = np.logspace(-3, 3, 25)
"""Ratios of noise to signal that are tried."""
SMALLEST = 1e-3
"""Smallest eigenvalue of the cosines, relative to the largest, whose direction counts."""


@register("text-attack", "gradient-update", source="Nasr et al. (2023), arXiv:2302.07956, on the sum of all steps")
@dataclass(frozen=True)
class GradientUpdate:
    """Inner product of a text's unit gradient with the change of the weights, less what other texts explain.

    DP-SGD adds the clipped gradient of each record and noise, so this shows most of its signal. If gradients are not
    orthogonal, the product also holds the gradients of other texts. The score is then the best linear predictor of a
    text's own coefficient, if every text has one with equal variance and the noise is isotropic. Mean and ratio of
    noise to signal are those of the largest likelihood of all products. No coin is used.

    Attributes:
        separate: False for the product itself.
    """

    separate: bool = True
    needs: ClassVar[tuple[str, ...]] = ("update",)
    needs_moments: ClassVar[bool] = False

    def score(self, view: TextView) -> Floats:
        update = view.update
        assert update is not None
        products = update.product / np.maximum(update.norm, np.finfo(np.float64).tiny)
        if not self.separate or update.cosine is None:
            return products
        return _separated(products, update.cosine)


def _separated(products: Floats, cosine: Floats) -> Floats:
    """Return the predicted coefficient of each text.

    The model is products = cosine (mean + coefficients) + noise, where coefficients are independent with variance 1 and
    the noise has covariance ratio * cosine. In the eigenvectors of `cosine` all terms are independent.
    """
    eigenvalues, vectors = np.linalg.eigh(cosine)
    is_large = eigenvalues > SMALLEST * eigenvalues[-1]
    eigenvalues, vectors = eigenvalues[is_large], vectors[:, is_large]
    values, ones = vectors.T @ products, eigenvalues * vectors.sum(axis=0)
    best, score = -np.inf, products
    for ratio in SHARES:
        variances = eigenvalues * (eigenvalues + ratio)
        mean = (values * ones / variances).sum() / (ones**2 / variances).sum()
        rest = values - mean * ones
        scale = max(float((rest**2 / variances).mean()), np.finfo(np.float64).tiny)
        likelihood = -eigenvalues.size * np.log(scale) - np.log(variances).sum()
        if likelihood > best:
            best, score = likelihood, vectors @ (rest / (eigenvalues + ratio))
    return np.asarray(score)
