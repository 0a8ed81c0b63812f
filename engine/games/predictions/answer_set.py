"""The answers that are likelier with the records than without: the set that tells the two worlds apart best."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dpaudit.engine.games.protocol import View
from dpaudit.errors import RunError, require
from dpaudit.estimators.private_prediction.divergence import renyi_divergence
from dpaudit.estimators.private_prediction.two_cut import two_cut_set
from dpaudit.registry import register


@dataclass(frozen=True, eq=False)
class AnswerView:
    """Answers to one query in two known worlds, on draws that nothing is counted from."""

    shows: ClassVar[str] = "answers to a query in two known worlds"

    world_1: NDArray[np.int64]  # how often each answer was given with the records, shape (answers,)
    world_0: NDArray[np.int64]  # the same without them


@register("attack", "answer-set", source="Chadha et al. (2024), section 4.2; Neyman and Pearson")
@dataclass(frozen=True)
class AnswerSet:
    """The level set of the likelihood ratio with the largest 2-cut, in either direction, on draws of its own.

    Attributes:
        order: Of the divergence that is made largest, > 1.
    """

    view: ClassVar[type[View]] = AnswerView

    order: float = 2.0

    def __post_init__(self) -> None:
        require(self.order > 1, "order must be > 1", order=self.order)

    def score(self, view: AnswerView) -> NDArray[np.float64]:
        """1 for each answer in the set, -1 for the others, shape (answers,)."""
        # An answer never seen is as likely as half of one: no ratio of two small numbers decides alone.
        one, zero = (counts + 0.5 for counts in (view.world_1, view.world_0))
        one, zero = one / one.sum(), zero / zero.sum()
        sets = two_cut_set(one, zero, self.order), two_cut_set(zero, one, self.order)
        cuts = [self._cut(one, zero, sets[0]), self._cut(zero, one, sets[1])]
        chosen = sets[0] if cuts[0] >= cuts[1] else ~sets[1]
        return np.where(chosen, 1.0, -1.0)

    def _cut(self, first: NDArray[np.float64], second: NDArray[np.float64], inside: NDArray[np.bool_]) -> float:
        p, q = (np.array([law[inside].sum(), law[~inside].sum()]) for law in (first, second))
        return float(np.max(renyi_divergence(p / p.sum(), q / q.sum(), self.order)))


def chosen_set(attack: Any, one: NDArray[np.int64], zero: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which answers speak for the records."""
    score = np.asarray(attack.score(AnswerView(one, zero)), np.float64)
    if score.shape != one.shape or np.isnan(score).any():
        raise RunError(f"the attack {type(attack).__name__} must give one number for each answer, got {score.shape}")
    return np.asarray(score > 0)
