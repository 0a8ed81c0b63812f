"""White-box attacks on the steps of DP-SGD, with knowledge of sampling and noise."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from dpaudit.engine.games.two_world.views import ChallengeView
from dpaudit.errors import SpecError, require
from dpaudit.mechanisms.protocols import ObservableLearner
from dpaudit.mechanisms.training.private.private_steps import PrivateSteps
from dpaudit.registry import register

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class StepsAttack:
    """Base of attacks that know the claimed sampling and noise of the steps.

    Attributes:
        steps: Claimed sampling and noise; `for_mechanism` fills it in.
    """

    steps: PrivateSteps | None = None
    view: ClassVar[type[ChallengeView]] = ChallengeView
    needs: ClassVar[frozenset[str]] = frozenset({"gradients"})

    def for_mechanism(self, mechanism: Any, classes: int) -> StepsAttack:
        steps = mechanism.private_steps() if isinstance(mechanism, ObservableLearner) else None
        if steps is None or not steps.noise_multiplier:
            raise SpecError("the likelihood of steps needs DP-SGD with noise. Use attack: gradient-dot")
        return replace(self, steps=steps)

    @property
    def claimed_steps(self) -> PrivateSteps:
        if self.steps is None:
            raise SpecError("the likelihood of steps needs the mechanism, or the attack's field `steps`")
        return self.steps


@register("attack", "gradient-likelihood", source="Neyman and Pearson (1933); Nasr et al. (2023), arXiv:2302.07956")
@dataclass(frozen=True)
class GradientLikelihood(StepsAttack):
    """Most powerful test of a canary in Poisson-subsampled Gaussian steps; observes every step of DP-SGD.

    If earlier trials had clearly less noise in a step than claimed, the observed noise replaces the claimed one.
    """

    def score(self, view: ChallengeView) -> Floats:
        """Return sums over steps of log(1 - q + q exp((<g, c> - |c|^2 / 2) / sigma^2)), likelihood ratios in nats."""
        steps = self.claimed_steps
        noise = observed_noise(view.gradient_products, view.gradient_norms, steps.noise_multiplier)
        exponent = (view.gradient_products - view.gradient_norms / 2) / noise**2
        with np.errstate(divide="ignore"):  # log(0) at q = 1
            log_absent = np.log1p(-steps.sample_rate)
        return np.asarray(np.logaddexp(log_absent, np.log(steps.sample_rate) + exponent).sum(1))


FIRST_ESTIMATE = 8
"""Trials before the first estimate of the noise; each further estimate has twice as many."""
MAX_OBSERVED_NOISE = 0.25
"""Share of the claimed noise below which the observed noise replaces it."""
MIN_NOISE = 1e-3
"""Smallest noise of a step, as a share of the claimed noise."""


def observed_noise(products: Floats, norms: Floats, claimed: float) -> Floats:
    """Return the standard deviation of each step's noise along the canary, in units of the clipping norm.

    It is the claimed one, or the observed one if that is clearly smaller. Without noise, a product is the canary's
    squared norm or 0, so the distance to the nearer one is an estimate of the noise that needs no truth. The observed
    deviation is the largest distance in earlier trials; later trials never affect a score.
    """
    noise = np.full(products.shape, claimed)
    length = np.sqrt(np.maximum(norms, 1e-12))
    nearer = np.minimum(np.abs(products), np.abs(products - norms)) / length
    before = FIRST_ESTIMATE
    while before < len(products):
        largest = nearer[:before].max(axis=0)
        believed = np.where(largest < MAX_OBSERVED_NOISE * claimed, np.maximum(largest, MIN_NOISE * claimed), claimed)
        noise[before : 2 * before] = believed
        before *= 2
    return noise


@register("attack", "gradient-dot", source="Nasr et al. (2021), arXiv:2101.04535; Nasr et al. (2023), arXiv:2302.07956")
@dataclass(frozen=True)
class GradientDot:
    """Inner product of noisy gradients with the canary's gradient; observes every step of DP-SGD.

    Attributes:
        steps: "all" for the sum over steps; "last" for the last step only.
    """

    steps: Literal["all", "last"] = "all"
    view: ClassVar[type[ChallengeView]] = ChallengeView
    needs: ClassVar[frozenset[str]] = frozenset({"gradients"})

    def score(self, view: ChallengeView) -> NDArray[np.float64]:
        """Return scores in units of the clipping norm: about 1 for each step with the canary."""
        if self.steps == "last":
            return view.gradient_products[:, -1]
        return np.asarray(view.gradient_products.sum(1))


@register("attack", "gradient-differences", source="Ours: the likelihood ratio under noise that steps share")
@dataclass(frozen=True)
class GradientDifferences(StepsAttack):
    """Likelihood ratio of differences between consecutive steps, for reused noise; weak for fresh noise.

    A difference contains the noise of both steps with probability `fresh`; else the noise cancels except for a
    remainder.

    Attributes:
        fresh: Share of consecutive steps whose noise does not cancel, in (0, 1).
        left: Standard deviation of the remainder, relative to the noise of one step, > 0.
    """

    fresh: float = 0.1
    left: float = 0.02

    def __post_init__(self) -> None:
        require(0 < self.fresh < 1, "fresh must be in (0, 1)", fresh=self.fresh)
        require(self.left > 0, "left must be > 0", left=self.left)

    def score(self, view: ChallengeView) -> Floats:
        """Return sums of log-likelihood ratios over differences, in nats; 0 for a training of one step."""
        q, sigma = self.claimed_steps.sample_rate, self.claimed_steps.noise_multiplier
        difference, norms = np.diff(view.gradient_products, axis=1), view.gradient_norms
        before, after = norms[:, :-1], norms[:, 1:]
        scale = sigma * np.sqrt(np.maximum(before + after, 1e-12))
        # Probability of the canary in neither step, the later, the earlier, both.
        shares = {(0, 0): (1 - q) ** 2, (0, 1): (1 - q) * q, (1, 0): q * (1 - q), (1, 1): q * q}
        with np.errstate(divide="ignore"):
            terms = [
                np.log(share) + self._log_density(difference - later * after + earlier * before, scale)
                for (earlier, later), share in shares.items()
            ]
        return np.asarray((logsumexp(terms, axis=0) - self._log_density(difference, scale)).sum(1))

    def _log_density(self, x: Floats, scale: Floats) -> Floats:
        """Return the log-density of a difference without canary, up to a constant."""
        narrow = self.left * scale / np.sqrt(2)
        return np.asarray(
            np.logaddexp(
                np.log(self.fresh) - np.log(scale) - (x / scale) ** 2 / 2,
                np.log1p(-self.fresh) - np.log(narrow) - (x / narrow) ** 2 / 2,
            )
        )
