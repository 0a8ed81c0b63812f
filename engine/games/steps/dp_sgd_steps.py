"""Audit of DP-SGD in one training: at each step, an independent fair coin decides whether a canary takes part.

Given all earlier releases, a step is a mechanism and its coin is fair. So n steps are n trials, however the training
adapts. The audited claim is that of a step: its noise, its clipping and, on request, its sampling.
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
from dpaudit.claims import Claim, GaussianDP, Relation, Scope, SubsampledGaussian
from dpaudit.engine.games.protocol import Capability, CheckTest, GameTraits, Played, Setting, every_row, require_units
from dpaudit.engine.games.steps.noise import NoiseForm
from dpaudit.engine.games.steps.step_probes import StepProber, Steps, StepView
from dpaudit.engine.games.two_world.canaries import GradientCanary, RandomGradient
from dpaudit.errors import InputError, RunError, SpecError, require
from dpaudit.estimators.bound import Bound, format_lower, format_upper
from dpaudit.estimators.finding import Finding
from dpaudit.estimators.one_run.step_martingale import StepAccuracy
from dpaudit.estimators.scores import StepScores
from dpaudit.mechanisms.compute import Compute, limited_threads
from dpaudit.mechanisms.examples import Examples, Texts
from dpaudit.mechanisms.protocols import Learner, ObservableLearner, StepLearner, TextStepLearner
from dpaudit.mechanisms.training.private.private_steps import ClaimedSteps, StepCanary
from dpaudit.registry import register

Floats = NDArray[np.float64]

STEP_LEARNERS = Capability(
    StepLearner, "learners that show their steps (with methods `claim`, `claimed_steps` and `show_steps`)"
)
TEXT_STEP_LEARNERS = Capability(
    TextStepLearner,
    "fine-tunings of a language model by DP-SGD (`name: fine-tuning`, with a finite epsilon)",
    rows=Texts,
    condition=lambda learner: learner.shows_steps,
)
TESTED_PARTS = (
    "tested: {parts}; not the accountant nor the data pipeline, which a game of two worlds sees from end to end"
)
STEP_PARTS = "noise and clipping of the steps"
TEXT_STEP_PARTS = "noise of the steps, and how they clip the canary, which a trainer may do apart from its records"
PRIOR_STEPS = 3.0
"""Weight, in steps, of the prior that the canary adds one clip and the data nothing."""
MIN_TRAININGS_FOR_SEARCH = 8
"""Smallest number of trainings of which some are search trainings."""
SMALL_DATA_BATCHES = (1.5, 8.0)
"""Expected batch sizes, in rows, of search trainings on few rows."""
COPIED_ROW_NORM = 30.0
"""Norm of a row that is copied."""
MAX_SEARCH_TRAININGS = 12
"""Largest number of search trainings."""
ROUNDS = 4
"""Number of rounds of counted trainings; each learns from the rounds before."""
MAX_EARLIER_TRAININGS = 8
"""Number of latest trainings from which a training learns."""
COMPARED_TRAININGS = 2
"""Number of latest search trainings, which have learned most, that decide between numbers of rows."""
LOW_VARIANCE_SHARE = 0.6
"""Share of the claimed variance below which the noise of a step is considered too small."""
SWITCH_NATS = 6.0
"""Lead in nats, on earlier steps, that another of the dozens of rules needs to replace the first one."""


STEP_RELATIONS = (Relation.ADD_REMOVE, Relation.ZERO_OUT)
"""Relations of the claims that steps are tested for."""


def _noise_tests(capability: Capability, *, clips: bool, trainings: int) -> tuple[CheckTest, CheckTest]:
    """Return the tests of steps in few trainings, and in many.

    Args:
        capability: Mechanisms that they audit.
        clips: True if the canary is clipped as records are, so that wrong clipping is found too.
        trainings: Largest number of trainings of the second test.
    """
    loose = ", clipping that does not bind" if clips else ""
    before_clip = ", what a step keeps of gradients before the clip" if clips else ""
    of_steps = partial(CheckTest, capability, STEP_RELATIONS, scales={"trainings": 1.0}, min_trainings=1)
    few = of_steps(
        f"noise far too small, missing or reused{loose}: step by step of one training, or of a few short ones",
        trainings=7,
        variant="few trainings",
        game={"steps": 150},
        growth_on_repeat={"trainings": 4, "steps": 4},
    )
    many = of_steps(
        f"noise too small{loose}, noise that steps share{before_clip}: step by step of many trainings",
        trainings=trainings,
        variant="many trainings",
        game={"steps": 100 * trainings},
        growth_on_repeat={"trainings": 2, "steps": 2},
    )
    return few, many


@register("game", "dp-sgd-steps", source="Nasr et al. (2023), arXiv:2302.07956, section 5")
@dataclass(frozen=True)
class DpSgdSteps:
    """Game of one training of DP-SGD, add/remove: every step is a trial, compared with the claim of a step.

    A `claim` in the spec is about one step.

    Attributes:
        canary: Direction of the canary's gradient. None tries many, step by step, and prefers the most successful.
        trainings: Number of trainings, or their largest number if `steps` is set; >= 1. If there are eight or more,
            some are search trainings: they choose the canaries, the steps and the number of rows. The steps of the
            others are counted.
        steps: Total number of steps, >= 1, from which on no further training is made; None makes all trainings.
        sampling: True if the canary is also subject to the sampling of the step. The subsampled step is then tested, to
            which the audit is less sensitive at low sampling rates. Needs a learner that samples gradients (dp-sgd).
        full_digits: True to guess by digits far below the noise alone, which leak if noise has fewer bits than the sum.
            Otherwise stored noise is compared to half a hundredth of its deviation, so that digits do not tell.
    """

    traits: ClassVar[GameTraits] = GameTraits(
        relation=Relation.ADD_REMOVE,
        assumes="Nothing beyond one fair coin for each step, and that the observed gradients are those that update the "
        "weights. Each step is a trial, given all earlier steps.",
        views={STEP_LEARNERS: StepView, TEXT_STEP_LEARNERS: StepView},
        attack="step-midpoint",
        estimator="step-martingale",
        evidence=StepScores,
        run_on=every_row,
        zeroes_out=True,  # the canary's gradient is in the sum or not, and the divisor is the stated constant
        helps="more steps (epochs), or more `trainings`",
        check_tests=(
            *_noise_tests(STEP_LEARNERS, clips=True, trainings=64),
            *_noise_tests(TEXT_STEP_LEARNERS, clips=False, trainings=16),
            CheckTest(
                STEP_LEARNERS,
                STEP_RELATIONS,
                "what the low digits of steps tell, far below the noise",
                excluded=Learner,  # networks in single precision, noise and sum alike
                trainings=7,
                scales={"trainings": 1.0},
                min_trainings=1,
                variant=Scope.FLOATING_POINT.value,
                game={"steps": 150, "full_digits": True},
                growth_on_repeat={"trainings": 4, "steps": 4},
                scope=Scope.FLOATING_POINT,
            ),
        ),
    )

    canary: GradientCanary | None = field(default=None, metadata={"kind": "canary"})
    trainings: int = 1
    steps: int | None = None
    sampling: bool = False
    full_digits: bool = False

    def __post_init__(self) -> None:
        require(self.trainings >= 1, "trainings must be >= 1", trainings=self.trainings)
        require(self.steps is None or self.steps >= 1, "steps must be >= 1", steps=self.steps)
        if self.canary is not None and not isinstance(self.canary, GradientCanary):
            raise SpecError("the canary of dp-sgd-steps must be a gradient: random-gradient or dirac-gradient")
        if self.full_digits and (self.sampling or self.canary is not None):
            raise SpecError("dp-sgd-steps with `full_digits` chooses its canaries. Remove `canary` and `sampling`")

    def play(self, setting: Setting, work: Work) -> Played:
        if self.sampling and not isinstance(setting.mechanism, ObservableLearner):
            raise SpecError(
                "dp-sgd-steps with `sampling` needs a learner that samples gradients (dp-sgd). Remove `sampling`"
            )
        steps, count = planned_steps(setting, self.trainings, self.steps)
        canary = RandomGradient() if self.canary is None and self.sampling else self.canary
        rows = len(setting.parts.target)
        sizes = [rows, *(max(2, round(batch / steps.private.sample_rate)) for batch in SMALL_DATA_BATCHES)]
        is_of_texts = isinstance(setting.mechanism, TextStepLearner)
        sizes = [rows] if is_of_texts else [size for size in sizes if setting.mechanism.claimed_steps(size) == steps]
        has_search = canary is None and not self.full_digits and count >= MIN_TRAININGS_FOR_SEARCH
        search_count = min(MAX_SEARCH_TRAININGS, 3 * (count // 6)) if has_search else 0

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
                without_search=not search_count,
                full_digits=self.full_digits,
                seed=setting.seed.child("steps", number),
                label=f"training {number + 1} step by step",
                **setting.unit_options,
            )

        on_cpus = setting.resources.without_gpu
        searches: tuple[Unit, ...] = ()
        trainings: tuple[Unit, ...] = ()
        for numbers in _in_rounds(range(search_count), len(sizes)):
            searches += tuple(training(number, None, searches, sizes[number % len(sizes)]) for number in numbers)
        search = None
        if searches:
            noise_multiplier = steps.private.noise_multiplier
            allowed = float(ndtr(1 / (2 * noise_multiplier))) if noise_multiplier else 1.0
            search = work.add(learn_steps, searches, allowed, label="what tells most", resources=on_cpus)
        for numbers in _in_rounds(range(search_count, count), -(-(count - search_count) // ROUNDS)):
            trainings += tuple(training(number, search, searches + trainings, rows) for number in numbers)
        scores = work.add(score_steps, search, trainings, label="scores of steps", resources=on_cpus)
        ceiling = work.add(reveal_coins, steps.count * len(trainings), label="steps told", resources=on_cpus)
        noise = work.add(
            check_noise,
            searches + trainings,
            steps.private.noise_multiplier,
            label="form of the noise",
            resources=on_cpus,
        )
        claim: Claim = setting.mechanism.claim()
        return Played(
            (scores,),
            noise=noise,
            trainings=searches + trainings,
            ceiling=(ceiling,),
            choices=() if search is None else (search,),
            claim=claim_of_step(steps, claim.delta, sampled=self.sampling),
            whole=partial(whole_training, steps, claim, self.sampling, is_of_texts),
        )


def planned_steps(setting: Setting, trainings: int, steps: int | None = None) -> tuple[ClaimedSteps, int]:
    """Return the claimed steps of a training, and the number of trainings: as few as have so many steps.

    Raises: SpecError if the learner states no steps on the target's rows.
    """
    claimed: ClaimedSteps | None = setting.mechanism.claimed_steps(len(setting.parts.target))
    if claimed is None:
        raise SpecError("this game needs a learner that states the steps of a training on the target's rows")
    count = trainings if steps is None else min(trainings, -(-steps // claimed.count))
    require_units(count + 3)
    return claimed, count


def claim_of_step(steps: ClaimedSteps, delta: float, *, sampled: bool = False) -> Claim:
    """Return the claim of a step, with its sampling or without; infinite if the step has no noise."""
    noise = steps.private.noise_multiplier
    if not noise:
        return Claim(math.inf, relation=Relation.ADD_REMOVE)
    curve = SubsampledGaussian(noise, steps.private.sample_rate, 1) if sampled else GaussianDP(1 / noise)
    return Claim.of(curve, relation=Relation.ADD_REMOVE, delta=delta)


def whole_training(
    steps: ClaimedSteps, claim: Claim, sampled: bool, is_of_texts: bool, finding: Finding, step_claim: Claim
) -> tuple[str, ...]:
    """Return lines for the report: claim of the training, p-value of the step's claim, noise and its cost, scope."""
    evidence = finding.evidence if isinstance(finding, Bound) else ()
    accuracies = [item for item in evidence if isinstance(item, StepAccuracy)]
    p_values = [f"p-value of the step's claim: {accuracy.p_value(step_claim.curve):.2g}" for accuracy in accuracies]
    composed = [_composed(steps, claim, accuracy) for accuracy in accuracies if accuracy.odds > 0 and not sampled]
    claimed = f"claimed epsilon {claim.epsilon:g} at delta={claim.delta:g}"
    if steps.without_noise:
        claimed += (
            f", if all steps had noise: {steps.without_noise:,} of {steps.count:,} have none by the accountant's "
            "record, so no finite epsilon holds for the training"
        )
    parts, sampling = TEXT_STEP_PARTS if is_of_texts else STEP_PARTS, ", and their sampling" if sampled else ""
    return (claimed, *p_values, *composed, TESTED_PARTS.format(parts=f"{parts}{sampling}"))


