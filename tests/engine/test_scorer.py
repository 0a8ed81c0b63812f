"""`membership_scorer` in scikit-learn's cross-validation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.model_selection import KFold, cross_validate
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor

from dpaudit import membership_scorer
from dpaudit.errors import InputError

RNG = np.random.default_rng(0)
X = RNG.normal(size=(600, 3))
WORDS = np.where(RNG.random(600) < 0.5, "yes", "no")
FOLDS = KFold(3, shuffle=True, random_state=0)


class SureOfAll(ClassifierMixin, BaseEstimator):
    """A classifier that answers alike for every row."""

    def fit(self, X: Any, y: Any) -> SureOfAll:
        self.classes_ = np.unique(y)
        return self

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        return np.full((len(X), len(self.classes_)), 1 / len(self.classes_))


class Constant(RegressorMixin, BaseEstimator):
    """A regressor that answers 0."""

    def fit(self, X: Any, y: Any) -> Constant:
        return self

    def predict(self, X: Any) -> NDArray[np.float64]:
        return np.zeros(len(X))


def bounds(model: Any, X: Any, y: Any, **options: Any) -> NDArray[np.float64]:
    scoring = {"epsilon": membership_scorer(X, y, **options)}
    return np.asarray(cross_validate(model, X, y, cv=FOLDS, scoring=scoring, error_score="raise")["test_epsilon"])


def test_a_model_that_remembers_its_rows_is_seen_in_every_fold() -> None:
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    assert (bounds(KNeighborsClassifier(1), frame, WORDS) > 0.4).all()
    assert (bounds(KNeighborsRegressor(1), X, RNG.normal(size=600)) > 1.5).all()


def test_a_model_that_remembers_nothing_scores_zero() -> None:
    assert (bounds(SureOfAll(), X, WORDS) == 0).all()
    assert (bounds(Constant(), X, RNG.normal(size=600)) < 0.3).all()


def test_rows_that_occur_twice_are_left_out() -> None:
    """A row may be in the training part and held out: it is neither a member nor none."""
    with pytest.raises(InputError, match="rows that occur once"):
        membership_scorer(np.concatenate([X, X]), np.concatenate([WORDS, WORDS]))
    some = np.concatenate([X, X[:1]]), np.concatenate([WORDS, WORDS[:1]])
    assert (bounds(KNeighborsClassifier(1), *some) > 0.4).all()


def test_other_rows_than_those_of_the_folds_are_refused() -> None:
    model = KNeighborsClassifier(1).fit(X, WORDS)
    with pytest.raises(InputError, match="none of the rows to score is a row of X"):
        membership_scorer(X, WORDS)(model, X + 1, WORDS)
    with pytest.raises(InputError, match="one entry for each row"):
        membership_scorer(X, WORDS[1:])


def test_folds_that_were_not_shuffled_are_refused() -> None:
    """By default scikit-learn takes blocks, which differ if the rows have an order."""
    for folds in (3, KFold(3)):
        with pytest.raises(InputError, match="held-out rows form blocks"):
            cross_validate(
                KNeighborsClassifier(1),
                X,
                WORDS,
                cv=folds,
                scoring={"epsilon": membership_scorer(X, WORDS)},
                error_score="raise",
            )


def test_the_confidence_is_that_of_estimate() -> None:
    loose, strict = (bounds(KNeighborsClassifier(1), X, WORDS, confidence=each) for each in (0.5, 0.9999))
    assert (loose > strict).all()
