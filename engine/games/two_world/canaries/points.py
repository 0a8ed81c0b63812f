"""Canaries without a search: given rows, mislabelled rows, blank points."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpaudit.engine.games.two_world.canaries.protocol import PointCanary, crafted_challenges, features_of
from dpaudit.engine.games.two_world.views.challenges import Challenges
from dpaudit.engine.games.two_world.views.shadows import Shadows
from dpaudit.errors import require
from dpaudit.mechanisms.examples import Examples
from dpaudit.registry import register


@register("canary", "given-row", source="arXiv:2206.05199, Experiment 2 with z given")
@dataclass(frozen=True)
class GivenRow:
    """Rows of the target part, by number.

    Attributes:
        rows: Each in 0 .. size of the target part - 1, at least one, all different.
    """

    rows: tuple[int, ...] = (0,)
    crafted: ClassVar[bool] = False
    needs_shadows: ClassVar[bool] = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "rows", tuple(self.rows))
        require(len(self.rows) > 0, "rows must have at least one row", rows=self.rows)
        require(len(set(self.rows)) == len(self.rows), "rows must be different", rows=self.rows)

    def choose(self, pool: Examples, shadows: Shadows | None, rng: np.random.Generator) -> Challenges:
        """Those rows."""
        rows = np.array(self.rows, np.int64)
        require(rows.min() >= 0 and rows.max() < len(pool), f"rows must be in 0..{len(pool) - 1}", rows=self.rows)
        return Challenges(pool.take(rows), rows, False, np.zeros(len(rows)))


@register("canary", "mislabelled", source="Nasr et al. (2021), arXiv:2101.04535; Steinke et al. (2023)")
@dataclass(frozen=True)
class Mislabelled(PointCanary):
    """Random rows of the pool with a wrong label drawn at random; the true ones are left out of training.

    Attributes:
        count: Number of challenge points, >= 1.
    """

    crafted: ClassVar[bool] = True

    def choose(self, pool: Examples, shadows: Shadows | None, rng: np.random.Generator) -> Challenges:
        """Rows without repetition; a label uniform over the other classes."""
        require(self.count <= len(pool), "count must be at most the rows of the pool", count=self.count)
        rows = rng.choice(len(pool), self.count, replace=False)
        labels = (pool.labels[rows] + rng.integers(1, pool.classes, self.count)) % pool.classes
        return crafted_challenges(pool, features_of(pool)[rows], labels, rows)


@register("canary", "blank", source="Nasr et al. (2023), arXiv:2302.07956")
@dataclass(frozen=True)
class Blank(PointCanary):
    """A point all of whose features are one value, far from the data when that is large.

    Attributes:
        count: Number of challenge points with labels 0, 1, ..., >= 1, at most the number of classes.
        value: Of every feature.
    """

    value: float = 0.0
    crafted: ClassVar[bool] = True

    def choose(self, pool: Examples, shadows: Shadows | None, rng: np.random.Generator) -> Challenges:
        """One point a label."""
        require(self.count <= pool.classes, "count must be at most the number of classes", count=self.count)
        shape = (self.count, *features_of(pool).shape[1:])
        return crafted_challenges(
            pool, np.full(shape, self.value, np.float32), np.arange(self.count), np.full(self.count, -1)
        )
