"""Pairs of small data sets that differ in one record, and queries whose answers that record decides."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpaudit.mechanisms.examples import Examples
from dpaudit.mechanisms.predictors.ensemble import joined

Ints = NDArray[np.int64]

LEAD = 12
"""By how many votes one of the two classes is ahead at the query, at most."""
NATURAL = 4
"""Queries about records as they are."""
SIZES = (8, 10, 16, 20, 25, 30, 40, 50, 64, 100)
"""Records, where each teacher may have one."""
OWN_SIZES = 4
"""Numbers of a predictor's own that are taken for sizes, at most."""
NEAR = 65
"""Records around a query."""
ALIKE = (1, 2, 4, NEAR)
"""Records of one class, to which the first one of another class is added."""
STEP = 0.002
"""Of the range of a feature: how far records are from a query whose neighbours an outlier decides."""
OFTEN = 32
"""How often a query is asked that is asked often."""


@dataclass(frozen=True, eq=False)
class DecisivePair:
    """Two neighbouring data sets and what is asked."""

    name: str  # what they are, in words
    without: Examples
    added: Examples  # with a record more, or another one in its place
    asked: Examples  # the queries of a run, in order
    looked_at: Ints  # places of the answers that are looked at
    failing: bool = True  # whether raising is an answer: not where few records may be too few for anybody


def pairs(mechanism: Any, target: Examples, test: Examples, answers: int, replaced: bool) -> list[DecisivePair]:
    """All pairs that are tried, each with so many answers to look at."""
    makes = _Maker(target, test, replaced)
    return list(makes.of_two() if answers == 2 else makes.of_one(own_sizes(mechanism)))


def own_sizes(mechanism: Any) -> list[int]:
    """Whole numbers among the public facts of a predictor: numbers of teachers, of neighbours, thresholds."""
    own = getattr(mechanism, "predictor", mechanism)
    places = (vars(own) if isinstance(own, type) else {}, getattr(mechanism, "parameters", {}), vars(mechanism))
    found = [value for place in places for value in place.values() if type(value) is int and 2 <= value <= 512]
    return list(dict.fromkeys(found))[:OWN_SIZES]


