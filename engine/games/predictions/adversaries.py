"""Adversaries of private predictors: which records are added, and what is asked (registered as "adversary").

Whoever asks one query again and again chooses the records for it: each query has a pair of data sets of its own.
Whoever asks natural queries has one pair for all of them.
Source: Chadha et al. (2024), "Auditing Private Prediction", section 4.1 and appendix D.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dpaudit.errors import SpecError, require
from dpaudit.mechanisms.compute import Compute
from dpaudit.mechanisms.examples import Examples, Features
from dpaudit.registry import register

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


P = TypeVar("P")


@dataclass(frozen=True, eq=False)
class Target:
    """What an adversary knows: everything but the noise and the randomness of the trainings that are audited."""

    predictor: Any  # what is audited
    data: Examples  # what is trained on in both worlds
    queries: Examples  # natural queries with their labels, q rows
    # expected votes for each class on each query without further records, shape (q, K); zeros where no votes are to be
    # seen
    votes: Floats
    points: int  # how many records may be added, >= 1
    compute: Compute  # what may be used

    def required(self, kind: type[P], *, adversary: str) -> P:
        """The predictor, where it is of the kind that an adversary is for."""
        if not isinstance(self.predictor, kind):
            raise SpecError(
                f"the adversary {adversary} is for {getattr(kind, 'registered_name', kind.__name__)}, got "
                f"{type(self.predictor).__name__}; use pois-nat-q-confident or pois-nat-q-unconfident"
            )
        return self.predictor

    @property
    def second(self) -> Ints:
        """The class of each query with the most votes but one; where none are to be seen the next one, shape (q,)."""
        votes = self.votes.copy()
        votes[np.arange(len(votes)), self.votes.argmax(axis=1)] = -1
        after = (self.queries.labels + 1) % self.data.classes
        return np.asarray(np.where(self.votes.any(axis=1), votes.argmax(axis=1), after), np.int64)


@dataclass(frozen=True, eq=False)
class Crafted:
    """Data sets in pairs: with some records more, and without them."""

    records: Examples  # of all pairs, `points` of each one after another
    asked: tuple[Ints, ...]  # the queries that are asked about each pair, one array a pair
    repeated: bool  # whether the adversary asks one query again and again, so that each pair is an adversary's own

    def __post_init__(self) -> None:
        require(len(self.asked) > 0 and len(self.records) % len(self.asked) == 0, "each pair must have as many records")

    @property
    def points(self) -> int:
        return len(self.records) // len(self.asked)

    def of_pair(self, pair: int) -> Ints:
        return np.arange(pair * self.points, (pair + 1) * self.points)

    def told(self, natural: Features, *, cached: bool, repeats: int) -> Ints:
        """Answers to each query asked that tell something new: of `repeats` a cached one gives the first alone."""
        if self.repeated:
            return np.full(len(self.asked), 1 if cached else repeats, np.int64)
        (asked,) = self.asked
        rows = natural.to_pylist() if isinstance(natural, pa.Table) else [row.tobytes() for row in natural]
        first = {repr(rows[query]): place for place, query in reversed(list(enumerate(asked.tolist())))}
        new = [not cached or first[repr(rows[query])] == place for place, query in enumerate(asked.tolist())]
        return np.array(new, np.int64)

    @classmethod
    def query_by_query(cls, target: Target, labels: Ints) -> Crafted:
        """Each query is a record, with one of `labels`, and is asked again and again."""
        each = np.repeat(np.arange(len(target.queries)), target.points)
        records = target.queries.take(each).with_(labels=labels[each])
        return cls(records, tuple(np.array([query]) for query in range(len(target.queries))), repeated=True)

    @classmethod
    def of_one(cls, target: Target, record: Examples) -> Crafted:
        """One record, as often as may be, and all natural queries."""
        records = record.take(np.zeros(target.points, np.int64))
        return cls(records, (np.arange(len(target.queries)),), repeated=False)


class Adversary(Protocol):
    """Chooses records and queries."""

    def craft(self, target: Target, rng: np.random.Generator) -> Crafted:
        """The pairs of data sets, and what is asked about each.

        Raises: SpecError when the predictor is not one it can attack.
        """
        ...


@register("adversary", "pois-adv-q", source="Chadha et al. (2024), section 4.1: Pois-AdvQ")
@dataclass(frozen=True)
class PoisAdvQ:
    """A query with the label that has the most votes but one is the record that is added, and is asked again."""

    def craft(self, target: Target, rng: np.random.Generator) -> Crafted:
        return Crafted.query_by_query(target, target.second)


@register("adversary", "nat-adv-q", source="Chadha et al. (2024), section 4.1: Nat-AdvQ")
@dataclass(frozen=True)
class NatAdvQ:
    """A query with its true label is the record that is added; it is asked again and again."""

    def craft(self, target: Target, rng: np.random.Generator) -> Crafted:
        return Crafted.query_by_query(target, target.queries.labels)


@register("adversary", "pois-nat-q-confident", source="Chadha et al. (2024), appendix D.2: Pois-NatQ (Confident)")
@dataclass(frozen=True)
class PoisNatQConfident:
    """The query on which most voters agree, with the label that has the most votes but one, is added; all are asked."""

    def craft(self, target: Target, rng: np.random.Generator) -> Crafted:
        most = target.votes.max(axis=1)
        query = int(rng.choice(np.flatnonzero(most == most.max())))
        return Crafted.of_one(target, target.queries.take([query]).with_(labels=target.second[[query]]))


@register("adversary", "pois-nat-q-unconfident", source="Chadha et al. (2024), appendix D.2: Pois-NatQ (Unconfident)")
@dataclass(frozen=True)
class PoisNatQUnconfident:
    """The query whose two most voted labels are nearest, with the second of them, is added; all are asked."""

    def craft(self, target: Target, rng: np.random.Generator) -> Crafted:
        ranked = np.sort(target.votes, axis=1)
        gap = ranked[:, -1] - ranked[:, -2]
        query = int(rng.choice(np.flatnonzero(gap == gap.min())))
        return Crafted.of_one(target, target.queries.take([query]).with_(labels=target.second[[query]]))
