"""DP-SGD audited in one training: at each step a fair coin of the step's own decides whether a canary takes part.

Given all that was released before, a step is a mechanism of its own and its coin is fair, so n steps are n trials,
however the training adapts. What is read is the step's claim: noise, clipping and, if asked for, sampling.
Source: Nasr et al. (2023), arXiv:2302.07956, "Tight auditing of differentially private machine learning", section 5.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, ndtr, ndtri, rel_entr

from dpaudit.actors.seed import Seed
from dpaudit.actors.unit import Unit
from dpaudit.actors.work import Outcome, Work, unit
from dpaudit.claims import Claim, GaussianDP, Relation, SubsampledGaussian
from dpaudit.engine.games.protocol import Capability, CheckTest, GameTraits, Played, Setting, every_row, require_units
from dpaudit.engine.games.steps.step_probes import NoiseForm, StepProber, Steps, StepView
from dpaudit.engine.games.two_world.canaries import GradientCanary, RandomGradient
from dpaudit.errors import InputError, RunError, SpecError, require
from dpaudit.estimators.bound import Bound, format_lower, format_upper
from dpaudit.estimators.finding import Finding
from dpaudit.estimators.one_run.step_martingale import StepAccuracy
from dpaudit.estimators.scores import StepScores
from dpaudit.mechanisms.compute import Compute
from dpaudit.mechanisms.examples import Examples
from dpaudit.mechanisms.protocols import ObservableLearner, StepLearner
from dpaudit.mechanisms.threads import limited_threads
from dpaudit.mechanisms.training.private.private_steps import ClaimedSteps, StepCanary
from dpaudit.registry import register

Floats = NDArray[np.float64]

STEP_LEARNERS = Capability(
    StepLearner, "learners that show their steps (with methods `claim`, `claimed_steps` and `show_steps`)"
)
TESTED = (
    "tested: noise and clipping of the steps{sampling}; not the accountant nor the data pipeline, which a game of two "
    "worlds sees from end to end"
)
BELIEVED = 3.0
"""Steps of either kind that must be seen before the claim (a canary adds one clip, the data nothing) is forgotten."""
SEARCHED = 8
"""Trainings from which on some are made to learn from."""
FEW_ROWS = (1.5, 8.0)
"""Rows of an expected batch in trainings on few."""
FAR_OUT = 30.0
"""Norm of a row that is copied."""
MOST_SEARCHED = 12
"""Trainings to learn from."""
ROUNDS = 4
"""In which trainings follow each other, those of one learning from those before."""
REMEMBERED = 8
"""Trainings that one learns from, the latest."""
LATEST = 2
"""Trainings to learn from by which numbers of rows are compared: those that had learned most."""
QUIET = 0.6
"""Share of the claimed variance below which a step's noise is taken for too small."""
HESITATION = 6.0
"""How many nats more another rule must have told of earlier steps to be followed: there are dozens of them."""


