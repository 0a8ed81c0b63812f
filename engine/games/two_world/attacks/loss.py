"""The attack that thresholds the loss of the target model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dpaudit.engine.games.protocol import LossView
from dpaudit.registry import register


@register("attack", "loss", source="Yeom et al. (2018), arXiv:1709.01604")
@dataclass(frozen=True)
class LossThreshold:
    """Attack by the loss on a point: a smaller loss indicates membership. It needs no shadow models."""

    view: ClassVar[type[LossView]] = LossView
    needs: ClassVar[frozenset[str]] = frozenset()

    def score(self, view: LossView) -> NDArray[np.float64]:
        """Return minus the log-loss, in nats: the mean over queries, or relative to the median canary of one run."""
        return view.log_probability
