"""The exact law of a private predictor's answers in both worlds, and many answers drawn from it at once.

Answers are independent and alike, so the counts of n of them are one multinomial draw over their probabilities, means
over the law of the votes: by a formula for teachers that are alike and Gaussian noise, else over histograms drawn from
it, the same ones in both worlds but for the votes that move.

The answer of a noisy argmax over votes that are themselves random has an exact law, without drawing one histogram.
Given n independent voters alike, the votes for the classes are independent Poisson counts that happen to sum to n. So
for a class c to win with a noisy count x, one factor for each class is multiplied, as a generating function of its
count; the coefficient of t^n, integrated over x, is the probability. Coefficients come from a Fourier transform.
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
from dpaudit.engine.games.predictions.adversaries import Crafted
from dpaudit.engine.games.predictions.answer_set import chosen_set
from dpaudit.errors import require
from dpaudit.estimators.answered_queries import AnsweredQuery
from dpaudit.estimators.private_prediction.noisy_argmax import gnmax_log_flips
from dpaudit.mechanisms.compute import Compute
from dpaudit.mechanisms.examples import Examples, Features
from dpaudit.mechanisms.predictors.protocol import StudentPredictor, VotingPredictor
from dpaudit.mechanisms.predictors.releases import ConfidentArgmax, GaussianArgmax, LaplaceArgmax, Release
from dpaudit.mechanisms.predictors.vote_laws import AlikeTeachers, ApartTeachers, KnownVotes, SampledNeighbours, VoteLaw

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

Sampler = Literal["exact", "simulated", "torch"]

HISTOGRAMS = 2_000
"""That stand for a law of votes without a formula."""
MAX_KEPT = 2
"""Records added to neighbours whose being kept is enumerated."""
FLIPS = 64
"""Histograms whose data-dependent cost is averaged."""
CHUNK = 250_000
"""Histograms drawn at once by simulation."""
TORCH_CHUNK = 1_000_000
"""Answers drawn at once."""
MAX_OTHERS = 8  # voters by laws of their own: the work doubles with each
NODES = 128  # values of x whose factors are held at once
ROWS = 256  # histograms whose factors are held at once
REACH = 9.0  # standard deviations of the noise, beyond which a Gaussian has less than 1e-18


@dataclass(frozen=True, eq=False)
class Votes:
    """What voters said, or answers given: one row a voter, record or run, one column a query."""

    votes: Ints = field(metadata={"stored": "int32"})


@dataclass(frozen=True)
class Draws:
    """How answers are drawn: fields of the game."""

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
    """Fits the laws of the votes on some queries in both worlds, and draws answers from them."""
    asked = [(pair, int(query)) for pair, queries in enumerate(crafted.asked) for query in queries]
    votes, with_records = (np.stack([run.votes for run in several]) for several in (runs, moved))
    here = range(first, min(last, len(asked)))
    told = crafted.told(test.features, cached=predictor.cached, repeats=draws.repeats)
    queries = test.take(np.array([asked[number][1] for number in here]))
    releases = releases_of(predictor, queries.features, votes.shape[1], compute)
    for number, release in zip(here, releases, strict=True):
        pair, query = asked[number]
        own = crafted.of_pair(pair)
        seen = _Runs(votes[:, :, query], with_records[:, own, query], crafted.records.labels[own])
        yield _answered(
            number,
            seen,
            release,
            predictor,
            attack,
            draws,
            seed.child(number),
            data.classes,
            compute,
            told=int(told[number]),
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
    told: int,
    together: bool,
) -> AnsweredQuery:
    worlds = runs.worlds(predictor, classes)
    laws = answer_laws(worlds, release, seed.child("votes"))
    drawn = {}
    for part, many in (("search", draws.search), ("answers", draws.answers)):
        for world, law in (("one", worlds.one), ("zero", worlds.zero)):
            own = seed.child(part, world)
            if laws is not None and draws.sampler == "exact":
                drawn[part, world] = counted(getattr(laws, world), many, own.rng())
            elif draws.sampler == "torch" and isinstance(release, GaussianArgmax) and type(release).answers in FORMULAS:
                count = min(many, draws.simulated)
                drawn[part, world] = torch_counts(law, release.sigma, count, own, device=compute.device)
            else:
                drawn[part, world] = simulated(law, release, min(many, draws.simulated), own.rng())
    kinds = len(drawn["answers", "one"])
    resampled, unmoved = _resampled(runs, release, predictor, draws, classes, seed) if laws is not None else ([], [])
    exact = laws is not None and draws.sampler == "exact"
    charged = laws is not None and len(runs.labels) == 1  # accounting is about one vote that moves
    none = (np.empty(0), np.empty(0))
    flips = [log_flips(law, release, seed.child("flips")) if charged else none for law in (worlds.one, worlds.zero)]
    known = is_known(worlds.one) and is_known(worlds.zero)
    return AnsweredQuery(
        query=number,
        world_1=drawn["answers", "one"],
        world_0=drawn["answers", "zero"],
        chosen=chosen_set(attack, drawn["search", "one"], drawn["search", "zero"]),
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
        fitted=not predictor.deterministic or (exact and not known),
        asked=told,
        together=together,
    )


def _resampled(
    runs: _Runs, release: Release, predictor: VotingPredictor, draws: Draws, classes: int, seed: Seed
) -> tuple[list[AnswerLaws], list[AnswerLaws]]:
    """Laws of answers by runs drawn anew from those there are; and where records change nothing, as if they did."""
    if predictor.deterministic:
        return [], []
    again: list[AnswerLaws] = []
    unmoved: list[AnswerLaws] = []
    for number in range(draws.resamples):
        rng = seed.child("resamples", number).rng()
        for found, others in ((again, runs.resampled(rng)), (unmoved, runs.unmoved(predictor, classes, rng))):
            laws = answer_laws(others.worlds(predictor, classes), release, seed.child("votes"))
            assert laws is not None
            found.append(laws)
    return again, unmoved


@dataclass(frozen=True, eq=False)
class _Runs:
    """All that was seen of one query."""

    votes: Ints  # without further records, shape (runs, voters)
    moved: Ints  # of the voters that have them, shape (runs, m)
    labels: Ints  # of the records, shape (m,)

    def worlds(self, predictor: VotingPredictor, classes: int) -> Worlds:
        one, zero = (
            predictor.law(self.votes, self.moved, self.labels, added=added, classes=classes) for added in (True, False)
        )
        return Worlds(one, zero)

    def resampled(self, rng: np.random.Generator) -> _Runs:
        """As many runs, drawn with replacement; those with the records by themselves."""
        own, moved = (rng.integers(0, len(rows), len(rows)) for rows in (self.votes, self.moved))
        return _Runs(self.votes[own], self.moved[moved], self.labels)

    def unmoved(self, predictor: VotingPredictor, classes: int, rng: np.random.Generator) -> _Runs:
        """As many runs of the voters that have the records as if these changed nothing."""
        shares = shares_without(self.worlds(predictor, classes).zero, self.moved.shape[1])
        drawn = [rng.choice(classes, size=len(self.moved), p=share) for share in shares]
        return _Runs(self.votes, np.stack(drawn, axis=1).astype(np.int64), self.labels)


@dataclass(frozen=True, eq=False)
class Worlds:
    """The laws of the votes on one query: with the records, and without them."""

    one: VoteLaw
    zero: VoteLaw


@dataclass(frozen=True, eq=False)
class AnswerLaws:
    """Probability of each answer, shape (answers,), with the records and without them."""

    one: Floats
    zero: Floats


@singledispatch
def release_law(release: Any, histograms: Ints) -> Floats | None:
    """Probability of each answer of each histogram, (n, K) to (n, answers); None for a release without formula."""
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
    found = np.zeros((len(histograms), histograms.shape[1] + 1))
    found[:, :-1] = ndtr(margins)[:, None] * many_argmax_probabilities(histograms, release.sigma)
    found[:, release.otherwise(histograms.shape[1])] += ndtr(-margins)
    return found


FORMULAS = frozenset(known.answers for known in (GaussianArgmax, LaplaceArgmax, ConfidentArgmax))
"""The answers that formulas speak of: a subclass with answers of its own is simulated."""


def answer_laws(worlds: Worlds, release: Release, seed: Seed) -> AnswerLaws | None:
    """The law of the answers in both worlds; None where the release has no formula."""
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
    count = 1 if all(map(is_known, laws)) else HISTOGRAMS
    drawn = [part for law in laws for part in weighted(law, count, seed)]
    distinct, place = np.unique(np.concatenate([part.histograms for part in drawn]), axis=0, return_inverse=True)
    each = release_law(release, distinct)
    if each is None:
        return None
    means = each[place.reshape(len(drawn), count)].mean(axis=1) * np.array([part.weight for part in drawn])[:, None]
    own = len(weighted(worlds.one, 0, seed))
    return AnswerLaws(means[:own].sum(axis=0), means[own:].sum(axis=0))


@dataclass(frozen=True, eq=False)
class Part:
    """Histograms that stand for a part of a law of votes."""

    weight: float  # probability of the part
    histograms: Ints  # shape (count, K)


@singledispatch
def weighted(law: Any, count: int, seed: Seed) -> list[Part]:
    """Histograms that stand for a law, in parts of known weight; from one seed only votes that move differ."""
    return [Part(1.0, law.draw(count, seed.rng()))]


@weighted.register
def _(law: SampledNeighbours, count: int, seed: Seed) -> list[Part]:
    """Whether an added record is kept is not left to a few draws: that probability is what sampling is paid for."""
    if len(law.ranks) > MAX_KEPT:
        return [Part(1.0, law.draw(count, seed.rng()))]
    parts = []
    for kept in product((True, False), repeat=len(law.ranks)):
        weight = math.prod(law.rate if one else 1 - law.rate for one in kept)
        parts.append(Part(weight, law.draw_given(kept, count, seed.rng())))
    return parts


def is_known(law: VoteLaw) -> bool:
    """Whether every draw of the law is the same histogram."""
    if isinstance(law, ApartTeachers):
        return bool(((law.shares == 0) | (law.shares == 1)).all())
    return isinstance(law, KnownVotes)


@singledispatch
def shares_without(law: Any, voters: int) -> Floats:
    """How the voters that records fall to vote in the world without them, shape (m, K); of a law that is fitted."""
    raise NotImplementedError(f"no law of {type(law).__name__} is fitted to runs")


@shares_without.register
def _(law: AlikeTeachers, voters: int) -> Floats:
    return np.broadcast_to(law.shares, (voters, law.classes))


@shares_without.register
def _(law: ApartTeachers, voters: int) -> Floats:
    return law.shares[:voters]


def log_flips(law: VoteLaw, release: Release, seed: Seed) -> tuple[Floats, Floats]:
    """What data-dependent accounting is made of, of some histograms of a law: empty where there is none.

    Returns: Of each histogram the log of the bound on the probability that noise changes the winner, and of the
        probability of the less likely outcome of the threshold, empty without one.
    """
    none = np.empty(0)
    if not isinstance(release, GaussianArgmax | ConfidentArgmax) or isinstance(law, SampledNeighbours):
        return none, none
    histograms = law.draw(1 if is_known(law) else FLIPS, seed.rng())
    flips = gnmax_log_flips(histograms, release.sigma)
    if isinstance(release, GaussianArgmax):
        return flips, none
    return flips, np.asarray(log_ndtr(-np.abs(release.margins(histograms)) / release.threshold_sigma))


def counted(law: Floats, answers: int, rng: np.random.Generator) -> Ints:
    """How often each answer is given in so many answers: one draw."""
    return np.asarray(rng.multinomial(answers, np.maximum(law, 0) / np.maximum(law, 0).sum()), np.int64)


def simulated(law: VoteLaw, release: Release, answers: int, rng: np.random.Generator) -> Ints:
    """The same by simulation, each answer from a histogram of its own: for releases without a formula."""
    counts = np.zeros(law.classes + 1, np.int64)
    for first in range(0, answers, CHUNK):
        given = release.answers(law.draw(min(CHUNK, answers - first), rng), rng)
        counts += np.bincount(given, minlength=law.classes + 1)
    return counts if counts[-1] or isinstance(release, ConfidentArgmax) else counts[:-1]


def torch_counts(law: VoteLaw, sigma: float, answers: int, seed: Seed, *, device: str) -> Ints:
    """How often each class is the argmax of votes plus Gaussian noise, in so many answers; shape (K,)."""
    import torch

    rng = seed.child("votes").rng()
    noise = torch.Generator(device).manual_seed(int(seed.child("noise").sequence().generate_state(1)[0]))
    counts = np.zeros(law.classes, np.int64)
    for first in range(0, answers, TORCH_CHUNK):
        votes = torch.tensor(law.draw(min(TORCH_CHUNK, answers - first), rng), dtype=torch.float32, device=device)
        drawn = torch.randn(votes.shape, generator=noise, device=device)
        given = (votes + sigma * drawn).argmax(dim=1)
        counts += np.asarray(torch.bincount(given, minlength=law.classes).cpu())
    return counts


def releases_of(predictor: VotingPredictor, queries: Features, voters: int, compute: Compute) -> Sequence[Release]:
    if isinstance(predictor, StudentPredictor):
        return predictor.releases(queries, voters=voters, compute=compute)
    return [predictor.release()] * len(queries)


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
