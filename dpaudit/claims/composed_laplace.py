"""The curve of numbers released with Laplace noise, composed numerically.

One number that moves by at most s, with noise of scale b, is no easier to tell apart than Laplace at 0 and at s, and k
of them no easier than k-fold products, also where a number depends on those released before. With e = s / b, the loss
of one is e or -e or spread between: under the geometric mean of both distributions each end has the mass e^(-e/2) / 2,
and between them the density is e^(-e/2) / 4 everywhere.

The losses are put on a grid that holds both ends; the mass of each cell between is split over its two ends so that its
weight under both distributions is kept ("connecting the dots", Doroshenko et al., 2022, arXiv:2207.04380), by symmetry
e^(-e/2) tanh(width / 4) / 2 to each. That only makes them easier to tell apart, so delta and epsilon err upwards.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from dpaudit.claims.closed_forms import PureDP
from dpaudit.claims.composition import Losses, composed, larger_of
from dpaudit.claims.curve import checked_delta, checked_epsilon, checked_order
from dpaudit.claims.table import DeltaTable
from dpaudit.errors import require
from dpaudit.registry import register

CELLS = 32
"""Cells of the grid between a loss of 0 and of e, for each nat of e begun."""


@register("curve", "composed-laplace", source="Dwork et al. (2006); Doroshenko et al. (2022), arXiv:2207.04380")
@dataclass(frozen=True)
class ComposedLaplace:
    """Numbers released with Laplace noise, each moved by at most 1 / `scale` of it.

    Attributes:
        scale: Laplace scale of the noise over the most that one number may move, > 0.
        releases: How many numbers, >= 1.
    """

    scale: float
    releases: int

    def __post_init__(self) -> None:
        require(0 < self.scale < math.inf, "scale must be > 0 and finite", scale=self.scale)
        require(self.releases >= 1, "releases must be >= 1", releases=self.releases)

    def __str__(self) -> str:
        return f"Laplace noise of scale {self.scale:g} on {self.releases:,} numbers"

    @property
    def bound(self) -> float:
        """The loss that is never exceeded, in nats."""
        return self.releases / self.scale

    def epsilon(self, delta: float, /) -> float:
        """The smallest epsilon at `delta`, rounded up; at most `bound`."""
        checked_delta(delta)
        return min(self.bound, _table(self).epsilon(delta))

    def delta(self, epsilon: float, /) -> float:
        """The hockey-stick divergence, rounded up; 0 from `bound` on."""
        checked_epsilon(epsilon)
        return 0.0 if epsilon >= self.bound else _table(self).delta(epsilon)

    def miss_rate(self, alarm: float, /) -> float:
        """The envelope of delta(epsilon), and of pure DP at `bound`."""
        return max(_table(self).miss_rate(alarm), PureDP(self.bound).miss_rate(alarm))

    def renyi(self, order: float, /) -> float:
        """Releases x the divergence of one (Mironov, 2017, arXiv:1702.07476, proposition 6)."""
        checked_order(order)
        e = 1 / self.scale
        nearer = math.log(order / (2 * order - 1)) + (order - 1) * e
        farther = math.log((order - 1) / (2 * order - 1)) - order * e
        return max(0.0, self.releases * float(np.logaddexp(nearer, farther)) / (order - 1))


@lru_cache(maxsize=64)
def _table(curve: ComposedLaplace) -> DeltaTable:
    cells = CELLS * math.ceil(1 / curve.scale)
    while cells:
        total = composed(_one_release(1 / curve.scale, cells), curve.releases)
        if total is not None:
            return larger_of([total])
        cells //= 2
    require(False, "releases must be fewer: their losses do not fit the largest grid", releases=curve.releases)
    raise AssertionError


def _one_release(e: float, cells: int) -> Losses:
    width = e / cells
    at = width * np.arange(-cells, cells + 1)
    mean = np.full(len(at), math.tanh(width / 4))  # under the geometric mean, but for its factor e^(-e/2)
    mean[[0, -1]] = (1 + math.tanh(width / 4)) / 2
    return Losses(-cells, mean * np.exp((at - e) / 2), 0.0, width)
