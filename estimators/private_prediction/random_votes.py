"""The answer of a noisy argmax over votes that are themselves random: its exact law, without drawing one histogram.

Given n independent voters alike, the votes for the classes are independent Poisson counts that happen to sum to n. So
for a class c to win with a noisy count x, one factor for each class is multiplied, as a generating function of its
count; the coefficient of t^n, integrated over x, is the probability. Coefficients come from a Fourier transform.
"""

from __future__ import annotations

import math
from itertools import accumulate, pairwise
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.fft import next_fast_len, rfft
from scipy.special import gammaln, log_ndtr, ndtr, xlogy

from dpaudit.errors import require
from dpaudit.estimators.arguments import Floats

MAX_OTHERS = 8  # voters by laws of their own: the work doubles with each
NODES = 128  # values of x whose factors are held at once
ROWS = 256  # histograms whose factors are held at once
REACH = 9.0  # standard deviations of the noise, beyond which a Gaussian has less than 1e-18


def multinomial_argmax_probabilities(voters: int, shares: ArrayLike, others: ArrayLike, sigma: float) -> Floats:
    """Probability that each class is the argmax of random votes plus Gaussian noise.

    Args:
        voters: Independent voters alike, >= 0.
        shares: Probability that such a one votes for each class, shape (K,), K >= 2; sums to 1.
        others: The same of voters of their own, shape (m, K), m <= 8.
        sigma: Standard deviation of the noise on each count, > 0.
    Returns: Shape (K,), sums to 1, right to about 1e-13.
    """
    alike = np.asarray(shares, np.float64)
    require(alike.ndim == 1 and alike.size >= 2, "shares must list at least two classes", shape=alike.shape)
    own = np.asarray(others, np.float64).reshape(-1, alike.size)
    require(len(own) <= MAX_OTHERS, f"at most {MAX_OTHERS} voters may vote by laws of their own", others=len(own))
    require(math.isfinite(sigma) and sigma > 0, "sigma must be finite and > 0", sigma=sigma)
    same = np.array([np.array_equal(row, alike) for row in own], np.bool_)
    found = _Mixture(voters + int(same.sum()), alike, own[~same], sigma).probabilities()
    return np.asarray(found / found.sum())


