"""DP-SGD audited in one training: at each step a fair coin of the step's own decides whether a canary takes part.

Given all that was released before, a step is a mechanism of its own and its coin is fair, so n steps are n trials,
however the training adapts. What is read is the step's claim: noise, clipping and, if asked for, sampling.

Source: Nasr et al. (2023), arXiv:2302.07956, "Tight auditing of differentially private machine learning", section 5.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

from dpaudit.actors.work import Work
from dpaudit.claims import Claim, GaussianDP, Relation, SubsampledGaussian
from dpaudit.engine.games.fits import Capability, CheckTest, Fits
from dpaudit.engine.games.protocol import Played, Setting, require_units
from dpaudit.engine.games.steps.gradients import RandomGradient
from dpaudit.engine.games.steps.step_midpoint import StepView
from dpaudit.engine.games.steps.step_units import score_steps, tell_steps, train_steps
from dpaudit.engine.games.two_world.canaries.protocol import GradientCanary
from dpaudit.engine.games.whole_training import WholeTraining
from dpaudit.errors import SpecError, require
from dpaudit.estimators.scores import StepScores
from dpaudit.mechanisms.protocols import ObservableLearner, StepLearner
from dpaudit.mechanisms.training.private.private_steps import ClaimedSteps
from dpaudit.registry import register

STEP_LEARNERS = Capability(
    StepLearner, "learners that show their steps (with methods `claim`, `claimed_steps` and `show_steps`)"
)


@register("game", "dp-sgd-steps", source="Nasr et al. (2023), arXiv:2302.07956, section 5")
@dataclass(frozen=True)
class DpSgdSteps:
    """One training of DP-SGD, add/remove: every step is a trial, read against what a step claims of itself.

    A `claim` in the spec is taken for the step's.

    Attributes:
        canary: Where the canary's gradient points.
        trainings: How many are made, or at most where `steps` is given; their steps follow each other, >= 1.
        steps: No more trainings are made than have so many steps together, >= 1; None makes all.
        sampling: Whether the step's own sampling has to take the canary too: what is tested is then the subsampled
            step, of which little is seen where few examples are taken. Needs a learner that samples gradients (dp-sgd).
    """

    fits: ClassVar[Fits] = Fits(
        relation=Relation.ADD_REMOVE,
        assumes="Nothing beyond fair coins, one a step, and that the gradients shown are those the weights are moved "
        "by: whatever earlier steps did, the next one is a trial of its own.",
        views={STEP_LEARNERS: StepView},
        attack="step-midpoint",
        estimator="step-martingale",
        evidence=StepScores,
        helps="more steps (epochs), or more `trainings`",
        check_tests=(
            CheckTest(
                STEP_LEARNERS,
                (Relation.ADD_REMOVE,),
                "noise far too small, clipping that does not bind: step by step of one training",
                trainings=1,
                scales={"trainings": 1.0},
                least=1,
                variant="one training",
                again={"trainings": 4},
            ),
            CheckTest(
                STEP_LEARNERS,
                (Relation.ADD_REMOVE,),
                "noise too small, clipping that does not bind, noise that steps share: step by step of a few trainings",
                trainings=64,
                scales={"trainings": 1.0},
                least=1,
                variant="many trainings",
                game={"steps": 4_000},
                again={"trainings": 4, "steps": 4},
            ),
        ),
    )

    canary: GradientCanary = field(default=RandomGradient(), metadata={"kind": "canary"})
    trainings: int = 1
    steps: int | None = None
    sampling: bool = False

    def __post_init__(self) -> None:
        require(self.trainings >= 1, "trainings must be >= 1", trainings=self.trainings)
        require(self.steps is None or self.steps >= 1, "steps must be >= 1", steps=self.steps)
        if not isinstance(self.canary, GradientCanary):
            raise SpecError("the game dp-sgd-steps needs a canary that is a gradient: random-gradient, dirac-gradient")

    def play(self, setting: Setting, work: Work) -> Played:
        """The trainings, their scores, and what a training without privacy would show.

        Raises: SpecError for `sampling` with a learner that samples examples only.
        """
        if self.sampling and not isinstance(setting.mechanism, ObservableLearner):
            raise SpecError(
                "dp-sgd-steps with `sampling` needs a learner that samples gradients (dp-sgd); leave it out"
            )
        steps: ClaimedSteps = setting.mechanism.claimed_steps(len(setting.parts.target))
        count = self._trainings(steps.count)
        require_units(count + 2)
        trainings = tuple(
            work.add(
                train_steps,
                setting.mechanism,
                self.canary,
                setting.required("target"),
                sampled=self.sampling,
                seed=setting.seed.child("steps", number),
                label=f"training {number + 1} step by step",
                resources=setting.resources,
                after=setting.after,
            )
            for number in range(count)
        )
        on_cpus = setting.resources.on_cpus
        scores = work.add(score_steps, setting.attack, trainings, label="scores of steps", resources=on_cpus)
        told = work.add(tell_steps, steps.count * count, label="steps told", resources=on_cpus)
        whole: Claim = setting.mechanism.claim()
        return Played(
            (scores,),
            trainings=trainings,
            ceiling=(told,),
            claim=self.step_claim(steps, whole.delta),
            whole=WholeTraining(steps, whole, self.sampling),
        )

    def _trainings(self, steps: int) -> int:
        """How many are made, where each states so many steps: decided before any is."""
        return self.trainings if self.steps is None else min(self.trainings, -(-self.steps // steps))

    def step_claim(self, steps: ClaimedSteps, delta: float) -> Claim:
        """What one step claims, printed at a delta."""
        noise = steps.private.noise_multiplier
        if not noise:
            return Claim(math.inf, relation=Relation.ADD_REMOVE)
        sampled = SubsampledGaussian(noise, steps.private.sample_rate, 1)
        curve = sampled if self.sampling else GaussianDP(1 / noise)
        return Claim.of(curve, relation=Relation.ADD_REMOVE, delta=delta)
