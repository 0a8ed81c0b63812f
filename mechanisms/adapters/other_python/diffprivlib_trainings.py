"""Trains unchanged estimators of diffprivlib and returns their released numbers, in a Python that has diffprivlib.

This file does not import dpaudit, so that the other Python needs only diffprivlib.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np


class Unusable(Exception):
    """The library is missing or has the wrong version."""


def train(rows: Any, rng: Any, *, fields: dict[str, Any], points: str, version: str) -> Any:
    """Train once with the seed of `rng`.

    Args:
        rows: Features, then the label, shape (n, d + 1).
        fields: Fields of the mechanism, and the number of `classes`.
        points: Inputs at which trees predict, shape (m, d): hexadecimal bytes of float64.
        version: Required version of the library.
    Returns: The k released float64 numbers, as their bits: int32, shape (2 k,). So NaN is preserved too.
    Raises: Unusable, and exceptions of the library.
    """
    try:
        import diffprivlib
        from diffprivlib import models
    except ImportError as err:
        raise Unusable(f"{type(err).__name__}: {err}") from err
    if diffprivlib.__version__ != version:
        raise Unusable(f"diffprivlib must be {version}, got {diffprivlib.__version__}")
    # The library warns of bounds and classes inferred from the data. Here they are always passed.
    warnings.simplefilter("ignore")
    X, y = rows[:, :-1].copy(), rows[:, -1].astype(np.int64)
    inputs = np.frombuffer(bytes.fromhex(points)).reshape(-1, X.shape[1])
    fields["bounds"] = fields["lower"], fields["upper"]
    # A new accountant: the default one sums up the budget of all trainings in the process.
    arguments = {"epsilon": fields["epsilon"], "accountant": diffprivlib.BudgetAccountant()}
    arguments["random_state"] = rng.bit_generator.seed_seq.entropy
    released = RELEASED[fields["learner"]](models, fields, X, y, inputs, {**arguments, **fields["settings"]})
    return np.asarray(released, float).view(np.int32)


def _gaussian_nb(models: Any, fields: Any, X: Any, y: Any, points: Any, settings: dict[str, Any]) -> Any:
    model = models.GaussianNB(bounds=fields["bounds"], **settings).fit(X, y)
    shares = model.class_prior_
    released = np.concatenate([model.theta_.ravel(), model.var_.ravel(), shares, [_records_of(shares)]])
    return np.concatenate([released, model.class_count_]) if fields["expose_counts"] else released


MAX_RECORDS = 40_000  # largest number of records that is tried


def _records_of(shares: Any) -> float:
    """Return the smallest number of records for which these class shares are whole counts; 0 if there is none."""
    every = np.arange(1, MAX_RECORDS + 1)
    counts = np.outer(every, shares)
    whole = (np.abs(counts - np.round(counts)) < 1e-8).all(1)
    return float(every[whole.argmax()]) if whole.any() else 0.0


def _logistic_regression(models: Any, fields: Any, X: Any, y: Any, points: Any, settings: dict[str, Any]) -> Any:
    model = models.LogisticRegression(data_norm=fields["norm"], **settings).fit(X, y)
    return np.concatenate([model.coef_.ravel(), np.ravel(model.intercept_)])


def _linear_regression(models: Any, fields: Any, X: Any, y: Any, points: Any, settings: dict[str, Any]) -> Any:
    last = float(fields["classes"] - 1)
    model = models.LinearRegression(bounds_X=fields["bounds"], bounds_y=(0.0, last), **settings).fit(X, y)
    return np.concatenate([np.ravel(model.coef_), np.ravel(model.intercept_)])


def _random_forest(models: Any, fields: Any, X: Any, y: Any, points: Any, settings: dict[str, Any]) -> Any:
    classes = list(range(fields["classes"]))
    model = models.RandomForestClassifier(bounds=fields["bounds"], classes=classes, n_jobs=1, **settings).fit(X, y)
    return np.concatenate([tree.predict(points.astype(np.float32)) for tree in model.estimators_])


def _decision_tree(models: Any, fields: Any, X: Any, y: Any, points: Any, settings: dict[str, Any]) -> Any:
    classes = list(range(fields["classes"]))
    model = models.DecisionTreeClassifier(bounds=fields["bounds"], classes=classes, **settings).fit(X, y)
    return model.predict(points.astype(np.float32))


def _k_means(models: Any, fields: Any, X: Any, y: Any, points: Any, settings: dict[str, Any]) -> Any:
    settings = {"n_clusters": fields["classes"], **settings}
    centres = models.KMeans(bounds=fields["bounds"], **settings).fit(X).cluster_centers_
    return centres[np.lexsort(centres.T[::-1])].ravel()


def _pca(models: Any, fields: Any, X: Any, y: Any, points: Any, settings: dict[str, Any]) -> Any:
    model = models.PCA(data_norm=fields["norm"], bounds=fields["bounds"], **settings).fit(X)
    parts = (model.mean_, model.singular_values_, np.ravel(model.noise_variance_), np.ravel(np.abs(model.components_)))
    return np.concatenate(parts)


def _standard_scaler(models: Any, fields: Any, X: Any, y: Any, points: Any, settings: dict[str, Any]) -> Any:
    model = models.StandardScaler(bounds=fields["bounds"], **settings).fit(X)
    exposed = np.ravel(model.n_samples_seen_) if fields["expose_counts"] else np.empty(0)
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
"""Functions that train each model and return its released numbers."""