def _composed(steps: ClaimedSteps, claim: Claim, accuracy: StepAccuracy) -> str:
    """Return the accountant's result for the noise that allows this accuracy: at most Phi(1 / (2 noise))."""
    private = steps.private
    noise = 1 / (2 * float(ndtri(expit(accuracy.odds))))
    sentence = (
        f"if a step's noise is Gaussian, it is worth at most {format_upper(noise)} clips, where "
        f"{private.noise_multiplier:.3g} are claimed"
    )
    if noise >= private.noise_multiplier:
        return sentence
    spent = SubsampledGaussian(noise, private.sample_rate, steps.count).epsilon(claim.delta)
    return (
        f"{sentence}; {steps.count:,} such steps spend about epsilon {format_lower(spent, 2)} at "
        f"delta={claim.delta:g} by the accountant, where {claim.epsilon:g} is claimed"
    )


@dataclass(frozen=True, eq=False)
class StepSearch:
    """Choices made on the search trainings."""

    counts: NDArray[np.bool_]  # mask of the steps of a training that count, shape (steps of a training,)
    size: int  # number of rows to train on


def _in_rounds(numbers: range, size: int) -> list[range]:
    return [numbers[first : first + size] for first in range(0, len(numbers), max(1, size))]


@unit
def train_steps(
    mechanism: Any,
    attack: Any,
    canary: GradientCanary | None,
    target: Examples | Texts,
    search: StepSearch | None,
    earlier: tuple[Steps, ...],
    compute: Compute,
    *,
    size: int,
    sampled: bool = False,
    without_search: bool = False,
    full_digits: bool = False,
    seed: Seed,
) -> Steps:
    """Train once, with a canary that an independent coin of each step lets in.

    If the search chose fewer rows than the target has, the training data are copies of one row.

    Args:
        mechanism: The learner.
        attack: The attack, which guesses the coin of each step.
        canary: The canary; None to choose among several at each step.
        target: The training data.
        search: Choices made on the search trainings; None in a search training and if there are none.
        earlier: Earlier trainings to learn from.
        compute: Available devices and threads.
        size: Number of rows to train on, in a search training.
        sampled: True if the canary is also subject to the sampling of the step.
        without_search: True if no training of the audit is a search training.
        full_digits: True to guess by digits far below the noise alone.
        seed: Seed of the training.
    Raises: InputError if the training shows no step, or more steps than claimed.
    """
    claimed = mechanism.claimed_steps(len(target))
    size = size if search is None else search.size
    crafted = isinstance(target, Examples) and size != len(target)
    train = target
    if isinstance(target, Examples):  # texts are never few: the search for the number of rows is for examples
        train = copied_rows(target, size, seed.child("rows").rng()) if crafted else target.writable()
    probe = StepProber(
        attack,
        claimed.private.noise_multiplier,
        seed.child("direction").rng(),
        only=canary,
        earlier=[training for training in earlier if training.rows == size][-MAX_EARLIER_TRAININGS:],
        without_search=without_search,
        exploring=search is None and not without_search,
        clip=claimed.private.clip,
        full_digits=full_digits,
    )
    step_canary = StepCanary(
        probe, seed.child("coins").rng(), clip=claimed.private.clip, divisor=claimed.divisor, sampled=sampled
    )
    try:
        show_steps(mechanism, train, step_canary, claimed.count, seed=seed.child("training"), compute=compute)
    except Exception:
        # A training loop may fail on few rows; its missing steps count as wrong guesses.
        if not crafted or step_canary.step > claimed.count:
            raise
    if not step_canary.step:
        return Steps.none(claimed.count)
    # Padding: the number of trials must not depend on where a training breaks off.
    steps = replace(probe.steps().padded(claimed.count), rows=size)
    return steps if search is None and not without_search else replace(steps, left=Steps.none(0).left)