@register("game", "dp-sgd-steps", source="Nasr et al. (2023), arXiv:2302.07956, section 5")
@dataclass(frozen=True)
class DpSgdSteps:
    """One training of DP-SGD, add/remove: every step is a trial, read against what a step claims of itself.

    A `claim` in the spec is taken for the step's.

    Attributes:
        canary: Where the canary's gradient points; None tries many, step by step, and goes on with what tells most.
        trainings: How many are made, or at most where `steps` is given, >= 1. Of eight or more, some are made to learn
            which canaries and which steps tell most, and whether few rows do; the steps of the others count.
        steps: No more trainings are made than have so many steps together, >= 1; None makes all.
        sampling: Whether the step's own sampling has to take the canary too: what is tested is then the subsampled
            step, of which little is seen where few examples are taken. Needs a learner that samples gradients (dp-sgd).
    """

    traits: ClassVar[GameTraits] = GameTraits(
        relation=Relation.ADD_REMOVE,
        assumes="Nothing beyond fair coins, one a step, and that the gradients shown are those the weights are moved "
        "by: whatever earlier steps did, the next one is a trial of its own.",
        views={STEP_LEARNERS: StepView},
        attack="step-midpoint",
        estimator="step-martingale",
        evidence=StepScores,
        run_on=every_row,
        helps="more steps (epochs), or more `trainings`",
        check_tests=(
            CheckTest(
                STEP_LEARNERS,
                (Relation.ADD_REMOVE,),
                "noise far too small, spared or used again, clipping that does not bind: step by step of one training",
                trainings=1,
                scales={"trainings": 1.0},
                min_trainings=1,
                variant="one training",
                growth_on_repeat={"trainings": 4},
            ),
            CheckTest(
                STEP_LEARNERS,
                (Relation.ADD_REMOVE,),
                "noise too small, clipping that does not bind, noise that steps share: step by step of a few trainings",
                trainings=64,
                scales={"trainings": 1.0},
                min_trainings=1,
                variant="many trainings",
                game={"steps": 6_400},
                growth_on_repeat={"trainings": 2, "steps": 2},
            ),
        ),
    )

    canary: GradientCanary | None = field(default=None, metadata={"kind": "canary"})
    trainings: int = 1
    steps: int | None = None
    sampling: bool = False

    def __post_init__(self) -> None:
        require(self.trainings >= 1, "trainings must be >= 1", trainings=self.trainings)
        require(self.steps is None or self.steps >= 1, "steps must be >= 1", steps=self.steps)
        if self.canary is not None and not isinstance(self.canary, GradientCanary):
            raise SpecError("the game dp-sgd-steps needs a canary that is a gradient: random-gradient, dirac-gradient")

    def play(self, setting: Setting, work: Work) -> Played:
        if self.sampling and not isinstance(setting.mechanism, ObservableLearner):
            raise SpecError(
                "dp-sgd-steps with `sampling` needs a learner that samples gradients (dp-sgd); leave it out"
            )
        steps: ClaimedSteps | None = setting.mechanism.claimed_steps(len(setting.parts.target))
        if steps is None:
            raise SpecError("dp-sgd-steps needs a learner that states the steps of a training on the target's rows")
        count = self.trainings if self.steps is None else min(self.trainings, -(-self.steps // steps.count))
        require_units(count + 3)
        canary = RandomGradient() if self.canary is None and self.sampling else self.canary
        rows = len(setting.parts.target)
        sizes = [rows, *(max(2, round(some / steps.private.sample_rate)) for some in FEW_ROWS)]
        tried = [size for size in sizes if setting.mechanism.claimed_steps(size) == steps]
        searched = min(MOST_SEARCHED, 3 * (count // 6)) if canary is None and count >= SEARCHED else 0

        def training(number: int, search: Any, earlier: tuple[Unit, ...], size: int) -> Unit:
            return work.add(
                train_steps,
                setting.mechanism,
                setting.attack,
                canary,
                setting.required_part("target"),
                search,
                earlier,
                size=size,
                sampled=self.sampling,
                alone=not searched,
                seed=setting.seed.child("steps", number),
                label=f"training {number + 1} step by step",
                **setting.unit_options,
            )

        on_cpus = setting.resources.without_gpu
        before: tuple[Unit, ...] = ()
        trainings: tuple[Unit, ...] = ()
        for numbers in in_rounds(range(searched), len(tried)):
            before += tuple(training(number, None, before, tried[number % len(tried)]) for number in numbers)
        search = (
            work.add(learn_steps, before, told_at_most(steps), label="what tells most", resources=on_cpus)
            if before
            else None
        )
        for numbers in in_rounds(range(searched, count), -(-(count - searched) // ROUNDS)):
            trainings += tuple(training(number, search, before + trainings, rows) for number in numbers)
        scores = work.add(score_steps, search, trainings, label="scores of steps", resources=on_cpus)
        told = work.add(tell_steps, steps.count * len(trainings), label="steps told", resources=on_cpus)
        whole: Claim = setting.mechanism.claim()
        shown = (before + trainings, steps.private.noise_multiplier)
        noise = work.add(look_at_noise, *shown, label="form of the noise", resources=on_cpus)
        return Played(
            (scores,),
            noise=noise,
            trainings=before + trainings,
            ceiling=(told,),
            choices=() if search is None else (search,),
            claim=self.step_claim(steps, whole.delta),
            whole=partial(_whole_training, steps, whole, self.sampling),
        )

    def step_claim(self, steps: ClaimedSteps, delta: float) -> Claim:
        noise = steps.private.noise_multiplier
        if not noise:
            return Claim(math.inf, relation=Relation.ADD_REMOVE)
        sampled = SubsampledGaussian(noise, steps.private.sample_rate, 1)
        curve = sampled if self.sampling else GaussianDP(1 / noise)
        return Claim.of(curve, relation=Relation.ADD_REMOVE, delta=delta)


def _whole_training(
    steps: ClaimedSteps, whole: Claim, sampled: bool, finding: Finding, step_claim: Claim
) -> tuple[str, ...]:
    """For a reader: what is claimed of all, the step's p-value, the noise left, what it costs, what was not tested."""
    seen = [some for some in finding.evidence if isinstance(some, StepAccuracy)] if isinstance(finding, Bound) else []
    p_values = [f"p-value of the step's claim: {some.p_value(step_claim.curve):.2g}" for some in seen]
    composed = [_composed(steps, whole, some) for some in seen if some.odds > 0 and not sampled]
    claimed = f"claimed epsilon {whole.epsilon:g} at delta={whole.delta:g}"
    return (claimed, *p_values, *composed, TESTED.format(sampling=", and their sampling" if sampled else ""))


def _composed(steps: ClaimedSteps, whole: Claim, seen: StepAccuracy) -> str:
    """What the accountant makes of the noise: of multiplier m it allows no accuracy above Phi(1 / (2 m))."""
    private = steps.private
    most = 1 / (2 * float(ndtri(expit(seen.odds))))
    claimed = f"{private.noise_multiplier:.3g} are claimed"
    found = f"if a step's noise is Gaussian, it is worth at most {format_upper(most)} clips, where {claimed}"
    if most >= private.noise_multiplier:
        return found
    spent = SubsampledGaussian(most, private.sample_rate, steps.count).epsilon(whole.delta)
    return (
        f"{found}; {steps.count:,} such steps spend about epsilon {format_lower(spent, 2)} at "
        f"delta={whole.delta:g} by the accountant, where {whole.epsilon:g} is claimed"
    )


@dataclass(frozen=True, eq=False)
class StepSearch:
    """What trainings to learn from have shown."""

    counts: NDArray[np.bool_]  # which steps of a training count, shape (steps of a training,)
    size: int  # how many rows are taken


def in_rounds(numbers: range, each: int) -> list[range]:
    """Numbers, so many at a time."""
    return [numbers[at : at + each] for at in range(0, len(numbers), max(1, each))]


@unit
def train_steps(
    mechanism: Any,
    attack: Any,
    canary: GradientCanary | None,
    target: Examples,
    search: StepSearch | None,
    earlier: tuple[Steps, ...],
    compute: Compute,
    *,
    size: int,
    sampled: bool = False,
    alone: bool = False,
    seed: Seed,
) -> Steps:
    """One training with a canary that each step's own coin lets in, and its sampling, if that is `sampled`, takes.

    On `size` rows, or those that a search found to tell most; where they are not all rows, on copies of one.
    """
    claimed = mechanism.claimed_steps(len(target))
    size = size if search is None else search.size
    crafted = size != len(target)
    train = copied_rows(target, size, seed.child("rows").rng()) if crafted else target.writable()
    before = [one for one in earlier if one.rows == size][-REMEMBERED:]
    probe = StepProber(
        attack, claimed.private.noise_multiplier, seed.child("direction").rng(), only=canary, before=before, alone=alone
    )
    joining = StepCanary(
        probe, seed.child("coins").rng(), clip=claimed.private.clip, divisor=claimed.divisor, sampled=sampled
    )
    with limited_threads(compute.threads), np.errstate(all="ignore"):
        try:
            mechanism.show_steps(train, joining, seed=seed.child("training").sequence(), compute=compute)
        except Exception:
            # A loop need not bear so few rows; the steps it did not make count as wrong guesses.
            if not crafted:
                raise
    if not joining.step and crafted:
        return Steps.none(claimed.count)
    if not joining.step:
        raise InputError("a training must show its steps: it never called `observe`")
    require(
        joining.step <= claimed.count,
        f"a training must show the {claimed.count} steps it states",
        shown=joining.step,
    )
    # The number of trials must not depend on them, as it would if a training that breaks off had fewer.
    shown = replace(probe.shown().padded(claimed.count), rows=size)
    return shown if search is None and not alone else replace(shown, left=Steps.none(0).left)


def copied_rows(target: Examples, count: int, rng: np.random.Generator) -> Examples:
    """Copies of one row, far out, every second one of another class: no training ever fits them."""
    copies = target.take(np.full(count, int(rng.integers(len(target))))).writable()
    features = copies.features
    if isinstance(features, np.ndarray):
        copies = replace(
            copies, features=(features * (FAR_OUT / max(float(np.linalg.norm(features[0])), 1.0))).astype("f4")
        )
    labels = (copies.labels + np.arange(count) % 2) % target.classes
    return replace(copies, labels=labels)


@unit
def learn_steps(trainings: tuple[Steps, ...], most: float) -> Outcome[StepSearch]:
    """How many rows tell most, and which steps to count."""
    count = len(trainings[0].coin)
    right = {}
    for size in dict.fromkeys(one.rows for one in trainings):
        late = [(one.score[count // 2 :], one.coin[count // 2 :]) for one in trainings if one.rows == size][-LATEST:]
        right[size] = float(np.mean([((score > 0) == coin)[score != 0].sum() / len(coin) for score, coin in late]))
    size = max(right, key=lambda one: right[one])
    quiet = np.max([one.size for one in trainings], axis=0) < QUIET
    told = np.array([((one.score > 0) == one.coin) & (one.score != 0) for one in trainings])
    counts = max((np.ones(count, np.bool_), quiet), key=lambda which: _evidence(told[:, which], most))
    found = "steps chosen: in trainings to learn from, the guess was right in " + ", ".join(
        f"{share:.0%} of the steps on {rows:,} rows" for rows, share in right.items()
    )
    found += (
        f"; the noise of {counts.sum():,} of {count:,} steps is too small, and these count" if not counts.all() else ""
    )
    return Outcome(StepSearch(counts, size), notes=(found,))


def told_at_most(steps: ClaimedSteps) -> float:
    """Probability of a right guess that a step's claim allows."""
    noise = steps.private.noise_multiplier
    return float(ndtr(1 / (2 * noise))) if noise else 1.0


def _evidence(told: NDArray[np.bool_], most: float) -> float:
    """What such guesses say against the claim: nats of each step, with as many more at its limit as a round has."""
    if not told.size or most == 1:
        return -1.0 if not told.size else 0.0
    share = (told.sum() + ROUNDS * most) / (told.size + ROUNDS)
    return float(told.shape[1] * (rel_entr(share, most) + rel_entr(1 - share, 1 - most))) if share > most else 0.0


@unit
def score_steps(search: StepSearch | None, trainings: tuple[Steps, ...]) -> Iterator[StepScores]:
    """The attack's scores of the steps that count of all trainings, one after another."""
    counts = np.ones(len(trainings[0].coin), np.bool_) if search is None else search.counts
    coins, score = (np.concatenate([getattr(one, name)[counts] for one in trainings]) for name in ("coin", "score"))
    if np.isnan(score).any():
        raise RunError("the attack gave scores that are no numbers")
    yield StepScores.in_single_precision(coins, score)


@unit
def look_at_noise(trainings: tuple[Steps, ...], noise: float) -> NoiseForm:
    """Of trainings whose batches were shown; each has its share of the error."""
    seen = np.array([one.form for one in trainings])
    looked = np.isfinite(seen)
    least = np.where(looked, seen, 1.0).min(0)
    return NoiseForm(np.where(looked.any(0), np.minimum(1.0, looked.sum(0) * least), np.nan), noise)


@unit
def tell_steps(count: int) -> Iterator[StepScores]:
    """The game against a training without privacy: the coin of each of `count` steps is told."""
    coins = np.arange(count) % 2 == 0
    yield StepScores.in_single_precision(coins, np.where(coins, 1.0, -1.0))


@register("attack", "step-midpoint", source="Ours, after Nasr et al. (2023), arXiv:2302.07956")
@dataclass(frozen=True)
class StepMidpoint:
    """Guesses that it did where a feature of the step lies above the middle of earlier ones with and without it.

    Three rules for the middle of each feature, all of them from the past alone. Of the first feature the first one is
    followed until another has told clearly more of earlier steps: the luckiest of dozens is often right by chance.

    * the canary adds one clip, as it should, to what the data have had along it so far;
    * halfway between the means of the steps with and without it, whatever it adds: gradients that are not clipped;
    * half of what it adds above the last step without it: noise that is used again.
    """

    view: ClassVar[type[StepView]] = StepView

    def score(self, view: StepView) -> Floats:
        """Of the last step alone, shape (1,): in clips above the middle; 0 where it was not finite."""
        x, coins = view.features.T, np.append(view.coins, False)
        known: NDArray[np.bool_] = np.asarray(np.isfinite(x).all(0))
        x, seen = np.asarray(np.where(known, x, 0.0), np.float64), known.astype(np.float64)
        after = coins & known
        with_it, without = _mean_before(x, after, 1.0), _mean_before(x, known & ~after, 0.0)
        adds = with_it - without
        data = _sum_before(np.asarray((x - coins) * seen)) / (BELIEVED + _sum_before(seen))
        last = np.concatenate([np.zeros((len(x), 1)), (x - adds * coins)[:, :-1]], 1)
        rules = np.concatenate(
            [
                x - data - 0.5,
                (x - (with_it + without) / 2) * np.sign(adds),
                (x - last - adds / 2) * np.sign(adds),
            ]
        )
        before = len(coins) - 1
        share = np.maximum((((rules[:, :-1] > 0) == coins[:-1]).sum(1) + 1) / (before + 2), 0.5)
        nats = before * (rel_entr(share, 0.5) + rel_entr(1 - share, 0.5))
        nats[0] += HESITATION
        return np.array([rules[int(np.argmax(nats)), -1] * seen[-1]])


def _sum_before(values: Floats) -> Floats:
    """Of all earlier places, shape as `values`."""
    return np.asarray(np.cumsum(values, axis=-1) - values)


def _mean_before(x: Floats, where: NDArray[np.bool_], believed: float) -> Floats:
    """Mean of the earlier places `where`; while they are few, with one place more that holds what is believed."""
    chosen = where.astype(np.float64)
    count = _sum_before(chosen)
    prior = (count < BELIEVED).astype(np.float64)
    return np.asarray((_sum_before(x * chosen) + prior * believed) / (count + prior))
