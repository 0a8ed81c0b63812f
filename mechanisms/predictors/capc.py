"""CaPC as it answers queries: parties that hold fixed parts of the data vote, and a noisy argmax is released."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpaudit.mechanisms.predictors.ensemble import Ensemble
from dpaudit.mechanisms.predictors.vote_laws import ApartTeachers, VoteLaw, shares_of
from dpaudit.registry import register

Ints = NDArray[np.int64]


@register("mechanism", "capc", source="Choquette-Choo et al. (2021), arXiv:2102.05188; Chadha et al. (2024), 5.2")
@dataclass(frozen=True)
class CaPC(Ensemble):
    """CaPC: record i is party i mod k's, so that the adversary knows whose vote a record of theirs moves.

    The cryptography is left out: it changes nothing about what is answered. What is random is the training alone; the
    law of the votes takes parties for independent, each with shares of its own.
    """

    def parts(self, records: int, rng: np.random.Generator) -> list[Ints]:
        """Draws nothing."""
        return [np.arange(party, records, self.teachers) for party in range(self.teachers)]

    def part_with(self, records: int, place: int, rng: np.random.Generator) -> Ints:
        """The first party's, and of further records that are added the next ones'."""
        return np.arange(place % self.teachers, records, self.teachers)

    def law(self, votes: Ints, moved: Ints, labels: Ints, *, added: bool, classes: int) -> VoteLaw:
        """Each party by its own shares; those that a record falls to by the shares with it."""
        columns = [*moved.T, *votes.T[moved.shape[1] :]] if added else list(votes.T)
        return ApartTeachers(np.stack([shares_of(column, classes) for column in columns]), self.weights(len(columns)))
