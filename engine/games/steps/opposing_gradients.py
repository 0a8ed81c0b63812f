"""Game on a crafted crowd: all records except the canary are identical, with the gradient opposite to the canary's.

The sum of a step reveals how many records of the crowd are in the batch. If the canary displaces one of them, the sum
moves by two clips instead of one. So the game detects batches of fixed size and shuffled epochs that are accounted for
as Poisson sampling. Under actual Poisson sampling the crowd only adds binomial noise.

The white-box attack is the likelihood ratio of the steps under a learned law. The effect of the canary depends on how
batches are made: by Poisson sampling, of fixed size, or in shuffled epochs. Each hypothesis is a law with few
parameters, fitted to search trainings. The one that best distinguishes held-out search trainings is used.
Source: the worst-case data of Chua et al. (2024), arXiv:2403.17673, and Annamalai et al. (2024), arXiv:2411.10614;
Neyman and Pearson (1933); the learned law is ours.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from dpaudit.claims import PrivacyCurve, Relation
from dpaudit.engine.games.outcomes import Observed, Outcomes, Runs
from dpaudit.engine.games.protocol import Capability, CheckTest
from dpaudit.engine.games.trials import ExampleGradients
from dpaudit.engine.games.two_worlds import PairTraits, TwoWorlds
from dpaudit.errors import InputError, SpecError, require
from dpaudit.mechanisms.compute import Compute, TrainingError
from dpaudit.mechanisms.examples import Examples, Features
from dpaudit.mechanisms.protocols import WatchedLearner
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
    WatchedLearner, "learners whose weights and steps can be observed (with methods `claimed_steps` and `watch`)"
)
SMALLEST_CROWD = 2
"""Number of records of the smallest crowd, which is less than the number of batches in an epoch."""
FOLDS = 3
"""Number of folds of the search trainings; the laws for one fold are fitted to the others."""
LOW_VARIANCE_SHARE = 0.5
"""Share of the common variance below which the variance of a single step is used."""
LEAST_VARIANCE = 1e-6
"""Smallest variance that is assumed, as a share of the claimed one."""
NO_NOISE = 1e-6
"""Variance, in clips squared, that stands for a claim of no noise."""
LEAST_SHARE = 1e-6
"""Probability that the canary joins a batch in which no record was observed."""


@dataclass(frozen=True, eq=False)
class CrowdSteps:
    """Steps of T trainings, projected on the canary's gradient at the weights of each; all in units of the clip."""

    released: Floats  # the noisy sum, shape (T, steps)
    # length of the canary's clipped gradient, shape (T, steps); if it is 0, all projections are 0
    canary: Floats
    crowd: Floats  # the clipped gradient of one record of the crowd, shape (T, steps); about -1

    @classmethod
    def of_runs(cls, runs: Outcomes) -> CrowdSteps:
        """Return the steps of runs that gave them as numbers, one field after the other."""
        return cls(*np.split(runs.matrix(), 3, axis=1))

    def of(self, trainings: Flags) -> CrowdSteps:
        """Return some of the trainings, by a mask of shape (T,)."""
        return CrowdSteps(self.released[trainings], self.canary[trainings], self.crowd[trainings])


@dataclass(frozen=True, eq=False)
class CrowdSearch:
    """Search trainings, whose worlds are known."""

    steps: CrowdSteps  # of S trainings
    truth: Flags  # True if the canary was in the data, shape (S,)
    claimed: PrivateSteps  # sampling, clipping and noise as the mechanism states them
    records: int  # number of records in the crowd

    def of(self, trainings: Flags) -> CrowdSearch:
        """Return some of the trainings, by a mask of shape (S,)."""
        return replace(self, steps=self.steps.of(trainings), truth=self.truth[trainings])


@dataclass(frozen=True)
class Crowd:
    """A crowd of identical records, with a canary or without it."""

    size: int  # number of records, without the canary
    claimed: PrivateSteps  # sampling, clipping and noise as the mechanism states them

    def search(self, runs: Outcomes) -> CrowdSearch:
        """Return the search trainings among these runs that did not fail."""
        usable = runs.where(runs.fault == "")
        require(len(usable.truth) > 0, "at least one search training on each crowd must succeed", size=self.size)
        return CrowdSearch(CrowdSteps.of_runs(usable), usable.truth, self.claimed, self.size)