def show_steps(
    mechanism: Any, train: Examples | Texts, canary: StepCanary, count: int, *, seed: Seed, compute: Compute
) -> None:
    """Train once and show each step to a canary.

    Raises: InputError if the training shows no step, or more steps than `count`, the number that it states.
    """
    show = mechanism.show_text_steps if isinstance(train, Texts) else mechanism.show_steps
    with limited_threads(compute.threads), np.errstate(all="ignore"):
        show(train, canary, seed=seed.sequence(), compute=compute)
    if not canary.step:
        raise InputError("a training must show its steps: it never called `observe`")
    require(canary.step <= count, f"a training must show the {count} steps it states", shown=canary.step)


def copied_rows(target: Examples, count: int, rng: np.random.Generator) -> Examples:
    """Return copies of one row with a large norm and alternating labels, which no training can fit."""
    copies = target.take(np.full(count, int(rng.integers(len(target))))).writable()
    features = copies.features
    if isinstance(features, np.ndarray):
        factor = COPIED_ROW_NORM / max(float(np.linalg.norm(features[0])), 1.0)
        copies = replace(copies, features=(features * factor).astype("f4"))
    labels = (copies.labels + np.arange(count) % 2) % target.classes
    return replace(copies, labels=labels)


@unit
def learn_steps(trainings: tuple[Steps, ...], allowed: float) -> Outcome[StepSearch]:
    """Choose the number of rows with the most correct guesses, and the steps to count.

    Args:
        trainings: The search trainings.
        allowed: Largest accuracy that the claim of a step allows.
    """
    count = len(trainings[0].coin)
    accuracy = {}
    for size in dict.fromkeys(training.rows for training in trainings):
        latest = [training for training in trainings if training.rows == size][-COMPARED_TRAININGS:]
        halves = [(training.score[count // 2 :], training.coin[count // 2 :]) for training in latest]
        accuracy[size] = float(np.mean([((score > 0) == coin)[score != 0].sum() / len(coin) for score, coin in halves]))
    size = max(accuracy, key=lambda rows: accuracy[rows])
    quiet = np.max([training.size for training in trainings], axis=0) < LOW_VARIANCE_SHARE
    latest = [training for training in trainings if training.rows == size][-MAX_EARLIER_TRAININGS // 2 :]
    correct = np.array([((training.score > 0) == training.coin) & (training.score != 0) for training in latest])
    first = [np.arange(count) < count >> halvings for halvings in range(max(1, count.bit_length() - 3))]
    counts = max((*first, quiet), key=lambda mask: _evidence(correct[:, mask], allowed))
    note = "steps chosen: in search trainings, the guess was right in " + ", ".join(
        f"{share:.0%} of the steps on {rows:,} rows" for rows, share in accuracy.items()
    )
    if not counts.all():
        note += f"; only {counts.sum():,} of {count:,} steps, which told most, are counted"
    return Outcome(StepSearch(counts, size), notes=(note,))


def _evidence(correct: NDArray[np.bool_], allowed: float) -> float:
    """Return the evidence against the claim in nats, by the guesses and `ROUNDS` prior guesses at the allowed rate."""
    if not correct.size or allowed == 1:
        return -1.0 if not correct.size else 0.0
    share = (correct.sum() + ROUNDS * allowed) / (correct.size + ROUNDS)
    nats = correct.shape[1] * (rel_entr(share, allowed) + rel_entr(1 - share, 1 - allowed))
    return float(nats) if share > allowed else 0.0


@unit
def score_steps(search: StepSearch | None, trainings: tuple[Steps, ...]) -> Iterator[StepScores]:
    """Yield the attack's scores of the counted steps of all trainings, in order."""
    counts = np.ones(len(trainings[0].coin), np.bool_) if search is None else search.counts
    coins, score = (
        np.concatenate([getattr(training, name)[counts] for training in trainings]) for name in ("coin", "score")
    )
    if np.isnan(score).any():
        raise RunError("the attack returned scores that are NaN")
    yield StepScores.in_single_precision(coins, score)


@unit
def check_noise(trainings: tuple[Any, ...], noise: float) -> NoiseForm:
    """Combine the p-values of trainings whose batches were observed, by Bonferroni correction, and what they show."""
    p_values = np.array([training.form for training in trainings])
    tested = np.isfinite(p_values)
    smallest = np.where(tested, p_values, 1.0).min(0)
    points_to = next((training.points_to for training in trainings if training.points_to), ())
    combined = np.where(tested.any(0), np.minimum(1.0, tested.sum(0) * smallest), np.nan)
    return NoiseForm(combined, noise, points_to=points_to)


@unit
def reveal_coins(steps: int, coins: int = 1) -> Iterator[StepScores]:
    """Yield the scores of the game against a training without privacy, which reveals all coins of all steps."""
    truth = np.arange(steps * coins) % 2 == 0
    yield StepScores.in_single_precision(truth, np.where(truth, 1.0, -1.0), coins)


@register("attack", "step-midpoint", source="Ours, after Nasr et al. (2023), arXiv:2302.07956")
@dataclass(frozen=True)
class StepMidpoint:
    """Attack that compares a feature of the step with a threshold from earlier steps with and without the canary.

    There are three rules for the threshold of each feature:

    * Half a clip above the data's mean: the canary adds one clip, as claimed.
    * Halfway between the means with and without the canary, for gradients that are not clipped.
    * Half of the canary's effect above the previous step without its canary, for noise that is reused.

    The first rule on the first feature is used until another one was clearly better on earlier steps. The best of
    dozens of rules is often right by chance.
    """

    view: ClassVar[type[StepView]] = StepView

    def score(self, view: StepView) -> Floats:
        """Return the score of the last step, shape (1,), in clips above the threshold; 0 if it was not finite."""
        x, coins = view.features.T, np.append(view.coins, False)
        finite: NDArray[np.bool_] = np.asarray(np.isfinite(x).all(0))
        x, weight = np.asarray(np.where(finite, x, 0.0), np.float64), finite.astype(np.float64)
        joined = coins & finite
        mean_in, mean_out = _mean_before(x, joined, 1.0), _mean_before(x, finite & ~joined, 0.0)
        effect = mean_in - mean_out
        data = _sum_before(np.asarray((x - coins) * weight)) / (PRIOR_STEPS + _sum_before(weight))
        previous = np.concatenate([np.zeros((len(x), 1)), (x - effect * coins)[:, :-1]], 1)
        rules = np.concatenate(
            [
                x - data - 0.5,
                (x - (mean_in + mean_out) / 2) * np.sign(effect),
                (x - previous - effect / 2) * np.sign(effect),
            ]
        )
        count = len(coins) - 1
        share = np.maximum((((rules[:, :-1] > 0) == coins[:-1]).sum(1) + 1) / (count + 2), 0.5)
        nats = count * (rel_entr(share, 0.5) + rel_entr(1 - share, 0.5))
        nats[0] += SWITCH_NATS
        return np.array([rules[int(np.argmax(nats)), -1] * weight[-1]])


def _sum_before(values: Floats) -> Floats:
    """Return the sum of all earlier values along the last axis, shape as `values`."""
    return np.asarray(np.cumsum(values, axis=-1) - values)


def _mean_before(x: Floats, mask: NDArray[np.bool_], prior_mean: float) -> Floats:
    """Return the mean of the earlier values in the mask; while they are few, with one further value `prior_mean`."""
    chosen = mask.astype(np.float64)
    count = _sum_before(chosen)
    prior = (count < PRIOR_STEPS).astype(np.float64)
    return np.asarray((_sum_before(x * chosen) + prior * prior_mean) / (count + prior))
