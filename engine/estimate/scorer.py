"""A scorer for scikit-learn's cross-validation: how much a model reveals about who was trained on."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from dpaudit.errors import InputError, require

if TYPE_CHECKING:
    from numpy.typing import NDArray

METHOD = "random-subset"
"""Estimator for members that are a random subset of fixed size, as a shuffled fold leaves them."""


def membership_scorer(X: Any, y: Any, **options: Any) -> Callable[[Any, Any, Any], float]:
    """Return a scorer for `cross_validate`: a lower bound on the epsilon of one fitted model.

        cross_validate(model, X, y, cv=KFold(shuffle=True), scoring={"epsilon": dpaudit.membership_scorer(X, y)})

    The rows that scikit-learn holds out are compared with all other rows, on which the model was trained. A row scores
    by the probability of its label, or for a regressor by minus the error. Rows that occur twice are left out. Folds
    must be drawn at random, without groups; each bound then holds with its own confidence.

    Args:
        X: Features of all rows, as given to `cross_validate`: an array or data frame of n rows.
        y: Their labels or numbers, shape (n,).
        options: Fields of `dpaudit.estimate`, such as `confidence` or `delta`; the method is `random-subset`.
    Raises: InputError if X and y differ in length, or hold every row twice.
    """
    require(len(X) == len(y), "X and y must have one entry for each row", X=len(X), y=len(y))
    names = _row_names(X, y)
    distinct, counts = np.unique(names, return_counts=True)
    once = np.isin(names, distinct[counts == 1])
    require(bool(once.any()), "X and y must have rows that occur once", rows=len(names))

    def epsilon(estimator: Any, held_out: Any, held_out_y: Any) -> float:
        from dpaudit.engine.estimate.estimating import estimate
        from dpaudit.engine.estimate.reading import CanaryScores, Question
        from dpaudit.engine.estimate.tables import SourceTable

        member = ~np.isin(names, _row_names(held_out, held_out_y))[once]
        if member.all():
            raise InputError(
                "none of the rows to score is a row of X: give `membership_scorer` the X and y of the folds"
            )
        scores = _surety(estimator, X, np.asarray(y))[once]
        table = SourceTable.of_arrays(score=scores, member=member)
        if CanaryScores(table, Question(METHOD)).are_in_blocks:
            raise InputError("the held-out rows form blocks: draw folds at random, as by `KFold(shuffle=True)`")
        return estimate(table.columns, **{"method": METHOD, **options}).lower

    return epsilon


def _surety(estimator: Any, X: Any, y: NDArray[Any]) -> NDArray[np.float64]:
    """Return the log probability of the label of each row, or minus the absolute error of a regressor."""
    if not hasattr(estimator, "predict_proba"):
        return np.asarray(-np.abs(np.asarray(estimator.predict(X), np.float64) - y))
    probabilities = np.asarray(estimator.predict_proba(X), np.float64)
    place = np.searchsorted(estimator.classes_, y).clip(max=len(estimator.classes_) - 1)
    right = np.where(estimator.classes_[place] == y, probabilities[np.arange(len(y)), place], 0.0)
    return np.asarray(np.log(np.maximum(right, np.finfo(float).tiny)))


def _row_names(X: Any, y: Any) -> NDArray[np.uint64]:
    """Return a number for each row that only equal rows share, save for a chance of about n^2 / 2^64."""
    import pandas as pd

    rows = pd.DataFrame(X).reset_index(drop=True).assign(**{"": np.asarray(y)})
    return np.asarray(pd.util.hash_pandas_object(rows, index=False), np.uint64)