@dataclass(frozen=True, eq=False)
class CrowdView:
    """Independent trainings on a crowd, with a canary or without it."""

    search: CrowdSearch
    fresh: CrowdSteps
    shows: ClassVar[str] = "the steps of trainings on a crafted crowd, with a canary or without it"


@dataclass(frozen=True)
class Hypothesis:
    """Possible effect of the canary on the steps."""

    words: str  # description, continuing "the canary ..."
    once: bool = False  # True if it joins one step of each epoch; otherwise each step independently
    sizes: bool = False  # True if batch sizes are fixed integers: the canary displaces a record of the crowd
    places: bool = False  # True if batch sizes depend on the position in the epoch
    gain: bool = False  # True if it adds a multiple of its clipped gradient


HYPOTHESES = (
    Hypothesis("joins steps by the sampling rate and changes nothing else"),
    Hypothesis("joins steps by the sampling rate and adds more or less than a clipped gradient", gain=True),
    Hypothesis("joins batches of fixed size and displaces another record", sizes=True),
    Hypothesis("joins one batch of each epoch and displaces another record", once=True, sizes=True),
    Hypothesis("joins one batch of each epoch and changes the batch sizes", once=True, sizes=True, places=True),
    Hypothesis("joins steps by the sampling rate and changes the sizes of certain batches", places=True),
)
"""The first one is the law of the claim; ties are decided in its favour."""


@dataclass(frozen=True, eq=False)
class CrowdLaw:
    """Law of the steps of a training with the canary in the data, and without it. All arrays have shape (steps,)."""

    # probability that the canary joins a step; if it joins one step of each epoch, that it joins this one
    joins: Floats
    epochs: Ints  # if it joins one step of each epoch, first step of each, and number of steps; otherwise empty
    count: Floats  # records of the crowd in each batch, without the canary in the data
    count_in: Floats  # records of the crowd in each batch that the canary does not join, with it in the data
    driven_out: float  # number of records that it displaces from a batch, 0 or 1
    gain: float  # factor on its clipped gradient; 1 if it is clipped as claimed
    variance: Floats  # variance of the noise, in clips squared
    spread: float  # variance of the number of records of the crowd in a batch

    def log_ratio(self, steps: CrowdSteps) -> Floats:
        """Return the log-likelihood ratio of the canary in the data to the canary out, in nats, shape (T,)."""
        residual = steps.released - self.count * steps.crowd
        variance = self.variance + self.spread * steps.crowd**2
        resting = (self.count_in - self.count) * steps.crowd
        joined = resting - self.driven_out * steps.crowd + self.gain * steps.canary
        resting, joined = ((residual * shift - shift**2 / 2) / variance for shift in (resting, joined))
        with np.errstate(divide="ignore"):
            log_joins, log_rests = np.log(self.joins), np.log1p(-self.joins)
        if not len(self.epochs):
            return np.asarray(np.logaddexp(log_rests + resting, log_joins + joined).sum(1))
        by_epoch = [
            logsumexp((log_joins + joined - resting)[:, first:last], axis=1)
            for first, last in itertools.pairwise(self.epochs)
        ]
        return np.asarray(resting.sum(1) + np.sum(by_epoch, axis=0))


@register("attack", "crowd-likelihood", source="Neyman and Pearson (1933); Chua et al. (2024), arXiv:2403.17673")
@dataclass(frozen=True)
class CrowdLikelihood:
    """Likelihood ratio under the law that best distinguishes the search trainings; fresh trainings are not used."""

    view: ClassVar[type[CrowdView]] = CrowdView

    def score(self, view: CrowdView) -> Floats:
        """Return the log-likelihood ratio of each fresh training, in nats.

        Raises: InputError if the search trainings are of one world only.
        """
        gains = information_gains(view.search)
        return fitted_law(max(gains, key=lambda law: gains[law]), view.search).log_ratio(view.fresh)


