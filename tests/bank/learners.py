"""Fitted models as user functions: classifiers that return a model, and others that return their parameters.

All claim epsilon = 1 for a replaced record. Columns are clipped to [0, 1] unless stated otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from scipy.special import expit

from dpaudit import Claim, from_callable, from_summary
from tests.bank import Case
from tests.bank.numbers import COMES, REPLACE, clipped, noisy

PENALTY = 0.1
DEPTH = 3
MANY = "the fresh trainings are too few for what the answers tell of one record"


def in_ball(X: Any) -> Any:
    """Return rows of length at most 1, including a constant for the intercept."""
    rows = np.column_stack([clipped(X), np.ones(len(X))])
    return rows / math.sqrt(rows.shape[1])


def spherical(d: int, scale: float, seed: int) -> Any:
    """Return noise of density exp(-|x| / scale)."""
    rng = np.random.default_rng(seed)
    direction = rng.normal(size=d)
    return rng.gamma(d, scale) * direction / np.linalg.norm(direction)


def minimiser(rows: Any, y: Any, penalty: float = PENALTY, steps: int = 12) -> Any:
    """Return the minimiser of the mean logistic loss plus penalty / 2 times the squared norm, by Newton's method."""
    w = np.zeros(rows.shape[1])
    for _ in range(steps):
        p = expit(rows @ w)
        hessian = (rows * (p * (1 - p))[:, None]).T @ rows / len(y) + penalty * np.eye(len(w))
        w -= np.linalg.solve(hessian, rows.T @ (p - y) / len(y) + penalty * w)
    return w


def answers(w: Any, rows_of: Callable[[Any], Any] = in_ball) -> Callable[[Any], Any]:
    def ask(X):
        p = expit(np.clip(rows_of(X) @ w, -30, 30))
        return np.column_stack([1 - p, p])

    return ask


# Output perturbation (Chaudhuri et al., 2011): a record moves the minimiser by at most 2 / (n penalty).


def logistic(X, y, seed, factor=1.0, penalty=PENALTY):
    rows = in_ball(X)
    w = minimiser(rows, y, penalty)
    return answers(w + spherical(len(w), factor * 2 / (len(y) * PENALTY), seed))


def logistic_not_scaled(X, y, seed):
    """Rows have length up to sqrt(6), and the noise is for length 1."""

    def rows_of(X):
        return np.column_stack([clipped(X), np.ones(len(X))])

    w = minimiser(rows_of(X), y)
    return answers(w + spherical(len(w), 2 / (len(y) * PENALTY), seed), rows_of)


def logistic_intercept_bare(X, y, seed):
    w = minimiser(in_ball(X), y)
    return answers(w + np.append(spherical(len(w) - 1, 2 / (len(y) * PENALTY), seed), 0.0))


def logistic_standardised(X, y, seed):
    """Columns are first standardised by their exact mean and deviation."""
    centre, spread = X.mean(0), X.std(0) + 1e-9

    def rows_of(X):
        return in_ball((np.clip((X - centre) / spread, -2, 2) + 2) / 4)

    w = minimiser(rows_of(X), y)
    return answers(w + spherical(len(w), 2 / (len(y) * PENALTY), seed), rows_of)


def logistic_fixed_seed(X, y, seed):
    return logistic(X, y, 0)


def logistic_raises(X, y, seed):
    if min(np.bincount(y, minlength=2)) < 5:
        raise ValueError("the classes are too unbalanced to learn from")
    return logistic(X, y, seed)


def logistic_fails_at_random(X, y, seed):
    if np.random.default_rng([5, seed]).random() < 0.1:
        raise RuntimeError("no convergence")
    return logistic(X, y, seed)


def logistic_gaussian_noise(X, y, seed):
    """Normal noise with the spherical noise's deviation per coordinate, for a pure claim."""
    w = minimiser(in_ball(X), y)
    return answers(w + np.random.default_rng(seed).normal(0, 0.2 / (len(y) * PENALTY), len(w)))


# Naive Bayes on columns cut at the middle: noisy counts by class; a replaced record moves two of them in each column.


