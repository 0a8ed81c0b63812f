"""Posteriors and advantages for any set of labels: k-ary randomised response, and exact counts of every label in a bag.

Belief in label a is eta_a before a release z and rho_a after it, rho_a proportional to eta_a L_a, L_a = P[z | label a]
with the other labels of the bag drawn from their priors. The additive advantage (Definition 3.1 for the two attackers
that guess best) is E max rho - max eta. The multiplicative one (Definition 3.6) is the farthest that the log-odds of
two possible labels moved, max log L - min log L. For two labels these are the quantities of `advantage`.

Under epsilon-label privacy L_a <= e^epsilon L_b for every two labels, since the mean over the others' labels keeps it:
- The multiplicative advantage is at most epsilon at every release. K-ary randomised response reaches it whenever it
  answers with a possible label.
- With b the likeliest label after the release, max rho - max eta <= rho_b - eta_b, and rho_b is at most
  eta_b e^epsilon / (eta_b e^epsilon + 1 - eta_b). The difference is largest at eta_b = 1 / (1 + e^(epsilon/2)), where
  it is tanh(epsilon/4). So no release gains more, and the additive advantage, a mean of gains, is no larger, whatever
  the number of labels. Randomised response among 1 + e^(epsilon/2) equally likely labels reaches it.
Exact counts of a bag have no such bound: a bag whose labels are all the same gives them away.

Source: Busa-Fekete et al. (2024), Definitions 3.1 and 3.6, which are stated for labels 1 .. c; the bound of the gain is
ours.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from dpaudit.errors import require
from dpaudit.estimators.arguments import Floats, as_counts, unboxed

SMALLEST = math.log(1e-250)  # Of the likelihood of a bag's labels: below it what matters might underflow
MAX_STEPS = 100_000_000  # of the additive advantage of a bag: a tenth of a second
MAX_STATES = 20_000_000  # vectors of counts that are gone through for one bag: tenths of a second, and 160 MB


def rr_class_posterior(prior: ArrayLike, released: ArrayLike, *, epsilon: float) -> Floats:
    """P[label = a | released label] under k-ary randomised response, which keeps a label with odds e^epsilon.

    Priors of shape (n, K), rows of sum 1, and released labels in 0 .. K - 1, shape (n,); epsilon in [0, inf).
    """
    eta = _rows(prior)
    labels = as_counts("released", np.asarray(released))
    fits = labels.shape == eta.shape[:1] and bool((labels < eta.shape[1]).all())
    require(fits, f"there must be one released label in 0..{eta.shape[1] - 1} for each example", shape=labels.shape)
    require(0 <= epsilon < math.inf, "epsilon must be in [0, inf)", epsilon=epsilon)
    weight = eta * np.where(np.arange(eta.shape[1]) == labels[:, None], 1.0, math.exp(-epsilon))
    return np.asarray(weight / weight.sum(axis=1, keepdims=True))


def llp_class_posterior(prior: ArrayLike, counts: ArrayLike) -> Floats:
    """P[label = a | how often each label is in the bag] for every example of one bag, shape (k, K).

    Args:
        prior: P[label = a] of each example, rows of sum 1, shape (k, K).
        counts: How often each label is in the bag, whole, of sum k, shape (K,).
    Raises: InputError as `llp_class_log_likelihood` and `class_posterior` do.
    """
    return class_posterior(prior, llp_class_log_likelihood(prior, counts))


def llp_class_log_likelihood(prior: ArrayLike, counts: ArrayLike) -> Floats:
    """log P[counts of the labels in a bag | label = a] for every example, up to a constant in each row, shape (k, K).

    Arguments are those of `llp_class_posterior`; -inf where the counts are impossible.

    Raises: InputError for a bag with too many ways to reach its counts: k + 1 times the product of the counts + 1 is at
        most 20,000,000.
    """
    # Compiled code is imported where it is called: numba takes half a second to load.
    from dpaudit.estimators.label_reconstruction._class_counts import likelihoods, log_likelihoods

    eta, released = _rows(prior), as_counts("counts", np.asarray(counts))
    fits = released.shape == eta.shape[1:] and int(released.sum()) == len(eta)
    require(fits, f"there must be one count for each label, of sum {len(eta)}", counts=released.tolist())
    states = (len(eta) + 1) * math.prod((released + 1).tolist())
    must = f"k + 1 times the product of the counts + 1 must be at most {MAX_STATES:,}"
    require(states <= MAX_STATES, must, product=states, do="use smaller bags, or merge labels")
    least = np.log(np.where(eta > 0, eta, 1.0).min(axis=1)).sum()  # no labels of the bag are less likely
    with np.errstate(divide="ignore"):
        return log_likelihoods(eta, released) if least < SMALLEST else np.asarray(np.log(likelihoods(eta, released)))


def class_posterior(prior: ArrayLike, log_likelihood: ArrayLike) -> Floats:
    """P[label = a | release] of priors and log P[release | label = a], both of shape (n, K).

    Log-likelihoods are up to a constant in each row, -inf where the release is impossible.

    Raises: InputError for a release that is impossible under the priors.
    """
    eta, moved = _possible(prior, log_likelihood)
    weight = eta * np.exp(moved - moved.max(axis=1, keepdims=True))
    return np.asarray(weight / weight.sum(axis=1, keepdims=True))


def class_shift(prior: ArrayLike, log_likelihood: ArrayLike) -> Floats:
    """The multiplicative advantage, exact where posteriors round to 0 or 1; shape (n,).

    It is the largest less the smallest log-likelihood over the labels of priors above 0; nats, may be infinite.
    Arguments and errors are those of `class_posterior`.
    """
    eta, moved = _possible(prior, log_likelihood)
    return np.asarray(moved.max(axis=1) - np.where(eta > 0, moved, np.inf).min(axis=1))


def _possible(prior: ArrayLike, log_likelihood: ArrayLike) -> tuple[Floats, Floats]:
    """The priors, and the log-likelihoods of labels with priors above 0; -inf for the others."""
    eta, law = _rows(prior), np.asarray(log_likelihood, np.float64)
    require(law.shape == eta.shape, "log-likelihoods must have the shape of the priors", shape=law.shape)
    open_ = np.where(eta > 0, law, -np.inf)
    can_be = bool(np.isfinite(open_.max(axis=1)).all())
    require(can_be, "what was released must be possible under the priors", do="keep priors away from 0 and 1")
    return eta, open_


def class_multiplicative_advantage(prior: ArrayLike, posterior: ArrayLike) -> float | Floats:
    """The largest shift of log-odds between any two labels, max over a, b of |I_ab|; 0 between labels of prior 0.

    Rows of probabilities, shape (n, K), to nats, shape (n,), which may be infinite.
    """
    before, after = _rows(prior), _rows(posterior)
    require(before.shape == after.shape, "prior and posterior must have one shape", prior=before.shape)
    open_ = before > 0
    with np.errstate(divide="ignore"):
        moved = np.log(after, where=open_, out=np.zeros_like(after)) - np.log(np.where(open_, before, 1.0))
    highest = np.where(open_, moved, -np.inf).max(axis=1)
    return unboxed(np.asarray(highest - np.where(open_, moved, np.inf).min(axis=1)))


def class_release_gain(prior: ArrayLike, posterior: ArrayLike) -> Floats:
    """How much likelier the best guess is right at one release than before it; rows of shape (n, K) to (n,).

    Below 0 where the release takes confidence away; at most `class_gain_ceiling` under epsilon-label privacy.
    """
    before, after = _rows(prior), _rows(posterior)
    require(before.shape == after.shape, "prior and posterior must have one shape", prior=before.shape)
    return np.asarray(after.max(axis=1) - before.max(axis=1))


def class_gain_ceiling(epsilon: float) -> float:
    """tanh(epsilon/4): the most that the best of K guesses gains under epsilon-label privacy; epsilon >= 0, or inf."""
    require(epsilon >= 0, "epsilon must be >= 0", epsilon=epsilon)
    return math.tanh(epsilon / 4)


def right_guesses(belief: ArrayLike, labels: ArrayLike) -> Floats:
    """Whether the best guess is right; the share of one guess among those equally good. Shapes (n, K), (n,) to (n,)."""
    rows = _rows(belief)
    best = (rows == rows.max(axis=1, keepdims=True)).astype(np.float64)
    return np.asarray(best[np.arange(len(rows)), np.asarray(labels, np.int64)] / best.sum(axis=1))


def rr_class_additive_advantage(prior: ArrayLike, *, epsilon: float) -> float | Floats:
    """How much likelier the best guess is right after k-ary randomised response, on average over releases.

    Of priors of shape (n, K), epsilon in [0, inf]: sum over z of max_a eta_a P[z | a], less max_a eta_a; shape (n,).
    """
    eta = _rows(prior)
    require(epsilon >= 0, "epsilon must be >= 0", epsilon=epsilon)
    less = math.exp(-epsilon)
    top = np.partition(eta, -2, axis=1)
    # Given z the best guess is z, unless another label is likelier even so.
    rival = np.where(eta == top[:, -1:], top[:, -2:-1], top[:, -1:])
    right = np.maximum(eta, less * rival).sum(axis=1) / (1 + (eta.shape[1] - 1) * less)
    return unboxed(np.maximum(0.0, right - top[:, -1]))


def llp_class_additive_advantage(prior: ArrayLike) -> Floats | None:
    """How much likelier the best guess is right once the counts of a bag's labels are known, on average over them.

    Shape (k, K) to (k,), in [0, 1 - max_a eta_a]. None where k^2 K (k + 1)^(K - 1) is above 100,000,000: too many steps
    for one bag.
    """
    from dpaudit.estimators.label_reconstruction._class_counts import gains

    eta = _rows(prior)
    k, classes = eta.shape
    return None if k**2 * classes * (k + 1) ** (classes - 1) > MAX_STEPS else np.asarray(gains(eta))


def _rows(prior: ArrayLike) -> Floats:
    eta = np.asarray(prior, np.float64)
    require(eta.ndim == 2 and eta.shape[1] >= 2 and len(eta) > 0, "rows must have the shape (n, K)", shape=eta.shape)
    sums = bool((eta >= 0).all()) and bool(np.allclose(eta.sum(axis=1), 1.0, rtol=0, atol=1e-9))
    require(sums, "each row must hold probabilities of sum 1")
    return eta
