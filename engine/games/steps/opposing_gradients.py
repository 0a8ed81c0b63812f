"""A crafted crowd: every record but one is the same, made so that its gradient is opposite to the canary's.

The sum of a step says how many of the crowd are in the batch, and a batch that is one short when the canary comes moves
it by two clips instead of one: so batches of one size and shuffled epochs, accounted for as Poisson sampling, show.
Under Poisson sampling itself the crowd adds binomial noise and tells nothing.

White-box, the attack is the likelihood ratio of the steps, by a law that is learned. What a record's coming does
depends on how batches are made: by Poisson sampling, of one size, or in shuffled epochs. Each is a law with few
numbers, fitted to search trainings; the one that tells held-out ones apart best is taken.
Source: the worst-case data of Chua et al. (2024), arXiv:2403.17673, and Annamalai et al. (2024), arXiv:2411.10614;
Neyman and Pearson (1933); the learned law is ours.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from dpaudit.actors.seed import Seed
from dpaudit.actors.unit import Resources
from dpaudit.actors.work import Outcome, Work, unit
from dpaudit.claims import Relation
from dpaudit.engine.games.protocol import Capability, CheckTest, GameTraits, Played, Setting, require_units
from dpaudit.engine.games.trials import (
    MAX_TRIALS,
    ExampleGradients,
    TrialGame,
    failed_among,
    grouped_for_reading,
    scored_trials,
)
from dpaudit.errors import InputError, SpecError, require
from dpaudit.estimators.scores import Scores
from dpaudit.mechanisms.compute import Compute
from dpaudit.mechanisms.examples import Examples, Features
from dpaudit.mechanisms.protocols import WatchedLearner
from dpaudit.mechanisms.threads import limited_threads
from dpaudit.mechanisms.training.inputs import example_shape
from dpaudit.mechanisms.training.private.private_steps import PrivateSteps
from dpaudit.mechanisms.training.recipe import TrainingTask
from dpaudit.registry import register

if TYPE_CHECKING:
    from torch import Tensor

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]

WATCHED_LEARNERS = Capability(
    WatchedLearner, "learners whose weights and steps may be watched (with methods `claimed_steps` and `watch`)"
)
FEW = 2
"""Records of the smallest crowd that is tried: fewer than an epoch has batches."""
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


@register("game", "opposing-gradients", source="Ours, after Chua et al. (2024), arXiv:2403.17673; arXiv:2411.10614")
@dataclass(frozen=True)
class OpposingGradients(TrialGame):
    """Two worlds, add/remove: a crowd of records alike, trained on with a canary of the opposite gradient or without.

    Of the data given only the shape of an example is used, one feature where it is a row of numbers; there are two
    classes. Trainings are watched step by step.

    Attributes:
        search: Trainings the attack learns from, spread evenly over the sizes of crowds that are tried, in
            4 .. 10,000,000.
        sizes: Records of the crowds that are tried, each >= 1; the one that tells most is taken. Empty: those around
            which the size of a batch may change, and a small one; where the claim is not about those, as many as the
            target part has.
        length: Of a record, in clips, > 0: long enough that its gradient is clipped, and no longer, since a crowd that
            is well told apart has no gradient left.
    """

    traits: ClassVar[GameTraits] = GameTraits(
        relation=Relation.ADD_REMOVE,
        assumes="Nothing beyond fair coins and independent trainings: both data sets and the attack were fixed before "
        "the fresh trainings. The claim is taken to hold for every data set, as it says.",
        views={WATCHED_LEARNERS: CrowdView},
        attack="crowd-likelihood",
        estimator="fair-coins",
        independent_trials=True,
        repeats_calls=True,
        helps="more `trials`",
        check_tests=(
            CheckTest(
                WATCHED_LEARNERS,
                (Relation.ADD_REMOVE,),
                "batches that are not drawn as was accounted for, noise too small, clipping that does not bind: on "
                "data made for it",
                trainings=1_536,
                cost=1 / 20,
                scales={"trials": 2 / 3, "search": 1 / 3},
                min_trainings=192,
                growth_on_repeat={"trials": 4, "search": 2},
            ),
        ),
    )

    trials: int = 4_000
    stack: int = 256
    search: int = 1_000
    sizes: tuple[int, ...] = ()
    length: float = 2.0

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "sizes", tuple(self.sizes))
        require(4 <= self.search <= MAX_TRIALS, f"search must be in 4 .. {MAX_TRIALS:,}", search=self.search)
        require(all(size >= 1 for size in self.sizes), "sizes of crowds must be >= 1", sizes=self.sizes)
        require(self.length > 0, "length must be > 0", length=self.length)

    def play(self, setting: Setting, work: Work) -> Played:
        mechanism = setting.mechanism
        sizes = self.sizes or sizes_for(mechanism, len(setting.parts.target))
        shape = crowd_shape(setting.parts.target.features)
        each = self.search // len(sizes)
        require(each >= 4, f"search must be at least {4 * len(sizes)}", sizes=len(sizes), search=self.search)
        require_units(-(-each // self.stack))
        search = tuple(
            unit
            for number, size in enumerate(sizes)
            for unit in work.split(
                train_crowd,
                each,
                self.stack,
                mechanism,
                shape,
                self.length,
                Crowd(size),
                offset=number * each,
                seed=setting.seed.child("search"),
                label=f"crowd of {size}: trainings",
                **setting.unit_options,
            )
        )
        chosen = work.add(take_crowd, mechanism, search, label="choice of a crowd", resources=Resources())
        fresh = work.split(
            train_crowd,
            self.trials,
            self.stack,
            mechanism,
            shape,
            self.length,
            chosen,
            seed=setting.seed.child("fresh"),
            label="the crowd taken: trainings",
            **setting.unit_options,
        )
        scores = tuple(
            work.add(
                score_crowd,
                setting.attack,
                mechanism,
                chosen,
                search,
                trials,
                label=f"scores of {trials[0].label}",
                resources=setting.resources,
            )
            for trials in grouped_for_reading(fresh, setting)
        )
        return Played(scores, trainings=fresh, choices=(chosen,), reference=self.reference())


def crowd_shape(features: Features) -> tuple[int, ...]:
    """Of a record: that of the data's, but a single feature where these are flat, since a network takes any number."""
    shape = example_shape(features)
    return (1,) if len(shape) == 1 else shape


