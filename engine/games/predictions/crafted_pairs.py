"""Pairs of small neighbouring data sets in which one record decides the answer to a query."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import zip_longest
from types import CodeType, FunctionType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpaudit.mechanisms.examples import Examples
from dpaudit.mechanisms.predictors.ensemble import joined

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

MAX_LEAD = 12
"""Largest lead of one of the two classes at the query, in votes."""
UNCHANGED_QUERIES = 4
"""Number of queries on unchanged records."""
SIZES = (8, 10, 16, 20, 25, 30, 40, 50, 64, 100)
"""Numbers of records at which each teacher may have one."""
FEW = (2, 3, 4, 5, 7)
"""Numbers of records that are fewer than most predictors expect."""
DEALT = (10, 5, 20, 15, 25, 50)
"""Numbers of teachers to whom records may be dealt in the order of a sort key."""
MAX_STATED_SIZES = 4
"""Largest number of the predictor's parameters that are used as sizes."""
NEAR = 65
"""Number of records around a query."""
SAME_CLASS_SIZES = (1, 2, 4, NEAR, 3, 6)
"""Numbers of records of one class, to which a record of another class is added."""
OUTLIER_STEP = 0.002
"""Distance of records from the query next to an outlier, as a share of a feature's range."""
REPEATED_QUERIES = 32
"""Number of times that a repeated query is asked."""
RANDOM = 10
"""Number of small data sets with random labels."""
STEP = 0.1
"""Distance between groups of records, as a share of a feature's range."""
LINE = 0.02
"""Length of a line of records, as a share of the distance between groups."""
SPECTRUM = 81
"""Number of records whose leads are of two sizes."""
QUANTILES = (0.5, 0.25, 0.75, 0.1, 0.9)
"""Shares of records with a small lead."""
RING = 32
"""Number of directions in which records surround another record."""


@dataclass(frozen=True, eq=False)
class DecisivePair:
    """Two neighbouring data sets and the queries of a run."""

    name: str  # description
    without: Examples
    added: Examples  # with one record more, or with one replaced
    asked: Examples  # queries in order
    looked_at: Ints  # indices of the tested answers
    failing: bool = True  # True if an exception is an answer; False if the data may be too small for the predictor


def crafted_pairs(
    mechanism: Any, target: Examples, test: Examples, answers: int, *, replaced: bool
) -> Iterator[DecisivePair]:
    """Yield all pairs with this number of tested answers, in the order in which they are tried."""
    maker = _PairMaker(target, test, replaced)
    yield from maker.with_two_answers() if answers == 2 else maker.with_one_answer(stated_sizes(mechanism))


def stated_sizes(mechanism: Any) -> list[int]:
    """Return integers among the parameters of a predictor, such as numbers of teachers or neighbours.

    Attributes and default arguments of its class count too, and numbers in the code of its methods.
    """
    predictor = getattr(mechanism, "predictor", mechanism)
    classes = predictor.__mro__[:-1] if isinstance(predictor, type) else ()
    attributes = [value for of_class in classes for value in vars(of_class).values()]
    methods = [value for value in attributes if isinstance(value, FunctionType)]
    defaults = [value for method in methods for value in method.__defaults__ or ()]
    parameters = getattr(mechanism, "parameters", {}).values()
    constants = [value for method in methods for value in _constants(method.__code__)]
    values = [*parameters, *attributes, *vars(mechanism).values(), *defaults, *constants]
    sizes = [value for value in values if type(value) is int and 2 <= value <= 512]
    return list(dict.fromkeys(sizes))[:MAX_STATED_SIZES]


def _constants(code: CodeType) -> Iterator[Any]:
    """Yield the constants of a function, and of those inside it."""
    for value in code.co_consts:
        yield from _constants(value) if isinstance(value, CodeType) else (value,)


