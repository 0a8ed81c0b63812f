"""Trains estimators of diffprivlib, as they are, and writes what they release; run by a Python that has diffprivlib.

    python diffprivlib_trainings.py FOLDER

FOLDER holds `request.json` and `request.npz`; `answer.npz` and `answer.json` are written beside them. This file imports
nothing of dpaudit, so that the other Python needs diffprivlib alone. NumPy files are read without pickles.
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np


def main(folder: Path) -> None:
    """All trainings of a request, one row each; a training that raises leaves NaN and a line of words."""
    import diffprivlib
    from diffprivlib import models

    asked = json.loads((folder / "request.json").read_text())
    with np.load(folder / "request.npz", allow_pickle=False) as arrays:
        X, y, points, seeds = (arrays[name] for name in ("X", "y", "points", "seeds"))
    # Warnings are about bounds and classes that were left to the data: here they never are.
    warnings.simplefilter("ignore")
    asked["bounds"] = asked["lower"], asked["upper"]
    vectors: list[Any] = []
    errors: list[str] = []
    for seed in seeds.tolist():
        # Its own accountant: the shared one remembers every training there was.
        own = {"epsilon": asked["epsilon"], "random_state": seed, "accountant": diffprivlib.BudgetAccountant()}
        try:
            released = RELEASED[asked["learner"]](models, asked, X.copy(), y.copy(), points, own | asked["settings"])
            vectors.append(np.asarray(released, float))
            errors.append("")
        except Exception as err:  # the library's own
            vectors.append(np.empty(0))
            errors.append(f"{type(err).__name__}: {err}")
    width = max(len(vector) for vector in vectors)
    table = np.full((len(vectors), width), np.nan)
    for row, vector in enumerate(vectors):
        if len(vector) == width:
            table[row] = vector
        elif not errors[row]:
            errors[row] = f"released {len(vector)} numbers, others {width}"
    np.savez(folder / "answer.npz", vectors=table)
    (folder / "answer.json").write_text(json.dumps({"version": diffprivlib.__version__, "errors": errors}))


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

if __name__ == "__main__":
    main(Path(sys.argv[1]))
