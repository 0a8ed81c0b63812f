"""Canaries that are tried at the steps of DP-SGD.

Earlier steps show which features (`residuals.py`) and canaries succeed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy import special

from dpaudit.engine.games.steps.aggregation import Aggregation, StepFit
from dpaudit.engine.games.steps.noise import LOOKS, LowDigits, form_of
from dpaudit.engine.games.steps.residuals import BARE, NEXT_FEATURES, RUN, ObservedStep, Residuals
from dpaudit.engine.games.steps.residuals import FEATURES as STEP_FEATURES
from dpaudit.engine.games.two_world.canaries import GradientCanary, RandomGradient

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]

CANARY_NORM = 10.0
"""Norm of a canary before clipping, in clips."""
FAR_CANARY_NORM = 100.0
"""Norm of a canary that outweighs other gradients and reveals a single unclipped weight, in clips."""
GROWTH, MAX_CANARY_NORM = 2.0, 1e15
"""Factor by which the norm of canaries that go ever farther grows, and its largest value in clips."""
EXPECTED_GUESSES, MAX_GUESSES = 80.0, 100.0
"""Weight of what a canary should add by the loop's clip, and number of latest guesses that count, in guesses."""
EXPLORED_SHARE = 0.5
"""Share of canaries that are drawn uniformly in search trainings."""
LEAST_NORM = 1e-30
"""Smallest norm by which a vector is divided."""
NOT_FINITE = 100.0
"""Feature of a next step that is not finite."""
MAX_PASSED_NUMBERS = 500_000
"""Largest number of floats of a training's residuals that later trainings receive."""
HISTORY = 128
"""Smallest number of earlier steps of a kind, if there are as many, that an attack sees; it sees fewer than twice as
many."""

KINDS = (
    "dense",
    "far",
    "against the last row",
    "against the batch",
    "cycling",
    "quietest weight",
    "short",
    "ever farther",
)
"""Kinds of canaries."""
PRIOR_GUESSES = 14.0, 20.0
"""Prior number of correct guesses and of guesses for the first kind, if there are no search trainings."""
FEATURES = STEP_FEATURES + NEXT_FEATURES
BARE_WEIGHTS = 3
"""Number of weights without noise from which they alone decide the guess."""
RUN_NATS = 10.0
"""Evidence of a run of stored noise from which it alone decides the guess."""
ROWS = 4
"""Number of classes of batch sizes: 0, 1, 2, and more rows."""


@dataclass(frozen=True, eq=False)
class StepView:
    """A released step, and earlier ones with the same kind of canary, whose coins are known."""

    # features of each step, shape (steps so far, features); NaN if a step was not finite. The first one is the inner
    # product of the residual and the canary's direction, in clips.
    features: Floats
    coins: Flags  # True if the canary took part, shape (steps so far - 1,)
    shows: ClassVar[str] = "the steps of one training, one after another"


@dataclass(frozen=True, eq=False)
class Steps:
    """Observations of each step of a training, all of shape (steps,) or (steps, features)."""

    coin: Flags  # True if the coin let the canary in
    kind: Ints  # index of the canary in `KINDS`, times `ROWS`, plus the class of the batch size
    features: Floats  # NaN for a missing step
    score: Floats  # score of the attack, before the coin was known; 0 for no guess
    size: Floats  # mean square of the residual, over the claimed variance
    rows: int = 0  # number of rows in the training data
    form: Floats = field(default_factory=lambda: np.full(len(LOOKS), np.nan))  # p-values of its noise, see `form_of`
    points_to: tuple[str, ...] = ()  # parts of the training that may be wrong
    # latest residuals in clips, shape (some steps, weights), which may recur in another training
    left: NDArray[np.float32] = field(default_factory=lambda: np.zeros((0, 0), np.float32))

    @classmethod
    def none(cls, count: int, features: int = FEATURES) -> Steps:
        """Return `count` missing steps."""
        missing, zeros = np.full(count, np.nan), np.zeros(count)
        return cls(zeros > 0, zeros.astype(np.int64), np.full((count, features), np.nan), zeros, missing)

    def padded(self, count: int) -> Steps:
        """Return `count` steps, with missing ones at the end."""
        missing = Steps.none(count - len(self.coin), self.features.shape[1])
        columns: dict[str, Any] = {
            name: np.concatenate([getattr(self, name), getattr(missing, name)])
            for name in ("coin", "kind", "features", "score", "size")
        }
        return replace(self, **columns)


