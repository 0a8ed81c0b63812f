"""diffprivlib (IBM), tested with 0.6.6. Rows: "array"; a model takes its label from the last column."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from diffprivlib import BudgetAccountant, mechanisms, models, tools

# Warnings of values that were left to the data are the user's; whoever audits says which settings he means.
warnings.simplefilter("ignore")


def _own(rng: Any) -> dict[str, Any]:
    """A seed, and an accountant of its own: the shared one remembers every call there was."""
    return {"random_state": int(rng.integers(2**31)), "accountant": BudgetAccountant()}


def _kept(rows: Any) -> Any:
    """Rows without anything that is no number in [0, 1]."""
    return np.clip(np.nan_to_num(rows, nan=0.5), 0.0, 1.0)


def mean(
    rows: Any, rng: Any, epsilon: float = 1.0, bounds: Any = (0.0, 1.0), clean: bool = False, digits: int = 30
) -> Any:
    """`clean` mends rows beforehand, and `digits` after the point leave no low bits to read: so in all that follows."""
    shown = tools.mean(_kept(rows) if clean else rows, epsilon=epsilon, bounds=bounds, axis=0, **_own(rng))
    return np.round(shown, digits)


def nan_mean(rows: Any, rng: Any, epsilon: float = 1.0, bounds: Any = (0.0, 1.0)) -> Any:
    return tools.nanmean(rows, epsilon=epsilon, bounds=bounds, axis=0, **_own(rng))


def nan_sum(rows: Any, rng: Any, epsilon: float = 1.0, bounds: Any = (0.0, 1.0)) -> Any:
    return tools.nansum(rows, epsilon=epsilon, bounds=bounds, axis=0, **_own(rng))


def total(rows: Any, rng: Any, epsilon: float = 1.0, bounds: Any = (0.0, 1.0)) -> Any:
    return tools.sum(rows, epsilon=epsilon, bounds=bounds, axis=0, **_own(rng))


def count_above(rows: Any, rng: Any, epsilon: float = 1.0, level: float = 0.5) -> Any:
    """How many values are above a level: whole numbers, by the geometric mechanism."""
    return tools.count_nonzero(rows[:, 0] > level, epsilon=epsilon, **_own(rng))


def variance(rows: Any, rng: Any, epsilon: float = 1.0, bounds: Any = (0.0, 1.0)) -> Any:
    return tools.var(rows, epsilon=epsilon, bounds=bounds, axis=0, **_own(rng))


def quantile(rows: Any, rng: Any, epsilon: float = 1.0, bounds: Any = (0.0, 1.0), q: float = 0.5) -> Any:
    return tools.quantile(rows[:, 0], q, epsilon=epsilon, bounds=bounds, **_own(rng))


def quantile_by_logarithms(rows: Any, rng: Any, epsilon: float = 1.0, q: float = 0.5, digits: int = 6) -> Any:
    """The same law on [0, 1], not the library's: nothing underflows, since weights stay logarithms."""
    values = np.concatenate([[0.0], np.sort(_kept(rows[:, 0])), [1.0]])
    widths, ranks = np.diff(values), np.arange(len(values) - 1)
    with np.errstate(divide="ignore"):
        weights = np.log(widths) - epsilon / 2 * np.abs(ranks - q * len(rows))
    place = int(np.argmax(weights + rng.gumbel(size=len(weights))))
    return round(rng.uniform(values[place], values[place + 1]), digits)


def histogram(rows: Any, rng: Any, epsilon: float = 1.0, bins: int = 10) -> Any:
    return tools.histogram(rows[:, 0], epsilon=epsilon, bins=bins, range=(0.0, 1.0), **_own(rng))[0]


def linear_regression(
    rows: Any,
    rng: Any,
    epsilon: float = 1.0,
    bounds: Any = (0.0, 1.0),
    fit_intercept: bool = True,
    clean: bool = False,
    digits: int = 30,
) -> Any:
    rows = _kept(rows) if clean else rows
    model = models.LinearRegression(
        epsilon=epsilon, bounds_X=bounds, bounds_y=(0.0, 1.0), fit_intercept=fit_intercept, **_own(rng)
    )
    model.fit(rows[:, :-1], rows[:, -1])
    return np.round(np.append(np.ravel(model.coef_), model.intercept_), digits)


