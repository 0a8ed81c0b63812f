"""Answers to one query as evidence: counts in two worlds, and what is known of the votes they were made of."""

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
    """The answers to one query: independent draws of a private predictor with some records more and without them."""

    words: ClassVar[str] = "answers to queries"

    query: int  # which query this is, from 0
    world_1: Ints  # how often each answer was given with the records, shape (answers,), answers >= 2; one at least
    world_0: Ints  # the same without them, shape (answers,)
    chosen: NDArray[np.bool_]  # whether each answer is in the set that was chosen on other draws, shape (answers,)
    # the exact probability of each answer with the records, shape (answers,); empty where it is not known
    law_1: Floats = field(default_factory=_none)
    law_0: Floats = field(default_factory=_none)  # the same without them
    # the same by laws fitted to resampled trainings, shape (resamples, answers); none where nothing was fitted
    resampled_1: Floats = field(default_factory=lambda: np.empty((0, 0)))
    resampled_0: Floats = field(default_factory=lambda: np.empty((0, 0)))  # the same without the records
    # the same with records that change nothing, by as many votes drawn from the law without them: what the fit alone
    # would show; shape (resamples, answers)
    unmoved_1: Floats = field(default_factory=lambda: np.empty((0, 0)))
    # of some histograms with the records, log of the bound on the probability that noise changes the winner, shape
    # (histograms,): what data-dependent accounting is made of; empty where there is none
    log_p_flip_1: Floats = field(default_factory=_none)
    log_p_flip_0: Floats = field(default_factory=_none)  # the same without the records
    # of the same histograms, log of the probability of the less likely outcome of the threshold, shape (histograms,);
    # empty without a threshold
    log_p_check_1: Floats = field(default_factory=_none)
    log_p_check_0: Floats = field(default_factory=_none)  # the same without the records
    sigma: float = float("nan")  # standard deviation of the Gaussian noise on each count; NaN for other noise
    threshold_sigma: float = float("nan")  # standard deviation of the Gaussian noise at the threshold; NaN without one
    fitted: bool = False  # whether the law of the votes is a model of it: fitted, or a number of drawn histograms
    asked: int = 1  # how many answers to it are counted in a total, >= 0
    # whether all queries are asked about one pair of data sets, so that a total is their sum; else each has a pair of
    # its own, and a total is the worst one's
    together: bool = True

    def __post_init__(self) -> None:
        shapes = {self.world_1.shape, self.world_0.shape, self.chosen.shape}
        require(len(shapes) == 1 and self.world_1.size >= 2, "both worlds must count the same answers, at least two")
        require(bool(self.world_1.sum() > 0 and self.world_0.sum() > 0), "each world must hold at least one answer")
        require(self.law_1.size in (0, self.world_1.size), "a law must have one probability for each answer")
        require(self.law_0.shape == self.law_1.shape, "the law must be known in both worlds or in none")
