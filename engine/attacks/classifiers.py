"""Classifiers that learn log-odds of world 1 from features of runs whose coins are known.

Each takes features, shape (m, d), and coins, shape (m,), and returns a function from features, shape (n, d), to
log-odds in nats, shape (n,).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
Odds = Callable[[Floats], Floats]
"""Function from features, shape (n, d), to log-odds of world 1 in nats, shape (n,)."""

MIN_PROBABILITY = 1e-12
"""Distance of probabilities from 0 and 1, which keeps logarithms finite."""
MIN_ATOM_COUNT = 3
"""Occurrences that make a value an atom."""
SHRINKAGE = 1.5
"""Standard errors by which the medians of the two worlds are moved towards each other."""
MOST_MOVED_SHARE = 0.25
"""Change of the numbers that change most, in units of their noise, as a share of the largest change."""
NARROW = 1e-4
"""Range of a column below which its values are spread out before they are binned: narrow bins would be dropped."""
MIN_DIRECTION = 1e-9
"""Smallest variance of a direction of noise, as a share of the largest; smaller ones are rounding errors."""
MIN_SPREAD = 0.1
"""Smallest scale of a log-likelihood, in nats: one that hardly varies in training must not get a huge weight."""


def log_odds(probability: Floats) -> Floats:
    """Return the log-odds of probabilities, which are clipped at `MIN_PROBABILITY`."""
    probability = np.clip(probability, MIN_PROBABILITY, 1 - MIN_PROBABILITY)
    return np.asarray(np.log(probability) - np.log1p(-probability))


def clipped(odds: Floats) -> Floats:
    """Return log-odds, clipped as those of probabilities are.

    They are rounded first: rounding errors would order equal log-odds by the low bits of floating-point noise.
    """
    return log_odds(special.expit(np.round(odds, 6)))


def _fitted(classifier: Any, features: Floats, coins: Flags) -> Odds:
    """Fit a classifier of scikit-learn."""
    from sklearn.exceptions import ConvergenceWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # only the order matters
        warnings.simplefilter("ignore", UserWarning)  # columns with fewer distinct values than bins
        warnings.simplefilter("ignore", RuntimeWarning)  # shares of variance if the variance is 0
        fitted = classifier.fit(features, coins)
    return lambda others: log_odds(np.asarray(fitted.predict_proba(others)[:, 1]))


def linear(features: Floats, coins: Flags, seed: int) -> Odds:
    """Fit logistic regression on principal components scaled to variance 1.

    Noisy numbers may have a sum with little noise, such as counts that sum to the size of the data. Components without
    variance are omitted, because scaling would amplify their rounding errors.
    """
    from sklearn.decomposition import PCA
    from sklearn.linear_model import LogisticRegression

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # shares of variance if the variance is 0
        pca = PCA(svd_solver="full").fit(features)
    sizes = pca.singular_values_
    varies = sizes > sizes[0] * max(features.shape) * np.finfo(np.float64).eps
    if not varies.any():
        return lambda others: log_odds(np.full(len(others), coins.mean()))
    deviations = sizes[varies] / math.sqrt(len(features))
    odds = _fitted(LogisticRegression(max_iter=300), pca.transform(features)[:, varies] / deviations, coins)
    return lambda others: odds(pca.transform(others)[:, varies] / deviations)


def standardised(features: Floats, coins: Flags) -> Odds:
    """Fit logistic regression on columns scaled to variance 1."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    model: Any = make_pipeline(StandardScaler(), LogisticRegression(solver="newton-cholesky"))
    odds: Odds = model.fit(features, coins).decision_function
    return odds


def symmetric(log_likelihoods: Floats, coins: Flags) -> Odds:
    """Fit a weight for each log-likelihood ratio, without intercept: ratios of the other sign give odds of the other.

    `MIN_SPREAD` is the smallest unit of a ratio.
    """
    from sklearn.linear_model import LogisticRegression

    scale = np.maximum(log_likelihoods.std(axis=0), MIN_SPREAD)
    model: Any = LogisticRegression(fit_intercept=False, solver="newton-cholesky").fit(log_likelihoods / scale, coins)
    return lambda others: np.asarray(model.decision_function(others / scale))


def boosting(features: Floats, coins: Flags) -> Odds:
    """Fit gradient-boosted trees with few leaves."""
    from sklearn.ensemble import HistGradientBoostingClassifier

    trees: Any = HistGradientBoostingClassifier(
        max_iter=60, max_leaf_nodes=15, min_samples_leaf=40, early_stopping=False, random_state=0
    )
    odds: Odds = trees.fit(features, coins).decision_function
    return odds