def sizes_for(mechanism: WatchedLearner, rows: int) -> tuple[int, ...]:
    """Sizes of crowds to try, of which the mechanism claims the same with and without one record more.

    A batch of q n records, rounded in whichever way, holds one more from some n on: the last n before that are tried
    for every way of rounding. Where the claim depends on the number of rows, as many as there are are taken, or the
    next number of which the same is claimed.
    """
    rate = mechanism.claimed_steps(rows).private.sample_rate
    steps = mechanism.claimed_steps(rows)
    wanted = (FEW, math.floor(1 / rate), math.ceil(1.5 / rate) - 1, math.ceil(2 / rate) - 1)
    alike = [
        n for n in sorted({max(1, n) for n in wanted}) if _alike(mechanism, n) and mechanism.claimed_steps(n) == steps
    ]
    if alike:
        return tuple(alike)
    near = next((n for n in range(rows, 2 * rows + 2) if _alike(mechanism, n)), None)
    if near is None:
        raise SpecError(
            f"what {type(mechanism).__name__} claims of its steps changes with every record; give `sizes` by hand"
        )
    return (near,)


def _alike(mechanism: WatchedLearner, rows: int) -> bool:
    """Whether the same is claimed of the steps with one record more."""
    return mechanism.claimed_steps(rows) == mechanism.claimed_steps(rows + 1)


CANARY, CROWD = 0, 1
"""Rows of the crowd's examples, and their labels."""
COLUMNS = ("released", "canary", "crowd")
"""The fields of `CrowdSteps`."""


def crowd_examples(shape: tuple[int, ...], length: float) -> Examples:
    """The canary and a record of the crowd: the same features with one label or the other, so that their gradients are
    opposite in a network of two classes, whatever its weights.
    """
    point = np.full(shape, length / np.sqrt(np.prod(shape)), np.float32)
    return Examples(np.stack([point, point]), np.array([CANARY, CROWD]), 2, "crafted crowd")


@dataclass(frozen=True)
class Crowd:
    """A crowd."""

    size: int  # its records, without the canary


@dataclass(frozen=True, eq=False)
class CrowdTrainings:
    """Trainings on a crowd."""

    number: NDArray[np.int64] = field(metadata={"stored": "int32"})  # of each, shape (T,)
    truth: NDArray[np.bool_]  # which had the canary, shape (T,)
    failed: NDArray[np.bool_]  # which left nothing to look at, shape (T,)
    size: int  # records of the crowd
    steps: CrowdSteps  # what was seen of all of them


