"""The scores of independent trials."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpaudit.errors import RunError
from dpaudit.estimators.scores import Scores


def scored_trials(
    attack: Any, view: Any, *, trial: NDArray[np.int64], truth: NDArray[np.bool_], failed: NDArray[np.bool_]
) -> Scores:
    """What an attack says of trials, one replay in single precision, as it is kept.

    Args:
        attack: The adversary.
        view: What it sees of the trials that did not fail; nothing of their truth.
        trial: Numbers of the trials, shape (n,).
        truth: Their coins, shape (n,).
        failed: Which of them left nothing to look at, shape (n,).
    Raises: RunError when a score is no number.
    """
    # A failed training counts as the attack's worst guess: dropping it would bias the bound.
    scores = np.where(truth, -np.inf, np.inf)
    scores[~failed] = attack.score(copy.deepcopy(view))
    if np.isnan(scores).any():
        raise RunError(f"the attack {type(attack).__name__} gave scores that are no numbers")
    return Scores(scores.astype(np.float32), truth, canary=trial)
