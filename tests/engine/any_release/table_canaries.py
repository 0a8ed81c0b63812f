"""A game of table canaries against a generator that releases synthetic tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dpaudit import Relation
from dpaudit.actors.seed import Seed
from dpaudit.engine.games.coins import IncludedByCoin
from dpaudit.engine.games.protocol import Candidates, Capability, GameTraits
from dpaudit.mechanisms.compute import Compute
from dpaudit.registry import register
from tests.engine.any_release.audited import Generator, Records


@dataclass(frozen=True, eq=False)
class Synthetic:
    table: pa.Table


@register("attack", "nearest-record", source="test")
@dataclass(frozen=True)
class NearestRecord:
    """An attack that scores a record by its distance to the nearest released record."""

    view: ClassVar[type[Any]] = Candidates

    def score(self, view: Candidates[Synthetic, Records]) -> NDArray[np.float64]:
        released, candidates = view.release.table["age"].to_numpy(), view.candidates.table["age"].to_numpy()
        scores: NDArray[np.float64] = -np.abs(candidates[:, None] - released[None]).min(axis=1)
        return scores


@register("game", "table-canaries", source="test")
@dataclass(frozen=True)
class TableCanaries(IncludedByCoin[Records]):
    """Infer which records a generator was fitted on from the table that it releases."""

    traits: ClassVar[GameTraits] = GameTraits(
        relation=Relation.ADD_REMOVE,
        assumes="Nothing beyond fair bits.",
        views={Capability(Generator, "generators of tables (with a method `synthesise`)"): Candidates},
        attack="nearest-record",
        estimator="simultaneous-guess-count",
        rows=Records,
    )

    def released(self, mechanism: Any, train: Records, canaries: Records, *, seed: Seed, compute: Compute) -> Synthetic:
        return Synthetic(mechanism.synthesise(train.table, seed.rng()))
