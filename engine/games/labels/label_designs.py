"""Data sets with secret labels that the challenger designs, what a mechanism releases for them, and what is shown."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, ClassVar, Literal
from zlib import crc32

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dpaudit.actors.seed import Seed
from dpaudit.engine.games.outcomes import Outcomes, failure
from dpaudit.errors import require
from dpaudit.mechanisms.compute import Compute
from dpaudit.mechanisms.examples import Examples, Features, writable_features
from dpaudit.mechanisms.protocols import LabelMechanism
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


MAX_FRESH_ROWS = 1_000_000
"""Largest number of rows of all fresh releases together."""
CONFIDENCE_STEPS = (0.5, 1.0, 2.0, 4.0)
"""Thresholds of the absolute log-odds of two classes, which separate levels of a model's confidence."""
MIN_PROBABILITY = 1e-12
"""Smaller probabilities are raised to this value."""
MAX_POINTS = 64
"""Largest number of distant points in a design."""
POINT_DISTANCE = 5.0
"""Distance of these points from the origin, in units of the largest absolute feature."""
LARGE_SIZE = 16_384
"""Rows of the largest design for label mechanisms."""
MAX_FIELD_SIZE = 5_000
"""Largest field value that counts as a number of rows."""
MAX_FIELD_SIZES = 4
"""Largest number of sizes taken from fields of the mechanism."""