@dataclass(frozen=True, eq=False)
class _Frame:
    """A point within the range of all features, and two directions from it.

    Along the first direction all features grow, so sorting by a feature, by several, by their sum or norm gives the
    same order. The second direction changes neither the first feature nor the last one, nor sum and norm.
    """

    center: Floats  # shape (d,)
    range: Floats  # of each feature, shape (d,)
    along: Floats  # shape (d,), of length 1
    across: Floats  # shape (d,), of length 1; zeros if there are too few features
    unit: float  # distance between groups of records

    @classmethod
    def of(cls, features: NDArray[np.float32]) -> _Frame:
        flat = np.nan_to_num(features.reshape(len(features), -1).astype(np.float64), posinf=0.0, neginf=0.0)
        low, width = flat.min(axis=0), np.ptp(flat, axis=0)
        center, across = low + 0.75 * width, np.zeros(flat.shape[1])
        inner = 1 + np.argsort(-width[1:-1], kind="stable")[:2] if len(width) > 2 else np.arange(len(width))[1:]
        inner = inner[width[inner] > 0]
        across[inner] = (1, -1)[: len(inner)]
        if len(inner) == 2:  # equal, so that opposite steps keep the norm
            common = center[inner].min()
            center[inner] = np.clip(common, low[inner] + width[inner] / 4, low[inner] + 3 * width[inner] / 4)
        moved = width[inner] if len(inner) else width[width > 0]
        unit = STEP * float(moved.min(initial=np.inf if len(moved) else 1.0))
        along = width / max(float(np.linalg.norm(width)), 1e-12)
        return cls(center, width, along, across / max(float(np.linalg.norm(across)), 1e-12), unit)

    def points(self, along: Any, across: Any = 0.0) -> Floats:
        """Return points that are so many units away from the center, shape (n, d)."""
        steps = np.multiply.outer(along, self.along) + np.multiply.outer(across, self.across)
        return np.asarray(self.center + self.unit * steps)


def _dealing(stated: list[int], others: list[int]) -> Iterator[tuple[int, int]]:
    """Yield numbers of teachers, and of records; two teachers stand for any even number."""
    yield 2, 64
    yield from ((teachers, 2 * teachers) for teachers in (*stated, *others) if teachers % 2)
    yield from ((teachers, 2 * teachers) for teachers in stated if not teachers % 2)


