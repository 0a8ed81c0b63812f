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
    released = _released(models, fields, X, y, inputs, {**arguments, **fields["settings"]})
    return np.concatenate([np.ravel(np.asarray(part, float)) for part in released]).view(np.int32)


def _released(models: Any, fields: dict[str, Any], X: Any, y: Any, points: Any, settings: dict[str, Any]) -> list[Any]:
    """Train the learner and return what it releases, arrays of any shape."""
    learner, bounds, labels = fields["learner"], fields["bounds"], list(range(fields["classes"]))
    if learner == "gaussian-nb":
        model = models.GaussianNB(bounds=bounds, **settings).fit(X, y)
        counts = model.class_count_ if fields["expose_counts"] else []
        return [model.theta_, model.var_, model.class_prior_, _records_of(model.class_prior_), counts]
    if learner == "logistic-regression":
        model = models.LogisticRegression(data_norm=fields["norm"], **settings).fit(X, y)
        return [model.coef_, model.intercept_]
    if learner == "linear-regression":
        model = models.LinearRegression(bounds_X=bounds, bounds_y=(0.0, float(labels[-1])), **settings).fit(X, y)
        return [model.coef_, model.intercept_]
    if learner == "random-forest":
        model = models.RandomForestClassifier(bounds=bounds, classes=labels, n_jobs=1, **settings).fit(X, y)
        return [tree.predict(points.astype(np.float32)) for tree in model.estimators_]
    if learner == "decision-tree":
        model = models.DecisionTreeClassifier(bounds=bounds, classes=labels, **settings).fit(X, y)
        return [model.predict(points.astype(np.float32))]
    if learner == "k-means":
        settings = {"n_clusters": len(labels), **settings}
        centres = models.KMeans(bounds=bounds, **settings).fit(X).cluster_centers_
        return [centres[np.lexsort(centres.T[::-1])]]
    if learner == "pca":
        model = models.PCA(data_norm=fields["norm"], bounds=bounds, **settings).fit(X)
        return [model.mean_, model.singular_values_, model.noise_variance_, np.abs(model.components_)]
    model = models.StandardScaler(bounds=bounds, **settings).fit(X)
    return [model.mean_, model.var_, model.n_samples_seen_ if fields["expose_counts"] else []]


MAX_RECORDS = 40_000  # largest number of records that is tried


def _records_of(shares: Any) -> float:
    """Return the smallest number of records for which these class shares are whole counts; 0 if there is none."""
    every = np.arange(1, MAX_RECORDS + 1)
    counts = np.outer(every, shares)
    whole = (np.abs(counts - np.round(counts)) < 1e-8).all(1)
    return float(every[whole.argmax()]) if whole.any() else 0.0