def bayes(X, y, seed, scale=None, classes_exact=False, smoothing=1.0, floor=1.0):
    d, high = X.shape[1], clipped(X) > 0.5
    scale = 2.0 * (d + 1) if scale is None else scale
    counts = np.array([[(high[y == c]).sum(0), (~high[y == c]).sum(0)] for c in (0, 1)], float)
    sizes = np.array([(y == 0).sum(), (y == 1).sum()], float)
    released = np.maximum(noisy(counts, scale, seed), floor) if scale else counts + smoothing
    sizes = sizes if classes_exact else np.maximum(noisy(sizes, scale or 1.0, seed + 1), 1.0)
    likely = np.log(released[:, 0] / released.sum(1)), np.log(released[:, 1] / released.sum(1))

    def ask(X):
        high = clipped(X) > 0.5
        odds = np.stack(
            [(np.where(high, likely[0][c], likely[1][c])).sum(1) + math.log(sizes[c] + 1) for c in (0, 1)], 1
        )
        odds = np.exp(odds - odds.max(1, keepdims=True))
        return odds / odds.sum(1, keepdims=True)

    return ask


def gaussian_bayes(X, y, seed, honest=False):
    """Noisy class means over exact numbers of rows, or from noisy sums and sizes if honest."""
    values = clipped(X)
    d = values.shape[1]
    released = []
    for c in (0, 1):
        class_values = values[y == c]
        if honest:
            sums, size = (
                noisy(class_values.sum(0), 2.0 * (d + 1), seed + c),
                noisy([len(class_values)], 2.0 * (d + 1), seed + 2 + c),
            )
            released.append(np.clip(sums / np.maximum(size, 1), 0, 1))
        else:
            released.append(
                class_values.mean(0) + noisy(np.zeros(d), 2.0 * d / len(y), seed + c)
                if len(class_values)
                else np.zeros(d)
            )
    return np.concatenate(released)


# Ridge regression, by noisy products or by noise on its coefficients.


def ridge(X, y, seed, factor=1.0, penalty=10.0):
    rows = np.column_stack([clipped(X), np.ones(len(X)), y])
    products = (rows.T @ rows)[np.triu_indices(rows.shape[1])]
    full = np.zeros((rows.shape[1],) * 2)
    full[np.triu_indices(len(full))] = noisy(products, factor * len(products), seed)
    full += np.triu(full, 1).T
    gram = full[:-1, :-1] + penalty * np.eye(len(full) - 1)
    return np.linalg.lstsq(gram, full[:-1, -1], rcond=None)[0]


def ridge_target_bare(X, y, seed):
    """Noise on the products of the columns, none on those with the target."""
    rows = np.column_stack([clipped(X), np.ones(len(X))])
    d = rows.shape[1]
    noise = noisy(np.zeros((d, d)), d * (d + 1) / 2, seed)
    return np.linalg.lstsq(rows.T @ rows + noise + noise.T + 10 * np.eye(d), rows.T @ y, rcond=None)[0]


def ridge_coefficients(X, y, seed):
    rows = np.column_stack([clipped(X), np.ones(len(X))])
    w = np.linalg.solve(rows.T @ rows + 0.01 * np.eye(rows.shape[1]), rows.T @ y)
    return noisy(w, rows.shape[1] / len(y), seed)


# A forest of random splits: leaf counts with noise; each tree holds all rows.


def leaves(X: Any, tree: int) -> Any:
    rng = np.random.default_rng([11, tree])
    columns, cuts = rng.integers(X.shape[1], size=DEPTH), rng.random(DEPTH)
    return ((clipped(X)[:, columns] > cuts) * (1 << np.arange(DEPTH))).sum(1)


