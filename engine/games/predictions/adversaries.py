"""Adversaries of private predictors: the choice of the added records, of the queries, and of a set of answers.

An adversary that repeats one query chooses the records for it, so each query has a separate pair of data sets. An
adversary that asks natural queries uses one pair for all of them.
Source: Chadha et al. (2024), "Auditing Private Prediction", section 4.1 and appendix D.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dpaudit.engine.games.protocol import View
from dpaudit.errors import RunError, SpecError, require
from dpaudit.estimators.private_prediction.divergence import renyi_divergence
from dpaudit.estimators.private_prediction.two_cut import two_cut_set
from dpaudit.mechanisms.compute import Compute
from dpaudit.mechanisms.examples import Examples, Features
from dpaudit.registry import register

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


P = TypeVar("P")


@dataclass(frozen=True, eq=False)
class Target:
    """Knowledge of an adversary: everything except the noise and randomness of the audited trainings."""

    predictor: Any  # the audited predictor
    data: Examples  # training data of both worlds
    queries: Examples  # natural queries with their labels, q rows
    # expected votes for each class on each query without added records, shape (q, K); zeros if votes are not visible
    votes: Floats
    points: int  # number of records to add, >= 1
    compute: Compute  # available devices and threads

    def required(self, kind: type[P], *, adversary: str) -> P:
        """Return the predictor if it is of this kind; SpecError otherwise."""
        if not isinstance(self.predictor, kind):
            raise SpecError(
                f"the adversary {adversary} is for {getattr(kind, 'registered_name', kind.__name__)}, got "
                f"{type(self.predictor).__name__}. Use pois-nat-q-confident or pois-nat-q-unconfident"
            )
        return self.predictor

    @property
    def second(self) -> Ints:
        """Class with the second most votes for each query; if votes are not visible, the next class; shape (q,)."""
        votes = self.votes.copy()
        votes[np.arange(len(votes)), self.votes.argmax(axis=1)] = -1
        next_class = (self.queries.labels + 1) % self.data.classes
        return np.asarray(np.where(self.votes.any(axis=1), votes.argmax(axis=1), next_class), np.int64)


@dataclass(frozen=True, eq=False)
class Crafted:
    """Pairs of data sets, with and without some added records, and the queries about each."""

    records: Examples  # added records of all pairs, `points` for each in order
    asked: tuple[Ints, ...]  # indices of the queries about each pair
    repeated: bool  # True if each pair has one query that is asked repeatedly

    def __post_init__(self) -> None:
        equal = len(self.asked) > 0 and len(self.records) % len(self.asked) == 0
        require(equal, "all pairs must have the same number of records")

    @property
    def points(self) -> int:
        return len(self.records) // len(self.asked)

    def of_pair(self, pair: int) -> Ints:
        return np.arange(pair * self.points, (pair + 1) * self.points)

    def informative_answers(self, natural: Features, *, cached: bool, repeats: int) -> Ints:
        """Return the number of answers to each query that are not cached copies; a repeated query has `repeats`."""
        if self.repeated:
            return np.full(len(self.asked), 1 if cached else repeats, np.int64)
        (queries,) = self.asked
        rows = natural.to_pylist() if isinstance(natural, pa.Table) else [row.tobytes() for row in natural]
        first = {repr(rows[query]): place for place, query in reversed(list(enumerate(queries.tolist())))}
        is_new = [not cached or first[repr(rows[query])] == place for place, query in enumerate(queries.tolist())]
        return np.array(is_new, np.int64)

    @classmethod
    def query_by_query(cls, target: Target, labels: Ints) -> Crafted:
        """Return one pair for each query, which is added with its label in `labels` and asked repeatedly."""
        each = np.repeat(np.arange(len(target.queries)), target.points)
        records = target.queries.take(each).with_(labels=labels[each])
        return cls(records, tuple(np.array([query]) for query in range(len(target.queries))), repeated=True)

    @classmethod
    def of_one(cls, target: Target, record: Examples) -> Crafted:
        """Return one pair with `points` copies of one record, and all natural queries."""
        records = record.take(np.zeros(target.points, np.int64))
        return cls(records, (np.arange(len(target.queries)),), repeated=False)


class Adversary(Protocol):
    """Chooses records and queries."""

    def craft(self, target: Target, rng: np.random.Generator) -> Crafted:
        """Return the pairs of data sets and the queries about each.

        Raises: SpecError if the adversary cannot attack the predictor.
        """
        ...


@register("adversary", "pois-adv-q", source="Chadha et al. (2024), section 4.1: Pois-AdvQ")
@dataclass(frozen=True)
class PoisAdvQ:
    """Adds each query with the label that has the second most votes, and asks it repeatedly."""

    def craft(self, target: Target, rng: np.random.Generator) -> Crafted:
        return Crafted.query_by_query(target, target.second)


@register("adversary", "nat-adv-q", source="Chadha et al. (2024), section 4.1: Nat-AdvQ")
@dataclass(frozen=True)
class NatAdvQ:
    """Adds each query with its true label, and asks it repeatedly."""

    def craft(self, target: Target, rng: np.random.Generator) -> Crafted:
        return Crafted.query_by_query(target, target.queries.labels)


@register("adversary", "pois-nat-q-confident", source="Chadha et al. (2024), appendix D.2: Pois-NatQ (Confident)")
@dataclass(frozen=True)
class PoisNatQConfident:
    """Adds the query on which most voters agree, with the label that has the second most votes; asks all queries."""

    def craft(self, target: Target, rng: np.random.Generator) -> Crafted:
        most = target.votes.max(axis=1)
        query = int(rng.choice(np.flatnonzero(most == most.max())))
        return Crafted.of_one(target, target.queries.take([query]).with_(labels=target.second[[query]]))


@register("adversary", "pois-nat-q-unconfident", source="Chadha et al. (2024), appendix D.2: Pois-NatQ (Unconfident)")
@dataclass(frozen=True)
class PoisNatQUnconfident:
    """Adds the query with the closest two top labels, with the second of them; asks all queries."""

    def craft(self, target: Target, rng: np.random.Generator) -> Crafted:
        ranked = np.sort(target.votes, axis=1)
        gap = ranked[:, -1] - ranked[:, -2]
        query = int(rng.choice(np.flatnonzero(gap == gap.min())))
        return Crafted.of_one(target, target.queries.take([query]).with_(labels=target.second[[query]]))


@dataclass(frozen=True, eq=False)
class AnswerView:
    """Counts of search answers to one query in two known worlds; they yield no evidence."""

    shows: ClassVar[str] = "answers to a query in two known worlds"

    world_1: NDArray[np.int64]  # count of each answer with the records, shape (answers,)
    world_0: NDArray[np.int64]  # count of each answer without them, shape (answers,)


@register("attack", "answer-set", source="Chadha et al. (2024), section 4.2; Neyman and Pearson")
@dataclass(frozen=True)
class AnswerSet:
    """Level set of the likelihood ratio with the largest 2-cut, in either direction, chosen on search answers.

    Attributes:
        order: Order of the divergence that is maximised, > 1.
    """

    view: ClassVar[type[View]] = AnswerView

    order: float = 2.0

    def __post_init__(self) -> None:
        require(self.order > 1, "order must be > 1", order=self.order)

    def score(self, view: AnswerView) -> NDArray[np.float64]:
        """Return 1 for each answer in the set and -1 for the others, shape (answers,)."""
        # Smoothing by half an answer, so that no ratio of two small counts decides alone.
        law_1, law_0 = (counts + 0.5 for counts in (view.world_1, view.world_0))
        law_1, law_0 = law_1 / law_1.sum(), law_0 / law_0.sum()
        sets = two_cut_set(law_1, law_0, self.order), two_cut_set(law_0, law_1, self.order)
        cuts = [self._cut(law_1, law_0, sets[0]), self._cut(law_0, law_1, sets[1])]
        chosen = sets[0] if cuts[0] >= cuts[1] else ~sets[1]
        return np.where(chosen, 1.0, -1.0)

    def _cut(self, first: NDArray[np.float64], second: NDArray[np.float64], inside: NDArray[np.bool_]) -> float:
        p, q = (np.array([law[inside].sum(), law[~inside].sum()]) for law in (first, second))
        return float(np.max(renyi_divergence(p / p.sum(), q / q.sum(), self.order)))


def chosen_set(attack: Any, world_1: NDArray[np.int64], world_0: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return the mask of the answers that the attack chooses as evidence for the records; takes search counts."""
    score = np.asarray(attack.score(AnswerView(world_1, world_0)), np.float64)
    if score.shape != world_1.shape or np.isnan(score).any():
        raise RunError(f"the attack {type(attack).__name__} must give one number for each answer, got {score.shape}")
    return np.asarray(score > 0)
