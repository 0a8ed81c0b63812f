"""Audit of whole trainings by DP-SGD: fair coins admit records with worst-case gradients to the data.

Each record has a gradient on one weight alone, far beyond the clip, in every step. So the records of a training do not
overlap, and each weight has a coin. The training samples, clips and adds them as records of its data. The attacker sees
each noisy sum and knows the part of all other records, but not in which steps a record was sampled. Its score is the
likelihood ratio of all steps, the strongest test for noise, sampling and steps as stated. The audited claim is that of
the whole training, with its accountant.

Source: Nasr et al. (2021), arXiv:2101.04535, worst-case gradients; Steinke et al. (2023), arXiv:2305.08846, many coins.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dpaudit.actors.seed import Seed
from dpaudit.actors.work import Work, tossing, unit
from dpaudit.claims import Relation
from dpaudit.engine.games.protocol import Capability, GameTraits, Played, Setting, every_row, require_units
from dpaudit.engine.games.trials import TrainingRun
from dpaudit.engine.games.two_world.work import parameter_count
from dpaudit.errors import require
from dpaudit.estimators.scores import Scores, scored
from dpaudit.mechanisms.compute import Compute
from dpaudit.mechanisms.examples import Examples
from dpaudit.mechanisms.protocols import ObservableLearner
from dpaudit.mechanisms.training.private.private_steps import PrivateSteps
from dpaudit.registry import register

if TYPE_CHECKING:
    from torch import Tensor

BEYOND_CLIP = 10.0
"""Norm of a record's gradient in clips, so that the training must clip it."""
TRAININGS_PER_UNIT = 32
"""Largest number of trainings of one unit."""
LEAST_NOISE, LOW_NOISE = 1e-2, 0.8
"""Smallest noise multiplier of the likelihood ratio, and share of the claimed one below which it is observed."""
DEVIATIONS_OF_MEDIAN = 0.6745
"""Median size of a normal variable, in standard deviations."""
FEWEST_SUMS = 500
"""Smallest number of sums from which the noise is observed."""
RECORD_LEARNERS = Capability(ObservableLearner, "learners whose data take records with stated gradients (dp-sgd)")


@dataclass(frozen=True, eq=False)
class SampledStep:
    """One step of DP-SGD, as seen by the attacker."""

    # noisy sum on the weight of each record, less the part of all other records, in clips; NaN if it was not finite
    sums: NDArray[np.float32]  # shape (records,)
    steps: PrivateSteps  # claimed sampling and noise
    shows: ClassVar[str] = "each noisy sum of a training, less the part of the other records"


@register("attack", "step-likelihood", source="Neyman and Pearson (1933); Nasr et al. (2021), arXiv:2101.04535")
@dataclass(frozen=True)
class StepLikelihood:
    """Most powerful test of a record that each step samples with the claimed probability; scores add up over steps.

    If the sums of a step show clearly less noise than claimed, the observed noise replaces the claimed one.
    """

    view: ClassVar[type[SampledStep]] = SampledStep

    def score(self, view: SampledStep) -> NDArray[np.float32]:
        """Return log(1 - q + q exp((x - 1/2) / sigma^2)) for each sum x, in nats; 0 if it was not finite."""
        rate, noise = view.steps.sample_rate, view.steps.noise_multiplier
        if view.sums.size >= FEWEST_SUMS:
            observed = float(np.median(np.abs(view.sums))) / DEVIATIONS_OF_MEDIAN
            noise = observed if observed < LOW_NOISE * noise else noise
        noise = max(noise, LEAST_NOISE)
        with np.errstate(divide="ignore", invalid="ignore"):  # log(0) at q = 1, and sums that are not finite
            absent, present = np.log(np.array([1 - rate, rate], np.float32))
            ratio = np.logaddexp(absent, present + (view.sums - np.float32(0.5)) / np.float32(noise**2))
        return np.asarray(np.where(np.isfinite(view.sums), ratio, 0), np.float32)


