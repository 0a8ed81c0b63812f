"""A game of sequence canaries against a model that states the loss of each sequence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dpaudit import Relation
from dpaudit.actors.seed import Seed
from dpaudit.engine.games.coins import IncludedByCoin
from dpaudit.engine.games.protocol import Candidates, Capability, GameTraits
from dpaudit.mechanisms.compute import Compute
from dpaudit.registry import register
from tests.engine.any_release.audited import SequenceModel, Sequences


@dataclass(frozen=True, eq=False)
class Losses:
    loss: NDArray[np.float64]


@register("attack", "small-loss", source="test")
@dataclass(frozen=True)
class SmallLoss:
    """An attack that scores a sequence by its negative loss."""

    view: ClassVar[type[Any]] = Candidates

    def score(self, view: Candidates[Losses, Sequences]) -> NDArray[np.float64]:
        return -view.release.loss


@register("game", "sequence-canaries", source="test")
@dataclass(frozen=True)
class SequenceCanaries(IncludedByCoin[Sequences]):
    """Infer which sequences a model was trained on from the losses it states."""

    traits: ClassVar[GameTraits] = GameTraits(
        relation=Relation.ADD_REMOVE,
        assumes="Nothing beyond fair bits.",
        views={Capability(SequenceModel, "models of sequences (with a method `losses`)"): Candidates},
        attack="small-loss",
        estimator="simultaneous-guess-count",
        rows=Sequences,
    )

    def released(self, mechanism: Any, train: Any, canaries: Any, *, seed: Seed, compute: Compute) -> Losses:
        return Losses(np.array(mechanism.losses(train.texts, canaries.texts, seed.rng())))