def information_gains(search: CrowdSearch) -> Mapping[Hypothesis, float]:
    """Return the information about the worlds of held-out search trainings by each hypothesis, in nats a training."""
    truth = search.truth
    parts = [np.arange(len(truth)) % FOLDS != fold for fold in range(FOLDS)]
    if any(len(np.unique(truth[part])) < 2 for part in parts):
        raise InputError("search trainings must come from both worlds. Ask for more of them (`search`)")
    gains = {}
    for hypothesis in HYPOTHESES:
        ratios = np.empty(len(truth))
        for part in parts:
            ratios[~part] = fitted_law(hypothesis, search.of(part)).log_ratio(search.steps.of(~part))
        gains[hypothesis] = float(np.log(2) - np.logaddexp(0, np.where(truth, -ratios, ratios)).mean())
    return gains


def fitted_law(hypothesis: Hypothesis, search: CrowdSearch) -> CrowdLaw:
    """Return the law of a hypothesis, with parameters fitted to the search trainings of both worlds."""
    claimed, steps, rate = search.claimed, search.steps.released.shape[1], search.claimed.sample_rate
    epochs = first_steps(steps, rate)
    groups = np.zeros(steps, np.int64)  # batches of a group have the same expected size
    if hypothesis.places:
        groups = np.concatenate([np.arange(last - first) for first, last in itertools.pairwise(epochs)])
    without, with_canary = search.steps.of(~search.truth), search.steps.of(search.truth)
    count = _fitted_counts(without.released, without.crowd, groups)
    joins, count_in, driven_out, gain = np.full(steps, rate), count, 0.0, 1.0
    if hypothesis.sizes:
        share = 1 / (search.records + 1)
        record = with_canary.crowd + share * (with_canary.canary - with_canary.crowd)
        size = _fitted_counts(with_canary.released, record, groups)
        if hypothesis.places:
            count, count_in = _epoch_sizes(count, size, epochs, search.records)
        else:
            count, count_in = np.round(count), np.maximum(np.round(size), 0.0)
        joins, driven_out = np.clip(count_in * share, LEAST_SHARE, 1.0), 1.0
    elif hypothesis.gain:
        residual = with_canary.released - count * with_canary.crowd
        gain = max(0.0, _ratio((residual * with_canary.canary).sum(), rate * (with_canary.canary**2).sum()))
    elif hypothesis.places:
        count_in = _fitted_counts(with_canary.released - rate * with_canary.canary, with_canary.crowd, groups)
    if hypothesis.once:
        joins = np.concatenate([part / part.sum() for part in np.split(joins, epochs[1:-1])])
    variance, spread = _noise(without, count, max(claimed.noise_multiplier**2, NO_NOISE))
    return CrowdLaw(
        joins, epochs if hypothesis.once else epochs[:0], count, count_in, driven_out, gain, variance, spread
    )


def first_steps(steps: int, rate: float) -> Ints:
    """Return the first step of each expected pass over the data, and at the end the number of steps."""
    passes = max(1, round(steps * rate))
    return np.round(np.linspace(0, steps, passes + 1)).astype(np.int64)


def _fitted_counts(released: Floats, record: Floats, groups: Ints) -> Floats:
    """Return the least-squares number of records that add `record`, equal within a group, shape (steps,)."""
    explained, length = (np.bincount(groups, values.sum(0)) for values in (released * record, record**2))
    return np.asarray(np.divide(explained, length, out=np.zeros_like(explained), where=length > 0)[groups])


def _epoch_sizes(without: Floats, with_canary: Floats, epochs: Ints, records: int) -> tuple[Floats, Floats]:
    """Return integer batch sizes without and with the canary; in each epoch they sum to `records`, and one more."""
    sizes, larger = [], []
    for first, last in itertools.pairwise(epochs):
        one_more = np.eye(last - first)[np.argmax(with_canary[first:last] - without[first:last])]
        sizes.append(_rounded((without[first:last] + with_canary[first:last] - one_more) / 2, records))
        larger.append(sizes[-1] + one_more)
    return np.concatenate(sizes), np.concatenate(larger)