class _Mixture:
    """The classes' factors, and what is the same at every x.

    A factor is a polynomial in one symbol for each voter of its own, whose square is 0: its parts, by the set of those
    who vote for the class, are the factor with so many votes more, times the probability that they do.
    """

    def __init__(self, voters: int, shares: Floats, own: Floats, sigma: float) -> None:
        self._sigma, self._classes = sigma, shares.size
        self._active = np.flatnonzero((shares > 0) | (own > 0).any(axis=0))
        self._counts = np.arange(voters + 1)
        rates = voters * shares[self._active]
        self._weights = np.exp(xlogy(self._counts, rates[:, None]) - rates[:, None] - gammaln(self._counts + 1))
        # Sums beyond n + size alias into the coefficient: less than 1e-20 of a Poisson count of mean n.
        self._size = int(next_fast_len(voters + 64 + 12 * math.isqrt(voters + 1), real=True))
        phase = np.exp(2j * math.pi * voters * np.arange(self._size // 2 + 1) / self._size)
        phase[1 : (self._size + 1) // 2] *= 2  # the conjugate half
        self._phase = phase
        log_certain = voters * math.log(voters) - voters - math.lgamma(voters + 1) if voters else 0.0
        self._step = 0.4 * sigma / math.sqrt(self._classes)
        self._scale = self._step / (self._size * math.exp(log_certain))
        self._x = np.arange(-REACH * sigma, voters + len(own) + REACH * sigma, self._step)
        self._chances = [self._chance(own, voting) for voting in range(1 << len(own))]

    def _chance(self, own: Floats, voting: int) -> Floats:
        """That just these of the voters of their own vote for each active class, the others' votes left open."""
        those = [row for number, row in enumerate(own) if voting >> number & 1]
        return np.asarray(
            np.prod([row[self._active] for row in those], axis=0) if those else np.ones(len(self._active))
        )

    def probabilities(self) -> Floats:
        found = np.zeros(self._classes)
        for first in range(0, len(self._x), NODES):
            found += self._at(self._x[first : first + NODES])
        return np.asarray(np.maximum(found, 0.0) * self._scale)

    def _at(self, x: Floats) -> Floats:
        """The sum over some x of each class's coefficient of t^n in which every voter has voted."""
        moved = [self._transformed(x, votes) for votes in range(len(self._chances).bit_length())]
        below: list[_Parts] = []
        here: list[_Parts] = []
        for place in range(len(self._active)):
            pairs = [(chance[place], moved[voting.bit_count()]) for voting, chance in enumerate(self._chances)]
            below.append([chance * pair[0][:, place] if chance else None for chance, pair in pairs])
            here.append([chance * pair[1][:, place] if chance else None for chance, pair in pairs])
        one: _Parts = [np.ones_like(self._phase), *[None] * (len(self._chances) - 1)]
        before, after = list(accumulate(below, _times, initial=one)), list(accumulate(below[::-1], _times, initial=one))
        idle = self._classes - len(self._active)
        z = x / self._sigma
        found = np.zeros(self._classes)
        for place, name in enumerate(self._active.tolist()):
            rest = _times(before[place], after[len(below) - place - 1])
            found[name] = float(np.sum(self._coefficient(_times(rest, here[place])) * ndtr(z) ** idle))
        if idle:
            one_of_them = ndtr(z) ** (idle - 1) * _density(z) / self._sigma
            each = float(np.sum(self._coefficient(before[-1]) * one_of_them))
            found[np.setdiff1d(np.arange(self._classes), self._active)] = each
        return found

    def _transformed(self, x: Floats, votes: int) -> tuple[NDArray[np.complex128], NDArray[np.complex128]]:
        """Of each active class with some votes more: that its noisy count is below x, and its density there."""
        z = (x[:, None] - self._counts - votes) / self._sigma  # (x, n + 1)
        factors = np.stack([ndtr(z), _density(z) / self._sigma])[:, :, None] * self._weights
        below, here = rfft(factors, self._size, axis=-1)
        return below, here

    def _coefficient(self, parts: _Parts) -> Floats:
        whole = parts[-1]
        return np.zeros(1) if whole is None else np.asarray((whole @ self._phase).real)


_Parts: TypeAlias = "list[NDArray[np.complex128] | None]"
"""A polynomial in symbols whose squares are 0, by the set of symbols as a number; None is 0."""


def _times(first: _Parts, second: _Parts) -> _Parts:
    found: _Parts = []
    for voting in range(len(first)):
        total = None
        for part in range(voting + 1):
            left, right = first[part], second[voting ^ part]
            if part & ~voting or left is None or right is None:
                continue
            total = left * right if total is None else total + left * right
        found.append(total)
    return found


def _products(factors: Floats) -> Floats:
    """Products of the first 0, 1, ... of the factors along axis 1."""
    shape = (factors.shape[0], 1, *factors.shape[2:])
    return np.concatenate([np.ones(shape), np.cumprod(factors, axis=1)], axis=1)


def _density(z: Floats) -> Floats:
    return np.asarray(np.exp(-0.5 * z * z) / math.sqrt(2 * math.pi))


def many_argmax_probabilities(histograms: ArrayLike, sigma: float) -> Floats:
    """`noisy_argmax_probabilities` of many whole-numbered histograms at once, shape (n, K), right to about 1e-13."""
    counts = np.asarray(histograms, np.int64)
    require(counts.ndim == 2 and counts.shape[1] >= 2, "histograms must have shape (n, K >= 2)", shape=counts.shape)
    require(math.isfinite(sigma) and sigma > 0, "sigma must be finite and > 0", sigma=sigma)
    low, high = int(counts.min(initial=0)), int(counts.max(initial=0))
    step = 0.4 / math.sqrt(counts.shape[1])
    x = np.arange(low / sigma - REACH, high / sigma + REACH, step)
    z = x[:, None] - np.arange(low, high + 1) / sigma  # (x, values of a count)
    below = log_ndtr(z).T.copy()
    hazard = -0.5 * z.T**2 - below - 0.5 * math.log(2 * math.pi)
    found = np.empty(counts.shape)
    for first in range(0, len(counts), ROWS):
        rows = counts[first : first + ROWS] - low
        together = sum(below[rows[:, place]] for place in range(rows.shape[1]))
        for place in range(rows.shape[1]):
            found[first : first + ROWS, place] = np.exp(together + hazard[rows[:, place]]).sum(axis=1)
    return np.asarray(found / found.sum(axis=1, keepdims=True))


def laplace_argmax_probabilities(histograms: ArrayLike, scale: float) -> Floats:
    """Probability that each class is the argmax of its count plus Laplace noise, by quadrature between the counts.

    Histograms of shape (n, K), K >= 2; each probability is right to about 1e-13.
    """
    counts = np.asarray(histograms, np.float64)
    require(counts.ndim == 2 and counts.shape[1] >= 2, "histograms must have shape (n, K >= 2)", shape=counts.shape)
    require(math.isfinite(scale) and scale > 0, "scale must be finite and > 0", scale=scale)
    return np.array([_laplace(row / scale) for row in counts]).reshape(counts.shape)


def _laplace(row: Floats) -> Floats:
    """The integrand is smooth between counts: Gauss-Legendre on pieces of at most 2 between them."""
    ends = np.unique(np.concatenate([row, [row.min() - 40, row.max() + 40]]))
    pieces = [np.linspace(a, b, 1 + math.ceil((b - a) / 2)) for a, b in pairwise(ends)]
    edges = np.unique(np.concatenate(pieces))
    nodes, weights = np.polynomial.legendre.leggauss(20)
    half = np.diff(edges)[:, None] / 2
    x = (edges[:-1, None] + half * (nodes + 1)).ravel()
    weight = (half * weights).ravel()
    away = x[:, None] - row
    tail = 0.5 * np.exp(-np.abs(away))
    below = np.where(away < 0, tail, 1 - tail)
    before, after = _products(below), _products(below[:, ::-1])[:, ::-1]
    found = ((before[:, :-1] * after[:, 1:] * tail) * weight[:, None]).sum(axis=0)
    return np.asarray(found / found.sum())
