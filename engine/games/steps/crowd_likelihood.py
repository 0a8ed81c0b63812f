"""White-box: the likelihood ratio of DP-SGD's steps on a crowd of records alike, by a law that is learned.

What a record's coming does depends on how batches are made: by Poisson sampling, of one size, or in shuffled epochs.
Each is a law with few numbers, fitted to search trainings; the one that tells held-out ones apart best is taken.
Source: Neyman and Pearson (1933); Chua et al. (2024), arXiv:2403.17673, and Annamalai et al. (2024), arXiv:2411.10614,
on shuffled batches.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from dpaudit.errors import InputError
from dpaudit.mechanisms.training.private.private_steps import PrivateSteps
from dpaudit.registry import register

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]

FOLDS = 3
"""Parts of the search trainings; each is told apart by laws that were fitted to the others."""
CLEARLY_LESS = 0.5
"""Of the variance of all steps: a step's own has to be below it to be believed."""
LEAST_VARIANCE = 1e-6
"""Of the claimed one: what a step without noise is taken to have."""
NO_NOISE = 1e-6
"""Variance, in clips squared, that a claim of no noise is taken for."""
LEAST_SHARE = 1e-6
"""Probability of a batch in which no record was seen."""


@dataclass(frozen=True, eq=False)
class CrowdSteps:
    """The steps of T trainings, along the canary's own gradient at the weights of each; all in units of the clip."""

    released: Floats  # what the noisy sum has along it, shape (T, steps)
    # length of the canary's clipped gradient, shape (T, steps); 0 where it has none, and all else is 0 too
    canary: Floats
    crowd: Floats  # what the clipped gradient of one record of the crowd has along it, shape (T, steps); about -1

    def of(self, trainings: Flags) -> CrowdSteps:
        """Some of the trainings, a mask of shape (T,)."""
        return CrowdSteps(self.released[trainings], self.canary[trainings], self.crowd[trainings])


@dataclass(frozen=True, eq=False)
class CrowdSearch:
    """Trainings of known worlds to learn from."""

    steps: CrowdSteps  # of S trainings
    truth: Flags  # which of them had the canary, shape (S,)
    claimed: PrivateSteps  # sampling, clipping and noise as the mechanism states them
    records: int  # of the crowd

    def of(self, trainings: Flags) -> CrowdSearch:
        """Some of the trainings, a mask of shape (S,)."""
        return replace(self, steps=self.steps.of(trainings), truth=self.truth[trainings])


@dataclass(frozen=True, eq=False)
class CrowdView:
    """Independent trainings on a crowd, with a canary or without it."""

    search: CrowdSearch  # trainings to learn from
    fresh: CrowdSteps  # trainings to be told apart
    shows: ClassVar[str] = "the steps of trainings on a crafted crowd, with a canary or without it"


@dataclass(frozen=True)
class Hypothesis:
    """What the canary's coming may do to the steps."""

    words: str  # the same for people: "the canary ..."
    once: bool = False  # whether it joins one step of each epoch; else every step on its own
    sizes: bool = False  # whether batches have sizes, whole numbers: where it joins, one of the crowd stays out
    places: bool = False  # whether batches are told apart by their place in the epoch
    gain: bool = False  # whether it adds a multiple of its clipped gradient


HYPOTHESES = (
    Hypothesis("joins steps by the sampling rate and changes nothing else"),
    Hypothesis("joins steps by the sampling rate and adds more or less than a clipped gradient", gain=True),
    Hypothesis("joins batches of one size and drives another record out", sizes=True),
    Hypothesis("joins one batch of each epoch and drives another record out", once=True, sizes=True),
    Hypothesis("joins one batch of each epoch, and batches are cut anew", once=True, sizes=True, places=True),
    Hypothesis("joins steps by the sampling rate, and the sizes of certain batches change", places=True),
)
"""The claim's own law comes first: it is kept where no other tells more."""


