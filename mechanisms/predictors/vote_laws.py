"""The distribution (law) of the votes on one query, noisy answers from histograms of votes, and their privacy cost.

The laws of two neighbouring data sets, drawn with generators of one seed, share the draws of their common voters: their
histograms differ only in the votes that move. Source: Chadha et al. (2024), sections 5.1, 5.2 and 6;
of the answers: Papernot et al. (2018), arXiv:1802.08908, GNMax, and its algorithms 1 (Confident) and 2 (Interactive).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dpaudit.claims import GaussianDP, PrivacyCurve
from dpaudit.claims.composition import ComposedLaplace
from dpaudit.errors import require

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class VoteLaw(Protocol):
    """Distribution of the histogram of one query."""

    @property
    def classes(self) -> int:
        """Number of classes K."""

    def draw(self, count: int, rng: np.random.Generator) -> Ints:
        """Draw independent histograms, shape (count, K)."""

    def mean(self) -> Floats:
        """Return the expected votes for each class, shape (K,)."""


@dataclass(frozen=True, eq=False)
class KnownVotes:
    """Votes without randomness, such as those of a language model at temperature 0."""

    counts: Ints

    @property
    def classes(self) -> int:
        return len(self.counts)

    def draw(self, count: int, rng: np.random.Generator) -> Ints:
        return np.broadcast_to(self.counts, (count, len(self.counts)))

    def mean(self) -> Floats:
        return self.counts.astype(np.float64)


@dataclass(frozen=True, eq=False)
class AlikeTeachers:
    """Identically distributed teachers, each with a random part of the data, and m teachers with other laws (PATE)."""

    teachers: int  # number of identically distributed teachers, >= 0
    shares: Floats  # probability of each class, shape (K,), sums to 1
    others: Floats  # likewise for each other teacher, shape (m, K); without the points they equal `shares`

    def __post_init__(self) -> None:
        require(self.teachers >= 0, "teachers must be >= 0", teachers=self.teachers)
        _require_shares(self.shares[None])
        _require_shares(self.others)

    @property
    def classes(self) -> int:
        return len(self.shares)

    def draw(self, count: int, rng: np.random.Generator) -> Ints:
        counts = rng.multinomial(self.teachers, self.shares, size=count)
        for share in self.others:
            _vote(counts, share, rng)
        return counts

    def mean(self) -> Floats:
        return np.asarray(self.teachers * self.shares + self.others.sum(axis=0))


@dataclass(frozen=True, eq=False)
class ApartTeachers:
    """Teachers with different laws, each with a fixed part of the data (CaPC)."""

    shares: Floats  # probability of each class for each teacher, shape (k, K), rows sum to 1
    weights: Ints | None = None  # votes of each teacher, shape (k,), >= 1; None: one each

    def __post_init__(self) -> None:
        _require_shares(self.shares)

    @property
    def classes(self) -> int:
        return int(self.shares.shape[1])

    def weight(self) -> Ints:
        return np.ones(len(self.shares), np.int64) if self.weights is None else self.weights

    def draw(self, count: int, rng: np.random.Generator) -> Ints:
        counts = np.zeros((count, self.classes), np.int64)
        for share, weight in zip(self.shares, self.weight().tolist(), strict=True):
            _vote(counts, share, rng, weight)
        return counts

    def mean(self) -> Floats:
        return np.asarray(self.weight() @ self.shares)


@dataclass(frozen=True, eq=False)
class SampledNeighbours:
    """Votes of the nearest records in a random sample, drawn for this answer (Private-kNN)."""

    labels: Ints  # of the records, nearest to the query first, shape (n,)
    neighbours: int  # most voting records, k >= 1
    rate: float  # probability that a record is sampled, in (0, 1]
    classes: int
    ranks: Ints  # ranks of the added records among the others, each >= 1, ascending, shape (m,)
    added: Ints  # labels of the added records, shape (m,)

    def draw(self, count: int, rng: np.random.Generator) -> Ints:
        """Draw independent histograms, shape (count, K)."""
        near = self._near(count, rng)
        return self._voted(near, rng.random((count, len(self.ranks))) < self.rate)

    def draw_given(self, also: tuple[bool, ...], count: int, rng: np.random.Generator) -> Ints:
        """Draw histograms given which of the added records are sampled; `also` has one entry for each of them."""
        near = self._near(count, rng)
        return self._voted(near, np.broadcast_to(np.array(also, np.bool_), (count, len(also))))

    def _near(self, count: int, rng: np.random.Generator) -> Ints:
        """Draw the places of the k nearest sampled records, shape (count, k); n stands for none."""
        steps = rng.geometric(self.rate, size=(count, self.neighbours))
        return np.asarray(np.minimum(np.cumsum(steps, axis=1) - 1, len(self.labels)), np.int64)

    def _voted(self, near: Ints, also: NDArray[np.bool_]) -> Ints:
        """Count votes: each sampled added record among the k nearest displaces the last voter."""
        count = len(near)
        voting = np.zeros(count, np.int64)
        added = np.zeros((count, self.classes), np.int64)
        for place, label in enumerate(self.added.tolist()):
            before = (near < self.ranks[place] - 1).sum(axis=1) + voting
            votes = also[:, place] & (before < self.neighbours)
            voting += votes
            added[:, label] += votes
        labels = np.append(self.labels, self.classes)[near]
        labels[np.arange(self.neighbours) >= self.neighbours - voting[:, None]] = self.classes
        cells = labels + (self.classes + 1) * np.arange(count)[:, None]
        votes = np.bincount(cells.ravel(), minlength=count * (self.classes + 1)).reshape(count, self.classes + 1)
        return np.asarray(votes[:, : self.classes] + added, np.int64)

    def mean(self) -> Floats:
        """Return the expected votes for each class: each record counts by its probability to vote."""
        labels = np.insert(self.labels, self.ranks - 1, self.added)
        chance = inclusion(np.arange(1, len(labels) + 1), neighbours=self.neighbours, rate=self.rate)
        return np.asarray(np.bincount(labels, weights=chance, minlength=self.classes), np.float64)


def inclusion(rank: Ints, *, neighbours: int, rate: float) -> Floats:
    """Return the probability that the record of a rank >= 1 votes; nu of Chadha et al.

    It votes if it is sampled, and fewer than k records before it are.
    """
    from scipy.stats import binom

    return np.asarray(rate * binom.cdf(neighbours - 1, np.asarray(rank) - 1, rate))


def _vote(counts: Ints, share: Floats, rng: np.random.Generator, weight: int = 1) -> None:
    rising = np.cumsum(share)[:-1]
    vote = np.searchsorted(rising, rng.random(len(counts)), side="right")
    counts[np.arange(len(counts)), vote] += weight


def _require_shares(shares: Floats) -> None:
    valid = (shares >= 0).all() and np.allclose(shares.sum(axis=1), 1, atol=1e-9)
    require(bool(valid), "shares of votes must be >= 0 and sum to 1", shares=shares.sum(axis=1))


class Release(Protocol):
    """A noisy function from histograms to answers; all noise of a predictor is added here."""

    def answers(self, votes: Ints, rng: np.random.Generator) -> Ints:
        """Return one answer for each histogram, shape (n, K) to (n,); K for a refusal to answer."""

    def curve(self) -> PrivacyCurve:
        """Return the privacy curve of one answer, if one vote moves from one class to another."""


@dataclass(frozen=True)
class GaussianArgmax:
    """The largest count after Gaussian noise on each (GNMax)."""

    sigma: float  # standard deviation, > 0

    def __post_init__(self) -> None:
        require(0 < self.sigma < math.inf, "sigma must be > 0 and finite", sigma=self.sigma)

    def answers(self, votes: Ints, rng: np.random.Generator) -> Ints:
        noisy = votes + rng.normal(scale=self.sigma, size=votes.shape)
        return np.asarray(noisy.argmax(axis=1), np.int64)

    def curve(self) -> PrivacyCurve:
        """Return sqrt(2) / sigma-GDP, RDP of order / sigma^2: one count falls by 1, another rises by 1."""
        return GaussianDP(math.sqrt(2) / self.sigma)


@dataclass(frozen=True)
class LaplaceArgmax:
    """The largest count after Laplace noise on each (LNMax)."""

    scale: float  # b > 0

    def __post_init__(self) -> None:
        require(0 < self.scale < math.inf, "scale must be > 0 and finite", scale=self.scale)

    def answers(self, votes: Ints, rng: np.random.Generator) -> Ints:
        noisy = votes + rng.laplace(scale=self.scale, size=votes.shape)
        return np.asarray(noisy.argmax(axis=1), np.int64)

    def curve(self) -> PrivacyCurve:
        """Return the curve of two Laplace counts that move by 1: epsilon 2 / b at delta = 0."""
        return ComposedLaplace(self.scale, 2)


@dataclass(frozen=True)
class ConfidentArgmax:
    """The argmax of Gaussian-noised counts if the largest count, with separate noise, exceeds a threshold, else K.

    This is Confident-GNMax.
    """

    sigma: float  # standard deviation of the noise on each count, > 0
    threshold: float  # in votes
    threshold_sigma: float  # standard deviation of the noise on the largest count, > 0

    def __post_init__(self) -> None:
        require(0 < self.sigma < math.inf, "sigma must be > 0 and finite", sigma=self.sigma)
        finite = 0 < self.threshold_sigma < math.inf
        require(finite, "threshold_sigma must be > 0 and finite", given=self.threshold_sigma)

    def answers(self, votes: Ints, rng: np.random.Generator) -> Ints:
        passed = self.margins(votes) + rng.normal(scale=self.threshold_sigma, size=len(votes)) > 0
        return np.where(passed, GaussianArgmax(self.sigma).answers(votes, rng), self.otherwise(votes.shape[1]))

    def curve(self) -> PrivacyCurve:
        """Return mu-GDP with mu^2 = 1 / s1^2 + 2 / s2^2: the largest count moves by at most 1, then two counts do."""
        return GaussianDP(math.sqrt(1 / self.threshold_sigma**2 + 2 / self.sigma**2))

    def margins(self, votes: Ints) -> Floats:
        """Return by how many votes each histogram exceeds the threshold before the noise, shape (n, K) to (n,)."""
        return np.asarray(votes.max(axis=1) - self.threshold, np.float64)

    def otherwise(self, classes: int) -> int:
        """Return the answer if the threshold is not exceeded: K, a refusal."""
        return classes


@dataclass(frozen=True)
class InteractiveArgmax(ConfidentArgmax):
    """The argmax of Gaussian-noised counts if the votes contradict a student's prediction (Interactive-GNMax).

    The votes that the student expects are subtracted from the counts. If the largest difference, with separate noise,
    exceeds the threshold, the teachers answer. Otherwise the answer is the student's class if the student is sure of
    it, else K. The student is public: it was trained on public data or on earlier answers.
    """

    expected: tuple[float, ...]  # votes that the student expects for each class, shape (K,), finite
    student_class: int | None = None  # the student's class; None: the student is not sure

    def __post_init__(self) -> None:
        super().__post_init__()
        require(bool(np.isfinite(self.expected).all()), "expected votes must be finite", expected=self.expected)
        valid = self.student_class is None or 0 <= self.student_class < len(self.expected)
        require(valid, "student_class must be one of the classes", student_class=self.student_class)

    def margins(self, votes: Ints) -> Floats:
        """Return the largest excess of a count over the student's expectation, less the threshold; shape (n,)."""
        return np.asarray((votes - np.asarray(self.expected)).max(axis=1) - self.threshold, np.float64)

    def otherwise(self, classes: int) -> int:
        return classes if self.student_class is None else self.student_class
