"""The scores of independent trials."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpaudit.errors import RunError
from dpaudit.estimators.scores import Scores


def scored_trials(
    attack: Any, view: Any, *, number: NDArray[np.int64], truth: NDArray[np.bool_], failed: NDArray[np.bool_]
) -> Scores:
    """The attack's scores of T trials: one replay in single precision, its canaries the numbers of the trials.

    Args:
        attack: The adversary.
        view: What it sees of the trials that did not fail; nothing of the truth.
        number: Of each trial, shape (T,).
        truth: Of each trial, shape (T,).
        failed: Which trials left nothing to look at, shape (T,).
    Raises: RunError when a score is no number.
    """
    # A failed training counts as the attack's worst guess: dropping it would bias the bound.
    scores = np.where(truth, -np.inf, np.inf)
    scores[~failed] = attack.score(view)
    if np.isnan(scores).any():
        raise RunError(f"the attack {type(attack).__name__} gave scores that are no numbers")
    return Scores(scores.astype(np.float32), truth, canary=number)