@dataclass(frozen=True, eq=False)
class CrowdLaw:
    """The law of a training's steps in both worlds: with the canary out, and in. All arrays have shape (steps,)."""

    # probability that the canary joins a step; where it joins one step of each epoch, that it is this one
    joins: Floats
    epochs: Ints  # first step of each epoch, and one past the last step, where it joins one of each; else empty
    count: Floats  # records of the crowd in each batch while the canary is out
    count_in: Floats  # the same while it is in, in a batch that it does not join
    driven_out: float  # how many fewer there are in a batch that it joins, 0 or 1
    gain: float  # what the canary adds over its clipped gradient; 1 where it is clipped as claimed
    variance: Floats  # of the noise, in clips squared
    spread: float  # variance of the number of the crowd in a batch

    def log_ratio(self, seen: CrowdSteps) -> Floats:
        """Log-likelihood of the canary's being in less that of its being out, in nats, shape (T,)."""
        beyond = seen.released - self.count * seen.crowd
        variance = self.variance + self.spread * seen.crowd**2
        apart = (self.count_in - self.count) * seen.crowd
        joined = apart - self.driven_out * seen.crowd + self.gain * seen.canary
        apart, joined = ((beyond * shift - shift**2 / 2) / variance for shift in (apart, joined))
        with np.errstate(divide="ignore"):
            joins, rests = np.log(self.joins), np.log1p(-self.joins)
        if not len(self.epochs):
            return np.asarray(np.logaddexp(rests + apart, joins + joined).sum(1))
        each = [
            logsumexp((joins + joined - apart)[:, first:last], axis=1)
            for first, last in itertools.pairwise(self.epochs)
        ]
        return np.asarray(apart.sum(1) + np.sum(each, axis=0))


@register("attack", "crowd-likelihood", source="Neyman and Pearson (1933); Chua et al. (2024), arXiv:2403.17673")
@dataclass(frozen=True)
class CrowdLikelihood:
    """The likelihood ratio under the law that tells the search trainings apart best; learns of no fresh training."""

    view: ClassVar[type[CrowdView]] = CrowdView

    def score(self, view: CrowdView) -> Floats:
        """Log-likelihood ratio of each fresh training, in nats.

        Raises: InputError when the search trainings are of one world only.
        """
        gains = told(view.search)
        return fitted_law(max(gains, key=lambda one: gains[one]), view.search).log_ratio(view.fresh)


def told(search: CrowdSearch) -> Mapping[Hypothesis, float]:
    """How much each hypothesis tells of the worlds of held-out search trainings: nats a training, over a coin."""
    truth = search.truth
    parts = [np.arange(len(truth)) % FOLDS != fold for fold in range(FOLDS)]
    if any(len(np.unique(truth[part])) < 2 for part in parts):
        raise InputError("search trainings must come from both worlds; ask for more of them (`search`)")
    found = {}
    for hypothesis in HYPOTHESES:
        ratios = np.empty(len(truth))
        for part in parts:
            ratios[~part] = fitted_law(hypothesis, search.of(part)).log_ratio(search.steps.of(~part))
        found[hypothesis] = float(np.log(2) - np.logaddexp(0, np.where(truth, -ratios, ratios)).mean())
    return found