def _rounded(estimates: Floats, total: int) -> Floats:
    """Return the nearest integers >= 0 with the given sum, shape as `estimates`."""
    rounded = np.maximum(np.round(estimates), 0.0)
    while rounded.sum() > total:
        rounded[np.argmax(np.where(rounded > 0, rounded - estimates, -np.inf))] -= 1
    while rounded.sum() < total:
        rounded[np.argmax(estimates - rounded)] += 1
    return rounded


def _noise(without: CrowdSteps, count: Floats, claimed: float) -> tuple[Floats, float]:
    """Return the variance of each step's noise, as claimed unless less is observed, and of the crowd in a batch."""
    squared = (without.released - count * without.crowd) ** 2
    weight, observed = without.crowd**2, without.canary > 0
    spread = _ratio(((squared - claimed) * weight * observed).sum(), (weight**2).sum())
    common = claimed
    if spread < 0:
        spread, common = 0.0, _ratio(squared[observed].sum(), observed.sum())
    steps = observed.sum(0)
    single = np.divide(squared.sum(0, where=observed), steps, out=np.full(len(count), common), where=steps > 0)
    low = single < LOW_VARIANCE_SHARE * common
    return np.maximum(np.where(low, single, common), LEAST_VARIANCE * claimed), spread


def _ratio(above: float, below: float) -> float:
    return float(above / below) if below else 0.0


@register("game", "opposing-gradients", source="Ours, after Chua et al. (2024), arXiv:2403.17673; arXiv:2411.10614")
@dataclass(frozen=True)
class OpposingGradients(TwoWorlds):
    """Game of two worlds, add/remove: trainings on identical records, with or without a canary of opposite gradient.

    Only the shape of an example of the given data is used, with one feature if the examples are vectors. There are two
    classes. Trainings are observed step by step.

    Attributes:
        search: Number of search trainings, which choose among the sizes of crowds, in 16 .. 10,000,000.
        sizes: Numbers of records of the crowds that are tried, each >= 1; the most informative one is used. If empty,
            sizes at which a batch may become larger, and a small one. If the claim is not about these, the size of the
            target part.
        length: Norm of a record, in clips, > 0. Its gradient must be clipped. At larger norms the model separates the
            classes, and the gradients vanish.
    """

    traits: ClassVar[PairTraits] = PairTraits(
        relation=Relation.ADD_REMOVE,
        assumes="Nothing beyond fair coins and independent trainings: both data sets and the attack were fixed before "
        "the fresh trainings. The claim is taken to hold for every data set, as it says.",
        views={WATCHED_LEARNERS: CrowdView},
        attack="crowd-likelihood",
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

    search_share: ClassVar[float] = 1.0
    couples_seeds: ClassVar[bool] = False
    learns_once: ClassVar[bool] = False
    plays_without_noise: ClassVar[bool] = False
    measures_failures: ClassVar[bool] = True

    trials: int = 4_000
    stack: int = 256
    search: int = 1_000
    sizes: tuple[int, ...] = ()
    length: float = 2.0

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "sizes", tuple(self.sizes))
        require(all(size >= 1 for size in self.sizes), "sizes of crowds must be >= 1", sizes=self.sizes)
        require(self.length > 0, "length must be > 0", length=self.length)

    def pairs(self, mechanism: Any, rows: tuple[Any, ...], rng: np.random.Generator) -> Iterator[Crowd]:
        for size in self.sizes or sizes_for(mechanism, len(rows[0])):
            yield Crowd(size, mechanism.claimed_steps(size).private)

    def run(self, mechanism: Any, pair: Crowd, runs: Runs) -> Outcomes:
        """Train on the crowd, each time with the canary or without it; return the observed steps (`CrowdSteps`)."""
        examples = crowd_examples(crowd_shape(runs.rows[0].features), self.length * pair.claimed.clip)
        tasks = []
        for has_canary, seed in zip(runs.truth.tolist(), runs.seeds(), strict=True):
            places = np.full(pair.size + has_canary, CROWD, np.int64)
            if has_canary:
                places[-1] = CANARY
            tasks.append(TrainingTask(places, places.copy(), seed.sequence()))
        observer = CrowdObserver(mechanism, examples, len(tasks), pair.size, runs.compute)
        models = mechanism.watch(
            examples.features, tasks, classes=examples.classes, compute=runs.compute, observer=observer
        )
        steps = np.concatenate([observer.steps.released, observer.steps.canary, observer.steps.crowd], axis=1)
        return runs.gave(
            [model if isinstance(model, TrainingError) else row for model, row in zip(models, steps, strict=True)]
        )

    def worth(self, curve: PrivacyCurve, attack: Any, pair: Crowd, outcomes: Outcomes) -> float:
        """Return the largest information about the worlds of held-out trainings, in nats a training."""
        usable = outcomes.fault == ""
        return max(information_gains(pair.search(outcomes)).values()) if usable.any() else -math.inf

    def notes(
        self, mechanism: Any, rows: tuple[Any, ...], chosen: Sequence[Crowd], offered: int, tried: Outcomes | None
    ) -> tuple[str, ...]:
        if tried is None:
            return ()
        (crowd,) = chosen
        gains = information_gains(crowd.search(tried))
        best = max(gains, key=lambda hypothesis: gains[hypothesis])
        return (
            f"crowd chosen: {crowd.size} records out of {offered} sizes; {max(0.0, gains[best]):.4f} nats of "
            f"information a training; the canary {best.words}",
        )

    def scores(self, attack: Any, observed: Observed) -> Floats:
        search = observed.pair.search(observed.learned)
        return self.scores_by_view(attack, observed, lambda runs: CrowdView(search, CrowdSteps.of_runs(runs)))