@unit
def train_crowd(
    mechanism: WatchedLearner,
    shape: tuple[int, ...],
    length: float,
    crowd: Crowd,
    compute: Compute,
    *,
    first: int,
    last: int,
    seed: Seed,
) -> Outcome[CrowdTrainings]:
    """Trainings `first` to `last` - 1 on a crowd, each with the canary or without it by its own coin."""
    truth = np.array([seed.child(number).rng().random() < 0.5 for number in range(first, last)])
    examples = crowd_examples(shape, length * mechanism.claimed_steps(crowd.size).private.clip)
    tasks = [
        _task(crowd, there, seed.child(number, 0)) for number, there in zip(range(first, last), truth, strict=True)
    ]
    watched = WatchedCrowd(mechanism, examples, len(tasks), crowd.size, compute)
    with limited_threads(compute.threads):
        models = mechanism.watch(examples.features, tasks, classes=examples.classes, compute=compute, observer=watched)
    failed = failed_among(models) | ~np.all(
        [np.isfinite(getattr(watched.seen, name)).all(1) for name in COLUMNS], axis=0
    )
    made = CrowdTrainings(np.arange(first, last), truth, failed, crowd.size, watched.seen)
    return Outcome(made, metrics={"failed_share": float(failed.mean())})


def _task(crowd: Crowd, there: bool, seed: Seed) -> TrainingTask:
    rows = np.full(crowd.size + there, CROWD, np.int64)
    if there:
        rows[-1] = CANARY
    return TrainingTask(rows, rows.copy(), seed.sequence())


class WatchedCrowd:
    """An observer of trainings on a crowd: keeps what each step has along the canary's gradient at its weights."""

    def __init__(
        self, mechanism: WatchedLearner, examples: Examples, trainings: int, size: int, compute: Compute
    ) -> None:
        claimed = mechanism.claimed_steps(size)
        clip = claimed.private.clip
        self._unit = claimed.divisor / clip
        self._gradients = [
            ExampleGradients(mechanism.recipe, clip, examples.take(np.full(trainings, row)), compute)
            for row in (CANARY, CROWD)
        ]
        self.seen = CrowdSteps(*np.zeros((3, trainings, claimed.count)))

    def __call__(self, places: NDArray[np.int64], step: int, parameters: Tensor, released: Tensor) -> None:
        """One step, as an `Observer` is shown it."""
        canary, crowd = (gradient(places, parameters) for gradient in self._gradients)
        length = canary.norm(dim=1, keepdim=True)
        along = canary / length.clamp(min=1e-30) * (length > 1e-6)
        self.seen.released[places, step] = (released.double() * along).sum(1).cpu().numpy() * self._unit
        self.seen.canary[places, step] = (canary * along).sum(1).cpu().numpy()
        self.seen.crowd[places, step] = (crowd * along).sum(1).cpu().numpy()


@unit
def take_crowd(mechanism: WatchedLearner, search: tuple[CrowdTrainings, ...]) -> Outcome[Crowd]:
    """The crowd on which held-out search trainings are told apart best; its notes say what was tried."""
    found = {}
    for size in sorted({part.size for part in search}):
        gains = told(_search_of(search, size, mechanism))
        found[size] = max((gain, hypothesis.words) for hypothesis, gain in gains.items())
    best = max(found, key=lambda size: found[size][0])
    tried = ", ".join(f"{size} records {max(0.0, gain):.4f}" for size, (gain, _) in found.items())
    words = (
        f"crowd chosen: {len(found)} sizes were tried, each training of which told so many nats: {tried}; of {best} "
        f"records it was learned that the canary {found[best][1]}"
    )
    return Outcome(Crowd(best), notes=(words,))


@unit
def score_crowd(
    attack: Any,
    mechanism: WatchedLearner,
    crowd: Crowd,
    search: tuple[CrowdTrainings, ...],
    fresh: tuple[CrowdTrainings, ...],
) -> Iterator[Scores]:
    """The attack learns on the search trainings of the chosen crowd and scores the fresh ones: one replay."""
    number, truth, failed = (
        np.concatenate([getattr(part, name) for part in fresh]) for name in ("number", "truth", "failed")
    )
    view = CrowdView(_search_of(search, crowd.size, mechanism), _finished(fresh))
    yield scored_trials(attack, view, number=number, truth=truth, failed=failed)


def _search_of(search: Sequence[CrowdTrainings], size: int, mechanism: WatchedLearner) -> CrowdSearch:
    """Search trainings on a crowd that did not fail, and their worlds."""
    own = [part for part in search if part.size == size]
    require(any((~part.failed).any() for part in own), "some search training on each crowd must be finished", size=size)
    truth = np.concatenate([part.truth[~part.failed] for part in own])
    return CrowdSearch(_finished(own), truth, mechanism.claimed_steps(size).private, size)


def _finished(trainings: Sequence[CrowdTrainings]) -> CrowdSteps:
    parts = [part.steps.of(~part.failed) for part in trainings]
    return CrowdSteps(*(np.concatenate([getattr(part, name) for part in parts]) for name in COLUMNS))
