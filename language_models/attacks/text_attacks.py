"""Attacks on canary texts: what one training says about each text, from losses or from the change of the weights."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpaudit.errors import require
from dpaudit.estimators.arguments import Floats
from dpaudit.language_models.canary_texts.view import TextAttack, TextView
from dpaudit.registry import load, register

LEARNED = "learned"
"""Order of guesses that combines several attacks."""


@register("text-attack", "calibrated-loss", source="a regression form of arXiv:2012.07805")
@dataclass(frozen=True)
class CalibratedLoss(TextAttack):
    """Log-probability of the secret beyond its prediction from the base model, and a reference model if there is one.

    The prediction is a least-squares fit over all texts, planted or not, so no coin is used. Its slope is near 1 if the
    base model knows how likely each secret is, as with `loss-difference`. It is near 0 if the base model does not, as
    with tokens that it has never seen. Without a base model, secrets are compared with the mean log-probability of
    tokens.
    """

    def score(self, view: TextView) -> Floats:
        log_probability = view.trained.log_probability
        tokens = np.isfinite(log_probability).sum(axis=1).astype(np.float64)
        others = [model.log_probability for model in (view.base, view.reference) if model is not None]
        predictors = [tokens, *(np.nansum(other, axis=1) for other in others)]
        inputs, target = np.column_stack(predictors), np.nansum(log_probability, axis=1)
        slopes = np.linalg.lstsq(inputs, target, rcond=None)[0]
        return np.asarray(target - inputs @ slopes)


@register("text-attack", "loss-difference", source="Panda et al. (2025), arXiv:2503.06808")
@dataclass(frozen=True)
class LossDifference(TextAttack):
    """Loss of the secret under the base model minus that under the audited model: the log-likelihood ratio."""

    needs: ClassVar[tuple[str, ...]] = ("base",)

    def score(self, view: TextView) -> Floats:
        assert view.base is not None
        return np.asarray(np.nansum(view.trained.log_probability - view.base.log_probability, axis=1))


@register("text-attack", "reference-ratio", source="Carlini et al. (2021), arXiv:2012.07805")
@dataclass(frozen=True)
class ReferenceRatio(TextAttack):
    """Loss of the secret under a reference model minus that under the audited model.

    A reference that was trained on the same data without any canary cancels what the domain alone teaches.
    """

    needs: ClassVar[tuple[str, ...]] = ("reference",)

    def score(self, view: TextView) -> Floats:
        assert view.reference is not None
        return np.asarray(np.nansum(view.trained.log_probability - view.reference.log_probability, axis=1))


@register("text-attack", "largest-token", source="the largest term of the loss difference")
@dataclass(frozen=True)
class LargestToken(TextAttack):
    """Largest loss difference to the base model of one token of the secret: a leak may show in a single token."""

    needs: ClassVar[tuple[str, ...]] = ("base",)

    def score(self, view: TextView) -> Floats:
        assert view.base is not None
        return np.asarray(np.nanmax(view.trained.log_probability - view.base.log_probability, axis=1))


SMALLEST_DEVIATION = 1e-3  # nats; a distribution that is all but certain has no scale


@register("text-attack", "min-k-plus-plus", source="Zhang et al. (2024), arXiv:2404.02936")
@dataclass(frozen=True)
class MinKPlusPlus(TextAttack):
    """Mean of the smallest standardised log-probabilities of the secret's tokens.

    A log-probability is standardised by its mean and deviation over the vocabulary at the same place.

    Attributes:
        share: Share of the tokens that count, in (0, 1]; at least one counts.
    """

    share: float = 0.2
    needs_moments: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require(0 < self.share <= 1, "share must be in (0, 1]", share=self.share)

    def score(self, view: TextView) -> Floats:
        trained = view.trained
        deviation = np.maximum(trained.deviation, SMALLEST_DEVIATION)
        standardised = np.sort((trained.log_probability - trained.mean) / deviation, axis=1)  # NaN last
        counts = np.isfinite(standardised).sum(axis=1)
        smallest = [row[: math.ceil(self.share * count)] for row, count in zip(standardised, counts, strict=True)]
        return np.array([row.mean() for row in smallest])


SHARES = np.logspace(-3, 3, 25)
"""Ratios of noise to signal that are tried."""
ORTHOGONAL = 1.0
"""Sum of a text's squared cosines with all others, on average, below which they disturb it less than its own signal."""
SPREAD = (0.16, 0.5, 0.84)
"""Quantiles of unit products of a parameter: one deviation below the middle, the middle, and one above."""
SMALLEST = 1e-3
"""Smallest eigenvalue of the cosines, relative to the largest, whose direction counts; and smallest norm of a text's
gradient in a parameter, relative to its largest one, that counts."""


