"""Releases of labels, each by a mechanism that has released nothing before, and what the adversary sees of them."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from dpaudit.actors.audited.signals import raised_externally
from dpaudit.actors.seed import Seed
from dpaudit.errors import RunError, require, shortened
from dpaudit.mechanisms.examples import Examples

HIDDEN = -1
"""Stands for a label that is not known."""

NOT_LABELS = 4
"""Symbols beside the classes: for all labels of a release that failed; for a number below the classes, above, none."""

Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class LabelOutcome:
    """What came of one call: symbols, and the form they came in. A failure is an outcome like any other."""

    symbols: Ints  # labels in 0 .. K - 1, else K .. K + NOT_LABELS - 1, shape (n,)
    form: int  # a code of the type and shape that were released, or of the class of what was raised
    failure: str = ""  # what was raised, or what is wrong with the shape; "" where each row has its number

    @classmethod
    def failed(cls, rows: int, classes: int, form: str, failure: str) -> LabelOutcome:
        return cls(np.full(rows, classes), code(form), failure)


def code(form: str) -> int:
    return crc32(form.encode())


def released_anew(mechanism: Any, labels: Ints, classes: int, noise: Seed) -> LabelOutcome:
    """What a copy of a label mechanism that has released nothing before makes of some labels."""
    rng, rows = noise.rng(), len(labels)
    try:
        released = copy.deepcopy(mechanism).release(labels.copy(), classes=classes, rng=rng)
        array = np.asarray(released)
        values = array.astype(np.float64)
    except BaseException as err:  # whatever the mechanism raises may tell of its labels
        if raised_externally(err):
            raise
        return LabelOutcome.failed(rows, classes, type(err).__name__, f"{type(err).__name__}: {shortened(err)}")
    form = f"{type(released).__name__} {array.dtype}"
    if values.shape != (rows,):
        return LabelOutcome.failed(rows, classes, f"{form} {values.shape}", f"{values.shape} where ({rows},) is due")
    symbols = np.where(values < 0, classes + 1, np.where(values >= classes, classes + 2, values))
    symbols = np.where(np.floor(values) == values, symbols, classes + 3)
    return LabelOutcome(symbols.astype(np.int64), code(form))


def release_all(mechanism: Any, trains: Sequence[Examples], seed: Seed) -> tuple[Ints, Ints, tuple[str, ...]]:
    """Symbols of a release of each, shape (releases, n), the codes of their forms, and the failures in words.

    Raises: RunError when each of them failed: then there is nothing to learn from.
    """
    made = [
        released_anew(mechanism, train.labels, train.classes, seed.child(number, "noise"))
        for number, train in enumerate(trains)
    ]
    failures = tuple(
        f"release {number} (seed {seed.child(number)}): {one.failure}" for number, one in enumerate(made) if one.failure
    )
    if len(failures) == len(made):
        raise RunError(f"each of {len(made)} releases failed, the first with {made[0].failure}")
    return np.stack([one.symbols for one in made]), np.array([one.form for one in made]), failures


@dataclass(frozen=True, eq=False)
class PairedReleases:
    """Releases in which some labels are at stake, each one of a pair that a fair coin chose; all (releases, n)."""

    released: Ints  # what was released, in symbols
    known: Ints  # labels that everyone knows, `HIDDEN` at stake
    first: Ints  # the label that each row has if its coin fell True
    second: Ints  # the other one
    truth: NDArray[np.bool_]  # the coins
    form: Ints  # codes of the forms of the releases, shape (releases,)

    @classmethod
    def joined(cls, parts: Sequence[PairedReleases]) -> PairedReleases:
        """Several one after another; those without a release are left out, where there are others."""
        some = [part for part in parts if len(part.released)] or parts[:1]
        return cls(*(np.concatenate([getattr(part, column.name) for part in some]) for column in fields(cls)))


@dataclass(frozen=True, eq=False)
class LabelReleases:
    """Several releases of n rows each, with the labels that were planted."""

    released: Ints  # what the mechanism released, shape (releases, n), in 0 .. classes + NOT_LABELS - 1.
    planted: Ints  # what it was given, of the same shape; `HIDDEN` where that is not known
    classes: int  # number of classes K
    form: Ints  # codes of the forms of the releases, shape (releases,)
    at_stake: int | None = None  # how many of the first rows have labels that may be at stake; None for all
    used: int | None = None  # how many of the first classes labels at stake are drawn from; None for all
    # how often each release has each class, where that is not the same for all at stake, shape (releases, K)
    laws: NDArray[np.float64] | None = None

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
        laws = None if self.laws is None else self.laws[releases]
        arrays = {name: getattr(self, name)[releases] for name in ("released", "planted", "form")}
        return replace(self, **arrays, laws=laws)


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
    """Scores and truths of all labels at stake."""
    fresh = replace(learned, released=asked.released, planted=asked.known, form=asked.form)
    at_stake = fresh.canaries
    view = ChannelView(learned, fresh, asked.first[at_stake], asked.second[at_stake])
    return attack.score(view), asked.truth[at_stake]


def hidden_half(planted: Ints, rng: np.random.Generator, *, at_stake: int | None = None) -> tuple[Ints, Ints]:
    """The labels of a random half of the rows, the others hidden, and the rows whose labels are hidden; shape (n,).

    With `at_stake` half of so many first rows are hidden, and no other.
    """
    among = planted.size if at_stake is None else at_stake
    canaries = np.sort(rng.permutation(among)[: (among + 1) // 2])
    known = planted.copy()
    known[canaries] = HIDDEN
    return known, canaries