def fitted_law(hypothesis: Hypothesis, search: CrowdSearch) -> CrowdLaw:
    """The law of a hypothesis, with the numbers that trainings of both worlds show."""
    claimed, seen, truth = search.claimed, search.steps, search.truth
    steps, rate = seen.released.shape[1], claimed.sample_rate
    epochs = first_steps(steps, rate)
    groups = _places(epochs) if hypothesis.places else np.zeros(steps, np.int64)
    out, there = seen.of(~truth), seen.of(truth)
    count = _fitted_counts(out.released, out.crowd, groups)
    joins, count_in, driven_out, gain = np.full(steps, rate), count, 0.0, 1.0
    if hypothesis.sizes:
        share = 1 / (search.records + 1)
        size = _fitted_counts(there.released, there.crowd + share * (there.canary - there.crowd), groups)
        if hypothesis.places:
            count, count_in = _cut_anew(count, size, epochs, search.records)
        else:
            count, count_in = np.round(count), np.maximum(np.round(size), 0.0)
        joins, driven_out = np.clip(count_in * share, LEAST_SHARE, 1.0), 1.0
    elif hypothesis.gain:
        left = there.released - count * there.crowd
        gain = max(0.0, _ratio((left * there.canary).sum(), rate * (there.canary**2).sum()))
    elif hypothesis.places:
        count_in = _fitted_counts(there.released - rate * there.canary, there.crowd, groups)
    if hypothesis.once:
        joins = np.concatenate([part / part.sum() for part in np.split(joins, epochs[1:-1])])
    variance, spread = _noise(out, count, max(claimed.noise_multiplier**2, NO_NOISE))
    return CrowdLaw(
        joins, epochs if hypothesis.once else epochs[:0], count, count_in, driven_out, gain, variance, spread
    )


def first_steps(steps: int, rate: float) -> Ints:
    """First step of each expected pass over the data, and the number of steps behind them."""
    passes = max(1, round(steps * rate))
    return np.round(np.linspace(0, steps, passes + 1)).astype(np.int64)


def _places(epochs: Ints) -> Ints:
    """Which step of its epoch each step is, shape (steps,)."""
    return np.concatenate([np.arange(last - first) for first, last in itertools.pairwise(epochs)])


def _fitted_counts(released: Floats, each: Floats, groups: Ints) -> Floats:
    """How many records that add `each` explain what is released, by least squares, alike in a group; shape (steps,)."""
    explained, length = (np.bincount(groups, values.sum(0)) for values in (released * each, each**2))
    return np.asarray(np.divide(explained, length, out=np.zeros_like(explained), where=length > 0)[groups])


def _cut_anew(out: Floats, there: Floats, epochs: Ints, records: int) -> tuple[Floats, Floats]:
    """Sizes of batches that hold each record once an epoch, without the canary and with it, in one more batch place."""
    sizes, larger = [], []
    for first, last in itertools.pairwise(epochs):
        one_more = np.eye(last - first)[np.argmax(there[first:last] - out[first:last])]
        sizes.append(_whole((out[first:last] + there[first:last] - one_more) / 2, records))
        larger.append(sizes[-1] + one_more)
    return np.concatenate(sizes), np.concatenate(larger)


def _whole(estimates: Floats, total: int) -> Floats:
    """Whole numbers >= 0 nearest to estimates that sum to a total, shape as `estimates`."""
    whole = np.maximum(np.round(estimates), 0.0)
    while whole.sum() > total:
        whole[np.argmax(np.where(whole > 0, whole - estimates, -np.inf))] -= 1
    while whole.sum() < total:
        whole[np.argmax(estimates - whole)] += 1
    return whole


def _noise(out: CrowdSteps, count: Floats, claimed: float) -> tuple[Floats, float]:
    """Variance of each step's noise, and of the number of the crowd in a batch; as claimed unless less is seen."""
    squared = (out.released - count * out.crowd) ** 2
    along, there = out.crowd**2, out.canary > 0
    spread = _ratio(((squared - claimed) * along * there).sum(), (along**2).sum())
    every = claimed
    if spread < 0:
        spread, every = 0.0, _ratio(squared[there].sum(), there.sum())
    seen = there.sum(0)
    own = np.divide(squared.sum(0, where=there), seen, out=np.full(len(count), every), where=seen > 0)
    return np.maximum(np.where(own < CLEARLY_LESS * every, own, every), LEAST_VARIANCE * claimed), spread


def _ratio(above: float, below: float) -> float:
    return float(above / below) if below else 0.0
