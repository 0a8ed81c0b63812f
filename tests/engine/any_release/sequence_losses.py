"""A model of sequences, audited by canaries: which sequences was it trained on, by the loss it states of each?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dpaudit import Relation
from dpaudit.actors.seed import Seed
from dpaudit.engine.games.one_run.game import ReleaseGame
from dpaudit.engine.games.one_run.rules import IncludedByCoin
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
    """How small is the loss of the sequence?"""

    view: ClassVar[type[Any]] = Candidates

    def score(self, view: Candidates[Losses, Sequences]) -> NDArray[np.float64]:
        return -view.release.loss


@register("game", "sequence-canaries", source="test")
@dataclass(frozen=True)
class SequenceCanaries(IncludedByCoin[Sequences], ReleaseGame[Sequences]):
    """Which sequences was a model trained on, by the loss that it states of each?"""

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
