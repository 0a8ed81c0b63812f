"""The exact law of a private predictor's answers in both worlds, and many answers drawn from it at once.

Answers are independent and alike, so the counts of n of them are one multinomial draw over the probabilities of the
answers: with votes that are random themselves, over the mean of these. For teachers that are alike and Gaussian noise
that mean has a formula; elsewhere the law of the votes is taken as that of so many histograms drawn from it, the same
ones in both worlds but for the votes that move.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import singledispatch
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr, ndtr

from dpaudit.actors.seed import Seed
from dpaudit.estimators.private_prediction.noisy_argmax import gnmax_log_flips
from dpaudit.estimators.private_prediction.random_votes import (
    laplace_argmax_probabilities,
    many_argmax_probabilities,
    multinomial_argmax_probabilities,
)
from dpaudit.mechanisms.predictors.releases import ConfidentArgmax, GaussianArgmax, LaplaceArgmax, Release
from dpaudit.mechanisms.predictors.vote_laws import AlikeTeachers, ApartTeachers, KnownVotes, SampledNeighbours, VoteLaw

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

HISTOGRAMS = 2_000
"""That stand for a law of votes without a formula."""
MOST_KEPT = 2
"""Records added to neighbours whose being kept is enumerated."""
FLIPS = 64
"""Histograms whose data-dependent cost is averaged."""
CHUNK = 250_000
"""Histograms drawn at once by simulation."""


@dataclass(frozen=True, eq=False)
class Worlds:
    """The laws of the votes on one query in both worlds.

    Attributes:
        one: With the records.
        zero: Without them.
    """

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


def answer_laws(worlds: Worlds, release: Release, seed: Seed) -> AnswerLaws | None:
    """The law of the answers in both worlds; None where the release has no formula.

    Args:
        worlds: The laws of the votes.
        release: How votes become an answer.
        seed: Of the histograms that stand for a law of votes without a formula.
    """
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
    """Histograms that stand for a part of a law of votes.

    Attributes:
        weight: Probability of the part.
        histograms: Shape (count, K).
    """

    weight: float
    histograms: Ints


@singledispatch
def weighted(law: Any, count: int, seed: Seed) -> list[Part]:
    """Histograms that stand for a law, in parts of known weight; from one seed only votes that move differ."""
    return [Part(1.0, law.draw(count, seed.rng()))]


@weighted.register
def _(law: SampledNeighbours, count: int, seed: Seed) -> list[Part]:
    """Whether an added record is kept is not left to a few draws: that probability is what sampling is paid for."""
    if len(law.ranks) > MOST_KEPT:
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


TORCH_CHUNK = 1_000_000
"""Answers drawn at once."""


def torch_counts(law: VoteLaw, sigma: float, answers: int, seed: Seed, *, device: str) -> Ints:
    """How often each class is the argmax of votes plus Gaussian noise, in so many answers; shape (K,).

    Args:
        law: Each answer has a histogram of its own.
        sigma: Standard deviation of the noise on each count, > 0.
        answers: How many, >= 1.
        seed: Decides all draws.
        device: A device name of torch.
    """
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
