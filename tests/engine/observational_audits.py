"""Observational audits without training: true laws, inaccurate proxies, and their verdicts.

An audit here uses the code of `dpaudit run` between the proxy's answers and the verdict: rounds of the label game on
the canaries, rounds of the control on held-out rows, the classifier, the bound, and the bound corrected for the
shift. Only data, proxy and mechanism are drawn directly, so that hundreds of audits take seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpaudit.actors.seed import Seed
from dpaudit.engine.answer.shift import ShiftCorrected, bound_beyond_shift, shift_control
from dpaudit.engine.data.generated import GaussianMixture
from dpaudit.engine.games.coins import (
    LEARNED_ROUNDS,
    CanarySetup,
    Replayed,
    ScoredReplay,
    learned_by_folds,
    scored_replays,
)
from dpaudit.engine.games.one_run.answers import LabelRelease, Predictions
from dpaudit.engine.games.one_run.attacks import LabelInferenceScore
from dpaudit.engine.games.one_run.label_inference import LabelInference
from dpaudit.engine.games.one_run.labelled import cumulative
from dpaudit.estimators.one_run.right_guesses import OneRunTally
from dpaudit.estimators.one_run.signed_scores import OneRun, OneRunEstimator
from dpaudit.estimators.scores import Scores
from dpaudit.mechanisms.examples import Examples
from dpaudit.mechanisms.labels.randomized_response import RandomizedResponse

Floats = NDArray[np.float64]
Proxy = Callable[[Floats, Examples, GaussianMixture, np.random.Generator], Floats]
"""Map (true posterior of the rows, the rows, their source, a generator) to the proxy's class probabilities."""


def powered(power: float) -> Proxy:
    """Return a proxy with the true class probabilities raised to a power and normalised."""

    def answers(truth: Floats, rows: Examples, data: GaussianMixture, rng: np.random.Generator) -> Floats:
        sharp = truth**power
        return sharp / sharp.sum(axis=1, keepdims=True)

    return answers


def fitted(reference: int) -> Proxy:
    """Return the default proxy, a logistic regression, trained on `reference` separate rows."""

    def answers(truth: Floats, rows: Examples, data: GaussianMixture, rng: np.random.Generator) -> Floats:
        from sklearn.linear_model import LogisticRegression

        reference_rows = GaussianMixture(data.classes, reference, data.dimensions).load(seed=int(rng.integers(2**31)))
        model = LogisticRegression(max_iter=200).fit(reference_rows.features, reference_rows.labels)
        return np.asarray(model.predict_proba(rows.features), dtype=np.float64)

    return answers


@dataclass(frozen=True)
class Outcome:
    """The result of one audit.

    Attributes:
        bound: The lower bound, not corrected for a shift.
        shift_seen: True if the attack distinguishes the proxy's draws from true labels, with significance.
        beyond: The bound corrected for the shift.
    """

    bound: float
    shift_seen: bool
    beyond: ShiftCorrected

    def by_significance(self, claim: float) -> bool:
        """True if the bound exceeds the claim and no significant shift is seen: a rule that fails, for comparison."""
        return self.bound > claim and not self.shift_seen

    def by_size(self, claim: float) -> bool:
        """True if the bound exceeds the claim even after correction for the shift: the rule of the verdict."""
        return self.bound > claim and self.beyond.epsilon > claim


