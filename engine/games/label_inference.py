"""Observational label inference (Algorithm 2): is this the training label, or one the proxy drew?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpaudit.engine.games.one_run import Artifacts, Hint, OneRunGame, Stage
from dpaudit.mechanisms.claim import Relation
from dpaudit.mechanisms.examples import Examples
from dpaudit.registry import register


@register("game", "label-inference", source="arXiv:2511.14084, Algorithm 2")
@dataclass(frozen=True)
class LabelInference(OneRunGame):
    """Observational: shows each training point with its own label or with one drawn from a proxy; training untouched.

    Attributes:
        replays: How often bits and proxy labels are drawn for one trained model, >= 1.
        canaries: How many of the target rows are canaries; None takes all.
    """

    @property
    def relation(self) -> Relation:
        """One label is substituted."""
        return Relation.LABEL

    def artifacts(self, stage: Stage, rng: np.random.Generator) -> Artifacts:
        """A fair bit and a proxy label y1 ~ Multinoulli(M'(x)) for each canary; bit True shows the training label."""
        bits = rng.random(len(stage.canaries)) < 0.5
        drawn = rng.random(len(stage.canaries))
        labels = (drawn[:, None] >= stage.proxy[:, :-1]).sum(axis=1)
        return Artifacts(bits, labels.astype(np.int64))

    def intervene(self, train: Examples, artifacts: Artifacts) -> Examples:
        """The training data as they are."""
        return train

    def hint(self, stage: Stage, artifacts: Artifacts) -> Hint:
        """Every canary, with the training label where the bit is True, else with the proxy's."""
        assert artifacts.labels is not None
        labels = np.where(artifacts.bits, stage.canaries.labels, artifacts.labels)
        return Hint(np.arange(len(labels)), labels)
