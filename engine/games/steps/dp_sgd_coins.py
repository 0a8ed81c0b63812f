"""Audit of DP-SGD in one training with many coins a step: each coin decides if its own canary takes part.

The canaries of a step have orthogonal directions on few weights, so each of them sees other noise. The observer of a
running training (`dpaudit.TrainingAudit`) has the same canaries, guesses and hints; here a learner or a loop is trained
for the audit. The game `dp-sgd-steps` has one canary a step, which it chooses among many kinds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dpaudit.actors.seed import Seed
from dpaudit.actors.work import Work, tossing, unit
from dpaudit.claims import Claim, Relation
from dpaudit.claims.step_noise import GaussianNoise
from dpaudit.engine.games.protocol import CheckTest, GameTraits, Played, Setting, every_row
from dpaudit.engine.games.steps.directions import SETS
from dpaudit.engine.games.steps.dp_sgd_steps import (
    STEP_LEARNERS,
    STEP_RELATIONS,
    TEXT_STEP_LEARNERS,
    check_noise,
    claim_of_step,
    planned_steps,
    reveal_coins,
    show_steps,
    whole_training,
)
from dpaudit.engine.games.steps.noise import LOOKS
from dpaudit.engine.games.steps.step_observer import CoinView, StepObserver
from dpaudit.engine.games.steps.suspects import suspects
from dpaudit.errors import require
from dpaudit.estimators.scores import StepScores
from dpaudit.mechanisms.compute import Compute
from dpaudit.mechanisms.examples import Examples, Texts
from dpaudit.mechanisms.training.private.private_steps import MAX_BATCH_NUMBERS, StepCanary
from dpaudit.registry import register

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

LEAST_NOISE = 1e-3
"""Smallest noise multiplier by which coins are guessed."""


@register("game", "dp-sgd-coins", source="Ours, after Nasr et al. (2023), arXiv:2302.07956, section 5")
@dataclass(frozen=True)
class DpSgdCoins:
    """Game of one training of DP-SGD, add/remove: many coins a step, compared with the claim of a step.

    A `claim` in the spec is about one step.

    Attributes:
        coins: Number of coins of a step, >= 1; fewer in a very small or a very large model.
        trainings: Number of trainings, >= 1.
    """

    traits: ClassVar[GameTraits] = GameTraits(
        relation=Relation.ADD_REMOVE,
        assumes="Nothing beyond one fair coin for each canary of each step, and that the observed gradients are those "
        "that update the weights. Each step is a trial, given all earlier steps.",
        views={STEP_LEARNERS: CoinView, TEXT_STEP_LEARNERS: CoinView},
        attack="learned-noise",
        estimator="coin-averages",
        evidence=StepScores,
        run_on=every_row,
        zeroes_out=True,  # a canary's gradient is in the sum or not, and the divisor is the stated constant
        helps="more steps (epochs), or more `trainings`",
        check_tests=tuple(
            CheckTest(
                capability,
                STEP_RELATIONS,
                "noise too small, missing, reused or correlated over steps: many coins a step of one training",
                trainings=1,
                scales={"trainings": 1.0},
                min_trainings=1,
                growth_on_repeat={"trainings": 2},
            )
            for capability in (STEP_LEARNERS, TEXT_STEP_LEARNERS)
        ),
    )

    coins: int = 20
    trainings: int = 1

    def __post_init__(self) -> None:
        require(self.coins >= 1, "coins must be >= 1", coins=self.coins)
        require(self.trainings >= 1, "trainings must be >= 1", trainings=self.trainings)

    def play(self, setting: Setting, work: Work) -> Played:
        steps, count = planned_steps(setting, self.trainings)
        target = setting.required_part("target")
        trainings = tuple(
            work.add(
                train_with_coins,
                setting.mechanism,
                setting.attack,
                target,
                coins=self.coins,
                seed=setting.seed.child("coins", number),
                label=f"training {number + 1} with coins",
                **setting.unit_options,
            )
            for number in range(count)
        )
        on_cpus, stated = setting.resources.without_gpu, steps.private.noise_multiplier
        scores = work.add(score_coins, trainings, label="scores of coins", resources=on_cpus)
        ceiling = work.add(reveal_coins, steps.count * count, self.coins, label="coins told", resources=on_cpus)
        noise = work.add(check_noise, trainings, stated, label="form of the noise", resources=on_cpus)
        claim: Claim = setting.mechanism.claim()
        return Played(
            (scores,),
            noise=noise,
            trainings=trainings,
            ceiling=(ceiling,),
            claim=claim_of_step(steps, claim.delta),
            whole=partial(whole_training, steps, claim, False, isinstance(setting.parts.target, Texts)),
        )


@dataclass(frozen=True, eq=False)
class CoinSteps:
    """Steps of one training with several coins each."""

    truth: Flags  # True if the coin let its canary in, shape (steps, coins)
    score: Floats  # score of the attack; 0 for no guess
    form: Floats = field(default_factory=lambda: np.full(len(LOOKS), np.nan))  # p-values of its noise, see `form_of`
    points_to: tuple[str, ...] = ()  # parts of the training that may be wrong


class CoinProbe:
    """Shows the steps of a loop, all of whose weights it knows, to an observer of steps.

    Args:
        attack: The attack, which guesses the coins of a step.
        noise: Claimed noise multiplier, >= 0.
        coins: Number of coins of a step.
        rng: Source of the directions.
    """

    def __init__(self, attack: Any, noise: float, coins: int, rng: np.random.Generator) -> None:
        self._attack, self._coins, self._rng = attack, coins, rng
        self._noise = GaussianNoise(max(noise, LEAST_NOISE))
        self._observer: StepObserver | None = None
        self._base: Floats | float = 0.0
        self._batches_shown = True

    def gradients(self, weights: int, batch: Floats | None) -> Floats:
        """Return the canaries of the next step in clips, shape (coins, weights); `batch` has shape (batch, weights)."""
        if self._observer is None:
            coins = max(1, min(self._coins, weights // SETS, MAX_BATCH_NUMBERS // weights))
            self._observer = StepObserver(self._noise, [(weights,)], coins, self._rng, attack=self._attack)
        self._base = 0.0 if batch is None else self._observer.clipped_sum(batch)
        self._batches_shown &= batch is not None
        return self._observer.rows(weights)

    def see(self, released: Floats, joined: Flags) -> None:
        """Observe a noisy sum, in clips."""
        assert self._observer is not None
        self._observer.see(released[self._observer.directions.place] - self._base, joined)

    def steps(self, count: int) -> CoinSteps:
        """Return all steps so far as `count` steps, of which the missing ones are not guessed."""
        assert self._observer is not None
        observer, evidence = self._observer, self._observer.evidence()
        shape, missing = (-1, evidence.coins), ((0, count - observer.step), (0, 0))
        truth, score = np.pad(evidence.truth.reshape(shape), missing), np.pad(evidence.score.reshape(shape), missing)
        if not self._batches_shown:  # the sums contain data
            return CoinSteps(truth, score)
        points_to = tuple(map(str, suspects(observer.model, ["the model"], rows=True)))
        return CoinSteps(truth, score, observer.form.p_values, points_to)


@unit
def train_with_coins(
    mechanism: Any, attack: Any, target: Examples | Texts, compute: Compute, *, coins: int, seed: Seed
) -> CoinSteps:
    """Train once, with canaries that independent coins of each step let in.

    Raises: InputError if the training shows no step, or more steps than claimed.
    """
    claimed = mechanism.claimed_steps(len(target))
    train = target.writable() if isinstance(target, Examples) else target
    private = claimed.private
    probe = CoinProbe(attack, private.noise_multiplier, coins, seed.child("directions").rng())
    canary = StepCanary(probe, seed.child("coins").rng(), clip=private.clip, divisor=claimed.divisor)
    show_steps(mechanism, train, canary, claimed.count, seed=seed.child("training"), compute=compute)
    return probe.steps(claimed.count)


def coins_of_steps(scores: Sequence[StepScores], arguments: Mapping[str, Any]) -> list[Flags]:
    """Return the coins of all trainings by their seeds; those of later steps than the last observed one are False."""
    (all_steps,) = scores
    seeds = [part["seed"].child("coins") for part in arguments["trainings"]]
    coins = [seed.rng().random(all_steps.truth.size // len(seeds)) < 0.5 for seed in seeds]
    for tossed, observed in zip(coins, np.split(all_steps.truth | (all_steps.score != 0), len(seeds)), strict=True):
        steps = np.flatnonzero(observed.reshape(-1, all_steps.coins).any(axis=1))
        tossed[all_steps.coins * (steps[-1] + 1 if steps.size else 0) :] = False
    return [np.concatenate(coins)]


@unit
@tossing(coins_of_steps)
def score_coins(trainings: tuple[CoinSteps, ...]) -> Iterator[StepScores]:
    """Yield the attack's scores of the coins of all trainings, in order."""
    truth, score = (np.concatenate([getattr(each, name) for each in trainings]) for name in ("truth", "score"))
    yield StepScores.in_single_precision(truth.ravel(), score.ravel(), truth.shape[1])