def forest(X, y, seed, trees=4, counted=None, exact_below=0.0, empty_bare=False):
    counts = np.array(
        [np.bincount(2 * leaves(X, tree) + y, minlength=2 << DEPTH).reshape(-1, 2) for tree in range(trees)], float
    )
    released = noisy(counts, 2.0 * (counted or trees), seed)
    released = np.where(counts < exact_below, counts, released)
    if empty_bare:
        released = np.where(counts > 0, released, 0.0)
    released = np.maximum(released, 0.0) + 0.5

    def ask(X):
        return np.mean([(released[t] / released[t].sum(1, keepdims=True))[leaves(X, t)] for t in range(trees)], 0)

    return ask


def forest_splits_on_data(X, y, seed):
    """Cuts at the exact medians of the columns."""
    cuts = np.median(clipped(X), 0)
    place = ((clipped(X)[:, :DEPTH] > cuts[:DEPTH]) * (1 << np.arange(DEPTH))).sum(1)
    released = np.maximum(noisy(np.bincount(2 * place + y, minlength=2 << DEPTH).reshape(-1, 2), 2.0, seed), 0) + 0.5

    def ask(X):
        place = ((clipped(X)[:, :DEPTH] > cuts[:DEPTH]) * (1 << np.arange(DEPTH))).sum(1)
        return (released / released.sum(1, keepdims=True))[place]

    return ask


# K-means, standardisation, principal directions, nearest centroids.


def k_means(X, y, seed, rounds=3, charged=3, exact_sizes=False, honest=False):
    """Sums and sizes of two clusters, again in each round."""
    values = clipped(X)[:, :2]
    centres = np.array([[0.25, 0.25], [0.75, 0.75]])
    scale = 2.0 * 3 * charged
    for turn in range(rounds):
        near = ((values[:, None] - centres) ** 2).sum(2).argmin(1)
        sizes = np.array([(near == c).sum() for c in (0, 1)], float)
        sums = np.array([values[near == c].sum(0) for c in (0, 1)])
        sums = noisy(sums, scale, seed + 10 * turn)
        sizes = sizes if exact_sizes else noisy(sizes, scale, seed + 10 * turn + 1)
        centres = np.clip(sums / np.maximum(sizes, 1.0)[:, None], 0, 1)
    return centres.ravel()


def standardised_mean_of_product(X, y, seed):
    """Correlations with the class, of columns standardised exactly; noise for values between -1 and 1."""
    values = np.clip((X - X.mean(0)) / (X.std(0) + 1e-9), -1, 1)
    return noisy((values * (2 * y - 1)[:, None]).mean(0), 2 * X.shape[1] / len(y), seed)


def correlation_of_product(X, y, seed, factor=1.0):
    return noisy(((2 * clipped(X) - 1) * (2 * y - 1)[:, None]).mean(0), factor * 2 * X.shape[1] / len(y), seed)


def principal_direction(X, y, seed, honest=False):
    """Noise on the direction instead of on the products."""
    values = clipped(X)[:, :3]
    if honest:
        noise = noisy(np.zeros((3, 3)), 6.0, seed)
        return np.linalg.eigh(values.T @ values + noise + noise.T)[1][:, -1]
    direction = np.linalg.eigh(values.T @ values)[1][:, -1]
    return noisy(direction * np.sign(direction.sum() + 1e-12), 3 / len(y), seed)


def nearest_mean(X, y, seed, factor=1.0):
    """A class is as likely as its noisy mean is near."""
    values = clipped(X)
    sums = np.array([values[y == c].sum(0) for c in (0, 1)])
    centres = noisy(sums, factor * 2 * values.shape[1], seed) / (len(y) / 2)

    def ask(X):
        far = ((clipped(X)[:, None] - centres) ** 2).sum(2)
        p = expit(np.clip(far[:, 0] - far[:, 1], -30, 30))
        return np.column_stack([1 - p, p])

    return ask


def majority(X, y, seed, epsilon=1.0):
    """Only the more frequent class, by randomised response on the comparison."""
    majority = (y == 1).mean() > 0.5
    truthful = np.random.default_rng(seed).random() < expit(epsilon)
    p = 0.9 if majority == truthful else 0.1
    return lambda X: np.tile([1 - p, p], (len(X), 1))


