"""Attack on private predictors: the set of answers that best distinguishes the two worlds."""

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
