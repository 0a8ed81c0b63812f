"""Advantage of an attacker who guesses labels after a label-private release (Busa-Fekete et al. 2024).

The attacker knows each example's prior eta = P[label = 1 | features], and labels are independent given the features.
The release is the output of randomized response (RR), or a bag's sum of labels (LLP), optionally with Laplace or
clipped geometric noise. All results are exact given the priors: nothing is sampled, so there is no confidence to state.
They give the gain of *this* attacker on average (additive) or at one release (multiplicative), never a guarantee of the
mechanism.

Priors of bags have the shape (bags, k), or (k,) for one bag; results for each example have the same shape. Counts are
numbers of positive labels in a bag, not proportions. Changing one label changes a count by 1, so noise of scale
1/epsilon makes it epsilon-label-private; epsilon is in (0, inf).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import expit, logit

from dpaudit.errors import require
from dpaudit.estimators.arguments import Floats, common_shape, unboxed

_PLAIN, _LAPLACE, _GEOMETRIC = range(3)


def bag_log_ratio(prior: ArrayLike, log_likelihood: ArrayLike) -> Floats:
    """Return log P[release | label = 1] - log P[release | label = 0] for any law of the release given the bag's sum.

    This is the multiplicative advantage, exact even if posteriors round to 0 or 1, and infinite only if it truly is.

    Args:
        prior: P[label = 1], shape (bags, k).
        log_likelihood: log P[release | s positive labels] for s = 0 .. k, up to a constant in each bag, -inf if
            impossible; shape (bags, k + 1).
    Returns: Nats, shape (bags, k); 0 if the prior is 0 or 1.
    Raises: InputError for a bag whose release is impossible under its priors.
    Source: Busa-Fekete et al. (2024), section 4; the sum of the others is Poisson-binomial.
    Slow twin: `posterior` of tests/twins/advantage_twin.py.
    """
    eta, law = _bag_priors(prior), np.asarray(log_likelihood, np.float64)
    fits = law.shape == (len(eta), eta.shape[1] + 1)
    require(fits, "there must be k + 1 log-likelihoods for each bag of k", priors=eta.shape, shape=law.shape)
    top = law.max(axis=1, keepdims=True)
    require(bool(np.isfinite(top).all()), "a release must be possible for some number of positive labels")
    from dpaudit.estimators.label_reconstruction._poisson_binomial import log_ratios  # compiled, slow to import

    ratio, impossible = log_ratios(eta, law - top)
    must = "the release of each bag must be possible under its priors"
    require(not impossible, must, bags=impossible, do="keep priors away from 0 and 1")
    return np.where((eta == 0) | (eta == 1), 0.0, ratio)


def release_gain(prior: ArrayLike, posterior: ArrayLike) -> float | Floats:
    """Return by how much one release raises the probability that the best guess is right.

    The mean over releases is the additive advantage. Arguments are probabilities that broadcast. Results are in [-1/2,
    1/2], and negative if the release reduces confidence.
    """
    before, after = _prior(prior), _prior(posterior, "a posterior")
    common_shape(before, after, names=("prior", "posterior"))
    return unboxed(np.maximum(after, 1 - after) - np.maximum(before, 1 - before))


def rr_additive_advantage(prior: ArrayLike, *, epsilon: float) -> float | Floats:
    """Return the additive advantage of randomized response, max(0, min(eta, 1 - eta) - flip); shape of `prior`.

    Source: Busa-Fekete et al. (2024), Theorem 3.5, with the "min" that it lacks.
    Slow twin: `rr_additive` of tests/twins/advantage_twin.py.
    """
    eta = _prior(prior)
    _check_epsilon(epsilon, zero=True)
    return unboxed(np.maximum(0.0, np.minimum(eta, 1 - eta) - expit(-epsilon)))


def llp_additive_advantage(prior: ArrayLike) -> Floats:
    """Return the additive advantage of a release of the bag's number of positive labels.

    For each example, given the features of its whole bag, and averaged over the labels: E[max(post, 1 - post)] -
    max(eta, 1 - eta), in [0, min(eta, 1 - eta)].

    Source: Busa-Fekete et al. (2024), Definition 3.1 (individual), conditioned on the bag.
    Slow twin: `llp_additive` of tests/twins/advantage_twin.py.
    """
    return _additive(prior, 0.0, _PLAIN)


def llp_laplace_additive_advantage(prior: ArrayLike, *, epsilon: float) -> Floats:
    """Return `llp_additive_advantage` if the count carries Laplace noise of scale 1/epsilon.

    The integral over the released value is computed in closed form between integers, split at changes of the best
    guess.

    Slow twin: `llp_laplace_additive` of tests/twins/advantage_twin.py.
    """
    _check_epsilon(epsilon)
    return _additive(prior, epsilon, _LAPLACE)


def llp_geometric_additive_advantage(prior: ArrayLike, *, epsilon: float) -> Floats:
    """Return `llp_additive_advantage` if the count carries two-sided geometric noise, clipped to [0, k].

    Slow twin: `llp_geometric_additive` of tests/twins/advantage_twin.py.
    """
    _check_epsilon(epsilon)
    return _additive(prior, epsilon, _GEOMETRIC)


def multiplicative_advantage(prior: ArrayLike, posterior: ArrayLike) -> float | Floats:
    """Return log-odds(posterior) - log-odds(prior): the change of the attacker's belief by one release, in nats.

    Under epsilon-label privacy its absolute value is at most epsilon. It is infinite if the release reveals the label,
    and 0 if the prior is 0 or 1. Probabilities broadcast.

    Source: Busa-Fekete et al. (2024), Definition 3.6 (binary).
    Slow twin: `multiplicative` of tests/twins/advantage_twin.py.
    """
    before, after = _prior(prior), _prior(posterior, "a posterior")
    common_shape(before, after, names=("prior", "posterior"))
    certain = (before == 0) | (before == 1)
    return unboxed(np.where(certain, 0.0, logit(after) - logit(np.where(certain, 0.5, before))))


def label_privacy_ceiling(epsilon: float) -> float:
    """Return the largest expected additive advantage under epsilon-label privacy, (e^eps - 1)/(e^eps + 1).

    Source: Wu et al. (2023), as quoted by Busa-Fekete et al. (2024), section 3.1.
    """
    _check_epsilon(epsilon, zero=True)
    return math.tanh(epsilon / 2)


def advantage_cdf(advantage: ArrayLike, at: ArrayLike) -> float | Floats:
    """Return the fraction of examples with an absolute advantage of at most `at` >= 0; shape of `at`."""
    ranked, points = _ranked(advantage), np.asarray(at, np.float64)
    require(bool(np.all(points >= 0)), "at must be thresholds >= 0", at=at)
    return unboxed(np.asarray(np.searchsorted(ranked, points, side="right") / ranked.size))


def advantage_quantile(advantage: ArrayLike, level: ArrayLike) -> float | Floats:
    """Return the smallest threshold that at least a fraction `level` of the advantages stay within; shape of `level`.

    Advantages may have any shape and be inf. The threshold is never interpolated between two examples, so an infinite
    advantage beyond the level does no harm (the paper reports 0.98).
    """
    ranked, levels = _ranked(advantage), np.asarray(level, np.float64)
    require(bool(np.all((levels >= 0) & (levels <= 1))), "level must be in [0, 1]", level=level)
    return unboxed(np.asarray(np.quantile(ranked, levels, method="inverted_cdf"), np.float64))


def _additive(prior: ArrayLike, epsilon: float, noise: int) -> Floats:
    # Compiled code is imported when first called, because numba takes half a second to load.
    from dpaudit.estimators.label_reconstruction._poisson_binomial import advantages

    return np.asarray(advantages(_bag_priors(prior), float(epsilon), noise)).reshape(np.shape(prior))


def _prior(prior: ArrayLike, name: str = "a prior") -> Floats:
    eta = np.asarray(prior, np.float64)
    require(eta.size > 0, f"{name} must not be empty", shape=eta.shape)
    require(bool(np.all((eta >= 0) & (eta <= 1))), f"{name} must be in [0, 1]", given=prior)
    return eta


def _bag_priors(prior: ArrayLike) -> Floats:
    eta = _prior(prior)
    require(eta.ndim in (1, 2) and eta.shape[-1] >= 1, "priors must have the shape (bags, k), k >= 1", shape=eta.shape)
    return np.ascontiguousarray(np.atleast_2d(eta))


def _check_epsilon(epsilon: float, *, zero: bool = False) -> None:
    at_least = epsilon >= 0 if zero else epsilon > 0
    require(at_least and math.isfinite(epsilon), f"epsilon must be in {'[' if zero else '('}0, inf)", epsilon=epsilon)


def _ranked(advantage: ArrayLike) -> Floats:
    values = np.sort(np.abs(np.asarray(advantage, np.float64)), axis=None)
    require(values.size >= 1, "at least one advantage is needed", advantages=values.size)
    require(not np.any(np.isnan(values)), "advantages must not be NaN", advantages=values)
    return values