def prior_only(X, y, seed, exact=True):
    share = y.mean() if exact else float(np.clip(noisy([y.mean()], 1 / len(y), seed)[0], 0.01, 0.99))
    return lambda X: np.tile([1 - share, share], (len(X), 1))


def nothing_learned(X, y, seed):
    return lambda X: np.full((len(X), 2), 0.5)


def model(train: Callable[..., Any], claim: Claim = REPLACE, **parameters: Any) -> Callable[[], Any]:
    return partial(from_callable, train, claim, **parameters)


def vector(train: Callable[..., Any], claim: Claim = REPLACE, **parameters: Any) -> Callable[[], Any]:
    return partial(from_summary, train, claim, **parameters)


BANK: dict[str, Case] = {
    "logistic-tenth-of-noise": Case(model(logistic, factor=0.1), model(logistic), true=10),
    "logistic-comes-tenth-of-noise": Case(model(logistic, COMES, factor=0.1), true=10),
    "logistic-rows-too-long": Case(model(logistic_not_scaled), missed=MANY),
    "logistic-weaker-penalty": Case(model(logistic, penalty=0.01), model(nothing_learned), true=10, missed=MANY),
    "logistic-intercept-bare": Case(model(logistic_intercept_bare), true=math.inf),
    "logistic-standardised": Case(model(logistic_standardised), true=math.inf, missed=MANY),
    "logistic-fixed-seed": Case(model(logistic_fixed_seed), true=math.inf),
    "logistic-raises": Case(
        model(logistic_raises),
        model(logistic_fails_at_random),
        true=math.inf,
        missed="among the 13 data sets that 2,400 trainings are enough for none has four and five of a class",
    ),
    "logistic-gaussian-noise": Case(model(logistic_gaussian_noise), true=math.inf),
    "bayes-noise-of-one-column": Case(model(bayes, scale=2.0), model(bayes), true=6, missed=MANY),
    "bayes-comes-noise-of-one-column": Case(model(bayes, COMES, scale=1.0), model(bayes, COMES), true=6, missed=MANY),
    "bayes-smoothing-for-noise": Case(model(bayes, scale=0.0), true=math.inf),
    "bayes-exact-classes": Case(model(bayes, classes_exact=True), true=math.inf, missed=MANY),
    "gaussian-bayes-exact-sizes": Case(vector(gaussian_bayes), vector(gaussian_bayes, honest=True), true=math.inf),
    "ridge-noise-of-one": Case(vector(ridge, factor=1 / 28), vector(ridge), true=28),
    "ridge-target-bare": Case(vector(ridge_target_bare), true=math.inf),
    "ridge-noise-on-coefficients": Case(vector(ridge_coefficients), true=math.inf),
    "forest-trees-not-charged": Case(model(forest, counted=1), model(forest), true=4, missed=MANY),
    "forest-comes-trees-not-charged": Case(model(forest, COMES, counted=0.5), model(forest, COMES), true=4),
    "forest-small-leaves-exact": Case(model(forest, exact_below=3.0), true=math.inf),
    "forest-empty-leaves-bare": Case(model(forest, empty_bare=True), true=math.inf),
    "forest-cuts-at-medians": Case(model(forest_splits_on_data), true=math.inf),
    "k-means-noise-of-one-number": Case(vector(k_means, charged=1 / 6), vector(k_means), true=18),
    "k-means-exact-sizes": Case(
        vector(k_means, exact_sizes=True), true=math.inf, missed="the noise of the sums hides what exact sizes tell"
    ),
    "standardised-exactly": Case(vector(standardised_mean_of_product), vector(correlation_of_product), true=math.inf),
    "correlation-half-noise": Case(vector(correlation_of_product, factor=0.5), true=2),
    "principal-direction": Case(vector(principal_direction), vector(principal_direction, honest=True), true=math.inf),
    "nearest-mean-half-noise": Case(model(nearest_mean, factor=0.4), model(nearest_mean), true=2.5, missed=MANY),
    "majority-three": Case(model(majority, epsilon=3.0), model(majority), true=3),
    "prior-exact": Case(model(prior_only), model(prior_only, exact=False), true=math.inf),
}
