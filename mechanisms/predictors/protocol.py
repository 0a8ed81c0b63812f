"""The interface of predictors that answer queries privately, for the game `private-prediction`.

They are registered as "mechanism". They release noisy votes, never a trained model. The methods follow Algorithm 1 of
Chadha et al. (2024):

1. `votes` runs the training phase once and collects the votes of all voters (teachers, prompts, neighbours);
2. `votes_with_canary` runs it with one more record, which belongs to one voter, and collects the votes of that voter;
3. `law` fits the distribution of a query's histogram to several such runs, with the record or without it;
4. `release` turns a histogram into an answer: noise, then the argmax.

An `AnsweringPredictor` shows answers but no votes. The game runs it repeatedly, unchanged.
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
from dpaudit.mechanisms.predictors.language_model import Expected
from dpaudit.mechanisms.predictors.vote_laws import Release, VoteLaw

Ints = NDArray[np.int64]


@runtime_checkable
class VotingPredictor(Protocol):
    """A predictor that shows its votes before the noise."""

    @property
    def cached(self) -> bool:
        """True if a repeated query gets the earlier answer again, so that repeating it shows nothing new."""

    @property
    def deterministic(self) -> bool:
        """True if one run shows the exact law of the votes, so that nothing is estimated."""

    def claim(self) -> Claim:
        """Return the claim of one answer, for all data; the accounting of several answers composes it.

        Its relation is `add-remove` if a neighbour has one more record, `replace` if one record is exchanged.
        """

    def release(self) -> Release:
        """Return the function from histograms to answers."""

    def votes(self, data: Examples, queries: Features, *, seed: np.random.SeedSequence, compute: Compute) -> Ints:
        """Run the training phase once on `data` by `seed`, and collect votes on q queries (rows like its features).

        Returns: The class each voter votes for, or K for no vote, shape (voters, q); every run has the same number of
            voters. Predictors that sample neighbours for each answer return the labels of all records, nearest first.
        Raises: TrainingError if the training failed for this seed.
        """

    def votes_with_canary(
        self, canaries: AddedRecords, queries: Features, *, seed: np.random.SeedSequence, compute: Compute
    ) -> Ints:
        """Run the training phase once for each of p records, which is added (or replaces another one).

        Returns: The votes of the voter that has the record, shape (p, q); predictors that sample neighbours return the
            record's rank, >= 1, among the other records.
        Raises: TrainingError if the training failed for this seed.
        """

    def law(self, votes: Ints, moved: Ints, labels: Ints, *, added: bool, classes: int) -> VoteLaw:
        """Return the law of the histogram of one query, by maximum likelihood from several runs.

        Args:
            votes: Votes on this query, shape (runs, voters).
            moved: `votes_with_canary` on this query for the m >= 0 added records, shape (runs, m).
            labels: Labels of the added records, shape (m,).
            added: True for the law with the records; False for the law without them, which shares its random draws.
            classes: Number of classes K.
        """

    def histograms(self, votes: Ints, *, classes: int, rng: np.random.Generator) -> Ints:
        """Return the histogram of one answer to each query, from the votes of one run; shape (voters, q) to (q, K)."""


@runtime_checkable
class StudentPredictor(VotingPredictor, Protocol):
    """A predictor whose answers may depend on the query as well as on the votes."""

    def releases(self, queries: Features, *, voters: int, compute: Compute) -> Sequence[Release]:
        """Return the release of each query: `release`, or one of equal cost that uses a student's prediction."""


@runtime_checkable
class PricedPredictor(VotingPredictor, Protocol):
    """A predictor whose votes cost money or time."""

    def expected(self, data: Examples, queries: Features) -> Expected:
        """Return the expected cost of the votes of all voters on all queries, without requesting any."""


@runtime_checkable
class AnsweringPredictor(Protocol):
    """A predictor of which only the answers are visible."""

    def claim(self) -> Claim:
        """Return the claim of one answer."""

    def answers(self, data: Examples, queries: Features, *, seed: np.random.SeedSequence, compute: Compute) -> Ints:
        """Train on `data` and answer each query once.

        Returns: Classes, shape (q,); K for a refusal to answer.
        Raises: TrainingError if the run failed for this seed.
        """


@dataclass(frozen=True, eq=False)
class AddedRecords:
    """Several records, each added to a separate copy of the data."""

    data: Examples  # the data without the records
    records: Examples  # p rows
    places: (
        Ints  # number of each record among the m records added together, 0 to m - 1; it decides the voter; shape (p,)
    )

    @classmethod
    def alone(cls, data: Examples, records: Examples) -> AddedRecords:
        """Add each record alone."""
        return cls(data, records, np.zeros(len(records), np.int64))
