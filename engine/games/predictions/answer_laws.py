"""Exact law of a private predictor's answers in both worlds, and many answers drawn from it at once.

Answers are independent and identically distributed, so the counts of n answers are one multinomial draw. Its
probabilities are means over the law of the votes. For identically distributed teachers and Gaussian noise there is a
formula. Otherwise histograms are drawn; they are the same in both worlds except for the votes that move.

The formula for a noisy argmax over random votes draws no histogram. The votes of n independent and identically
distributed voters are independent Poisson counts, conditioned on their sum n. The probability that class c wins with a
noisy count x is the coefficient of t^n in a product of one generating function for each class. It is computed by a
Fourier transform and integrated over x.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import singledispatch
from itertools import accumulate, pairwise, product
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.fft import next_fast_len, rfft
from scipy.special import gammaln, log_ndtr, ndtr, xlogy

from dpaudit.actors.seed import Seed
from dpaudit.actors.work import unit
from dpaudit.engine.games.predictions.adversaries import Crafted, chosen_set
from dpaudit.errors import require
from dpaudit.estimators.private_prediction.answers_estimator import AnsweredQuery
from dpaudit.estimators.private_prediction.noisy_argmax import gnmax_log_flips
from dpaudit.mechanisms.compute import Compute
from dpaudit.mechanisms.examples import Examples, Features
from dpaudit.mechanisms.predictors.protocol import StudentPredictor, VotingPredictor
from dpaudit.mechanisms.predictors.vote_laws import (
    AlikeTeachers,
    ApartTeachers,
    ConfidentArgmax,
    GaussianArgmax,
    KnownVotes,
    LaplaceArgmax,
    Release,
    SampledNeighbours,
    VoteLaw,
)

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

Sampler = Literal["exact", "simulated", "torch"]

HISTOGRAMS = 2_000
"""Number of histograms drawn from a law of votes without a formula."""
MAX_ENUMERATED = 2
"""Largest number of added records whose sampled subsets are enumerated."""
FLIP_HISTOGRAMS = 64
"""Number of histograms over which the data-dependent cost is averaged."""
CHUNK = 250_000
"""Number of simulated histograms in memory."""
TORCH_CHUNK = 1_000_000
"""Number of simulated answers in memory on a torch device."""
MAX_OTHERS = 8  # largest number of voters with different laws; each doubles the work
NODES = 128  # number of values of x in memory
ROWS = 256  # number of histograms in memory
REACH = 9.0  # limit of integration in standard deviations; beyond it, a Gaussian has less than 1e-18


@dataclass(frozen=True, eq=False)
class Votes:
    """Votes or answers: one row for each voter, record or run, one column for each query."""

    votes: Ints = field(metadata={"stored": "int32"})


@dataclass(frozen=True)
class Draws:
    """Fields of the game that say how answers are drawn."""

    answers: int
    search: int
    simulated: int
    resamples: int
    sampler: Sampler
    repeats: int


@unit
def draw_answers(
    predictor: VotingPredictor,
    attack: Any,
    draws: Draws,
    runs: tuple[Votes, ...],
    moved: tuple[Votes, ...],
    crafted: Crafted,
    data: Examples,
    test: Examples,
    compute: Compute,
    *,
    first: int,
    last: int,
    seed: Seed,
) -> Iterator[AnsweredQuery]:
    """Fit the laws of the votes on some queries in both worlds, and draw answers from them."""
    pairs_and_queries = [(pair, int(query)) for pair, queries in enumerate(crafted.asked) for query in queries]
    votes, with_records = (np.stack([run.votes for run in trainings]) for trainings in (runs, moved))
    numbers = range(first, min(last, len(pairs_and_queries)))
    answers = crafted.informative_answers(test.features, cached=predictor.cached, repeats=draws.repeats)
    queries = test.take(np.array([pairs_and_queries[number][1] for number in numbers])).features
    releases = releases_of(predictor, queries, votes.shape[1], compute)
    for number, release in zip(numbers, releases, strict=True):
        pair, query = pairs_and_queries[number]
        records = crafted.of_pair(pair)
        yield _answered(
            number,
            _Runs(votes[:, :, query], with_records[:, records, query], crafted.records.labels[records]),
            release,
            predictor,
            attack,
            draws,
            seed.child(number),
            data.classes,
            compute,
            informative=int(answers[number]),
            together=not crafted.repeated,
        )


def _answered(
    number: int,
    runs: _Runs,
    release: Release,
    predictor: VotingPredictor,
    attack: Any,
    draws: Draws,
    seed: Seed,
    classes: int,
    compute: Compute,
    *,
    informative: int,
    together: bool,
) -> AnsweredQuery:
    worlds = runs.worlds(predictor, classes)
    laws = answer_laws(worlds, release, seed.child("votes"))
    counts = {}
    for part, count in (("search", draws.search), ("answers", draws.answers)):
        for world, law in (("one", worlds.one), ("zero", worlds.zero)):
            draw_seed = seed.child(part, world)
            if laws is not None and draws.sampler == "exact":
                counts[part, world] = counted(getattr(laws, world), count, draw_seed.rng())
            elif draws.sampler == "torch" and isinstance(release, GaussianArgmax) and type(release).answers in FORMULAS:
                count = min(count, draws.simulated)
                counts[part, world] = torch_counts(law, release.sigma, count, draw_seed, device=compute.device)
            else:
                counts[part, world] = simulated(law, release, min(count, draws.simulated), draw_seed.rng())
    kinds = len(counts["answers", "one"])
    resampled, unmoved = _resampled(runs, release, predictor, draws, classes, seed) if laws is not None else ([], [])
    exact = laws is not None and draws.sampler == "exact"
    charged = laws is not None and len(runs.labels) == 1  # accounting is about one vote that moves
    none = (np.empty(0), np.empty(0))
    flips = [log_flips(law, release, seed.child("flips")) if charged else none for law in (worlds.one, worlds.zero)]
    constant = is_constant(worlds.one) and is_constant(worlds.zero)
    return AnsweredQuery(
        query=number,
        world_1=counts["answers", "one"],
        world_0=counts["answers", "zero"],
        chosen=chosen_set(attack, counts["search", "one"], counts["search", "zero"]),
        law_1=laws.one if laws is not None else np.empty(0),
        law_0=laws.zero if laws is not None else np.empty(0),
        resampled_1=np.array([each.one for each in resampled]).reshape(-1, kinds),
        resampled_0=np.array([each.zero for each in resampled]).reshape(-1, kinds),
        unmoved_1=np.array([each.one for each in unmoved]).reshape(-1, kinds),
        log_p_flip_1=flips[0][0],
        log_p_flip_0=flips[1][0],
        log_p_check_1=flips[0][1],
        log_p_check_0=flips[1][1],
        sigma=release.sigma if isinstance(release, GaussianArgmax | ConfidentArgmax) else float("nan"),
        threshold_sigma=release.threshold_sigma if isinstance(release, ConfidentArgmax) else float("nan"),
        fitted=not predictor.deterministic or (exact and not constant),
        asked=informative,
        together=together,
    )


def _resampled(
    runs: _Runs, release: Release, predictor: VotingPredictor, draws: Draws, classes: int, seed: Seed
) -> tuple[list[AnswerLaws], list[AnswerLaws]]:
    """Return laws of answers fitted to bootstrap samples of the runs, and to runs in which records change nothing."""
    if predictor.deterministic:
        return [], []
    bootstrap: list[AnswerLaws] = []
    unmoved: list[AnswerLaws] = []
    for number in range(draws.resamples):
        rng = seed.child("resamples", number).rng()
        for fitted, sample in ((bootstrap, runs.resampled(rng)), (unmoved, runs.unmoved(predictor, classes, rng))):
            laws = answer_laws(sample.worlds(predictor, classes), release, seed.child("votes"))
            assert laws is not None
            fitted.append(laws)
    return bootstrap, unmoved


@dataclass(frozen=True, eq=False)
class _Runs:
    """Votes of all runs on one query."""

    votes: Ints  # votes without added records, shape (runs, voters)
    moved: Ints  # votes of the voters that have the added records, shape (runs, m)
    labels: Ints  # labels of the added records, shape (m,)

    def worlds(self, predictor: VotingPredictor, classes: int) -> Worlds:
        one, zero = (
            predictor.law(self.votes, self.moved, self.labels, added=added, classes=classes) for added in (True, False)
        )
        return Worlds(one, zero)

    def resampled(self, rng: np.random.Generator) -> _Runs:
        """Return a bootstrap sample of the runs; runs with and without the records are drawn independently."""
        without, moved = (rng.integers(0, len(rows), len(rows)) for rows in (self.votes, self.moved))
        return _Runs(self.votes[without], self.moved[moved], self.labels)

    def unmoved(self, predictor: VotingPredictor, classes: int, rng: np.random.Generator) -> _Runs:
        """Return runs in which the added records do not change the votes."""
        shares = shares_without(self.worlds(predictor, classes).zero, self.moved.shape[1])
        columns = [rng.choice(classes, size=len(self.moved), p=share) for share in shares]
        return _Runs(self.votes, np.stack(columns, axis=1).astype(np.int64), self.labels)


@dataclass(frozen=True, eq=False)
class Worlds:
    """Laws of the votes on one query in both worlds."""

    one: VoteLaw  # with the records
    zero: VoteLaw  # without them


@dataclass(frozen=True, eq=False)
class AnswerLaws:
    """Probability of each answer in both worlds, shape (answers,)."""

    one: Floats  # with the records
    zero: Floats  # without them


@singledispatch
def release_law(release: Any, histograms: Ints) -> Floats | None:
    """Return the probability of each answer for each histogram, (n, K) to (n, answers); None without a formula."""
    return None


@release_law.register
def _(release: GaussianArgmax, histograms: Ints) -> Floats | None:
    return many_argmax_probabilities(histograms, release.sigma)


@release_law.register
def _(release: LaplaceArgmax, histograms: Ints) -> Floats | None:
    return laplace_argmax_probabilities(histograms, release.scale)


@release_law.register
def _(release: ConfidentArgmax, histograms: Ints) -> Floats | None:
    margins = release.margins(histograms) / release.threshold_sigma
    law = np.zeros((len(histograms), histograms.shape[1] + 1))
    law[:, :-1] = ndtr(margins)[:, None] * many_argmax_probabilities(histograms, release.sigma)
    law[:, release.otherwise(histograms.shape[1])] += ndtr(-margins)
    return law


FORMULAS = frozenset(release_class.answers for release_class in (GaussianArgmax, LaplaceArgmax, ConfidentArgmax))
"""Methods `answers` with a formula; a subclass that overrides the method is simulated."""


def answer_laws(worlds: Worlds, release: Release, seed: Seed) -> AnswerLaws | None:
    """Return the law of the answers in both worlds; None if the release has no formula."""
    if type(release).answers not in FORMULAS:
        return None
    laws = (worlds.one, worlds.zero)
    if isinstance(release, GaussianArgmax) and all(isinstance(law, AlikeTeachers) for law in laws):
        one, zero = (
            multinomial_argmax_probabilities(law.teachers, law.shares, law.others, release.sigma)
            for law in laws
            if isinstance(law, AlikeTeachers)
        )
        return AnswerLaws(one, zero)
    count = 1 if all(map(is_constant, laws)) else HISTOGRAMS
    strata = [_strata(law, count, seed) for law in laws]
    weights = np.array([weight for parts in strata for weight, _ in parts])
    histograms = np.concatenate([part for parts in strata for _, part in parts])
    distinct, place = np.unique(histograms, axis=0, return_inverse=True)
    probabilities = release_law(release, distinct)
    if probabilities is None:
        return None
    means = probabilities[place.reshape(len(weights), count)].mean(axis=1) * weights[:, None]
    return AnswerLaws(means[: len(strata[0])].sum(axis=0), means[len(strata[0]) :].sum(axis=0))


def _strata(law: VoteLaw, count: int, seed: Seed) -> list[tuple[float, Ints]]:
    """Return probabilities of the strata of a law, each with `count` histograms; for one seed, only moved votes differ.

    The sampling of added records is enumerated, since privacy amplification depends on its probability.
    """
    if not isinstance(law, SampledNeighbours) or len(law.ranks) > MAX_ENUMERATED:
        return [(1.0, law.draw(count, seed.rng()))]
    strata = []
    for sampled in product((True, False), repeat=len(law.ranks)):
        weight = math.prod(law.rate if is_sampled else 1 - law.rate for is_sampled in sampled)
        strata.append((weight, law.draw_given(sampled, count, seed.rng())))
    return strata


def is_constant(law: VoteLaw) -> bool:
    """Return True if all draws of the law are the same histogram."""
    if isinstance(law, ApartTeachers):
        return bool(((law.shares == 0) | (law.shares == 1)).all())
    return isinstance(law, KnownVotes)


@singledispatch
def shares_without(law: Any, voters: int) -> Floats:
    """Return the vote probabilities, without the records, of the voters that would have them, shape (m, K)."""
    raise NotImplementedError(f"no law of {type(law).__name__} is fitted to runs")


@shares_without.register
def _(law: AlikeTeachers, voters: int) -> Floats:
    return np.broadcast_to(law.shares, (voters, law.classes))


@shares_without.register
def _(law: ApartTeachers, voters: int) -> Floats:
    return law.shares[:voters]


def log_flips(law: VoteLaw, release: Release, seed: Seed) -> tuple[Floats, Floats]:
    """Return inputs of data-dependent accounting for some histograms of a law; empty if there is none.

    Returns: For each histogram, the log of the bound on the probability that noise changes the winner, and the log of
        the probability of the less likely outcome of the threshold (empty without a threshold).
    """
    none = np.empty(0)
    if not isinstance(release, GaussianArgmax | ConfidentArgmax) or isinstance(law, SampledNeighbours):
        return none, none
    histograms = law.draw(1 if is_constant(law) else FLIP_HISTOGRAMS, seed.rng())
    flips = gnmax_log_flips(histograms, release.sigma)
    if isinstance(release, GaussianArgmax):
        return flips, none
    return flips, np.asarray(log_ndtr(-np.abs(release.margins(histograms)) / release.threshold_sigma))


def counted(law: Floats, answers: int, rng: np.random.Generator) -> Ints:
    """Draw the counts of each answer among `answers` answers."""
    return np.asarray(rng.multinomial(answers, np.maximum(law, 0) / np.maximum(law, 0).sum()), np.int64)


def simulated(law: VoteLaw, release: Release, answers: int, rng: np.random.Generator) -> Ints:
    """Draw the counts of each answer by simulation, for releases without a formula."""
    counts = np.zeros(law.classes + 1, np.int64)
    for first in range(0, answers, CHUNK):
        released = release.answers(law.draw(min(CHUNK, answers - first), rng), rng)
        counts += np.bincount(released, minlength=law.classes + 1)
    return counts if counts[-1] or isinstance(release, ConfidentArgmax) else counts[:-1]


def torch_counts(law: VoteLaw, sigma: float, answers: int, seed: Seed, *, device: str) -> Ints:
    """Draw the counts of each class as the argmax of votes plus Gaussian noise, on a torch device; shape (K,)."""
    import torch

    rng = seed.child("votes").rng()
    generator = torch.Generator(device).manual_seed(int(seed.child("noise").sequence().generate_state(1)[0]))
    counts = np.zeros(law.classes, np.int64)
    for first in range(0, answers, TORCH_CHUNK):
        votes = torch.tensor(law.draw(min(TORCH_CHUNK, answers - first), rng), dtype=torch.float32, device=device)
        noise = torch.randn(votes.shape, generator=generator, device=device)
        winners = (votes + sigma * noise).argmax(dim=1)
        counts += np.asarray(torch.bincount(winners, minlength=law.classes).cpu())
    return counts


def releases_of(predictor: VotingPredictor, queries: Features, voters: int, compute: Compute) -> Sequence[Release]:
    if isinstance(predictor, StudentPredictor):
        return predictor.releases(queries, voters=voters, compute=compute)
    return [predictor.release()] * len(queries)


def multinomial_argmax_probabilities(voters: int, shares: ArrayLike, others: ArrayLike, sigma: float) -> Floats:
    """Return the probability that each class is the argmax of random votes plus Gaussian noise.

    Args:
        voters: Number of independent and identically distributed voters, >= 0.
        shares: Probability that such a voter votes for each class, shape (K,), K >= 2; sums to 1.
        others: Probabilities of the votes of other voters, shape (m, K), m <= 8.
        sigma: Standard deviation of the noise on each count, > 0.
    Returns: Shape (K,), sums to 1, accurate to about 1e-13.
    """
    common = np.asarray(shares, np.float64)
    require(common.ndim == 1 and common.size >= 2, "shares must list at least two classes", shape=common.shape)
    other = np.asarray(others, np.float64).reshape(-1, common.size)
    require(len(other) <= MAX_OTHERS, f"at most {MAX_OTHERS} voters may have other laws", others=len(other))
    require(math.isfinite(sigma) and sigma > 0, "sigma must be finite and > 0", sigma=sigma)
    same = np.array([np.array_equal(row, common) for row in other], np.bool_)
    probabilities = _Mixture(voters + int(same.sum()), common, other[~same], sigma).probabilities()
    return np.asarray(probabilities / probabilities.sum())


class _Mixture:
    """Factors of the classes, and the quantities that do not depend on x.

    A factor is a polynomial with one symbol for each of the other voters, whose square is 0. The part for a set of
    voters is the factor with their votes added, times the probability that they vote for the class.
    """

    def __init__(self, voters: int, shares: Floats, others: Floats, sigma: float) -> None:
        self._sigma, self._classes = sigma, shares.size
        self._active = np.flatnonzero((shares > 0) | (others > 0).any(axis=0))
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
        self._x = np.arange(-REACH * sigma, voters + len(others) + REACH * sigma, self._step)
        # The probability that the voters in each bit mask all vote for each active class.
        self._chances = []
        for voting in range(1 << len(others)):
            chosen = [row[self._active] for number, row in enumerate(others) if voting >> number & 1]
            self._chances.append(np.prod(chosen, axis=0) if chosen else np.ones(len(self._active)))

    def probabilities(self) -> Floats:
        total = np.zeros(self._classes)
        for first in range(0, len(self._x), NODES):
            total += self._at(self._x[first : first + NODES])
        return np.asarray(np.maximum(total, 0.0) * self._scale)

    def _at(self, x: Floats) -> Floats:
        """Return the sum over some x of each class's coefficient of t^n in which all voters have voted."""
        moved = [self._transformed(x, votes) for votes in range(len(self._chances).bit_length())]
        below: list[_Parts] = []
        densities: list[_Parts] = []
        for place in range(len(self._active)):
            pairs = [(chance[place], moved[voting.bit_count()]) for voting, chance in enumerate(self._chances)]
            below.append([chance * pair[0][:, place] if chance else None for chance, pair in pairs])
            densities.append([chance * pair[1][:, place] if chance else None for chance, pair in pairs])
        unit_parts: _Parts = [np.ones_like(self._phase), *[None] * (len(self._chances) - 1)]
        before = list(accumulate(below, _times, initial=unit_parts))
        after = list(accumulate(below[::-1], _times, initial=unit_parts))
        idle = self._classes - len(self._active)
        z = x / self._sigma
        sums = np.zeros(self._classes)
        for place, label in enumerate(self._active.tolist()):
            rest = _times(before[place], after[len(below) - place - 1])
            sums[label] = float(np.sum(self._coefficient(_times(rest, densities[place])) * ndtr(z) ** idle))
        if idle:
            idle_density = ndtr(z) ** (idle - 1) * _density(z) / self._sigma
            idle_sum = float(np.sum(self._coefficient(before[-1]) * idle_density))
            sums[np.setdiff1d(np.arange(self._classes), self._active)] = idle_sum
        return sums

    def _transformed(self, x: Floats, votes: int) -> tuple[NDArray[np.complex128], NDArray[np.complex128]]:
        """Return the Fourier transforms of two functions, for each active class after adding `votes`.

        They are the probability that the noisy count of the class is below x, and its density at x.
        """
        z = (x[:, None] - self._counts - votes) / self._sigma  # (x, n + 1)
        factors = np.stack([ndtr(z), _density(z) / self._sigma])[:, :, None] * self._weights
        below, density = rfft(factors, self._size, axis=-1)
        return below, density

    def _coefficient(self, parts: _Parts) -> Floats:
        with_all_voters = parts[-1]
        return np.zeros(1) if with_all_voters is None else np.asarray((with_all_voters @ self._phase).real)


