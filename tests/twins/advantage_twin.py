"""Slow twin of label reconstruction (S4): every label vector of a bag enumerated, every output weighed by Bayes.

A bag's prior is a sequence of k probabilities; results are lists of k numbers. The larger bags of the last function use
the Poisson-binomial law by plain convolution.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise, product

from mpmath import mp, mpf

from tests.twins.answers import recorded
from tests.twins.binomial_twin import DIGITS, Number

Weight = Callable[[int], mpf]
"""The likelihood of the released value given the bag's number of positives."""


def label_vectors(prior: Sequence[float]) -> list[tuple[tuple[int, ...], mpf]]:
    """Return all 2^k label vectors with their prior probabilities."""
    vectors = []
    for labels in product((0, 1), repeat=len(prior)):
        chance = mpf(1)
        for eta, y in zip(prior, labels, strict=True):
            chance *= mpf(eta) if y else 1 - mpf(eta)
        vectors.append((labels, chance))
    return vectors


def posterior(prior: Sequence[float], weight: Weight) -> list[mpf]:
    """Pr[y_i = 1 | released], by Bayes over all label vectors."""
    with mp.workdps(DIGITS):
        weights = [weight(s) for s in range(len(prior) + 1)]
        vectors = [(labels, chance * weights[sum(labels)]) for labels, chance in label_vectors(prior)]
        evidence = mp.fsum(chance for _, chance in vectors)
        return [mp.fsum(c for labels, c in vectors if labels[i]) / evidence for i in range(len(prior))]


def exactly(positives: int) -> Weight:
    """LLP releases the count itself."""
    return lambda s: mpf(s == positives)


def laplace(count: Number, epsilon: Number) -> Weight:
    """Density of count + Laplace(1/epsilon)."""
    return lambda s: mpf(epsilon) / 2 * mp.exp(-mpf(epsilon) * abs(mpf(count) - s))


def geometric(count: int, size: int, epsilon: Number) -> Weight:
    """Two-sided geometric noise clipped to 0..size: the mass past an end, summed until it vanishes."""

    def weight(s: int) -> mpf:
        a = mp.exp(-mpf(epsilon))
        if 0 < count < size:
            return (1 - a) / (1 + a) * a ** abs(count - s)
        distance = s if count == 0 else size - s
        mass, term = mpf(0), (1 - a) / (1 + a) * a**distance
        while term > mass * mpf(10) ** -DIGITS:
            mass, term = mass + term, term * a
        return mass

    return weight


@recorded
def llp_geometric_posterior(prior: Sequence[float], count: int, epsilon: float) -> list[mpf]:
    """Pr[y_i = 1 | the clipped geometric count], for each label of the bag."""
    return posterior(prior, geometric(count, len(prior), epsilon))


def rr_posterior(prior: float, released: int, epsilon: float) -> mpf:
    """Posterior of one label after randomized response with flip probability 1/(1 + e^eps)."""
    with mp.workdps(DIGITS):
        flip = 1 / (1 + mp.exp(epsilon))
        if_one = mpf(prior) * (1 - flip if released else flip)
        zero = (1 - mpf(prior)) * (flip if released else 1 - flip)
        return if_one / (if_one + zero)


def rr_additive(prior: float, epsilon: float) -> mpf:
    """Pr[the informed guess is right] - max(eta, 1 - eta), over both released labels."""
    with mp.workdps(DIGITS):
        flip = 1 / (1 + mp.exp(epsilon))
        eta = mpf(prior)
        informed = mp.fsum(max(eta * (1 - flip if z else flip), (1 - eta) * (flip if z else 1 - flip)) for z in (0, 1))
        return informed - max(eta, 1 - eta)


def _joint_counts(prior: Sequence[float], i: int) -> tuple[list[mpf], list[mpf]]:
    """Pr[y_i = 1, sum = s] and Pr[y_i = 0, sum = s] for s in 0..k."""
    ones, zeros = ([mpf(0)] * (len(prior) + 1) for _ in range(2))
    for labels, chance in label_vectors(prior):
        (ones if labels[i] else zeros)[sum(labels)] += chance
    return ones, zeros


def _additive(prior: Sequence[float], likelihoods: Sequence[Weight]) -> list[mpf]:
    """sum_z max(Pr[y_i = 1, z], Pr[y_i = 0, z]) - max(eta_i, 1 - eta_i) for finitely many outputs z."""
    with mp.workdps(DIGITS):
        weights = [[weight(s) for s in range(len(prior) + 1)] for weight in likelihoods]
        posteriors = []
        for i, eta in enumerate(prior):
            ones, zeros = _joint_counts(prior, i)
            informed = mpf(0)
            for at in weights:
                informed += max(
                    mp.fsum(p * w for p, w in zip(ones, at, strict=True)),
                    mp.fsum(p * w for p, w in zip(zeros, at, strict=True)),
                )
            posteriors.append(informed - max(mpf(eta), 1 - mpf(eta)))
        return posteriors


@recorded
def llp_additive(prior: Sequence[float]) -> list[mpf]:
    """Individual additive advantage of the exact count, given the bag."""
    return _additive(prior, [exactly(z) for z in range(len(prior) + 1)])


