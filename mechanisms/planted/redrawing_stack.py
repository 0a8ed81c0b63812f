"""A training loop with a defect on purpose: it draws the noise of its labels again in every epoch."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from dpaudit.mechanisms.planted.labels import redrawn_labels
from dpaudit.mechanisms.protocols import LabelMechanism
from dpaudit.mechanisms.seeds import spawned
from dpaudit.mechanisms.training.stack import Stack


class RedrawingStack(Stack):
    """DEFECT ON PURPOSE: gets other labels before each epoch."""

    def __init__(self, *arguments: Any, mechanism: LabelMechanism, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.mechanism = mechanism

    def run_epoch(self, epoch: int) -> None:
        """One pass of each model over its examples, with labels of this epoch."""
        drawn = []
        for task in self.tasks:
            (noise,) = spawned(task.seed, 4)[3:]  # behind the three seeds of an ordinary training
            labels = redrawn_labels(self.mechanism, np.asarray(task.labels), classes=self.classes, seed=noise)
            drawn.append(torch.from_numpy(labels(epoch)))
        self.relabel(drawn)
        super().run_epoch(epoch)