def crowd_shape(features: Features) -> tuple[int, ...]:
    """Return the shape of a record: that of an example, but one feature for vectors, since networks take any number."""
    shape = example_shape(features)
    return (1,) if len(shape) == 1 else shape


def sizes_for(mechanism: WatchedLearner, rows: int) -> tuple[int, ...]:
    """Return sizes of crowds for which the mechanism makes the same claim with one record more.

    A batch of rate * n records becomes larger at some n, which depends on the rounding. The last n before that is tried
    for every way of rounding. If the claim depends on the number of rows, the first suitable size from `rows` on is
    used.
    """

    def same_claim(size: int) -> bool:
        return mechanism.claimed_steps(size) == mechanism.claimed_steps(size + 1)

    steps = mechanism.claimed_steps(rows)
    rate = steps.private.sample_rate
    wanted = (SMALLEST_CROWD, math.floor(1 / rate), math.ceil(1.5 / rate) - 1, math.ceil(2 / rate) - 1)
    candidates = sorted({max(1, size) for size in wanted})
    suitable = tuple(size for size in candidates if same_claim(size) and mechanism.claimed_steps(size) == steps)
    if suitable:
        return suitable
    nearest = next((size for size in range(rows, 2 * rows + 2) if same_claim(size)), None)
    if nearest is None:
        raise SpecError(
            f"the claim of {type(mechanism).__name__} about its steps changes with every record. Set `sizes` explicitly"
        )
    return (nearest,)


CANARY, CROWD = 0, 1
"""Rows of the crowd's examples, and their labels."""


def crowd_examples(shape: tuple[int, ...], length: float) -> Examples:
    """Return the canary and a record of the crowd, which have the same features and different labels.

    Their gradients are opposite in any network of two classes.
    """
    point = np.full(shape, length / np.sqrt(np.prod(shape)), np.float32)
    return Examples(np.stack([point, point]), np.array([CANARY, CROWD]), 2, "crafted crowd")


class CrowdObserver:
    """Observer of trainings on a crowd: projects each step on the canary's gradient at its weights."""

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
        self.steps = CrowdSteps(*np.zeros((3, trainings, claimed.count)))

    def __call__(self, places: NDArray[np.int64], step: int, parameters: Tensor, released: Tensor) -> None:
        """Record one step of some trainings."""
        canary, crowd = (gradient(places, parameters) for gradient in self._gradients)
        length = canary.norm(dim=1, keepdim=True)
        direction = canary / length.clamp(min=1e-30) * (length > 1e-6)
        self.steps.released[places, step] = (released.double() * direction).sum(1).cpu().numpy() * self._unit
        self.steps.canary[places, step] = (canary * direction).sum(1).cpu().numpy()
        self.steps.crowd[places, step] = (crowd * direction).sum(1).cpu().numpy()