@recorded
def llp_geometric_additive(prior: Sequence[float], epsilon: float) -> list[mpf]:
    """Individual additive advantage of the clipped geometric count, given the bag."""
    return _additive(prior, [geometric(z, len(prior), epsilon) for z in range(len(prior) + 1)])


@recorded
def llp_laplace_additive(prior: Sequence[float], epsilon: float) -> list[mpf]:
    """Individual additive advantage of the Laplace count: an integral split at integers and where the guess changes."""
    with mp.workdps(25):
        size, posteriors = len(prior), []
        tail = mpf(60) / mpf(epsilon)
        for i, eta in enumerate(prior):
            ones, zeros = _joint_counts(prior, i)

            def density(z: mpf, joint: list[mpf]) -> mpf:
                return mp.fsum(p * laplace(z, epsilon)(s) for s, p in enumerate(joint) if p)

            def lead(z: mpf, ones: list[mpf] = ones, zeros: list[mpf] = zeros) -> mpf:
                return density(z, ones) - density(z, zeros)

            corners = [mpf(s) for s in range(size + 1)]
            # Between integers the lead is A e^(eps z) + B e^(-eps z): one change of sign at most.
            changes = [_bisect(lead, a, b) for a, b in pairwise(corners) if lead(a) * lead(b) < 0]
            points = sorted([-tail, *corners, size + tail, *changes])

            def best(z: mpf, ones: list[mpf] = ones, zeros: list[mpf] = zeros) -> mpf:
                return max(density(z, ones), density(z, zeros))

            posteriors.append(mp.quad(best, points) - max(mpf(eta), 1 - mpf(eta)))
        return posteriors


def _bisect(f: Callable[[mpf], mpf], low: mpf, high: mpf) -> mpf:
    rising = f(high) > 0
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (low, middle) if (f(middle) > 0) == rising else (middle, high)
    return (low + high) / 2


def multiplicative(prior: Number, posterior: Number) -> mpf:
    """log odds of the posterior less log odds of the prior; 0 by convention when the prior is certain."""
    with mp.workdps(DIGITS):
        prior, posterior = mpf(prior), mpf(posterior)
        if prior in (0, 1):
            return mpf(0)
        if posterior in (0, 1):
            return mp.inf if posterior == 1 else -mp.inf
        return mp.log(posterior / (1 - posterior)) - mp.log(prior / (1 - prior))


def poisson_binomial(prior: Sequence[float]) -> list[mpf]:
    """Pr[sum = s], s in 0..k, one factor at a time."""
    law = [mpf(1)]
    for eta in prior:
        law = [
            (law[s] * (1 - mpf(eta)) if s < len(law) else 0) + (law[s - 1] * mpf(eta) if s else 0)
            for s in range(len(law) + 1)
        ]
    return law


def posterior_by_convolution(prior: Sequence[float], i: int, weight: Weight) -> mpf:
    """Pr[y_i = 1 | released] for one example of a bag too large to enumerate."""
    with mp.workdps(DIGITS):
        others = poisson_binomial([*prior[:i], *prior[i + 1 :]])
        if_one = mpf(prior[i]) * mp.fsum(p * weight(s + 1) for s, p in enumerate(others))
        zero = (1 - mpf(prior[i])) * mp.fsum(p * weight(s) for s, p in enumerate(others))
        return if_one / (if_one + zero)


@recorded
def llp_posterior_by_convolution(prior: Sequence[float], i: int, positives: int) -> mpf:
    """Pr[y_i = 1 | the exact count] for one example of a bag too large to enumerate."""
    return posterior_by_convolution(prior, i, exactly(positives))


@recorded
def llp_laplace_advantage_by_difference(prior: Sequence[float], i: int, epsilon: float) -> float:
    """int max(eta L1, (1 - eta) L0) dz - max(eta, 1 - eta), split at whole numbers and at every change of the guess."""
    law = [float(chance) for chance in poisson_binomial([*prior[:i], *prior[i + 1 :]])]
    k = len(prior)
    with mp.workdps(25):
        e, h = mpf(epsilon), mpf(prior[i])

        def joint(z: mpf, shift: int) -> mpf:
            return e / 2 * mp.fsum(q * mp.exp(-e * abs(z - s - shift)) for s, q in enumerate(law))

        def difference(z: mpf) -> mpf:
            return h * joint(z, 1) - (1 - h) * joint(z, 0)

        whole_numbers = [mpf(m) for m in range(k + 1)]
        changes = [
            mp.findroot(difference, pair, solver="anderson")
            for pair in pairwise(whole_numbers)
            if difference(pair[0]) * difference(pair[1]) < 0
        ]
        points = sorted(whole_numbers + changes)
        whole = mp.quad(lambda z: abs(difference(z)), points)
        # Outside [0, k] both laws fall off as e^(-epsilon |z|), so the integral is the end value over epsilon.
        whole += (abs(difference(mpf(0))) + abs(difference(mpf(k)))) / e
        return float((whole - abs(2 * h - 1)) / 2)
