"""Releases of labels, each by a mechanism that has released nothing before, and what the adversary sees of them."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dpaudit.actors.seed import Seed
from dpaudit.engine.games.one_run.answers import checked_release
from dpaudit.errors import require
from dpaudit.mechanisms.examples import Examples

HIDDEN = -1
"""Stands for a label that is not known."""

Ints = NDArray[np.int64]


def released_anew(mechanism: Any, train: Examples, noise: Seed) -> Ints:
    """What a copy of a label mechanism that has released nothing before releases of some labels."""
    rng = np.random.default_rng(noise.sequence())
    released = copy.deepcopy(mechanism).release(train.labels.copy(), classes=train.classes, rng=rng)
    return checked_release(released, train, type(mechanism).__qualname__).labels


@dataclass(frozen=True, eq=False)
class PairedReleases:
    """Releases in which some labels are at stake, each one of a pair that a fair coin chose; all (releases, n)."""

    released: Ints  # what was released
    known: Ints  # labels that everyone knows, `HIDDEN` at stake
    first: Ints  # the label that each row has if its coin fell True
    second: Ints  # the other one
    truth: NDArray[np.bool_]  # the coins

    @classmethod
    def joined(cls, parts: Sequence[PairedReleases]) -> PairedReleases:
        """Several one after another; those without a release are left out, where there are others."""
        some = [part for part in parts if len(part.released)] or parts[:1]
        return cls(*(np.concatenate([getattr(part, column.name) for part in some]) for column in fields(cls)))


@dataclass(frozen=True, eq=False)
class LabelReleases:
    """Several releases of n rows each, with the labels that were planted."""

    released: Ints  # what the mechanism released, shape (releases, n), in 0 .. classes - 1.
    planted: Ints  # what it was given, of the same shape; `HIDDEN` where that is not known
    classes: int  # number of classes K
    at_stake: int | None = None  # how many of the first rows have labels that may be at stake; None for all
    used: int | None = None  # how many of the first classes labels at stake are drawn from; None for all

    def __post_init__(self) -> None:
        require(
            self.released.shape == self.planted.shape and self.released.ndim == 2,
            "released and planted must have one row a release",
            released=self.released.shape,
            planted=self.planted.shape,
        )

    @property
    def canaries(self) -> NDArray[np.bool_]:
        return np.asarray(self.planted == HIDDEN)

    def at(self, releases: Ints | slice) -> LabelReleases:
        return replace(self, released=self.released[releases], planted=self.planted[releases])


@dataclass(frozen=True, eq=False)
class ChannelView:
    """What the adversary sees; canaries are counted release by release, row by row."""

    search: LabelReleases  # releases on labels of the adversary's own: all are known
    fresh: LabelReleases  # releases it is asked about: the labels of their canaries are hidden, the others known
    first: Ints  # the first label shown for each canary, shape (canaries,): world 1 planted this one
    second: Ints  # the second label shown, never the same: world 0 planted this one
    shows: ClassVar[str] = "releases of a label mechanism on labels of the adversary's own, and fresh ones"


def guessed(
    attack: Any, learned: LabelReleases, asked: PairedReleases
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Scores and truths of all labels at stake; where a release failed (all is `HIDDEN`), the worst guess."""
    fresh = replace(learned, released=asked.released, planted=asked.known)
    at_stake, truth = fresh.canaries, asked.truth
    scores = np.where(truth, -np.inf, np.inf)
    there = (asked.released != HIDDEN).all(axis=1)
    if there.any():
        rows = at_stake & there[:, None]
        view = ChannelView(learned, fresh.at(np.flatnonzero(there)), asked.first[rows], asked.second[rows])
        scores[rows] = attack.score(view)
    return scores[at_stake], truth[at_stake]


def hidden_half(planted: Ints, rng: np.random.Generator, *, at_stake: int | None = None) -> tuple[Ints, Ints]:
    """The labels of a random half of the rows, the others hidden, and the rows whose labels are hidden; shape (n,).

    With `at_stake` half of so many first rows are hidden, and no other.
    """
    among = planted.size if at_stake is None else at_stake
    canaries = np.sort(rng.permutation(among)[: (among + 1) // 2])
    known = planted.copy()
    known[canaries] = HIDDEN
    return known, canaries