_Parts: TypeAlias = "list[NDArray[np.complex128] | None]"
"""Coefficients of a polynomial in symbols whose squares are 0, indexed by the bit mask of the symbols; None is 0."""


def _times(first: _Parts, second: _Parts) -> _Parts:
    products: _Parts = []
    for voting in range(len(first)):
        total = None
        for part in range(voting + 1):
            first_votes, second_votes = first[part], second[voting ^ part]
            if part & ~voting or first_votes is None or second_votes is None:
                continue
            total = first_votes * second_votes if total is None else total + first_votes * second_votes
        products.append(total)
    return products


def _products(factors: Floats) -> Floats:
    """Return the products of the first 0, 1, ... factors along axis 1."""
    shape = (factors.shape[0], 1, *factors.shape[2:])
    return np.concatenate([np.ones(shape), np.cumprod(factors, axis=1)], axis=1)


def _density(z: Floats) -> Floats:
    return np.asarray(np.exp(-0.5 * z * z) / math.sqrt(2 * math.pi))


def many_argmax_probabilities(histograms: ArrayLike, sigma: float) -> Floats:
    """Return `noisy_argmax_probabilities` of many integer histograms, shape (n, K), accurate to about 1e-13."""
    counts = np.asarray(histograms, np.int64)
    require(counts.ndim == 2 and counts.shape[1] >= 2, "histograms must have shape (n, K >= 2)", shape=counts.shape)
    require(math.isfinite(sigma) and sigma > 0, "sigma must be finite and > 0", sigma=sigma)
    low, high = int(counts.min(initial=0)), int(counts.max(initial=0))
    step = 0.4 / math.sqrt(counts.shape[1])
    x = np.arange(low / sigma - REACH, high / sigma + REACH, step)
    z = x[:, None] - np.arange(low, high + 1) / sigma  # (x, values of a count)
    below = log_ndtr(z).T.copy()
    hazard = -0.5 * z.T**2 - below - 0.5 * math.log(2 * math.pi)
    sums = np.empty(counts.shape)
    for first in range(0, len(counts), ROWS):
        rows = counts[first : first + ROWS] - low
        log_below = sum(below[rows[:, label]] for label in range(rows.shape[1]))
        for label in range(rows.shape[1]):
            sums[first : first + ROWS, label] = np.exp(log_below + hazard[rows[:, label]]).sum(axis=1)
    return np.asarray(sums / sums.sum(axis=1, keepdims=True))


def laplace_argmax_probabilities(histograms: ArrayLike, scale: float) -> Floats:
    """Return the probability that each class is the argmax of its count plus Laplace noise, by quadrature.

    Histograms have shape (n, K), K >= 2; each probability is accurate to about 1e-13.
    """
    counts = np.asarray(histograms, np.float64)
    require(counts.ndim == 2 and counts.shape[1] >= 2, "histograms must have shape (n, K >= 2)", shape=counts.shape)
    require(math.isfinite(scale) and scale > 0, "scale must be finite and > 0", scale=scale)
    return np.array([_laplace(row / scale) for row in counts]).reshape(counts.shape)


def _laplace(row: Floats) -> Floats:
    # The integrand is smooth between counts: Gauss-Legendre on pieces of length at most 2.
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
    integrals = ((before[:, :-1] * after[:, 1:] * tail) * weight[:, None]).sum(axis=0)
    return np.asarray(integrals / integrals.sum())