class _Maker:
    """Makes pairs of the rows that there are."""

    def __init__(self, target: Examples, test: Examples, replaced: bool) -> None:
        self._target, self._test, self._replaced = target, test, replaced

    def of_one(self, sizes: list[int]) -> Iterator[DecisivePair]:
        """Pairs where one answer is looked at, of each kind in turn."""
        leads = sorted(range(-LEAD, LEAD + 1), key=lambda lead: (abs(lead), lead))
        one_each = dict.fromkeys((*sizes, *SIZES))
        kinds: tuple[Iterable[DecisivePair | None], ...] = (
            (self._around(0, lead, 0, 1) for lead in leads),
            (self._natural(number, shuffled=shuffled) for number in range(NATURAL) for shuffled in (False, True)),
            (self._alone(number, number, 1 - number) for number in (0, 1)),
            (self._few(number, size, 1, number % 2, 1 - number % 2) for number, size in enumerate(one_each)),
            (self._first_of_its_class(number, size) for number, size in enumerate(ALIKE)),
            (self._outlier(number) for number in (0, 1)),
            (self._around(1, lead, 1, 0) for lead in (-1, 0)),
            (self._around(0, lead, 0, 1, often=OFTEN) for lead in (0, -1)),
            (self._few(number, 2 * size - 1, 2, 0, 1) for number, size in enumerate(sizes or SIZES[1:4:2])),
        )
        for of_each_kind in zip_longest(*kinds):
            yield from (pair for pair in of_each_kind if pair is not None)

    def of_two(self) -> Iterator[DecisivePair]:
        """Pairs where the record decides one answer, and another one tells what noise it had."""
        for number, (zero, one) in enumerate(((0, 1), (1, 0))):
            for lead in (0, -1, -2, 1):
                for other in (0, -1, 1, -2, 2, -3, 3):
                    yield self._apart(number, lead, other, zero, one)

    def _query(self, number: int) -> Examples:
        return self._test.take(np.array([number % len(self._test)]))

    def _near(self, query: Examples, count: int) -> Examples:
        """Records in a line from near a query to farther off, none at it; of a table, the query itself."""
        here = query.take(np.zeros(count, np.int64))
        away = self._far(query, 1).features
        if not isinstance(away, np.ndarray):
            return here
        shares = np.linspace(0.01, 0.03, count).reshape(-1, *[1] * (away.ndim - 1))
        return here.with_(features=(here.features + shares * (away - here.features)).astype(np.float32))

    def _far(self, query: Examples, count: int) -> Examples:
        """The records that are farthest from a query; of a table, any."""
        features = self._target.features
        if not isinstance(features, np.ndarray):
            return self._target.take(np.resize(np.arange(len(self._target)), count))
        distance = ((features - query.features).reshape(len(features), -1) ** 2).sum(axis=1)
        return self._target.take(np.argsort(-distance, kind="stable")[:count])

    def _around(self, number: int, lead: int, zero: int, one: int, often: int = 1) -> DecisivePair:
        """All records near the query, their labels in turn, those ahead first; the record is the nearest one."""
        query = self._query(number)
        labels = _in_turn(NEAR, zero, one, lead=lead)
        words = f"labels {zero} ahead by {lead} around query {number}"
        if often > 1:
            words += f", asked {often} times"
        return self._pair(words, self._near(query, NEAR).with_(labels=labels), query, zero, one, often=often)

    def _alone(self, number: int, zero: int, one: int) -> DecisivePair:
        """All records far from the query."""
        query = self._query(number)
        rows = self._far(query, NEAR)
        return self._pair(
            f"a record alone at query {number}", rows.with_(labels=_in_turn(len(rows), zero, one)), query, zero, one
        )

    def _few(self, number: int, size: int, runs: int, zero: int, one: int) -> DecisivePair:
        """As few records as there may be teachers, or nearly twice as many; half of either label."""
        query = self._query(number)
        rows = self._near(query, size).with_(labels=_in_turn(size, zero, one, runs=runs))
        words = f"{size} records around query {number}, {runs} of a label in turn"
        return self._pair(words, rows, query, zero, one, failing=False)

    def _first_of_its_class(self, number: int, size: int) -> DecisivePair:
        """All records are of one class, the record more is of another one."""
        query, zero = self._query(number), number % 2
        rows = self._near(query, size).with_(labels=np.full(size, zero))
        words = f"the first of its class beside {size}, query {number}"
        return self._pair(words, rows, query, zero, 1 - zero, failing=size == NEAR)

    def _outlier(self, number: int) -> DecisivePair | None:
        """The record is at the end of a feature's range, all others are near: whoever scales by the data moves these.

        Along that feature lie those of one class, along another feature, half as far, those of the other class.
        """
        query, features = self._query(number), self._target.features
        if not isinstance(features, np.ndarray) or np.prod(features.shape[1:]) < 2:
            return None
        flat = features.reshape(len(features), -1)
        low, high = flat.min(axis=0), flat.max(axis=0)
        long, short = np.argsort(low - high, kind="stable")[:2]
        here = query.features.reshape(-1)
        step = STEP * (high - low)
        made = np.tile(here, (NEAR, 1))
        labels = _in_turn(NEAR, 0, 1)
        away = np.random.default_rng(number).uniform(0.9, 1.1, NEAR)
        made[labels == 0, long] += 2 * (away * step[long])[labels == 0]
        made[labels == 1, short] += (away * step[short])[labels == 1]
        for row, side in enumerate((-10, -10, 10, 10)):  # both features have as wide a range without the outlier
            made[row, [long, short]] = here[[long, short]] + side * step[[long, short]]
        far = here.copy()
        far[long] = max(low[long], high[long], key=lambda end: abs(end - here[long]))
        rows = query.take(np.zeros(NEAR, np.int64)).with_(
            features=made.reshape(NEAR, *features.shape[1:]).astype(np.float32), labels=labels
        )
        record = query.with_(features=far.reshape(query.features.shape).astype(np.float32))
        return self._pair(f"an outlier, query {number}", rows, query, 1, 0, record=record)

    def _natural(self, number: int, shuffled: bool) -> DecisivePair:
        """Records as they are, or with labels at random."""
        query = self._query(number)
        rows = self._target.take(np.arange(min(len(self._target), 2 * NEAR)))
        if shuffled:
            rows = rows.with_(labels=np.random.default_rng(number).integers(0, rows.classes, len(rows)))
        label = int(query.labels[0])
        words = "labels at random" if shuffled else "records as they are"
        return self._pair(f"{words}, query {number}", rows, query, label, (label + 1) % rows.classes)

    def _apart(self, number: int, lead: int, other: int, zero: int, one: int) -> DecisivePair:
        """Two queries with records of their own around each; the record is at the second one."""
        query = self._query(number)
        away = self._far(query, 1)
        rows = joined(
            self._near(query, NEAR).with_(labels=_in_turn(NEAR, zero, one, lead=lead)),
            self._near(away, NEAR).with_(labels=_in_turn(NEAR, zero, one, lead=other)),
        )
        words = f"labels {zero} ahead by {lead} at query {number} and by {other} at another one"
        made = self._pair(words, rows, query, zero, one)
        return DecisivePair(words, made.without, made.added, joined(away, query), np.array([0, 1]))

    def _pair(
        self,
        name: str,
        rows: Examples,
        query: Examples,
        zero: int,
        one: int,
        *,
        often: int = 1,
        failing: bool = True,
        record: Examples | None = None,
    ) -> DecisivePair:
        """With a record more, the query itself if none is given; or that record in the place of another one."""
        record = (record or query).with_(labels=np.array([one]))
        without = rows
        if self._replaced:
            rows = rows.take(np.arange(len(rows) - 1))
            without = joined(rows, query.with_(labels=np.array([zero])))
        asked = query.take(np.zeros(often, np.int64))
        return DecisivePair(name, without, joined(rows, record), asked, np.array([often - 1]), failing)


def _in_turn(count: int, zero: int, one: int, *, lead: int = 0, runs: int = 1) -> Ints:
    """Labels in turn, so many of one and then of the other, after those of the class that is ahead."""
    labels = np.where(np.arange(count) // runs % 2 == 0, zero, one)
    ahead = np.full(min(abs(lead), count), zero if lead > 0 else one)
    return np.concatenate([ahead, labels])[:count].astype(np.int64)