@register("game", "dp-sgd-training", source="Nasr et al. (2021), arXiv:2101.04535; Steinke et al. (2023)")
@dataclass(frozen=True)
class DpSgdTraining:
    """Game of whole trainings of DP-SGD, add/remove: a fair coin for each weight admits a record to the data.

    Attributes:
        coins: Number of coins, >= 1. Their trainings are as few as the number of weights allows.
        trainings: Largest number of trainings, >= 1, which limits the coins of a small network.
    """

    traits: ClassVar[GameTraits] = GameTraits(
        relation=Relation.ADD_REMOVE,
        assumes="Nothing beyond fair coins. The attacker is the one of the claim: it sees every step, knows all other "
        "records and when they were sampled, and the gradients of its records are the worst that a clip admits.",
        views={RECORD_LEARNERS: SampledStep},
        attack="step-likelihood",
        estimator="simultaneous-guess-count",
        run_on=every_row,
        helps="more `coins`",
    )

    coins: int = 500_000
    trainings: int = 512

    def __post_init__(self) -> None:
        require(self.coins >= 1, "coins must be >= 1", coins=self.coins)
        require(self.trainings >= 1, "trainings must be >= 1", trainings=self.trainings)

    def play(self, setting: Setting, work: Work) -> Played:
        target = setting.required_part("target")
        weights = parameter_count(setting.mechanism, setting.parts.target)
        count = min(self.trainings, math.ceil(self.coins / weights))
        each = min(weights, math.ceil(self.coins / count))
        require_units(count // TRAININGS_PER_UNIT + 2)
        trainings = work.split(
            train_with_records,
            count,
            min(TRAININGS_PER_UNIT, -(-count // 2)),
            setting.mechanism,
            setting.attack,
            target,
            coins=each,
            seed=setting.seed,
            label="trainings",
            **setting.unit_options,
        )
        on_cpus = setting.resources.without_gpu
        scores = work.add(join_scores, trainings, label="scores of all coins", resources=on_cpus)
        ceiling = work.add(reveal_records, count * each, label="coins told", resources=on_cpus)
        return Played((scores,), trainings=trainings, ceiling=(ceiling,))


def coins_of_records(scores: Sequence[Scores], arguments: Mapping[str, Any]) -> list[NDArray[np.bool_]]:
    """Return the coins of a unit of trainings by its numbers and seed."""
    rngs = [arguments["seed"].child("records", number).rng() for number in range(arguments["first"], arguments["last"])]
    return [np.concatenate([rng.random(arguments["coins"]) < 0.5 for rng in rngs])]


@unit
@tossing(coins_of_records)
def train_with_records(
    mechanism: ObservableLearner,
    attack: Any,
    target: Examples,
    compute: Compute,
    *,
    coins: int,
    first: int,
    last: int,
    seed: Seed,
) -> Scores:
    """Return the scores of trainings `first` to `last` - 1; each has `coins` coins, about records on random weights."""
    private, numbers = mechanism.private_steps(), range(first, last)
    weights = parameter_count(mechanism, target)
    draws = [seed.child("records", number).rng() for number in numbers]
    truth = np.array([rng.random(coins) < 0.5 for rng in draws])  # first, so that they need no model
    places = np.array([np.sort(rng.choice(weights, coins, replace=False)) for rng in draws])
    signs = np.array([rng.choice([-1.0, 1.0], coins) for rng in draws]).astype(np.float32)
    records = np.zeros((len(draws), weights), np.float32)
    np.put_along_axis(records, places, truth * signs * np.float32(BEYOND_CLIP * private.clip), axis=1)
    scores = np.zeros(truth.shape, np.float32)
    to_clips = signs * np.float32(mechanism.recipe.batch_size / private.clip)

    def observe(models: NDArray[np.int64], step: int, parameters: Tensor, released: Tensor) -> None:
        sums = np.take_along_axis(released.cpu().numpy(), places[models], axis=1) * to_clips[models]
        scores[models] += attack.score(SampledStep(sums.ravel(), private)).reshape(sums.shape)

    runs = [TrainingRun(np.arange(len(target)), seed.child("training", number)) for number in numbers]
    with np.errstate(all="ignore"):
        mechanism.fit_stack(
            target.features,
            [run.task(target) for run in runs],
            classes=target.classes,
            compute=compute,
            weight_records=list(records),
            observer=observe,
        )
    return scored(0, truth.ravel(), scores.ravel())


def coins_of_parts(replays: Sequence[Scores], arguments: Mapping[str, Any]) -> list[NDArray[np.bool_]]:
    """Return the coins of all parts, each by the function of its unit."""
    return [np.concatenate([part["function"].coins((), part)[0] for part in arguments["trainings"]])]


@unit
@tossing(coins_of_parts)
def join_scores(trainings: tuple[Scores, ...]) -> Iterator[Scores]:
    """Yield the scores of all trainings as those of one replay, as every coin is about another record."""
    score, truth = (np.concatenate([getattr(part, name) for part in trainings]) for name in ("score", "truth"))
    yield scored(0, truth, score)


@unit
def reveal_records(count: int) -> Iterator[Scores]:
    """Yield the scores of the game against a training without privacy, which reveals all `count` coins."""
    truth = np.arange(count) % 2 == 0
    yield scored(0, truth, np.where(truth, 1.0, -1.0))
