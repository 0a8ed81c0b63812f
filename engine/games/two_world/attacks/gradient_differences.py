"""White-box: the differences between neighbouring steps of DP-SGD, in which noise that is used again cancels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from dpaudit.engine.games.two_world.attacks.gradient_likelihood import StepsAttack
from dpaudit.engine.games.two_world.views.challenge_view import ChallengeView
from dpaudit.errors import require
from dpaudit.registry import register

Floats = NDArray[np.float64]


@register("attack", "gradient-differences", source="Ours: the likelihood ratio under noise that steps share")
@dataclass(frozen=True)
class GradientDifferences(StepsAttack):
    """The likelihood ratio of differences between steps, for noise that is used again; shows little of fresh noise.

    Each difference is noise of both steps with probability `fresh`, else the little that is left where it cancels.

    Attributes:
        fresh: Share of neighbouring steps whose noise does not cancel, in (0, 1).
        left: Standard deviation of what is left where it does, over that of one step's noise, > 0.
    """

    fresh: float = 0.1
    left: float = 0.02

    def __post_init__(self) -> None:
        require(0 < self.fresh < 1, "fresh must be in (0, 1)", fresh=self.fresh)
        require(self.left > 0, "left must be > 0", left=self.left)

    def score(self, view: ChallengeView) -> Floats:
        """Sum over differences of their log-likelihood ratio, in nats; 0 for a training of one step."""
        q, sigma = self.known.sample_rate, self.known.noise_multiplier
        difference, norms = np.diff(view.gradient_products, axis=1), view.gradient_norms
        before, after = norms[:, :-1], norms[:, 1:]
        scale = sigma * np.sqrt(np.maximum(before + after, 1e-12))
        # The canary in neither step, in the later, the earlier, both.
        shares = {(0, 0): (1 - q) ** 2, (0, 1): (1 - q) * q, (1, 0): q * (1 - q), (1, 1): q * q}
        with np.errstate(divide="ignore"):
            terms = [
                np.log(share) + self._log_density(difference - later * after + earlier * before, scale)
                for (earlier, later), share in shares.items()
            ]
        return np.asarray((logsumexp(terms, axis=0) - self._log_density(difference, scale)).sum(1))

    def _log_density(self, x: Floats, scale: Floats) -> Floats:
        """Of a difference without canary, up to a constant."""
        narrow = self.left * scale / np.sqrt(2)
        return np.asarray(
            np.logaddexp(
                np.log(self.fresh) - np.log(scale) - (x / scale) ** 2 / 2,
                np.log1p(-self.fresh) - np.log(narrow) - (x / narrow) ** 2 / 2,
            )
        )