def naive_bayes(rows: Any, rng: Any, epsilon: float = 1.0, bounds: Any = (0.0, 1.0), counts: bool = False) -> Any:
    model = models.GaussianNB(epsilon=epsilon, bounds=bounds, **_own(rng))
    model.fit(rows[:, :-1], rows[:, -1].astype(int))
    shown = {"means": model.theta_, "variances": model.var_, "shares": model.class_prior_}
    return {**shown, "counts": model.class_count_} if counts else shown


def logistic_regression(
    rows: Any, rng: Any, epsilon: float = 1.0, norm: float = 1.0, C: float = 1.0, fit_intercept: bool = True
) -> Any:
    model = models.LogisticRegression(epsilon=epsilon, data_norm=norm, C=C, fit_intercept=fit_intercept, **_own(rng))
    model.fit(rows[:, :-1], rows[:, -1].astype(int))
    return np.append(np.ravel(model.coef_), model.intercept_)


class _Everywhere(np.ndarray):
    """Labels among which every cluster is found: one without rows gets noise as well."""

    def __contains__(self, cluster: Any) -> bool:
        return True


class _PatchedKMeans(models.KMeans):  # type: ignore[misc]
    def _distances_labels(self, X: Any, centers: Any) -> Any:
        distances, labels = super()._distances_labels(X, centers)
        return distances, labels.view(_Everywhere)


def k_means_patched(rows: Any, rng: Any, epsilon: float = 1.0, clusters: int = 2, digits: int = 6) -> Any:
    """Centres alone, of mended rows; a cluster without rows is treated like any other."""
    model = _PatchedKMeans(clusters, epsilon=epsilon, bounds=(0.0, 1.0), **_own(rng)).fit(_kept(rows))
    return np.round(model.cluster_centers_[np.lexsort(model.cluster_centers_.T[::-1])], digits)


def k_means(rows: Any, rng: Any, epsilon: float = 1.0, clusters: int = 2, inertia: bool = True) -> Any:
    model = models.KMeans(clusters, epsilon=epsilon, bounds=(0.0, 1.0), **_own(rng)).fit(rows)
    centres = model.cluster_centers_[np.lexsort(model.cluster_centers_.T[::-1])]
    return {"centres": centres, "inertia": model.inertia_} if inertia else {"centres": centres}


def forest(rows: Any, rng: Any, epsilon: float = 1.0, trees: int = 10, depth: int = 5) -> Any:
    """What ten points on the diagonal are predicted to be."""
    model = models.RandomForestClassifier(
        trees, epsilon=epsilon, bounds=(0.0, 1.0), classes=[0, 1], max_depth=depth, **_own(rng)
    )
    model.fit(rows[:, :-1], rows[:, -1].astype(int))
    return model.predict(np.repeat(np.linspace(0, 1, 10)[:, None], rows.shape[1] - 1, 1))


def pca(rows: Any, rng: Any, epsilon: float = 1.0, norm: float = 1.0, count: bool = True) -> Any:
    model = models.PCA(1, epsilon=epsilon, data_norm=norm, bounds=(0.0, 1.0), **_own(rng)).fit(rows)
    shown = {"mean": model.mean_, "axis": np.abs(model.components_), "value": model.singular_values_}
    return {**shown, "rows": model.n_samples_} if count else shown


def standard_scaler(
    rows: Any, rng: Any, epsilon: float = 1.0, count: bool = True, clean: bool = False, digits: int = 30
) -> Any:
    model = models.StandardScaler(epsilon=epsilon, bounds=(0.0, 1.0), **_own(rng)).fit(_kept(rows) if clean else rows)
    shown = {"mean": np.round(model.mean_, digits), "variance": np.round(model.var_, digits)}
    return {**shown, "rows": model.n_samples_seen_} if count else shown


def laplace(rows: Any, rng: Any, epsilon: float = 1.0) -> float:
    """The bare mechanism on the sum of values that are clipped to [0, 1]."""
    noise = mechanisms.Laplace(epsilon=epsilon, sensitivity=1.0, random_state=int(rng.integers(2**31)))
    return float(noise.randomise(float(np.clip(rows[:, 0], 0.0, 1.0).sum())))
