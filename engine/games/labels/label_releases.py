"""Releases of labels, each by a fresh copy of the mechanism, and the attacker's view of them."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from dpaudit.actors.seed import Seed
from dpaudit.engine.games.outcomes import Outcomes, failure
from dpaudit.errors import require
from dpaudit.mechanisms.queries.row_function import CallOutcome

HIDDEN = -1
"""Placeholder for an unknown label."""

NOT_LABELS = 4
"""Number of symbols after the classes: failed release, number below the classes, number above, not an integer."""

Ints = NDArray[np.int64]
LabelDraw = tuple[Ints, Ints, Ints, NDArray[np.bool_]]
"""Known labels (`HIDDEN` for canaries), first label, second label and coin of each row of a release; shape (n,)."""
ARRAYS = ("released", "planted", "form")
"""Fields of `LabelReleases` with one entry for each release."""


def form_code(form: str) -> int:
    return crc32(form.encode())


def release_labels(mechanism: Any, labels: Ints, classes: int, noise: Seed) -> CallOutcome:
    """Return the release of the labels by a fresh copy of the mechanism: its form, and the symbol of each row.

    Symbols are labels in 0 .. K - 1, else K .. K + `NOT_LABELS` - 1. A release without a number for each row failed.
    """
    rng, rows = noise.rng(), len(labels)
    try:
        released = copy.deepcopy(mechanism).release(labels.copy(), classes=classes, rng=rng)
        array = np.asarray(released)
        values = array.astype(np.float64)
    except BaseException as err:  # any exception may depend on the labels
        return failed_release(err, rows, classes)
    form = f"{type(released).__name__} {array.dtype}"
    if values.shape != (rows,):
        fault = f"shape {values.shape} instead of ({rows},)"
        return CallOutcome(f"{form} {values.shape}", np.full(rows, float(classes)), fault)
    symbols = np.where(values < 0, classes + 1, np.where(values >= classes, classes + 2, values))
    return CallOutcome(form, np.where(np.floor(values) == values, symbols, classes + 3))


def failed_release(err: BaseException, rows: int, classes: int) -> CallOutcome:
    """Return the release of a call that raised; an exception from outside, such as an interrupt, is raised again."""
    return replace(failure(err), numbers=np.full(rows, float(classes)))


def symbols_and_forms(outcomes: Outcomes, rows: int) -> tuple[Ints, Ints]:
    """Return the symbols of releases of `rows` rows, shape (releases, rows), and the codes of their forms."""
    symbols = outcomes.vector.reshape(len(outcomes.ending), rows).astype(np.int64)
    return symbols, np.array([form_code(form) for form in outcomes.ending], np.int64)


@dataclass(frozen=True, eq=False)
class PairedReleases:
    """Releases with secret labels, each chosen from a pair by a fair coin. Arrays have shape (releases, n)."""

    released: Ints  # released symbols
    known: Ints  # labels that the attacker knows, `HIDDEN` for canaries
    first: Ints  # label of each row if its coin is True
    second: Ints  # label of each row if its coin is False
    truth: NDArray[np.bool_]  # coins
    form: Ints  # codes of the forms, shape (releases,)

    @classmethod
    def of(cls, released: Ints, form: Ints, draws: Sequence[LabelDraw] = ()) -> PairedReleases:
        """Return releases with these symbols and forms, and the draws of their labels."""
        columns = np.array(draws, np.int64).reshape(len(draws), 4, released.shape[1]).swapaxes(0, 1)
        return cls(released, columns[0], columns[1], columns[2], columns[3].astype(np.bool_), form)

    @classmethod
    def joined(cls, parts: Sequence[PairedReleases]) -> PairedReleases:
        return cls(*(np.concatenate([getattr(part, column.name) for part in parts]) for column in fields(cls)))


@dataclass(frozen=True, eq=False)
class LabelReleases:
    """Several releases of n rows each, with the planted labels."""

    released: Ints  # released symbols, shape (releases, n), in 0 .. classes + NOT_LABELS - 1
    planted: Ints  # labels given to the mechanism, shape (releases, n); `HIDDEN` if unknown
    classes: int  # number of classes K
    form: Ints  # codes of the forms, shape (releases,)
    at_stake: int | None = None  # number of first rows that may be canaries; None for all
    used: int | None = None  # number of first classes from which canary labels are drawn; None for all
    # class frequencies of canary labels, shape (releases, K); None if uniform
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

    @classmethod
    def joined(cls, parts: Sequence[LabelReleases]) -> LabelReleases:
        """Return all releases; they are of one design, whose laws do not differ."""
        arrays: dict[str, Any] = {name: np.concatenate([getattr(part, name) for part in parts]) for name in ARRAYS}
        return replace(parts[0], **arrays)

    def at(self, releases: Ints | slice) -> LabelReleases:
        laws = None if self.laws is None else self.laws[releases]
        arrays = {name: getattr(self, name)[releases] for name in ARRAYS}
        return replace(self, **arrays, laws=laws)


@dataclass(frozen=True, eq=False)
class ChannelView:
    """View of the attacker; canaries are ordered by release and row."""

    search: LabelReleases  # releases of labels that the attacker chose: all are known
    fresh: LabelReleases  # fresh releases: canary labels are hidden, the others known
    first: Ints  # label of each canary in world 1, shape (canaries,)
    second: Ints  # label of each canary in world 0, different from the first
    shows: ClassVar[str] = "releases of a label mechanism on labels that the attacker chose, and fresh ones"


def hide_half(planted: Ints, rng: np.random.Generator, *, canary_rows: int | None = None) -> tuple[Ints, Ints]:
    """Return the labels with a random half hidden, shape (n,), and the hidden rows.

    With `canary_rows`, half of these first rows are hidden, and no others.
    """
    rows = planted.size if canary_rows is None else canary_rows
    canaries = np.sort(rng.permutation(rows)[: (rows + 1) // 2])
    known_labels = planted.copy()
    known_labels[canaries] = HIDDEN
    return known_labels, canaries
