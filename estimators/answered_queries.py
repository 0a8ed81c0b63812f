"""Evidence from answers to queries: answer counts in two worlds, and the law of the votes behind them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dpaudit.errors import require
from dpaudit.estimators.arguments import Floats, Ints


def _none() -> Floats:
    return np.empty(0)


@dataclass(frozen=True, eq=False)
class AnsweredQuery:
    """Answers to one query: independent draws from a private predictor in two worlds.

    World 1 includes some records; world 0 does not.
    """

    words: ClassVar[str] = "answers to queries"

    query: int  # index of the query, from 0
    world_1: Ints  # count of each answer with the records, shape (answers,), answers >= 2; at least one draw
    world_0: Ints  # count of each answer without the records, shape (answers,)
    chosen: NDArray[np.bool_]  # True for answers in the set, which was chosen on other draws; shape (answers,)
    # exact probability of each answer with the records, shape (answers,); empty if unknown
    law_1: Floats = field(default_factory=_none)
    law_0: Floats = field(default_factory=_none)  # exact probability of each answer without the records
    # laws with the records, fitted to resampled trainings, shape (resamples, answers); no rows without a fit
    resampled_1: Floats = field(default_factory=lambda: np.empty((0, 0)))
    # laws without the records, fitted to resampled trainings
    resampled_0: Floats = field(default_factory=lambda: np.empty((0, 0)))
    # laws fitted to as many votes drawn from `law_0`, as if the records changed nothing: the divergence due to the fit
    # alone; shape (resamples, answers)
    unmoved_1: Floats = field(default_factory=lambda: np.empty((0, 0)))
    # logarithm of the bound on the probability that noise changes the winner, for histograms with the records, shape
    # (histograms,); the input of data-dependent accounting, empty if there is none
    log_p_flip_1: Floats = field(default_factory=_none)
    log_p_flip_0: Floats = field(default_factory=_none)  # the same bound for histograms without the records
    # logarithm of the probability of the less likely threshold outcome for the same histograms, shape (histograms,);
    # empty without a threshold
    log_p_check_1: Floats = field(default_factory=_none)
    log_p_check_0: Floats = field(default_factory=_none)  # the same probability without the records
    sigma: float = float("nan")  # standard deviation of the Gaussian noise on each count; NaN for other noise
    threshold_sigma: float = float("nan")  # standard deviation of the Gaussian noise at the threshold; NaN without one
    fitted: bool = False  # True if the law of the votes is a model: a fit, or a finite number of drawn histograms
    asked: int = 1  # number of answers to this query that a total counts, >= 0
    # True if all queries use one pair of data sets, so that a total is their sum; False if each query has its own pair,
    # so that a total is the largest
    together: bool = True

    def __post_init__(self) -> None:
        shapes = {self.world_1.shape, self.world_0.shape, self.chosen.shape}
        require(len(shapes) == 1 and self.world_1.size >= 2, "both worlds must count the same answers, at least two")
        require(bool(self.world_1.sum() > 0 and self.world_0.sum() > 0), "each world must hold at least one answer")
        require(self.law_1.size in (0, self.world_1.size), "a law must have one probability for each answer")
        require(self.law_0.shape == self.law_1.shape, "the law must be known in both worlds or in none")
