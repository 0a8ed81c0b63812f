"""What the game `private-prediction` asks of a predictor that answers queries privately (registered as "mechanism").

Nothing that is trained is released; votes are, after noise. In the order of Algorithm 1 of Chadha et al. (2024):

1. `votes` makes one run of the training phase and asks every voter (teacher, prompt, neighbour) every query;
2. `votes_with_canary` does the same with a record more, which takes part in one voter alone: only that voter is asked;
3. `law` is the law of a query's histogram, fitted to several such runs, with the record or without it;
4. `release` makes an answer of a histogram: noise, then the argmax.

Whoever has no voters to show, only answers, is an `AnsweringPredictor`: it is run as it is, as often as one can pay.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from dpaudit.claims import Claim
from dpaudit.mechanisms.compute import Compute
from dpaudit.mechanisms.examples import Examples, Features
from dpaudit.mechanisms.language_models.protocol import Expected
from dpaudit.mechanisms.predictors.releases import Release
from dpaudit.mechanisms.predictors.vote_laws import VoteLaw

Ints = NDArray[np.int64]


@runtime_checkable
class VotingPredictor(Protocol):
    """A predictor whose votes can be looked at before the noise."""

    @property
    def cached(self) -> bool:
        """Whether a query that was answered before gets the same answer again: repeating it tells nothing new."""

    @property
    def deterministic(self) -> bool:
        """Whether one run shows the law of the votes: it is known, nothing about it is estimated."""

    def claim(self) -> Claim:
        """What one answer promises, as a curve, whatever the data are: the accounting of many answers adds these up.

        Its relation says how data sets differ: `add-remove` for a record more, `replace` for one in another's place.
        """

    def release(self) -> Release:
        """How an answer is made of a histogram."""

    def votes(self, data: Examples, queries: Features, *, seed: np.random.SeedSequence, compute: Compute) -> Ints:
        """One run of the training phase on `data`, decided by `seed`; q queries are asked, rows like its features.

        Returns: The class each voter votes for, K where it has no vote, shape (voters, q); the same number of voters
            in every run. For neighbours that are drawn anew for each answer: the labels of all records by distance,
            nearest first.
        Raises: TrainingError when this seed's training failed.
        """

    def votes_with_canary(
        self, more: Added, queries: Features, *, seed: np.random.SeedSequence, compute: Compute
    ) -> Ints:
        """One run of the training phase for each of p records: the data with it more (or in another's place).

        Returns: What the voter that has the record votes for, shape (p, q); for neighbours the rank, >= 1, that it has
            among the other records.
        Raises: TrainingError when this seed's training failed.
        """

    def law(self, votes: Ints, moved: Ints, labels: Ints, *, added: bool, classes: int) -> VoteLaw:
        """The law of the histogram of one query, by maximum likelihood from several runs.

        Args:
            votes: Of this query, shape (runs, voters).
            moved: `votes_with_canary` of this query, shape (runs, m), of the m >= 0 records that are added.
            labels: Their labels, shape (m,).
            added: True: with the records; False: without them, in the form whose draws go with the other's.
            classes: Number of classes K.
        """

    def histograms(self, votes: Ints, *, classes: int, rng: np.random.Generator) -> Ints:
        """The histogram of one answer to each query, from the votes of one run: shape (voters, q) to (q, K)."""


@runtime_checkable
class StudentPredictor(VotingPredictor, Protocol):
    """A predictor that may look at the query, beside the votes, when it makes an answer of them."""

    def releases(self, queries: Features, *, voters: int, compute: Compute) -> Sequence[Release]:
        """How each query is answered: `release`, or one that costs as much and knows what a student expects."""


@runtime_checkable
class PricedPredictor(VotingPredictor, Protocol):
    """A predictor whose voters are asked at a price."""

    def expected(self, data: Examples, queries: Features) -> Expected:
        """What asking every voter every query is going to take; asks nothing."""


@runtime_checkable
class AnsweringPredictor(Protocol):
    """A predictor that is asked and answers; nothing else is seen of it."""

    def claim(self) -> Claim:
        """What one answer promises."""

    def answers(self, data: Examples, queries: Features, *, seed: np.random.SeedSequence, compute: Compute) -> Ints:
        """One full run: trains on `data`, answers each query once.

        Returns: Classes, shape (q,).
        Raises: TrainingError when this seed's run failed.
        """


@dataclass(frozen=True, eq=False)
class Added:
    """Several records, each in a data set of its own."""

    data: Examples  # what all of these data sets hold besides
    records: Examples  # the records, p rows
    # which of the voters each falls to, where they are told apart: 0 where it is the only record that is added, 0 to
    # m - 1 where m are; shape (p,)
    places: Ints

    @classmethod
    def alone(cls, data: Examples, records: Examples) -> Added:
        """Each record is the only one that is added."""
        return cls(data, records, np.zeros(len(records), np.int64))
