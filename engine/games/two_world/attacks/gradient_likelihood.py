"""White-box: the likelihood ratio of DP-SGD's steps, which knows their sampling and their noise."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dpaudit.engine.games.two_world.views.challenge_view import ChallengeView
from dpaudit.errors import SpecError
from dpaudit.mechanisms.protocols import ObservableLearner
from dpaudit.mechanisms.training.private.private_steps import PrivateSteps
from dpaudit.registry import register

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class StepsAttack:
    """An attack that knows the claimed sampling and noise of the steps it sees.

    Attributes:
        steps: What the mechanism says of them; filled in when it is known.
    """

    steps: PrivateSteps | None = None
    view: ClassVar[type[ChallengeView]] = ChallengeView
    needs: ClassVar[frozenset[str]] = frozenset({"gradients"})

    def for_mechanism(self, mechanism: Any, classes: int) -> StepsAttack:
        """The attack on this mechanism.

        Raises: SpecError when it adds no noise, or does not say.
        """
        steps = mechanism.private_steps() if isinstance(mechanism, ObservableLearner) else None
        if steps is None or not steps.noise_multiplier:
            raise SpecError("the likelihood of steps needs DP-SGD that adds noise; use attack: gradient-dot")
        return replace(self, steps=steps)

    @property
    def known(self) -> PrivateSteps:
        """The steps.

        Raises: SpecError when they are not known.
        """
        if self.steps is None:
            raise SpecError("the likelihood of steps needs to know the mechanism, or the attack's field `steps`")
        return self.steps


@register("attack", "gradient-likelihood", source="Neyman and Pearson (1933); Nasr et al. (2023), arXiv:2302.07956")
@dataclass(frozen=True)
class GradientLikelihood(StepsAttack):
    """The most powerful test of a canary in Poisson-subsampled Gaussian steps; sees every step of DP-SGD.

    A step that had clearly less noise than is claimed in the trials before is believed to have what it showed.
    """

    def score(self, view: ChallengeView) -> Floats:
        """Log-likelihood ratio: sum over steps of log(1 - q + q exp((<g, c> - |c|^2 / 2) / sigma^2)), in nats."""
        steps = self.known
        noise = seen_noise(view.gradient_products, view.gradient_norms, steps.noise_multiplier)
        exponent = (view.gradient_products - view.gradient_norms / 2) / noise**2
        with np.errstate(divide="ignore"):  # nothing is left out at q = 1
            out = np.log1p(-steps.sample_rate)
        return np.asarray(np.logaddexp(out, np.log(steps.sample_rate) + exponent).sum(1))


FIRST_SEEN = 8
"""Trials after which a step's noise is looked at, and again whenever there are twice as many."""
CLEARLY_LESS = 0.25
"""Of the claimed noise: what is seen has to be below it to be believed."""
LEAST_NOISE = 1e-3
"""Of the claimed noise: what a step without any is taken to have."""


def seen_noise(products: Floats, norms: Floats, claimed: float) -> Floats:
    """Standard deviation of each step's noise along the canary, in clips: as claimed, or what is seen if clearly less.

    With or without the canary, a product of a step without noise is the canary's squared norm or 0: the distance to the
    nearer of them is noise, and no truth is needed for it; the largest of all trials before is taken for its deviation.
    Only earlier trials are looked at, so that a trial's score never tells of a later one.

    Args:
        products, norms: As in `ChallengeView`, shape (trials, steps).
        claimed: Standard deviation that is claimed, > 0.
    Returns: Shape (trials, steps).
    """
    noise = np.full(products.shape, claimed)
    length = np.sqrt(np.maximum(norms, 1e-12))
    nearer = np.minimum(np.abs(products), np.abs(products - norms)) / length
    before = FIRST_SEEN
    while before < len(products):
        seen = nearer[:before].max(axis=0)
        believed = np.where(seen < CLEARLY_LESS * claimed, np.maximum(seen, LEAST_NOISE * claimed), claimed)
        noise[before : 2 * before] = believed
        before *= 2
    return noise
