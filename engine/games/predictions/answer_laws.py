"""The exact law of a private predictor's answers in both worlds, and many answers drawn from it at once.

Answers are independent and alike, so the counts of n of them are one multinomial draw over their probabilities, means
over the law of the votes: by a formula for teachers that are alike and Gaussian noise, else over histograms drawn from
it, the same ones in both worlds but for the votes that move.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import singledispatch
from itertools import product
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr, ndtr

from dpaudit.actors.seed import Seed
from dpaudit.actors.work import unit
from dpaudit.engine.games.predictions.adversaries import Crafted
from dpaudit.engine.games.predictions.answer_set import chosen_set
from dpaudit.estimators.answered_queries import AnsweredQuery
from dpaudit.estimators.private_prediction.noisy_argmax import gnmax_log_flips
from dpaudit.estimators.private_prediction.random_votes import (
    laplace_argmax_probabilities,
    many_argmax_probabilities,
    multinomial_argmax_probabilities,
)
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