@dataclass(frozen=True)
class Observed:
    """An audit of the released labels of randomised response, or of a model that remembers them.

    Attributes:
        proxy: Proxy of the adversary.
        canaries: Number of canaries.
        held_out: Number of rows of the control.
        epsilon: True epsilon of the mechanism.
        classes: Number of label classes.
        dimensions: Number of features.
        learner: If true, the adversary sees a model's answers: the posterior given features and released label on
            training rows, given features alone on other rows.
        attack: Attack of the adversary.
        estimator: Estimator of the game.
        replays: Number of replays of the game and of the control.
    """

    proxy: Proxy
    canaries: int = 8_000
    held_out: int = 4_000
    epsilon: float = 1.0
    classes: int = 2
    dimensions: int = 5
    learner: bool = False
    attack: Any = LabelInferenceScore()
    estimator: OneRunEstimator = field(default_factory=OneRun)
    replays: int = 3

    def run(self, seed: int) -> Outcome:
        """Run one audit."""
        rng = np.random.default_rng([seed, 17])
        data = GaussianMixture(self.classes, self.canaries + self.held_out, self.dimensions)
        rows = data.load(seed=seed)
        truth = data.posterior(rows.features)
        proxy = self.proxy(truth, rows, data, rng).astype(np.float32)
        trained, unseen = slice(self.canaries), slice(self.canaries, None)
        answers, held_out_answers = self._answers(rows, truth, rng)
        game = self._replays(rows, proxy, answers, trained, Seed(seed).child("game"))
        controls = [type(answers).uninformative(self.held_out, self.classes)]
        if held_out_answers is not None:
            controls.append(held_out_answers)
        held_out: list[list[OneRunTally]] = []
        for control in controls:
            learns = control is controls[-1]
            held_out += self._control(rows, proxy, control, unseen, Seed(seed).child("control"), learns)
        control = shift_control(self.estimator, game, held_out[:-1], where="rows")
        return Outcome(
            bound=self.estimator.bound(game).lower,
            shift_seen=control is not None and control.shift_detected,
            beyond=bound_beyond_shift(self.estimator, game, held_out),
        )

    def _answers(self, rows: Examples, truth: Floats, rng: np.random.Generator) -> tuple[Any, Predictions | None]:
        labels = rows.labels[: self.canaries]
        mechanism = RandomizedResponse(self.epsilon)
        released = mechanism.release(labels, classes=self.classes, rng=rng)
        if not self.learner:
            return LabelRelease(released, self.classes), None
        law = mechanism.transition(self.classes)
        joint = truth[: self.canaries] * law[:, released].T
        posterior = joint / joint.sum(axis=1, keepdims=True)
        return Predictions(posterior.astype(np.float32)), Predictions(truth[self.canaries :].astype(np.float32))

    def _rounds(self, setup: Replayed, seed: Seed, draw_seed: Seed, count: int) -> Iterator[tuple[int, ScoredReplay]]:
        return scored_replays(LabelInference(), self.attack, setup, seed, draw_seed, range(count))

    def _replays(self, rows: Examples, proxy: Any, answers: Any, part: slice, seed: Seed) -> list[OneRunTally]:
        played = self._rounds(self._setup(rows, proxy, answers, part), seed, seed, self.replays)
        return [self.estimator.tally(Scores(each.score, each.bits, number)) for number, each in played]

    def _control(
        self, rows: Examples, proxy: Any, answers: Any, part: slice, seed: Seed, learns: bool
    ) -> list[list[OneRunTally]]:
        setup, reads = self._setup(rows, proxy, answers, part), OneRun(guess=self.estimator.guess)
        played = list(self._rounds(setup, seed, seed, self.replays))
        attack = [reads.tally(Scores(each.score, each.bits, number)) for number, each in played]
        if not learns:
            return [attack]
        learning = seed.child("learning")
        rounds = [each for _, each in self._rounds(setup, seed, learning, LEARNED_ROUNDS)]
        odds = learned_by_folds(rounds, learning.child("parts").rng())
        return [attack, [reads.tally(Scores(odds(each), each.bits, number)) for number, each in played]]

    def _setup(self, rows: Examples, proxy: Any, answers: Any, part: slice) -> Replayed:
        part_rows = rows.take(np.arange(len(rows))[part])
        return Replayed(
            CanarySetup(part_rows, part_rows.take(np.arange(0)), cumulative(proxy[part])), answers, proxy[part]
        )