@register("text-attack", "gradient-update", source="Nasr et al. (2023), arXiv:2302.07956, on the sum of all steps")
@dataclass(frozen=True)
class GradientUpdate(TextAttack):
    """Inner product of a text's unit gradient with the change of the weights, less what other texts explain.

    DP-SGD adds the clipped gradient of each record and noise, so this shows most of its signal. If gradients are not
    orthogonal, the product also holds the gradients of other texts. The score is then the best linear predictor of a
    text's own coefficient, if every text has one with equal variance and the noise is isotropic. Mean and ratio of
    noise to signal are those of the largest likelihood of all products. No coin is used.

    If the gradients are nearly orthogonal, as those of new tokens are, or if there are more than 6,000 texts, which are
    not compared with each other, texts that are no canaries disturb most. Then each parameter counts by one over the
    variance of its own products over all texts: a parameter that all texts move says little about one of them, and the
    row of a canary's own token says most.

    Attributes:
        separate: False for the product itself.
    """

    separate: bool = True
    needs: ClassVar[tuple[str, ...]] = ("update",)

    def score(self, view: TextView) -> Floats:
        update = view.update
        assert update is not None
        products = update.product / np.maximum(update.norm, np.finfo(np.float64).tiny)
        if not self.separate:
            return products
        overlap = 0.0 if update.cosine is None else float((update.cosine**2).sum() / len(products)) - 1
        if update.by_parameter is not None and overlap < ORTHOGONAL:
            return _weighted(*update.by_parameter)
        return products if update.cosine is None else _separated(products, update.cosine)


def _weighted(products: Floats, norms: Floats) -> Floats:
    """Return the sum over parameters of products, each in units of the variance that it has over all texts.

    The signal of a text in a parameter is its gradient there, and noise and other texts add a variance to it that is
    that of the parameter's unit products. So these are the weights of the likelihood ratio.

    Args:
        products, norms: As in `UpdateProducts.by_parameter`.
    """
    moves = norms > SMALLEST * norms.max(axis=1, keepdims=True)
    units = np.where(moves, products / np.where(moves, norms, 1.0), np.nan)
    moved = moves.any(axis=0)
    middle, low, high = np.zeros((3, norms.shape[1]))
    low[moved], middle[moved], high[moved] = np.nanquantile(units[:, moved], SPREAD, axis=0)
    variance = ((high - low) / 2) ** 2
    weights = np.divide(1.0, variance, out=np.zeros_like(variance), where=variance > 0)
    inward = np.where(moves, (units - middle) * norms, 0.0) @ weights
    return np.asarray(inward / np.sqrt(np.maximum(norms**2 @ weights, np.finfo(np.float64).tiny)))


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


@register("attack", "canary-losses", source="the text attacks that it names")
@dataclass(frozen=True)
class CanaryLosses:
    """Guesses canaries in the order of one attack on texts, or in an order learned from several.

    Attributes:
        order: Name of the attack whose scores order the guesses (`dpaudit list text-attacks`); or "learned", which
            combines `attacks` as the coins revealed so far suggest. Choose it before you see results.
        attacks: Names of the attacks that the learned order combines; it begins with the order of the first one.
    """

    view: ClassVar[type[TextView]] = TextView

    order: str = "calibrated-loss"
    attacks: tuple[str, ...] = ("calibrated-loss", "loss-difference", "min-k-plus-plus", "largest-token")

    def __post_init__(self) -> None:
        require(len(self.attacks) > 0, "attacks must name at least one attack")
        for name in (*self.attacks, *([] if self.is_learned else [self.order])):
            load("text-attack", name)

    @property
    def is_learned(self) -> bool:
        """True if the order combines several attacks."""
        return self.order == LEARNED

    @property
    def parts(self) -> Mapping[str, TextAttack]:
        """Attacks whose scores are needed, by name."""
        return {name: load("text-attack", name)() for name in (self.attacks if self.is_learned else [self.order])}

    @property
    def reads_update(self) -> bool:
        """True if an attack reads gradients of the texts and the change of the weights."""
        return any("update" in part.needs for part in self.parts.values())

    def score(self, view: TextView) -> Floats:
        """Return the scores of all texts by the first attack, shape (texts,)."""
        return next(iter(self.parts.values())).score(view)