@dataclass(frozen=True)
class Design:
    """A small data set designed by the challenger.

    Attributes:
        rows: Number of rows at separate points, >= 1.
        others: Number of further rows at one other point, with known labels, half of class 0 and half of class 1; >= 0.
        canary_rows: Number of first rows that may be canaries; half of them are in each release. None for `rows`.
        labels: Law of the labels. "drawn": uniform over all classes. "two": uniform over two classes. With all others,
            canary labels are uniform over two classes. Other labels are "balanced" between these two; all "alike";
            "rare": of all classes except the first; or "lone": of all classes except the first two.
        place: Position of the first row; rows are rotated by this number.
    """

    rows: int
    others: int = 0
    canary_rows: int | None = None
    labels: Literal["drawn", "two", "balanced", "alike", "rare", "lone"] = "drawn"
    place: int = 0

    @property
    def size(self) -> int:
        return self.rows + self.others

    @property
    def canaries(self) -> int:
        """Number of secret labels in each release."""
        return ((self.canary_rows or self.rows) + 1) // 2

    def used(self, classes: int) -> int:
        """Return the number of first classes from which canary labels are drawn."""
        return classes if self.labels == "drawn" else 2

    @property
    def most_releases(self) -> int:
        return max(1, MAX_FRESH_ROWS // self.size)

    def planted(self, classes: int, rng: np.random.Generator, number: int = 0) -> Ints:
        labels = np.zeros(self.size, np.int64)
        random_rows = self.rows if self.labels in ("drawn", "two") else (self.canary_rows or self.rows)
        labels[:random_rows] = rng.integers(0, self.used(classes), random_rows)
        if self.labels in ("rare", "lone"):
            absent = 1 if self.labels == "rare" or classes == 2 else 2
            labels[random_rows:] = absent + np.arange(self.size - random_rows) % (classes - absent)
        elif self.labels != "alike":
            labels[random_rows:] = np.arange(self.size - random_rows) % 2 == 0
        return labels

    def pairs(self, classes: int, rng: np.random.Generator, number: int = 0) -> LabelDraw:
        return drawn_pairs(self.planted(classes, rng), self.canary_rows or self.rows, self.used(classes), rng)

    def symbols(self, mechanism: Any, classes: int) -> int:
        if isinstance(mechanism, LabelMechanism) or self.used(classes) > 2:
            return classes
        return 2 * (len(CONFIDENCE_STEPS) + 1)

    def facts(self, classes: int, releases: int) -> Mapping[str, Any]:
        return {"at_stake": self.canary_rows or self.rows, "used": self.used(classes)}

    def swapped(self, classes: int) -> Ints:
        """Return the mechanism's symbol of each symbol; "rare" canary labels are the first and last class."""
        symbols = np.arange(classes + NOT_LABELS)
        if self.labels == "rare":
            symbols[[1, classes - 1]] = symbols[[classes - 1, 1]]
        return symbols

    def release_by(self, mechanism: Any, target: Examples, compute: Compute) -> Callable[[Ints, Seed], CallOutcome]:
        """Return a function from labels, canary rows first, to a release by a fresh copy of the mechanism.

        The symbols of a label mechanism are classes. The symbols of a learner are the most likely class of each row, or
        for canary labels of two classes, the likelier one with a level of confidence.
        """
        k = target.classes
        if isinstance(mechanism, LabelMechanism):
            swapped, rows = self.swapped(k), np.arange(self.size)
            order, inverse = np.roll(rows, self.place), np.roll(rows, -self.place)

            def of_labels(labels: Ints, seed: Seed) -> CallOutcome:
                outcome = release_labels(mechanism, swapped[labels[order]], k, seed)
                return replace(outcome, numbers=swapped[outcome.numbers[inverse].astype(np.int64)].astype(np.float64))

            return of_labels
        train = target.with_(features=crafted_features(target.features, self), labels=np.zeros(self.size, np.int64))

        def of_model(labels: Ints, seed: Seed) -> CallOutcome:
            try:
                symbols = _model_symbols(mechanism, train.with_(labels=labels), self, seed, compute)
                return CallOutcome("", symbols.astype(np.float64))
            except BaseException as err:  # any exception may depend on the labels
                return failed_release(err, self.size, self.symbols(mechanism, k))

        return of_model

    def __str__(self) -> str:
        canaries = "one label" if self.canaries == 1 else f"{self.canaries} labels"
        rows = f"{self.rows} row{'s' if self.rows > 1 else ''}"
        others = f" and {self.others} at one point" if self.others else ""
        law = {
            "drawn": "of all classes",
            "two": "of two classes",
            "balanced": "others in balance",
            "alike": "others alike",
            "rare": "others of all classes but one",
            "lone": "others of all classes but two",
        }
        place = f" at row {self.place + 1:,}" if self.place else ""
        return f"{rows}{others}, {canaries} at stake{place}, {law[self.labels]}"


def drawn_pairs(planted: Ints, canary_rows: int | None, used: int, rng: np.random.Generator) -> LabelDraw:
    """Draw the canaries, pairs and coins of a release with planted labels."""
    known_labels, _ = hide_half(planted, rng, canary_rows=canary_rows)
    coin = rng.random(planted.size) < 0.5
    other = (planted + rng.integers(1, used, planted.size)) % used
    return known_labels, np.where(coin, planted, other), np.where(coin, other, planted), coin


def designs_for(mechanism: Any, target: Examples) -> tuple[Design, ...]:
    """Return the designs to try on a mechanism, instead of the target data."""
    points = 0 if isinstance(mechanism, LabelMechanism) else point_count(target.features)
    designs = _all_designs(mechanism, points)
    if target.classes == 2:
        designs = [replace(design, labels="drawn") if design.labels == "two" else design for design in designs]
    return tuple(dict.fromkeys(designs))


def max_canaries(mechanism: Any) -> int:
    """Return the largest number of canaries in one release of any design."""
    return max(design.canaries for design in _all_designs(mechanism, MAX_POINTS))


def _all_designs(mechanism: Any, points: int) -> list[Design]:
    """Return the designs of a label mechanism, or those of a learner with at most `points` separate points."""
    sizes = public_sizes(mechanism)
    if not isinstance(mechanism, LabelMechanism):
        designs = [Design(min(2, points)), Design(points), Design(points, labels="two")]
        for size in sizes:
            if size <= points:
                designs += [Design(size, labels="two"), Design(size, canary_rows=1, labels="balanced")]
            else:
                designs.append(Design(points, size - points, labels="two"))
        return [*designs, Design(points, 16 * points, labels="two")]
    halves = [Design(rows) for rows in (1, 2, 3, 8, 20, *sizes)]
    two = [Design(8, labels="two")]
    ties = [Design(rows, canary_rows=1, labels="balanced") for rows in (3, 20, *sizes)]
    places = ((2, 0), (20, 0), (256, 170))
    alike = [Design(rows, canary_rows=1, labels="alike", place=place) for rows, place in places]
    rare = [Design(20, canary_rows=1, labels="rare", place=12)]
    rare += [Design(rows, canary_rows=1, labels="lone", place=place) for rows, place in ((256, 101), (2_048, 1_459))]
    large = [Design(2_048, canary_rows=1, labels="balanced", place=2_047), Design(LARGE_SIZE)]
    return [*halves, *two, *ties, *alike, *rare, *large]


def public_sizes(mechanism: Any) -> list[int]:
    """Return integer fields of the mechanism that may be numbers of rows, in ascending order."""
    if not is_dataclass(mechanism):
        return []
    values = [getattr(mechanism, field.name) for field in fields(mechanism) if field.init]
    whole = {value for value in values if isinstance(value, int) and not isinstance(value, bool)}
    return sorted(value for value in whole if 2 <= value <= MAX_FIELD_SIZE)[:MAX_FIELD_SIZES]


def point_count(features: Features) -> int:
    """Return the number of distant points that the features allow."""
    if isinstance(features, np.ndarray):
        return min(MAX_POINTS, 2 * int(np.prod(features.shape[1:])))
    return min(MAX_POINTS, len(features) - 1)


def crafted_features(features: Features, design: Design) -> Features:
    """Return features of the design: distant points, and the origin for other rows; for a table, rows of the table."""
    if not isinstance(features, np.ndarray):
        places = np.minimum(np.arange(design.size), design.rows) % len(features)
        return features.take(pa.array(places))
    width = int(np.prod(features.shape[1:]))
    largest = float(np.abs(features).max(initial=0.0)) or 1.0
    points = np.zeros((design.size, width), np.float32)
    place = np.arange(design.rows)
    points[place, place % width] = POINT_DISTANCE * largest * np.where(place // width % 2 == 0, 1.0, -1.0)
    return points.reshape(design.size, *features.shape[1:])


def _model_symbols(mechanism: Any, train: Examples, design: Design, seed: Seed, compute: Compute) -> Ints:
    learner, name = copy.deepcopy(mechanism), type(mechanism).__qualname__
    train_copy = train.with_(features=writable_features(train.features), labels=train.labels.copy())
    model = learner.fit(train_copy, seed=seed.sequence(), compute=compute)
    probabilities = np.asarray(model.probabilities(writable_features(train.features)))
    require(
        probabilities.shape == (len(train), train.classes),
        f"{name}: probabilities of the model must have shape (n, classes)",
        shape=probabilities.shape,
    )
    require(bool(np.isfinite(probabilities).all()), f"{name}: probabilities of the model must be finite")
    if design.used(train.classes) > 2:
        return np.asarray(probabilities.argmax(axis=1), np.int64)
    log_odds = np.diff(np.log(np.maximum(probabilities[:, :2].astype(np.float64), MIN_PROBABILITY)), axis=1)[:, 0]
    return 2 * np.searchsorted(CONFIDENCE_STEPS, np.abs(log_odds)).astype(np.int64) + (log_odds > 0)
