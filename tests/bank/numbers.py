"""Functions that release numbers about rows: each defect changes one thing of an honest release.

All claim epsilon = 1 for a replaced record, which changes one row. Columns are clipped to [0, 1] unless stated
otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from dpaudit import Claim, Relation, from_summary
from dpaudit.claims import GaussianDP
from tests.bank import Case

REPLACE = Claim(1.0, relation=Relation.REPLACE)
COMES = Claim(1.0, relation=Relation.ADD_REMOVE)
GAUSSIAN = Claim(1.0, 1e-5, Relation.REPLACE)
BINS = 10
CLASSIC = math.sqrt(2 * math.log(1.25e5))
"""Deviation of normal noise at delta = 1e-5, over sensitivity / epsilon (Dwork and Roth, 2014, theorem A.1)."""


def noisy(values: Any, scale: float, seed: int) -> Any:
    """Return values plus independent Laplace noise."""
    values = np.asarray(values, float)
    return values + np.random.default_rng(seed).laplace(0, scale, values.shape)


def clipped(X: Any) -> Any:
    return np.clip(np.asarray(X, float), 0, 1)


# Means of all columns: a record moves them by d / n together.


def mean(X, y, seed, factor=1.0):
    return noisy(clipped(X).mean(0), factor * X.shape[1] / len(X), seed)


def mean_of_one(X, y, seed, factor=1.0):
    return noisy([clipped(X)[:, 0].mean()], factor / len(X), seed)


def mean_wide(X, y, seed, factor=1.0):
    return noisy([np.clip(X[:, 0], -5.0, 20.0).mean()], factor * 25 / len(X), seed)


def mean_by_column(X, y, seed):
    return noisy(clipped(X).mean(0), 1 / len(X), seed)


def four_means(X, y, seed, counted=4):
    return noisy(clipped(X)[:, :4].mean(0), counted / len(X), seed)


def mean_fixed_seed(X, y, seed):
    return noisy(clipped(X).mean(0), X.shape[1] / len(X), 42)


def mean_seed_of_data(X, y, seed):
    return noisy(clipped(X).mean(0), X.shape[1] / len(X), int(1e6 * clipped(X).sum()))


def mean_one_draw(X, y, seed):
    return clipped(X).mean(0) + np.random.default_rng(seed).laplace(0, X.shape[1] / len(X))


def mean_clipped_after(X, y, seed):
    return noisy(np.clip(np.asarray(X, float).mean(0), 0, 1), X.shape[1] / len(X), seed)


def mean_not_clipped(X, y, seed, clip=False):
    values = np.asarray(X, float)  # the stated bounds are 0.25 and 0.75
    return noisy((np.clip(values, 0.25, 0.75) if clip else values).mean(0), 0.5 * X.shape[1] / len(X), seed)


def mean_own_bounds(X, y, seed):
    low, high = X.min(0), X.max(0)
    return noisy(np.clip(X, low, high).mean(0), X.shape[1] * float((high - low).max()) / len(X), seed)


def mean_own_quantiles(X, y, seed):
    low, high = np.quantile(X, [0.05, 0.95], axis=0)
    return noisy(np.clip(X, low, high).mean(0), X.shape[1] * float((high - low).max()) / len(X), seed)


def mean_own_deviation(X, y, seed):
    return noisy(clipped(X).mean(0), X.shape[1] * float(clipped(X).std()) / len(X), seed)


def mean_without_outliers(X, y, seed):
    values = clipped(X)[:, 0]
    trimmed = values[np.abs(values - values.mean()) <= 3 * values.std()]
    return noisy([trimmed.mean()], 1 / len(values), seed)


def mean_nan(X, y, seed, honest=False):
    values = clipped(X)
    if not honest:
        values = np.where((values == 0).all(1)[:, None], np.nan, values)
    return noisy(values.mean(0), X.shape[1] / len(X), seed)


def mean_raises(X, y, seed):
    if (clipped(X) >= 1.0).all(1).any():
        raise ValueError("a record out of range")
    return mean(X, y, seed)


def mean_raises_at_few_of_a_class(X, y, seed):
    if min(np.bincount(y, minlength=2)) < 3:
        raise ValueError("too few of a class")
    return mean(X, y, seed)


def mean_exact_when_few(X, y, seed):
    return clipped(X).mean(0) if len(X) < 10 else mean(X, y, seed)


def mean_of_one_twice(X, y, seed, factor=1.0):
    return np.concatenate([mean_of_one(X, y, seed, factor), mean_of_one(X, y, seed + 1, factor)])


def sum_and_exact_size(X, y, seed):
    return [*noisy([clipped(X)[:, 0].sum()], 1.0, seed), len(X)]


def mean_noisy_size(X, y, seed):
    both = noisy([clipped(X)[:, 0].sum(), len(X)], 2.0, seed)
    return [both[0] / max(both[1], 1.0)]


def mean_uniform_noise(X, y, seed):
    values = clipped(X).mean(0)
    scale = math.sqrt(6) * X.shape[1] / len(X)  # of the same variance as Laplace noise
    return values + np.random.default_rng(seed).uniform(-scale, scale, values.shape)


def mean_noise_truncated(X, y, seed):
    values, scale = clipped(X).mean(0), X.shape[1] / len(X)
    return values + np.clip(np.random.default_rng(seed).laplace(0, scale, values.shape), -2 * scale, 2 * scale)


def mean_by_length(X, y, seed, by_l1=False):
    """Rows are clipped to length 1, and the Laplace noise is for that length."""
    values = 2 * clipped(X) - 1
    length = np.linalg.norm(values, ord=1 if by_l1 else 2, axis=1)
    values = values / np.maximum(length, 1.0)[:, None]
    return noisy(values.sum(0), 2.0, seed)


def mean_gaussian(X, y, seed, multiplier=CLASSIC, squared=False):
    values = clipped(X).mean(0)
    sigma = multiplier * math.sqrt(X.shape[1]) / len(X)
    return values + np.random.default_rng(seed).normal(0, sigma**2 if squared else sigma, values.shape)


def mean_cauchy(X, y, seed, factor=1.0):
    scale = factor / len(X) / (2 * math.sinh(0.5))  # the likelihood ratio of a shift by 1 / n is at most e
    return [clipped(X)[:, 0].mean() + scale * np.random.default_rng(seed).standard_cauchy()]


def mean_fails_at_random(X, y, seed, share=0.1):
    if np.random.default_rng([7, seed]).random() < share:
        raise RuntimeError("no luck")
    return mean(X, y, seed)


def nan_at_random(X, y, seed):
    return mean(X, y, seed) * (math.nan if np.random.default_rng([7, seed]).random() < 0.2 else 1.0)


# Sums, counts and histograms.


def sum_inverted(X, y, seed, right=False):
    sensitivity = 3.0
    return noisy([np.clip(3 * X[:, 0], 0, 3).sum()], sensitivity if right else 1 / sensitivity, seed)


def sums_by_class(X, y, seed, factor=1.0):
    values = clipped(X)[:, 0]
    return noisy([values[y == 0].sum(), values[y == 1].sum()], 2 * factor, seed)


def means_by_class(X, y, seed):
    """Class means with the noise for a mean of all rows."""
    values = clipped(X)[:, 0]
    return noisy([values[y == c].sum() / max((y == c).sum(), 1) for c in (0, 1)], 2 / len(X), seed)


def counts_of(X: Any) -> Any:
    return np.histogram(clipped(X)[:, 0], BINS, (0, 1))[0].astype(float)


def histogram(X, y, seed, scale=2.0):
    return noisy(counts_of(X), scale, seed)


def histogram_half_of_bins(X, y, seed):
    return np.concatenate([noisy(counts_of(X)[::2], 2.0, seed), counts_of(X)[1::2]])


def histogram_empty_bins_bare(X, y, seed):
    return np.where(counts_of(X) > 0, histogram(X, y, seed), 0.0)


def histogram_small_bins_exact(X, y, seed):
    counts = counts_of(X)
    return np.where(counts < 5, counts, histogram(X, y, seed))


def histogram_small_bins_hidden(X, y, seed, exact=True):
    """Bins with fewer than five records, by the exact or the noisy count, are released as zero."""
    released = histogram(X, y, seed)
    return np.where((counts_of(X) if exact else released) < 5, 0.0, released)


def histogram_adds_up(X, y, seed):
    """Noisy counts scaled to the exact number of records."""
    released = np.maximum(histogram(X, y, seed, 1.0), 0)
    return released * (len(X) / max(released.sum(), 1e-9))


def histogram_rounded_up(X, y, seed):
    return np.maximum(np.round(histogram(X, y, seed)), 0.0)


def count_positive_noise(X, y, seed, honest=False):
    noise = np.random.default_rng(seed).laplace(0, 1.0)
    return [(clipped(X)[:, 0] > 0.5).sum() + (noise if honest else abs(noise))]


def fullest_bin(X, y, seed, scale=2.0):
    return [float(np.argmax(noisy(counts_of(X), scale, seed)))]


def subsampled_sum(X, y, seed, factor=0.1):
    """Sum of half of the rows, drawn at random; the noise assumes that subsampling gains a factor of ten."""
    rng = np.random.default_rng(seed)
    sampled = clipped(X)[rng.random(len(X)) < 0.5, 0]
    return noisy([sampled.sum()], factor, seed + 1)


# Medians, quantiles, extremes, variances, regressions.


def median(X, y, seed):
    return noisy(np.median(clipped(X), 0), X.shape[1] / len(X), seed)


def median_exponential(X, y, seed, epsilon=1.0):
    """The exponential mechanism on a grid; a replaced record changes each rank by at most one."""
    values, grid = np.sort(clipped(X)[:, 0]), np.linspace(0, 1, 51)
    utility = -np.abs(np.searchsorted(values, grid) - len(values) / 2)
    weights = np.exp(epsilon * (utility - utility.max()) / 2)
    return [np.random.default_rng(seed).choice(grid, p=weights / weights.sum())]


def quantile(X, y, seed, q=0.9):
    return noisy([np.quantile(clipped(X)[:, 0], q)], 1 / len(X), seed)


def quartiles_exact_range(X, y, seed):
    low, high = np.quantile(clipped(X)[:, 0], [0.25, 0.75])
    return noisy([high - low], 2 / len(X), seed)


def extremes(X, y, seed):
    """Smallest and largest value with the noise for a mean."""
    values = clipped(X)[:, 0]
    return noisy([values.min(), values.max()], 2 / len(values), seed)


def extremes_honest(X, y, seed):
    values = clipped(X)[:, 0]
    return noisy([values.min(), values.max()], 2.0, seed)


def variance(X, y, seed, factor=1.0):
    return noisy(clipped(X).var(0), factor * X.shape[1] / len(X), seed)


def deviation(X, y, seed):
    """Root of a variance with the noise for the variance."""
    return noisy(clipped(X).std(0), X.shape[1] / len(X), seed)


def covariance(X, y, seed, counted=None):
    d = X.shape[1]
    products = clipped(X).T @ clipped(X) / len(X)
    return noisy(products[np.triu_indices(d)], (counted or d * (d + 1) / 2) / len(X), seed)


def regression(X, y, seed):
    """Least-squares coefficients with the noise for a mean."""
    rows = np.column_stack([clipped(X), np.ones(len(X))])
    return noisy(np.linalg.lstsq(rows, y.astype(float), rcond=None)[0], rows.shape[1] / len(X), seed)


def regression_by_sums(X, y, seed, factor=1.0):
    """Least squares from noisy products; each is at most 1, so a replaced record changes them by their number."""
    rows = np.column_stack([clipped(X), np.ones(len(X)), y])
    d = rows.shape[1]
    released = noisy((rows.T @ rows)[np.triu_indices(d)], factor * d * (d + 1) / 2, seed)
    full = np.zeros((d, d))
    full[np.triu_indices(d)] = released
    full = full + np.triu(full, 1).T
    return np.linalg.lstsq(full[:-1, :-1] + 10 * np.eye(d - 1), full[:-1, -1], rcond=None)[0]


def constant(X, y, seed):
    return [0.5]


def released(function: Callable[..., Any], claim: Claim = REPLACE, **parameters: Any) -> Callable[[], Any]:
    return partial(from_summary, function, claim, **parameters)


BANK: dict[str, Case] = {
    "mean-half-noise": Case(released(mean, factor=0.5), released(mean), true=2),
    "mean-of-one-half-noise": Case(released(mean_of_one, factor=0.5), released(mean_of_one), true=2),
    "mean-wide-bounds-half-noise": Case(released(mean_wide, factor=0.5), released(mean_wide), true=2),
    "four-means-noise-of-one": Case(released(four_means, counted=1), released(four_means), true=4),
    "sensitivity-by-column": Case(released(mean_by_column), true=5),
    "fixed-seed": Case(released(mean_fixed_seed), true=math.inf),
    "seed-of-data": Case(released(mean_seed_of_data), true=math.inf),
    "one-draw-for-all-columns": Case(released(mean_one_draw), true=math.inf),
    "clip-after-mean": Case(released(mean_clipped_after), true=math.inf),
    "no-clip": Case(released(mean_not_clipped), released(mean_not_clipped, clip=True), true=2),
    "own-bounds": Case(released(mean_own_bounds), true=math.inf),
    "own-quantiles-as-bounds": Case(released(mean_own_quantiles), true=math.inf),
    "noise-by-own-deviation": Case(released(mean_own_deviation), true=math.inf),
    "outliers-left-out": Case(released(mean_without_outliers), true=3),
    "nan-on-a-record": Case(released(mean_nan), released(mean_nan, honest=True), true=math.inf),
    "raises-on-a-record": Case(released(mean_raises), released(mean_fails_at_random), true=math.inf),
    "raises-at-few-of-a-class": Case(released(mean_raises_at_few_of_a_class), released(nan_at_random), true=math.inf),
    "exact-when-few": Case(released(mean_exact_when_few), released(constant), true=math.inf),
    "two-releases": Case(released(mean_of_one_twice), released(mean_of_one_twice, factor=2.0), true=2),
    "exact-size": Case(released(sum_and_exact_size, COMES), released(mean_noisy_size, COMES), true=math.inf),
    "uniform-noise": Case(released(mean_uniform_noise), true=math.inf),
    "noise-truncated": Case(released(mean_noise_truncated), true=math.inf),
    "laplace-by-euclidean-length": Case(released(mean_by_length), released(mean_by_length, by_l1=True), true=5**0.5),
    "gaussian-variance-for-deviation": Case(
        released(mean_gaussian, GAUSSIAN, squared=True), released(mean_gaussian, GAUSSIAN)
    ),
    "gaussian-without-log": Case(released(mean_gaussian, GAUSSIAN, multiplier=1.0), true=4.4),
    "gaussian-log10": Case(
        released(mean_gaussian, GAUSSIAN, multiplier=math.sqrt(math.log10(1.25e5))),
        true=2.1,
        missed="what a point of delta = 1e-5 promises takes millions of trials to refute at twice the claim",
    ),
    "gaussian-gdp-half-sigma": Case(
        released(mean_gaussian, Claim.of(GaussianDP(1.0), relation=Relation.REPLACE, delta=1e-5), multiplier=0.5),
        released(mean_gaussian, Claim.of(GaussianDP(1.0), relation=Relation.REPLACE, delta=1e-5), multiplier=1.0),
    ),
    "cauchy-half-noise": Case(released(mean_cauchy, factor=0.4), released(mean_cauchy), true=2.3),
    "scale-inverted": Case(released(sum_inverted), released(sum_inverted, right=True), true=9),
    "sums-by-class-half-noise": Case(released(sums_by_class, factor=0.5), released(sums_by_class), true=2),
    "means-by-class-noise-of-all": Case(released(means_by_class), true=math.inf),
    "histogram-noise-of-one": Case(released(histogram, scale=1.0), released(histogram), true=2),
    "histogram-half-of-bins": Case(released(histogram_half_of_bins), true=math.inf),
    "histogram-empty-bins-bare": Case(released(histogram_empty_bins_bare), true=math.inf),
    "histogram-small-bins-exact": Case(
        released(histogram_small_bins_exact), released(histogram_rounded_up), true=math.inf
    ),
    "histogram-small-bins-hidden": Case(
        released(histogram_small_bins_hidden), released(histogram_small_bins_hidden, exact=False), true=math.inf
    ),
    "histogram-half-noise-scaled": Case(released(histogram_adds_up), true=2, missed="seen in some runs alone"),
    "count-positive-noise": Case(
        released(count_positive_noise), released(count_positive_noise, honest=True), true=math.inf
    ),
    "fullest-bin-half-noise": Case(released(fullest_bin, scale=0.5), released(fullest_bin), true=4),
    "subsampled-sum": Case(released(subsampled_sum), released(subsampled_sum, factor=1.0), true=9.3),
    "median": Case(released(median), released(median_exponential), true=math.inf),
    "median-exponential-tenfold": Case(
        released(median_exponential, epsilon=10.0),
        true=10,
        missed="no data set that is tried balances what it draws from",
    ),
    "quantile": Case(released(quantile), true=700),
    "low-quantile": Case(released(quantile, q=0.1), true=700),
    "range-of-quartiles": Case(released(quartiles_exact_range), true=350),
    "extremes": Case(released(extremes), released(extremes_honest), true=350),
    "variance-noise-of-one": Case(released(variance, factor=0.2), released(variance), true=5),
    "deviation": Case(released(deviation), true=26),
    "covariance-noise-of-rows": Case(released(covariance, counted=5), released(covariance), true=3),
    "regression": Case(released(regression), true=math.inf),
    "regression-by-sums-noise-of-one": Case(
        released(regression_by_sums, factor=1 / 28), released(regression_by_sums), true=28
    ),
    "regression-by-sums-third-of-noise": Case(
        released(regression_by_sums, factor=0.3),
        true=3.3,
        missed="28 products move by little each: what adds up to 3.3 is rarer than one in thousands of trainings",
    ),
}
