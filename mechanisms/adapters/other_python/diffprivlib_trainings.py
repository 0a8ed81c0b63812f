"""Trains estimators of diffprivlib, as they are, and gives what they release; called in a Python that has diffprivlib.

This file imports nothing of dpaudit, so that the other Python needs diffprivlib alone.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np


class Unusable(Exception):
    """The library is not there, or not the one that was asked for."""


def train(rows: Any, rng: Any, *, asked: dict[str, Any], points: str, version: str) -> Any:
    """One training, whose seed is that of `rng`.

    Args:
        rows: Features, and behind them the label, shape (n, d + 1).
        asked: The fields of the mechanism, and how many `classes` there are.
        points: Where trees are asked, shape (m, d): the bytes of float64, as words.
        version: Of the library.
    Returns: What it released, shape (k,), as the bits of float64: int32, shape (2 k,). No number is lost, no NaN.
    Raises: Unusable, and what the library raises.
    """
    try:
        import diffprivlib
        from diffprivlib import models
    except ImportError as err:
        raise Unusable(f"{type(err).__name__}: {err}") from err
    if diffprivlib.__version__ != version:
        raise Unusable(f"diffprivlib must be {version}, got {diffprivlib.__version__}")
    # Warnings are about bounds and classes that were left to the data: here they never are.
    warnings.simplefilter("ignore")
    X, y = rows[:, :-1].copy(), rows[:, -1].astype(np.int64)
    asked_at = np.frombuffer(bytes.fromhex(points)).reshape(-1, X.shape[1])
    asked["bounds"] = asked["lower"], asked["upper"]
    # Its own accountant: the shared one remembers every training there was.
    own = {"epsilon": asked["epsilon"], "accountant": diffprivlib.BudgetAccountant()}
    own["random_state"] = rng.bit_generator.seed_seq.entropy
    released = RELEASED[asked["learner"]](models, asked, X, y, asked_at, {**own, **asked["settings"]})
    return np.asarray(released, float).view(np.int32)


def _gaussian_nb(models: Any, asked: Any, X: Any, y: Any, points: Any, settings: dict[str, Any]) -> Any:
    model = models.GaussianNB(bounds=asked["bounds"], **settings).fit(X, y)
    shares = model.class_prior_
    released = np.concatenate([model.theta_.ravel(), model.var_.ravel(), shares, [_records_of(shares)]])
    return np.concatenate([released, model.class_count_]) if asked["expose_counts"] else released


MAX_RECORDS = 40_000  # Numbers of records that are tried


def _records_of(shares: Any) -> float:
    """The smallest number of records that the classes can have these shares of; 0 where there is none."""
    every = np.arange(1, MAX_RECORDS + 1)
    counts = np.outer(every, shares)
    whole = (np.abs(counts - np.round(counts)) < 1e-8).all(1)
    return float(every[whole.argmax()]) if whole.any() else 0.0


def _logistic_regression(models: Any, asked: Any, X: Any, y: Any, points: Any, settings: dict[str, Any]) -> Any:
    model = models.LogisticRegression(data_norm=asked["norm"], **settings).fit(X, y)
    return np.concatenate([model.coef_.ravel(), np.ravel(model.intercept_)])


def _linear_regression(models: Any, asked: Any, X: Any, y: Any, points: Any, settings: dict[str, Any]) -> Any:
    last = float(asked["classes"] - 1)
    model = models.LinearRegression(bounds_X=asked["bounds"], bounds_y=(0.0, last), **settings).fit(X, y)
    return np.concatenate([np.ravel(model.coef_), np.ravel(model.intercept_)])


def _random_forest(models: Any, asked: Any, X: Any, y: Any, points: Any, settings: dict[str, Any]) -> Any:
    classes = list(range(asked["classes"]))
    model = models.RandomForestClassifier(bounds=asked["bounds"], classes=classes, n_jobs=1, **settings).fit(X, y)
    return np.concatenate([tree.predict(points.astype(np.float32)) for tree in model.estimators_])


def _decision_tree(models: Any, asked: Any, X: Any, y: Any, points: Any, settings: dict[str, Any]) -> Any:
    classes = list(range(asked["classes"]))
    model = models.DecisionTreeClassifier(bounds=asked["bounds"], classes=classes, **settings).fit(X, y)
    return model.predict(points.astype(np.float32))


def _k_means(models: Any, asked: Any, X: Any, y: Any, points: Any, settings: dict[str, Any]) -> Any:
    settings = {"n_clusters": asked["classes"], **settings}
    centres = models.KMeans(bounds=asked["bounds"], **settings).fit(X).cluster_centers_
    return centres[np.lexsort(centres.T[::-1])].ravel()


def _pca(models: Any, asked: Any, X: Any, y: Any, points: Any, settings: dict[str, Any]) -> Any:
    model = models.PCA(data_norm=asked["norm"], bounds=asked["bounds"], **settings).fit(X)
    parts = (model.mean_, model.singular_values_, np.ravel(model.noise_variance_), np.ravel(np.abs(model.components_)))
    return np.concatenate(parts)


def _standard_scaler(models: Any, asked: Any, X: Any, y: Any, points: Any, settings: dict[str, Any]) -> Any:
    model = models.StandardScaler(bounds=asked["bounds"], **settings).fit(X)
    exposed = np.ravel(model.n_samples_seen_) if asked["expose_counts"] else np.empty(0)
    return np.concatenate([model.mean_, model.var_, exposed])


RELEASED = {
    "gaussian-nb": _gaussian_nb,
    "logistic-regression": _logistic_regression,
    "linear-regression": _linear_regression,
    "random-forest": _random_forest,
    "decision-tree": _decision_tree,
    "k-means": _k_means,
    "pca": _pca,
    "standard-scaler": _standard_scaler,
}
"""What each releases, as a vector."""
