"""Attacks that look at the target's loss: by itself, and beside that of reference models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dpaudit.engine.games.two_world.views import ChallengeView, Shadows
from dpaudit.errors import require
from dpaudit.registry import register


@register("attack", "loss", source="Yeom et al. (2018), arXiv:1709.01604")
@dataclass(frozen=True)
class LossThreshold:
    """The smaller the loss on the challenge, the likelier it was trained on; no shadow models."""

    view: ClassVar[type[ChallengeView]] = ChallengeView
    needs: ClassVar[frozenset[str]] = frozenset()

    def score(self, view: ChallengeView) -> NDArray[np.float64]:
        """Minus the mean log-loss over the queries, in nats."""
        return np.asarray(log_probability(view.target).mean(1))


@register("attack", "difficulty-calibration", source="Watson et al. (2022), arXiv:2111.08440")
@dataclass(frozen=True)
class DifficultyCalibration:
    """How much smaller the target's loss is than that of shadow models that were not trained on the challenge."""

    view: ClassVar[type[ChallengeView]] = ChallengeView
    needs: ClassVar[frozenset[str]] = frozenset({"shadows"})

    def score(self, view: ChallengeView) -> NDArray[np.float64]:
        """Mean loss of the references minus the target's loss, in nats.

        Raises: InputError when a challenge is in every shadow model.
        """
        assert view.shadows is not None
        points, place = view.points()
        return np.asarray(log_probability(view.target).mean(1) - _outside(view.shadows.at(points))[place])


def log_probability(phi: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
    """log p_y = -log(1 + e^-phi), in nats."""
    return -np.logaddexp(0.0, -phi.astype(np.float64))


def _outside(shadows: Shadows) -> NDArray[np.float64]:
    """Mean log-probability over the models that were not trained on each point, shape (points,)."""
    without = ~shadows.member
    require(bool(without.any(0).all()), "each challenge must be left out of some shadow model")
    logs = log_probability(shadows.confidence).mean(1)
    return np.asarray(np.where(without, logs, 0.0).sum(0) / without.sum(0))