def additive(features: Floats, coins: Flags, seed: int) -> Odds:
    """Fit logistic regression on binned numbers."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import KBinsDiscretizer

    bins = KBinsDiscretizer(16, encode="onehot", strategy="quantile", subsample=None)
    low, spread = features.min(axis=0), np.ptp(features, axis=0)
    narrow = (spread > 0) & (spread < NARROW)

    def widened(others: Floats) -> Floats:
        return np.where(narrow, (others - low) / np.where(narrow, spread, 1.0), others)

    odds = _fitted(make_pipeline(bins, LogisticRegression(C=0.02, max_iter=200)), widened(features), coins)
    return lambda others: odds(widened(others))


def trees(features: Floats, coins: Flags, seed: int) -> Odds:
    from sklearn.ensemble import HistGradientBoostingClassifier

    settings = {"max_iter": 60, "learning_rate": 0.15, "min_samples_leaf": 40, "random_state": seed}
    return _fitted(HistGradientBoostingClassifier(**settings), features, coins)


def forest(features: Floats, coins: Flags, seed: int) -> Odds:
    from sklearn.ensemble import RandomForestClassifier

    return _fitted(RandomForestClassifier(200, min_samples_leaf=20, random_state=seed), features, coins)


def mlp(features: Floats, coins: Flags, seed: int) -> Odds:
    from sklearn.neural_network import MLPClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    perceptron = MLPClassifier((64,), max_iter=60, early_stopping=True, random_state=seed)
    return _fitted(make_pipeline(StandardScaler(), perceptron), features, coins)


def _laplace_law(features: Floats, coins: Flags) -> tuple[Floats, Floats, Floats]:
    """Return the medians of both worlds and the scale of independent Laplace noise, each of shape (d,)."""
    median_zero, median_one = (np.median(features[coins == world], 0) for world in (False, True))
    scale = np.abs(features - np.where(coins[:, None], median_one, median_zero)).mean(0)
    smallest = MIN_PROBABILITY * np.maximum(np.abs(median_one - median_zero), np.finfo(np.float64).tiny)
    return median_zero, median_one, np.maximum(scale, smallest)


def laplace(features: Floats, coins: Flags, seed: int) -> Odds:
    """Fit independent Laplace noise around the medians of each world."""
    median_zero, median_one, scale = _laplace_law(features, coins)
    return lambda others: clipped(((np.abs(others - median_zero) - np.abs(others - median_one)) / scale).sum(1))


def shrunken(features: Floats, coins: Flags, seed: int) -> Odds:
    """Fit independent Laplace noise around medians that are shrunk by their standard errors."""
    median_zero, median_one, scale = _laplace_law(features, coins)
    # The standard error of the median of n Laplace variables is scale / sqrt(n).
    standard_error = SHRINKAGE * math.sqrt(1 / coins.sum() + 1 / (~coins).sum())
    difference, middle = median_one - median_zero, (median_zero + median_one) / 2
    half = np.sign(difference) * np.maximum(np.abs(difference) / scale - standard_error, 0) * scale / 2

    def odds(others: Floats) -> Floats:
        moved = others - middle
        return np.asarray(np.round(((np.abs(moved + half) - np.abs(moved - half)) / scale).sum(1), 6))

    return calibrated(odds, features, coins)


def limits(features: Floats, coins: Flags, seed: int) -> Odds:
    """Score numbers outside the range of a world, for bounded noise."""
    ranges = [(side.min(0), side.max(0)) for side in (features[~coins], features[coins])]

    def odds(others: Floats) -> Floats:
        beyond_zero, beyond_one = (((others < low) | (others > high)).sum(1) for low, high in ranges)
        return log_odds(special.expit(beyond_zero - beyond_one))

    return odds


def atoms(features: Floats, coins: Flags, seed: int) -> Odds:
    """Score values that recur exactly (numbers without noise, limits, counts); log-odds of columns are added."""
    tables = []
    for column in features.T:
        values, place, counts = np.unique(column, return_inverse=True, return_counts=True)
        recurs = counts >= MIN_ATOM_COUNT
        atom_of_row = np.where(recurs, np.cumsum(recurs) - 1, recurs.sum())[place]
        count_one, count_zero = (
            np.bincount(atom_of_row[coins == world], minlength=recurs.sum() + 1) + 0.5 for world in (True, False)
        )
        of_atoms = np.log(count_one / count_zero) - np.log(count_one.sum() / count_zero.sum())  # the last of all others
        tables.append((values[recurs], of_atoms))

    def odds(others: Floats) -> Floats:
        total = np.zeros(len(others))
        for (values, of_atoms), column in zip(tables, others.T, strict=True):
            place = np.searchsorted(values, column)
            is_atom = np.append(values, np.nan)[place] == column
            total += of_atoms[np.where(is_atom, place, -1)]
        return log_odds(special.expit(total))

    return odds


CLASSIFIERS: Mapping[str, Callable[[Floats, Flags, int], Odds]] = {
    "linear": linear,
    "laplace": laplace,
    "limits": limits,
    "atoms": atoms,
    "additive": additive,
    "trees": trees,
    "shrunken": shrunken,
    "forest": forest,
    "mlp": mlp,
}
"""Classifiers that learn from samples alone; the last argument is the seed of randomised ones."""


def calibrated(odds: Odds, features: NDArray[Any], coins: Flags) -> Odds:
    """Return odds times the best-fitting factor: noise that is too small by a factor c multiplies them by about c."""
    from sklearn.linear_model import LogisticRegression

    raw_odds = odds(features)
    spread = float(np.sqrt(np.mean(raw_odds**2)))
    if spread == 0:
        return lambda others: np.zeros(len(others))
    # No constant term: both worlds have the same prior, which `odds` knows.
    scaled = _fitted(LogisticRegression(C=100.0, fit_intercept=False), raw_odds[:, None] / spread, coins)
    return lambda others: scaled(odds(others)[:, None] / spread)


def moved_normal(features: Floats, coins: Flags, move: Floats) -> Odds:
    """Return the log-odds by normal noise with the covariance of the samples."""
    noise = _Whitened(features, coins, move)
    weights = noise.matrix @ noise.step
    return lambda others: np.asarray(np.round((others - noise.middle - move / 2) @ weights, 6))


def moved_spherical(features: Floats, coins: Flags, move: Floats) -> Odds:
    """Return the log-odds by noise of density exp(-length) in whitened numbers, as of output perturbation."""
    noise = _Whitened(features, coins, move)

    def odds(others: Floats) -> Floats:
        moved = (others - noise.middle) @ noise.matrix
        return np.asarray(np.round(np.linalg.norm(moved, axis=1) - np.linalg.norm(moved - noise.step, axis=1), 6))

    return odds


class _Whitened:
    """Middle of the noise of features, the matrix that maps it to uncorrelated numbers of variance 1, and the move.

    Numbers are scaled first. Directions without noise are omitted.
    """

    def __init__(self, features: Floats, coins: Flags, move: Floats) -> None:
        unmoved = features - coins[:, None] * move
        self.middle = unmoved.mean(0)
        residuals = unmoved - self.middle
        spread = residuals.std(0)
        scale = np.where(spread > 0, spread, np.inf)
        scaled = residuals / scale
        variances, directions = np.linalg.eigh(scaled.T @ scaled / len(scaled))
        has_noise = variances > MIN_DIRECTION * max(float(variances[-1]), np.finfo(np.float64).tiny)
        self.matrix = np.asarray(directions[:, has_noise] / np.sqrt(variances[has_noise]) / scale[:, None])
        self.step = move @ self.matrix


def moved_laplace(features: Floats, coins: Flags, move: Floats) -> Odds:
    """Return the log-odds by independent Laplace noise."""
    unmoved = features - coins[:, None] * move
    median = np.median(unmoved, 0)
    smallest = MIN_PROBABILITY * np.maximum(np.abs(move), np.finfo(np.float64).tiny)
    scale = np.maximum(np.abs(unmoved - median).mean(0), smallest)

    def odds(others: Floats) -> Floats:
        moved = others - median
        return np.asarray(np.round(((np.abs(moved) - np.abs(moved - move)) / scale).sum(1), 6))

    return odds


def most_moved_normal(features: Floats, coins: Flags, move: Floats) -> Odds:
    """Return the log-odds by normal noise of the numbers that change most, in units of their noise.

    The covariance of many numbers is not known well, and small changes only add noise.
    """
    unmoved = features - coins[:, None] * move
    noise = np.abs(unmoved - np.median(unmoved, 0)).mean(0)
    change = np.abs(move) / np.maximum(noise, MIN_PROBABILITY * np.maximum(np.abs(move), np.finfo(np.float64).tiny))
    most = change >= MOST_MOVED_SHARE * change.max()
    odds = moved_normal(features[:, most], coins, move[most])
    return lambda others: odds(others[:, most])


MOVED_LAWS: Mapping[str, Callable[[Floats, Flags, Floats], Odds]] = {
    "moved-normal": moved_normal,
    "moved-laplace": moved_laplace,
    "moved-spherical": moved_spherical,
    "most-moved-normal": most_moved_normal,
}
"""Laws of noise around a known change of the features from world 0 to world 1, shape (d,), the last argument."""
