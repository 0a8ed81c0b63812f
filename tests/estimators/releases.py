"""Posteriors of labels after a release, as `bag_log_ratio` moves the log-odds."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit, logit

from dpaudit.estimators.label_reconstruction.advantage import bag_log_ratio

Floats = NDArray[np.float64]


def rr_posterior(prior: ArrayLike, released: ArrayLike, *, epsilon: float) -> Floats:
    """Return P[label = 1 | released label] under randomised response."""
    signs = np.where(np.asarray(released) == 1, 1.0, -1.0)
    return np.asarray(expit(logit(np.asarray(prior, np.float64)) + signs * epsilon))


def llp_posterior(prior: ArrayLike, positives: ArrayLike) -> Floats:
    """Return P[label = 1 | the bag's number of positive labels], shape as `prior`."""
    eta = np.atleast_2d(np.asarray(prior, np.float64))
    with np.errstate(divide="ignore"):
        law = np.log((np.arange(eta.shape[1] + 1) == np.atleast_1d(positives)[:, None]).astype(np.float64))
    return _moved(eta, law).reshape(np.shape(prior))


def noisy_posterior(prior: ArrayLike, count: ArrayLike, *, epsilon: float) -> Floats:
    """Return P[label = 1 | the bag's count with Laplace or clipped geometric noise], shape as `prior`.

    Given the released count o, clipped or not, the likelihood of a sum s is proportional to e^(-epsilon |o - s|).
    """
    eta = np.atleast_2d(np.asarray(prior, np.float64))
    law = -epsilon * np.abs(np.atleast_1d(count)[:, None] - np.arange(eta.shape[1] + 1))
    return _moved(eta, law).reshape(np.shape(prior))


def _moved(eta: Floats, law: Floats) -> Floats:
    return np.asarray(expit(logit(eta) + bag_log_ratio(eta, law)))
