"""How much better an attacker guesses labels once a label-private release is out (Busa-Fekete et al. 2024).

The attacker knows each example's prior eta = P[label = 1 | features], labels are independent given the features, and
the release is what randomized response (RR) or a bag's sum of labels (LLP; plus Laplace or clipped geometric noise)
shows. All results are exact given the priors: nothing is sampled, so there is no confidence to state. They say what
*this* attacker gains on average (additive) or at one release (multiplicative), never what a mechanism promises.

Priors of bags have the shape (bags, k), or (k,) for one bag; what is said of each example has the same shape. Counts
are of a bag's positive labels, not proportions: changing one label moves them by 1, so noise of scale 1/epsilon makes
them epsilon-label-private; epsilon is in (0, inf).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import expit, logit

from dpaudit.errors import require
from dpaudit.estimators.arguments import Floats, as_counts, common_shape, unboxed

_PLAIN, _LAPLACE, _GEOMETRIC = range(3)


def rr_posterior(prior: ArrayLike, released: ArrayLike, *, epsilon: float) -> float | Floats:
    """P[label = 1 | released label] under binary randomized response, which flips with probability 1/(1 + e^epsilon).

    Priors in [0, 1] and released labels, 0 or 1, broadcast; epsilon is in [0, inf).

    Source: Busa-Fekete et al. (2024), section 4, with "+" for the "-" in its denominators.
    """
    eta, labels = _prior(prior), np.asarray(released)
    common_shape(eta, labels, names=("prior", "released"))
    require(bool(np.all((labels == 0) | (labels == 1))), "released labels must be 0 or 1", released=released)
    _check_epsilon(epsilon, zero=True)
    less = math.exp(-epsilon)
    for_one = eta * np.where(labels == 1, 1.0, less)
    for_zero = (1 - eta) * np.where(labels == 1, less, 1.0)
    certain = (eta == 0) | (eta == 1)
    return unboxed(np.where(certain, eta, for_one / np.where(certain, 1.0, for_one + for_zero)))


def llp_posterior(prior: ArrayLike, positives: ArrayLike) -> Floats:
    """P[label = 1 | the bag's number of positive labels] for every example.

    `positives` are whole numbers in [0, k], shape (bags,), or a scalar for one bag.

    Raises: InputError for a bag that cannot have that many positive labels under its priors.
    Source: Busa-Fekete et al. (2024), section 4; the sum of the others is Poisson-binomial.
    """
    eta, counts = _bags(prior, positives, "positives")
    _check_whole(counts, eta.shape[1], "positives")
    with np.errstate(divide="ignore"):
        log_channel = np.log((np.arange(eta.shape[1] + 1) == counts[:, None]).astype(np.float64))
    return _posteriors(eta, log_channel)[0].reshape(np.shape(prior))


def llp_laplace_posterior(prior: ArrayLike, count: ArrayLike, *, epsilon: float) -> Floats:
    """P[label = 1 | the bag's noisy count] where the count carries Laplace noise of scale 1/epsilon.

    `count` (k times the noisy proportion) is any finite number, shape (bags,) or a scalar.

    Source: Busa-Fekete et al. (2024), section 4.
    """
    eta, counts = _bags(prior, count, "count")
    require(bool(np.all(np.isfinite(counts))), "count must be finite", count=count)
    return _noisy_posterior(eta, counts, epsilon).reshape(np.shape(prior))


def llp_geometric_posterior(prior: ArrayLike, count: ArrayLike, *, epsilon: float) -> Floats:
    """P[label = 1 | the bag's noisy count] where the count carries two-sided geometric noise, clipped to [0, k].

    The noise is t with probability proportional to e^(-epsilon |t|); `count` is whole, shape (bags,) or a scalar.

    Source: Busa-Fekete et al. (2024), section 4.
    """
    eta, counts = _bags(prior, count, "count")
    _check_whole(counts, eta.shape[1], "count")
    # Given the released count o, clipped or not, the likelihood of a sum s is proportional to e^(-epsilon |o - s|).
    return _noisy_posterior(eta, counts, epsilon).reshape(np.shape(prior))


def bag_log_ratio(prior: ArrayLike, log_likelihood: ArrayLike) -> Floats:
    """log P[release | label = 1] - log P[release | label = 0] under any law of the bag's number of positive labels.

    This is the multiplicative advantage, exact where posteriors round to 0 or 1, and infinite only where it truly is.

    Args:
        prior: P[label = 1], shape (bags, k).
        log_likelihood: log P[release | s positive labels], s = 0 .. k, up to a constant in each bag, -inf where it is
            impossible; shape (bags, k + 1).
    Returns: Nats, shape (bags, k); 0 where the prior is 0 or 1 already.
    Raises: InputError for a bag that cannot have released that under its priors.
    """
    eta, law = _bag_priors(prior), np.asarray(log_likelihood, np.float64)
    fits = law.shape == (len(eta), eta.shape[1] + 1)
    require(fits, "there must be k + 1 log-likelihoods for each bag of k", priors=eta.shape, shape=law.shape)
    top = law.max(axis=1, keepdims=True)
    require(bool(np.isfinite(top).all()), "a release must be possible for some number of positive labels")
    return np.where((eta == 0) | (eta == 1), 0.0, _posteriors(eta, law - top)[1])


def release_gain(prior: ArrayLike, posterior: ArrayLike) -> float | Floats:
    """How much likelier the best guess is right at one release than before it; its mean is the additive advantage.

    Probabilities that broadcast; in [-1/2, 1/2], below 0 where the release takes confidence away.
    """
    before, after = _prior(prior), _prior(posterior, "a posterior")
    common_shape(before, after, names=("prior", "posterior"))
    return unboxed(np.maximum(after, 1 - after) - np.maximum(before, 1 - before))


def llp_product_advantage(share: float, size: ArrayLike) -> float | Floats:
    """`llp_additive_advantage` of bags of these sizes whose labels are independent of the features, with p = `share`.

    It is min(p, 1 - p) - E min(S/k, 1 - S/k), S the number of positives; the shape of `size`.

    Source: Busa-Fekete et al. (2024), Theorem 3.2, with the "min" it lacks.
    """
    from scipy.stats import binom  # takes long to load

    p = float(_prior(share))
    sizes = as_counts("size", np.asarray(size, np.float64))
    require(bool(np.all(sizes >= 1)), "a bag must hold at least one example", size=size)
    missed = [
        float(binom.pmf(sums := np.arange(k + 1), k, p) @ np.minimum(sums / k, 1 - sums / k))
        for k in sizes.ravel().astype(int).tolist()
    ]
    return unboxed(np.maximum(0.0, min(p, 1 - p) - np.reshape(missed, np.shape(size))))


def rr_additive_advantage(prior: ArrayLike, *, epsilon: float) -> float | Floats:
    """How much likelier the best guess is right after randomized response; the shape of `prior`.

    Source: Busa-Fekete et al. (2024), Theorem 3.5, with the "min" it lacks: max(0, min(eta, 1 - eta) - flip).
    """
    eta = _prior(prior)
    _check_epsilon(epsilon, zero=True)
    return unboxed(np.maximum(0.0, np.minimum(eta, 1 - eta) - expit(-epsilon)))


def llp_additive_advantage(prior: ArrayLike) -> Floats:
    """How much likelier the best guess is right once the bag's number of positive labels is known.

    For each example, given the features of its whole bag, on average over the labels: E[max(post, 1 - post)] -
    max(eta, 1 - eta), in [0, min(eta, 1 - eta)].

    Source: Busa-Fekete et al. (2024), Definition 3.1 (individual), conditioned on the bag.
    """
    return _additive(prior, 0.0, _PLAIN)


def llp_laplace_additive_advantage(prior: ArrayLike, *, epsilon: float) -> Floats:
    """`llp_additive_advantage` where the count carries Laplace noise of scale 1/epsilon.

    The integral over the released value is done in closed form between the whole numbers, split where the best guess
    changes.
    """
    _check_epsilon(epsilon)
    return _additive(prior, epsilon, _LAPLACE)


def llp_geometric_additive_advantage(prior: ArrayLike, *, epsilon: float) -> Floats:
    """`llp_additive_advantage` where the count carries two-sided geometric noise, clipped to [0, k]."""
    _check_epsilon(epsilon)
    return _additive(prior, epsilon, _GEOMETRIC)


def multiplicative_advantage(prior: ArrayLike, posterior: ArrayLike) -> float | Floats:
    """log-odds(posterior) - log-odds(prior): how far one release moved the attacker's belief, in nats.

    At most epsilon in absolute value under epsilon-label privacy; infinite where the release gives the label away, 0
    where the prior is 0 or 1 already. Probabilities broadcast.

    Source: Busa-Fekete et al. (2024), Definition 3.6 (binary).
    """
    before, after = _prior(prior), _prior(posterior, "a posterior")
    common_shape(before, after, names=("prior", "posterior"))
    certain = (before == 0) | (before == 1)
    return unboxed(np.where(certain, 0.0, logit(after) - logit(np.where(certain, 0.5, before))))


def label_privacy_ceiling(epsilon: float) -> float:
    """The largest expected additive advantage any epsilon-label-private release can have, (e^eps - 1)/(e^eps + 1).

    Source: Wu et al. (2023), as quoted by Busa-Fekete et al. (2024), section 3.1.
    """
    _check_epsilon(epsilon, zero=True)
    return math.tanh(epsilon / 2)


def advantage_cdf(advantage: ArrayLike, at: ArrayLike) -> float | Floats:
    """Fraction of examples whose advantage is at most `at` >= 0 in absolute value; the shape of `at`."""
    ranked, points = _ranked(advantage), np.asarray(at, np.float64)
    require(bool(np.all(points >= 0)), "at must be thresholds >= 0", at=at)
    return unboxed(np.asarray(np.searchsorted(ranked, points, side="right") / ranked.size))


def advantage_quantile(advantage: ArrayLike, level: ArrayLike) -> float | Floats:
    """The smallest threshold that at least a fraction `level` of the examples stay within; the shape of `level`.

    Advantages may have any shape and be inf. Never between two examples, so an infinite advantage beyond the level does
    no harm (the paper reports 0.98).
    """
    ranked, levels = _ranked(advantage), np.asarray(level, np.float64)
    require(bool(np.all((levels >= 0) & (levels <= 1))), "level must be in [0, 1]", level=level)
    return unboxed(np.asarray(np.quantile(ranked, levels, method="inverted_cdf"), np.float64))


def _additive(prior: ArrayLike, epsilon: float, noise: int) -> Floats:
    # Compiled code is imported where it is called: numba takes half a second to load.
    from dpaudit.estimators.label_reconstruction._poisson_binomial import advantages

    return np.asarray(advantages(_bag_priors(prior), float(epsilon), noise)).reshape(np.shape(prior))


def _posteriors(eta: Floats, log_channel: Floats) -> tuple[Floats, Floats]:
    """Posteriors, and how far they moved the log-odds; both of shape (bags, k)."""
    from dpaudit.estimators.label_reconstruction._poisson_binomial import posteriors

    posterior, shift, impossible = posteriors(eta, log_channel)
    must = "what each bag released must be possible under its priors"
    require(not impossible, must, bags=impossible, do="keep priors away from 0 and 1")
    return posterior, shift


def _noisy_posterior(eta: Floats, counts: Floats, epsilon: float) -> Floats:
    _check_epsilon(epsilon)
    away = np.abs(counts[:, None] - np.arange(eta.shape[1] + 1))
    return _posteriors(eta, -epsilon * (away - away.min(axis=1, keepdims=True)))[0]


def _prior(prior: ArrayLike, name: str = "a prior") -> Floats:
    eta = np.asarray(prior, np.float64)
    require(eta.size > 0, f"{name} must not be empty", shape=eta.shape)
    require(bool(np.all((eta >= 0) & (eta <= 1))), f"{name} must be in [0, 1]", given=prior)
    return eta


def _bag_priors(prior: ArrayLike) -> Floats:
    eta = _prior(prior)
    require(eta.ndim in (1, 2) and eta.shape[-1] >= 1, "priors must have the shape (bags, k), k >= 1", shape=eta.shape)
    return np.ascontiguousarray(np.atleast_2d(eta))


def _bags(prior: ArrayLike, count: ArrayLike, name: str) -> tuple[Floats, Floats]:
    eta, counts = _bag_priors(prior), np.atleast_1d(np.asarray(count, np.float64))
    require(
        counts.shape == eta.shape[:1], f"{name} must have one value for each bag", bags=len(eta), shape=counts.shape
    )
    return eta, counts


def _check_whole(counts: Floats, k: int, name: str) -> None:
    require(bool(np.all(as_counts(name, counts) <= k)), f"{name} must be <= {k}, the size of a bag", given=counts)


def _check_epsilon(epsilon: float, *, zero: bool = False) -> None:
    at_least = epsilon >= 0 if zero else epsilon > 0
    require(at_least and math.isfinite(epsilon), f"epsilon must be in {'[' if zero else '('}0, inf)", epsilon=epsilon)


def _ranked(advantage: ArrayLike) -> Floats:
    values = np.sort(np.abs(np.asarray(advantage, np.float64)), axis=None)
    require(values.size >= 1, "at least one advantage is needed", advantages=values.size)
    require(not np.any(np.isnan(values)), "advantages must not be NaN", advantages=values)
    return values
