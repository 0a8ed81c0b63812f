"""PATE as it answers queries: teachers on random parts of the data vote, and a noisy argmax is released."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpaudit.mechanisms.predictors.ensemble import Ensemble
from dpaudit.mechanisms.predictors.vote_laws import AlikeTeachers, VoteLaw, shares_of
from dpaudit.registry import register

Ints = NDArray[np.int64]


@register("mechanism", "pate-predictor", source="Papernot et al. (2018), arXiv:1802.08908; Chadha et al. (2024), 5.1")
@dataclass(frozen=True)
class PatePredictor(Ensemble):
    """PATE: each record goes to a teacher drawn at random, so that a record more leaves all other parts as they are.

    The law of the votes takes teachers for independent and alike: multinomial, and one teacher by the shares of those
    that were trained with the record.
    """

    def parts(self, records: int, rng: np.random.Generator) -> list[Ints]:
        """Each record by a draw of its own."""
        teacher = rng.integers(0, self.teachers, records)
        order = np.argsort(teacher, kind="stable")
        return np.split(order, np.cumsum(np.bincount(teacher, minlength=self.teachers))[:-1])

    def part_with(self, records: int, place: int, rng: np.random.Generator) -> Ints:
        """Each record with probability 1 / teachers."""
        return np.flatnonzero(rng.random(records) < 1 / self.teachers)

    def law(self, votes: Ints, moved: Ints, labels: Ints, *, added: bool, classes: int) -> VoteLaw:
        """Mult(k - m, P) + the m teachers with a record each, by P' with them and by P without."""
        shares = shares_of(votes.ravel(), classes)
        others = [shares_of(column, classes) if added else shares for column in moved.T]
        return AlikeTeachers(votes.shape[1] - len(others), shares, np.array(others).reshape(len(others), classes))