class _PairMaker:
    """Builds pairs of data sets from the target and test rows.

    `label_1` is the label of the added record, `label_0` the other label.
    """

    def __init__(self, target: Examples, test: Examples, replaced: bool) -> None:
        self._target, self._test, self._replaced = target, test, replaced
        self._frame = _Frame.of(target.features) if isinstance(target.features, np.ndarray) else None

    def with_one_answer(self, sizes: list[int]) -> Iterator[DecisivePair]:
        """Yield pairs with one tested answer, of each kind in turn."""
        leads = sorted(range(-MAX_LEAD, MAX_LEAD + 1), key=lambda lead: (abs(lead), lead))
        one_each = dict.fromkeys((*sizes, *SIZES, *FEW))
        unstated = [size for size in DEALT if size not in sizes]
        quantiles = [(share, high) for share in QUANTILES for high in (False, True)]
        unchanged = ((number, shuffled) for number in range(UNCHANGED_QUERIES) for shuffled in (False, True))
        kinds: tuple[Iterable[DecisivePair | None], ...] = (
            (self._around(0, lead, 0, 1) for lead in leads),
            (self._unchanged(number, shuffled=shuffled) for number, shuffled in unchanged),
            (self._isolated(number, number, 1 - number) for number in (0, 1)),
            (self._few(number, size, 1, number % 2, 1 - number % 2) for number, size in enumerate(one_each)),
            (self._first_of_its_class(number, size) for number, size in enumerate(SAME_CLASS_SIZES)),
            (self._first_of_its_class(number, size) for number, size in enumerate(SAME_CLASS_SIZES, 1)),
            (self._outlier(number) for number in (0, 1)),
            (self._around(1, lead, 1, 0) for lead in (-1, 0)),
            (self._around(0, lead, 0, 1, repeats=REPEATED_QUERIES) for lead in (0, -1)),
            (self._few(number, 2 * size - 1, 2, 0, 1) for number, size in enumerate(sizes or SIZES[1:4:2])),
            (self._at_random(number, 2 * size) for number, size in enumerate(list(one_each)[:RANDOM])),
            (self._dealt_in_turn(size, count) for size, count in _dealing(sizes, unstated)),
            (self._dealt_in_halves(size, count) for size, count in _dealing(sizes, unstated)),
            (self._dealt_in_blocks(size, end) for size in (*sizes, *unstated) for end in (False, True)),
            (self._unlike_its_surroundings(lead) for lead in (False, True)),
            (self._leads_of_two_sizes(share, high=high) for share, high in quantiles),
        )
        for of_each_kind in zip_longest(*kinds):
            yield from (pair for pair in of_each_kind if pair is not None)

    def with_two_answers(self) -> Iterator[DecisivePair]:
        """Yield pairs in which the record decides one answer, and the other answer reveals the noise."""
        for number, (label_0, label_1) in enumerate(((0, 1), (1, 0))):
            for lead in (0, -1, -2, 1):
                for other in (0, -1, 1, -2, 2, -3, 3):
                    yield self._two_queries(number, lead, other, label_0, label_1)

    def _query(self, number: int) -> Examples:
        return self._test.take(np.array([number % len(self._test)]))

    def _near(self, query: Examples, count: int) -> Examples:
        """Return records on a line from near the query to farther away; for tables, copies of the query."""
        copies = query.take(np.zeros(count, np.int64))
        away = self._far(query, 1).features
        if not isinstance(away, np.ndarray):
            return copies
        shares = np.linspace(0.01, 0.03, count).reshape(-1, *[1] * (away.ndim - 1))
        return copies.with_(features=(copies.features + shares * (away - copies.features)).astype(np.float32))

    def _far(self, query: Examples, count: int) -> Examples:
        """Return the records farthest from the query; for tables, the first records."""
        features = self._target.features
        if not isinstance(features, np.ndarray):
            return self._target.take(np.resize(np.arange(len(self._target)), count))
        distance = ((features - query.features).reshape(len(features), -1) ** 2).sum(axis=1)
        return self._target.take(np.argsort(-distance, kind="stable")[:count])

    def _around(self, number: int, lead: int, label_0: int, label_1: int, repeats: int = 1) -> DecisivePair:
        """Return a pair with all records near the query and alternating labels; the added record is at the query."""
        query = self._query(number)
        rows = self._near(query, NEAR).with_(labels=_alternating(NEAR, label_0, label_1, lead=lead))
        name = f"labels {label_0} ahead by {lead} around query {number}"
        if repeats > 1:
            name += f", asked {repeats} times"
        return self._pair(name, rows, query, label_0, label_1, repeats=repeats)

    def _isolated(self, number: int, label_0: int, label_1: int) -> DecisivePair:
        """Return a pair with all other records far from the query."""
        query = self._query(number)
        rows = self._far(query, NEAR)
        rows = rows.with_(labels=_alternating(len(rows), label_0, label_1))
        return self._pair(f"a record alone at query {number}", rows, query, label_0, label_1)

    def _few(self, number: int, size: int, runs: int, label_0: int, label_1: int) -> DecisivePair:
        """Return a pair with as many records as teachers, or almost twice as many; half have each label."""
        query = self._query(number)
        rows = self._near(query, size).with_(labels=_alternating(size, label_0, label_1, runs=runs))
        name = f"{size} records around query {number}, {runs} of a label in turn"
        return self._pair(name, rows, query, label_0, label_1, failing=False)

    def _at_random(self, number: int, size: int) -> DecisivePair:
        """Return a pair of records near the query with random labels, for predictors that deal all records again."""
        query = self._query(number)
        labels = np.random.default_rng(number).permutation(np.arange(size) % 2)
        rows = self._near(query, size).with_(labels=labels)
        name = f"{size} records around query {number}, labels at random"
        return self._pair(name, rows, query, 0, 1, failing=False)

    def _first_of_its_class(self, number: int, size: int) -> DecisivePair:
        """Return a pair in which only the added record is of another class."""
        query, label_0 = self._query(number), number % 2
        rows = self._near(query, size).with_(labels=np.full(size, label_0))
        # The name is part of the seed of search runs.
        name = f"the first of its class beside {size}, query {number}"
        return self._pair(name, rows, query, label_0, 1 - label_0, failing=size == NEAR)

    def _outlier(self, number: int) -> DecisivePair | None:
        """Return a pair whose added record extends the range of a feature, for predictors that scale by the range.

        The records of one class lie along that feature, those of the other class along another one, half as far.
        """
        query, features = self._query(number), self._target.features
        if not isinstance(features, np.ndarray) or np.prod(features.shape[1:]) < 2:
            return None
        flat = features.reshape(len(features), -1)
        low, high = flat.min(axis=0), flat.max(axis=0)
        long, short = np.argsort(low - high, kind="stable")[:2]
        center = query.features.reshape(-1)
        step = OUTLIER_STEP * (high - low)
        points = np.tile(center, (NEAR, 1))
        labels = _alternating(NEAR, 0, 1)
        away = np.random.default_rng(number).uniform(0.9, 1.1, NEAR)
        points[labels == 0, long] += 2 * (away * step[long])[labels == 0]
        points[labels == 1, short] += (away * step[short])[labels == 1]
        for row, side in enumerate((-10, -10, 10, 10)):  # equal relative ranges of both features without the outlier
            points[row, [long, short]] = center[[long, short]] + side * step[[long, short]]
        far = center.copy()
        far[long] = max(low[long], high[long], key=lambda end: abs(end - center[long]))
        rows = query.take(np.zeros(NEAR, np.int64)).with_(
            features=points.reshape(NEAR, *features.shape[1:]).astype(np.float32), labels=labels
        )
        record = query.with_(features=far.reshape(query.features.shape).astype(np.float32))
        return self._pair(f"an outlier, query {number}", rows, query, 1, 0, record=record)

    def _dealt_in_turn(self, teachers: int, count: int) -> DecisivePair | None:
        """Return a pair for records dealt to teachers in turn, in the order of a sort key.

        Each teacher has records of one class. The added record shifts those behind it to the next teacher, so that all
        teachers have both classes. Records of class 1 are nearer to the query.
        """
        labels = np.arange(count) % teachers % 2
        return self._in_order(f"{count} records dealt in turn to {teachers}", labels, 0.0)

    def _dealt_in_blocks(self, teachers: int, at_end: bool) -> DecisivePair | None:
        """Return a pair for records dealt in blocks of equal size, in the order of a sort key; as `_dealt_in_turn`."""
        labels = np.arange(2 * teachers - 1) // 2 % 2
        name = f"{len(labels)} records dealt in {teachers} blocks, one more at the {'end' if at_end else 'front'}"
        return self._in_order(name, labels[::-1] if at_end else labels, 1.0 if at_end else -1.0)

    def _in_order(self, name: str, labels: Ints, place: float) -> DecisivePair | None:
        """Return a pair of records along a line, class 1 near the query; another one is added at `place`, -1 .. 1.

        The records are in this order in the data too, for predictors that deal them by position.
        """
        frame = self._frame
        if frame is None or not frame.across.any():
            return None
        along = np.linspace(-1, 1, len(labels)) * LINE
        rows = self._at(frame.points(along, labels - 0.5), labels)
        record = self._at(frame.points([1.1 * place * LINE], [0.5]), [1])
        instead = self._at(frame.points([-1.1 * (place or -1) * LINE], [0.5]), [1])
        query = self._at(frame.points([0.0], [0.5]), [1])
        at = round((1 + place) / 2 * len(labels))
        return self._pair(name, rows, query, 0, 1, record=record, instead=instead, at=at, failing=False)

    def _dealt_in_halves(self, teachers: int, count: int) -> DecisivePair | None:
        """Return a pair for records dealt in turn, in the order of the label or of a sort key.

        Each teacher has records of class 0 from the first half and of class 1 from the second one. Those of class 0 are
        nearer to the query, until the added record shifts the second half to the next teacher.
        """
        frame = self._frame
        if frame is None or not frame.across.any():
            return None
        position = np.arange(count)
        labels = (position >= count // 2).astype(np.int64)
        away = np.where(position % (count // 2) % teachers % 2 == 0, 1, 3) + labels
        along = np.linspace(-1, 1, count) * LINE
        rows = self._at(frame.points(along, away / 4), labels)
        record, instead = (self._at(frame.points([place * LINE], [1.0]), [1]) for place in (0.0, 1.1))
        query = self._at(frame.points([0.0], [0.0]), [1])
        name = f"{count} records dealt in turn to {teachers}, one class first"
        return self._pair(name, rows, query, 0, 1, record=record, instead=instead, at=count // 2, failing=False)

    def _leads_of_two_sizes(self, share: float, *, high: bool) -> DecisivePair | None:
        """Return a pair in which a quantile of the leads at the records jumps, for thresholds learned from them.

        At a `share` of the records, the classes are balanced; the other records are in groups of one class. The added
        record is of the second kind if `high`. The query is among records of the other kind, so that its votes stay.
        """
        frame = self._frame
        if frame is None:
            return None
        balanced = round(share * (SPECTRUM - 1)) + high
        sizes = (balanced, SPECTRUM - balanced, 0)
        if sizes[1] > NEAR // 2:
            sizes = (balanced, sizes[1] - sizes[1] // 2, sizes[1] // 2)
        labels = np.concatenate([np.arange(balanced) % 2, np.zeros(sizes[1]), np.ones(sizes[2])]).astype(np.int64)
        along = np.concatenate(
            [2 * place + np.linspace(-1, 1, size) * LINE for place, size in zip((0, -1, 1), sizes, strict=True)]
        )
        rows = self._at(frame.points(along), labels)
        query = self._at(frame.points([0.0 if high else -2.0]), [0])
        places = {True: (-2.0, 0), False: (1.1 * LINE, balanced % 2)}
        record, instead = (self._at(frame.points([places[kind][0]]), [places[kind][1]]) for kind in (high, not high))
        name = f"balanced classes at {balanced} of {SPECTRUM} records, one more {'elsewhere' if high else 'there'}"
        label = places[high][1]
        return self._pair(name, rows, query, 1 - label, label, record=record, instead=instead)

    def _unlike_its_surroundings(self, clear: bool) -> DecisivePair | None:
        """Return a pair whose added record has a lead unlike those at all other records, for extremes of the leads.

        If `clear`, records of one class surround it, each with one of the other class behind it. Otherwise it lies
        between two groups of one class each.
        """
        frame = self._frame
        if frame is None or (clear and not frame.across.any()):
            return None
        center = frame.points([0.0])
        if clear:
            toward = np.random.default_rng(0).standard_normal((RING, center.shape[1])) * (frame.range > 0)
            toward *= frame.unit / np.linalg.norm(toward, axis=1, keepdims=True)
            points = np.concatenate([center + toward, center + (1 + LINE) * toward])
            labels = np.repeat([0, 1], RING)
        else:
            away = 2 + np.arange(RING) * LINE / RING
            points = frame.points(np.stack([-away, away], axis=1).ravel())
            labels = np.arange(2 * RING) % 2
        rows, query = self._at(points, labels), self._at(center, [0])
        name = f"a record among records of {'its class' if clear else 'both classes'}, unlike all others"
        instead = self._at(points[:1], [0])
        return self._pair(name, rows, query, 1, 0, instead=instead)

    def _at(self, points: Floats, labels: Any) -> Examples:
        """Return records at flat points, shape (n, d), with labels, shape (n,)."""
        shape = (len(points), *self._target.features.shape[1:])
        rows = self._target.take(np.zeros(len(points), np.int64))
        return rows.with_(features=points.reshape(shape).astype(np.float32), labels=np.asarray(labels, np.int64))

    def _unchanged(self, number: int, shuffled: bool) -> DecisivePair:
        """Return a pair with unchanged records, or with random labels."""
        query = self._query(number)
        rows = self._target.take(np.arange(min(len(self._target), 2 * NEAR)))
        if shuffled:
            rows = rows.with_(labels=np.random.default_rng(number).integers(0, rows.classes, len(rows)))
        label = int(query.labels[0])
        name = "labels at random" if shuffled else "records as they are"
        return self._pair(f"{name}, query {number}", rows, query, label, (label + 1) % rows.classes)

    def _two_queries(self, number: int, lead: int, other: int, label_0: int, label_1: int) -> DecisivePair:
        """Return a pair with records around each of two queries; the added record is at the second query."""
        query = self._query(number)
        away = self._far(query, 1)
        rows = joined(
            self._near(query, NEAR).with_(labels=_alternating(NEAR, label_0, label_1, lead=lead)),
            self._near(away, NEAR).with_(labels=_alternating(NEAR, label_0, label_1, lead=other)),
        )
        name = f"labels {label_0} ahead by {lead} at query {number} and by {other} at another one"
        pair = self._pair(name, rows, query, label_0, label_1)
        return replace(pair, asked=joined(away, query), looked_at=np.array([0, 1]))

    def _pair(
        self,
        name: str,
        rows: Examples,
        query: Examples,
        label_0: int,
        label_1: int,
        *,
        repeats: int = 1,
        failing: bool = True,
        record: Examples | None = None,
        instead: Examples | None = None,
        at: int | None = None,
    ) -> DecisivePair:
        """Return the pair of `rows` with and without `record`; by default it is the query.

        An added record comes at position `at`, by default at the end. If records are replaced, both are at the end, and
        the other data set has `instead`, by default the query with the other label.
        """
        record = (record or query).with_(labels=np.array([label_1]))
        without = rows
        if self._replaced:
            if instead is None:
                rows = rows.take(np.arange(len(rows) - 1))
                instead = query.with_(labels=np.array([label_0]))
            without, at = joined(rows, instead), None
        queries = query.take(np.zeros(repeats, np.int64))
        order = np.insert(np.arange(len(rows)), len(rows) if at is None else at, len(rows))
        return DecisivePair(name, without, joined(rows, record).take(order), queries, np.array([repeats - 1]), failing)


def _alternating(count: int, label_0: int, label_1: int, *, lead: int = 0, runs: int = 1) -> Ints:
    """Return `lead` labels of class `label_0` (if negative, `label_1`), then alternating runs of both labels."""
    labels = np.where(np.arange(count) // runs % 2 == 0, label_0, label_1)
    ahead = np.full(min(abs(lead), count), label_0 if lead > 0 else label_1)
    return np.concatenate([ahead, labels])[:count].astype(np.int64)