class StepHistory:
    """Latest steps with one kind of canary."""

    def __init__(self) -> None:
        self._features, self._coins, self._count = np.zeros((0, 0)), np.zeros(2 * HISTORY, np.bool_), 0

    def view(self, features: Floats) -> StepView:
        """Return the attacker's view of the next step."""
        if not self._features.size:
            self._features = np.zeros((2 * HISTORY, len(features)))
        self._features[self._count] = features
        return StepView(self._features[: self._count + 1], self._coins[: self._count])

    def add(self, features: Floats, joined: bool) -> None:
        """Append a step whose coin is known."""
        self.view(features)
        self._coins[self._count] = joined
        self._count += 1
        if self._count == 2 * HISTORY:
            self._features[:HISTORY], self._coins[:HISTORY] = self._features[HISTORY:], self._coins[HISTORY:]
            self._count = HISTORY


class StepProber:
    """Chooses each step's canary, computes the step's features, and has the attack guess its coin.

    A coin is guessed after the next step was seen, which may show what the loop kept of the canary. The next canary
    does not depend on this coin, nor the guess on the next coin. So if the claim holds, the next step tells nothing of
    this coin, and the guess is right as rarely as without it (`docs/statistics/validity.md`).

    Args:
        attack: The attack.
        noise: Claimed noise multiplier.
        rng: Source of canaries.
        only: The only canary; None to choose among `KINDS`.
        earlier: Earlier trainings to learn from.
        without_search: True if the audit has no search trainings; dense canaries then start with a prior.
        exploring: True to draw half of the canaries uniformly, in a search training.
        clip: Claimed clip, in which the noise may have been rounded.
        full_digits: True to guess by digits far below the noise, and by nothing else.
    """

    def __init__(
        self,
        attack: Any,
        noise: float,
        rng: np.random.Generator,
        *,
        only: GradientCanary | None = None,
        earlier: Sequence[Steps] = (),
        without_search: bool = False,
        exploring: bool = False,
        clip: float = 1.0,
        full_digits: bool = False,
    ) -> None:
        self._attack, self._noise, self._rng, self._only = attack, noise, rng, only
        self._earlier = [steps.left for steps in earlier if len(steps.left)]
        self._exploring = exploring
        self._digits = LowDigits((1.0, clip, 1 / noise if noise else 1.0)) if full_digits else None
        self._observed: list[tuple[bool, int, Floats, float, float]] = []
        self._histories = [StepHistory() for _ in range(ROWS * len(KINDS))]
        self._correct, self._guesses = np.full(len(KINDS), 2.0), np.full(len(KINDS), 4.0)
        if without_search:
            self._correct[0], self._guesses[0] = PRIOR_GUESSES
        for steps in earlier:
            for kind, features, coin, score in zip(steps.kind, steps.features, steps.coin, steps.score, strict=True):
                if np.isfinite(features).all():
                    self._learn(int(kind), features, bool(coin), float(score))
        self._residuals: Residuals | None = None
        self._direction: Floats | None = None
        self._aggregation = Aggregation()
        self._waiting: _WaitingStep | None = None
        self._count, self._farthest = 0, CANARY_NORM
        self._batches_shown = True

    def gradients(self, weights: int, batch: Floats | None) -> Floats:
        """Return the next canary's gradient in clips, shape (1, weights); `batch` has shape (batch, weights)."""
        if self._residuals is None:
            earlier = [rows for rows in self._earlier if rows.shape[1] == weights]
            numbers = np.concatenate(earlier)[-max(1, MAX_PASSED_NUMBERS // weights) :] if earlier else None
            self._residuals = Residuals(weights, self._noise, numbers)
            self._direction = np.asarray((self._only or RandomGradient()).gradient(weights, self._rng), np.float64)
        self._batch = np.zeros((0, weights)) if batch is None else batch
        self._batches_shown &= batch is not None
        canary = self._next_canary()
        self._kind = ROWS * canary + min(len(self._batch), ROWS - 1)
        raw = self._raw(KINDS[canary], weights)
        self._norm = max(float(np.linalg.norm(raw)), LEAST_NORM)
        self._unit = raw / self._norm
        if self._only is None:
            raw = raw.astype(np.float32).astype(np.float64)  # as the loop receives it
            self._expected = self._aggregation.expected(self._batch, raw)
        self._count += 1
        return raw[None]

    def see(self, released: Floats, joined: Flags) -> None:
        """Observe a noisy sum, in clips; the previous step is guessed before its coin is used."""
        assert self._residuals is not None
        fit = None
        if self._only is None:
            base, effect = self._aggregation.base_and_effect(self._expected)
            fit = self._aggregation.fit(self._expected, released)
            step = ObservedStep(released, released - base, effect, self._unit, self._norm, self._batch)
        else:
            step = ObservedStep(released, released, self._unit, self._unit, self._norm, self._batch)
        self._finish(step)
        features = self._features(step)
        self._waiting = _WaitingStep(step, bool(joined[0]), self._kind, features, fit)

    def steps(self) -> Steps:
        """Return all steps so far; nothing can be observed afterwards."""
        self._finish(None)
        coin, kind, features, score, size = zip(*self._observed, strict=True)
        columns = np.array(coin), np.array(kind, np.int64), np.array(features), np.array(score), np.array(size)
        # Without the batches, the sums contain data.
        if self._residuals is None or self._only is not None or not self._batches_shown:
            return Steps(*columns)
        stored = self._residuals.stored
        latest = stored[-max(1, MAX_PASSED_NUMBERS // stored.shape[1]) :]
        points_to, form = self._aggregation.points_to(self._noise), form_of(stored, self._noise)
        return Steps(*columns, form=form, points_to=points_to, left=latest.astype(np.float32))

    @property
    def _has_one_feature(self) -> bool:
        return self._only is not None or self._digits is not None

    def _features(self, step: ObservedStep) -> Floats:
        """Return the features of a step that do not need the next one; NaN if the step was not finite."""
        assert self._residuals is not None
        if not all(np.isfinite(row).all() for row in (step.released, step.residual, step.effect)):
            return np.full(1 if self._has_one_feature else STEP_FEATURES, np.nan)
        if self._only is not None:
            return np.array([step.released @ step.direction])
        if self._digits is not None:
            return np.array([self._digits.score(step.residual, step.residual - step.effect)])
        return self._residuals.features(step)

    def _finish(self, following: ObservedStep | None) -> None:
        """Guess the coin of the step that waits, then learn from it."""
        waiting, self._waiting = self._waiting, None
        if waiting is None:
            return
        assert self._residuals is not None
        step, joined, features, score, size = waiting.step, waiting.joined, waiting.features, 0.0, np.nan
        if not self._has_one_feature:
            more = np.zeros(NEXT_FEATURES)
            if following is not None and np.isfinite(features).all():
                more = self._residuals.next_features(step, following)
                more = np.nan_to_num(more, nan=NOT_FINITE, posinf=NOT_FINITE, neginf=-NOT_FINITE)
            features = np.concatenate([features, more])
        if np.isfinite(features).all():
            score = self._score(waiting.kind, features)
            residual = step.residual - joined * step.effect
            size = float((residual**2).mean()) / self._noise**2
            if following is not None:
                self._learn(waiting.kind, features, joined, score)
            if self._only is None and waiting.fit is not None:
                self._residuals.add(step, joined)
                self._aggregation.add(waiting.fit, joined)
            if self._digits is not None:
                self._digits.add(residual)
        if joined:
            self._farthest = max(self._farthest, step.norm)
        self._observed.append((joined, waiting.kind, features, score, size))

    def _score(self, kind: int, features: Floats) -> float:
        """Return the attack's score; evidence that is near certain decides alone."""
        if self._digits is not None:
            return float(features[0])
        if self._only is None and abs(features[BARE]) >= BARE_WEIGHTS:
            return float(features[BARE])
        if self._only is None and abs(features[RUN]) >= RUN_NATS:
            return float(features[RUN])
        return float(self._attack.score(self._histories[kind].view(features))[0])

    def _learn(self, kind: int, features: Floats, joined: bool, score: float) -> None:
        self._histories[kind].add(features, joined)
        canary = kind // ROWS
        if self._guesses[canary] >= MAX_GUESSES:
            self._correct[canary] *= 1 - 1 / MAX_GUESSES
            self._guesses[canary] -= self._guesses[canary] / MAX_GUESSES
        self._guesses[canary] += 1
        self._correct[canary] += (score > 0) == joined and score != 0

    def _next_canary(self) -> int:
        """Choose a canary by Thompson sampling: as often as it probably gives the best guesses.

        If the loop does not clip each gradient, canaries that would move the sum most count as good ones.
        """
        if self._only is not None or self._digits is not None:
            return 0
        expected = self._expected_accuracy()
        weight = 0.0 if expected is None else EXPECTED_GUESSES
        correct = self._correct + weight * (0.0 if expected is None else expected)
        accuracy = self._rng.beta(correct, self._guesses + weight - correct)
        if self._exploring and self._rng.random() < EXPLORED_SHARE:
            accuracy = self._rng.random(len(KINDS))
        if not len(self._batch):
            accuracy[2:4] = 0
        if GROWTH * self._farthest > MAX_CANARY_NORM:
            accuracy[KINDS.index("ever farther")] = 0
        return int(np.argmax(accuracy))

    def _expected_accuracy(self) -> Floats | None:
        """Return the accuracy that each kind of canary should have by the loop's clip; None for the claimed clip."""
        weights = self._batch.shape[1]
        kinds = (KINDS.index("far"), *((2, 3) if len(self._batch) else ()))
        norms = [self._aggregation.effect_norm(self._batch, self._raw(KINDS[kind], weights)) for kind in kinds]
        if norms[0] is None:
            return None
        accuracy = special.ndtr(np.array(norms, np.float64) / (2 * self._noise))
        expected = np.full(len(KINDS), accuracy[0])
        expected[list(kinds)] = accuracy
        return np.asarray(expected)

    def _raw(self, canary: str, weights: int) -> Floats:
        assert self._direction is not None
        assert self._residuals is not None
        match canary:
            case "far":
                return np.asarray(FAR_CANARY_NORM * RandomGradient().gradient(weights, self._rng), np.float64)
            case "ever farther":
                return np.asarray(GROWTH * self._farthest * RandomGradient().gradient(weights, self._rng), np.float64)
            case "against the last row":
                return _against(self._batch[-1], self._direction)
            case "against the batch":
                return _against(self._batch.sum(0), self._direction)
            case "cycling":
                return CANARY_NORM * _block(weights, self._count)
            case "quietest weight":
                return np.asarray(CANARY_NORM * np.eye(1, weights, self._residuals.quietest())[0])
            case "short":
                return float(np.exp(self._rng.uniform(0.1, 1.6))) * self._direction
            case _:
                return CANARY_NORM * self._direction


@dataclass(frozen=True, eq=False)
class _WaitingStep:
    """A step whose coin is not guessed yet."""

    step: ObservedStep
    joined: bool
    kind: int
    features: Floats  # without those of the next step
    fit: StepFit | None


def _block(weights: int, step: int) -> Floats:
    """Return a vector of norm 1 on the last weight, the last two, four, ..., all, then single ones from the back."""
    sizes = weights.bit_length()
    place = step % (sizes + weights)
    block = np.zeros(weights)
    if place < sizes:
        block[-(1 << place) :] = 1
    else:
        block[weights - 1 - (place - sizes)] = 1
    return np.asarray(block / np.sqrt(block.sum()))


def _against(row: Floats, otherwise: Floats) -> Floats:
    """Return a canary far beyond a gradient and opposite to it."""
    norm = float(np.linalg.norm(row))
    if not np.isfinite(norm) or norm == 0:
        return -FAR_CANARY_NORM * otherwise
    return np.asarray(-FAR_CANARY_NORM * max(1.0, 1 / norm) * row)
