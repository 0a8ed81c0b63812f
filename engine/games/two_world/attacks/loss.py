"""The attack that thresholds the loss of the target model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dpaudit.engine.games.two_world.views import ChallengeView
from dpaudit.registry import register


@register("attack", "loss", source="Yeom et al. (2018), arXiv:1709.01604")
@dataclass(frozen=True)
class LossThreshold:
    """Attack by the loss on the challenge: a smaller loss indicates membership. It needs no shadow models."""

    view: ClassVar[type[ChallengeView]] = ChallengeView
    needs: ClassVar[frozenset[str]] = frozenset()

    def score(self, view: ChallengeView) -> NDArray[np.float64]:
        """Return minus the mean log-loss over queries, in nats."""
        return np.asarray(log_probability(view.target).mean(1))


def log_probability(phi: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
    """Return log p_y = -log(1 + e^-phi), in nats."""
    return -np.logaddexp(0.0, -phi.astype(np.float64))
