"""Canaries that are tried at the steps of DP-SGD, and features of each step for the attack.

A step is fully observed: the gradients of its batch, as in the worst case, and the noisy sum. The residual, which is
    the
sum without the batch, is noise and, in half of the steps, a canary. If the noise is too regular, a feature tells both
apart: noise that is reused, lies in few directions, is equal in two coordinates or misses some. If clipping fails, a
canary moves the sum by more than one clip. Earlier steps show which features and canaries succeed.

A separate check, which is no verdict about privacy, tests whether the noise is Gaussian and independent as stated.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy import special

from dpaudit.engine.games.two_world.canaries import GradientCanary, RandomGradient

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]

CANARY_NORM = 10.0
"""Norm of a canary before clipping, in clips."""
FAR_CANARY_NORM = 100.0
"""Norm of a canary that outweighs other gradients and reveals a single unclipped weight, in clips."""
MAX_STORED_NUMBERS = 2_000_000
"""Largest number of floats stored of earlier residuals."""
MAX_PASSED_NUMBERS = 500_000
"""Largest number of floats of a training's residuals that later trainings receive."""
MAX_PAIRED_WEIGHTS = 512
"""Largest number of weights that are compared in pairs."""
MIN_STEPS = 8
"""Number of earlier steps from which the noise of a weight is estimated."""
HISTORY = 128
"""Smallest number of earlier steps of a kind, if there are as many, that an attack sees; it sees fewer than twice as
many."""
NO_NOISE = 1e-4
"""Absolute value, in clips, below which a weight has no noise."""
NEXT_TO_NONE = 0.2
"""Share of the median norm below which a residual has next to no noise."""
LEAST_VARIANCE = 1e-6
"""Smallest variance that is assumed, in clips squared."""

KINDS = ("dense", "far", "against the last row", "against the batch", "cycling", "quietest weight", "short")
"""Kinds of canaries."""
PRIOR_GUESSES = 14.0, 20.0
"""Prior number of correct guesses and of guesses for the first kind, if there are no search trainings."""
FEATURES = 13
BARE, BARE_WEIGHTS = 10, 3
"""Index of the feature that counts weights without noise, and the count from which it alone decides the guess."""
ROWS = 4
"""Number of classes of batch sizes: 0, 1, 2, and more rows."""
LOOKS = ("its size by step", "its size by weight", "likeness of steps", "likeness of weights", "its directions")
ERROR = 1e-3
"""Probability of a false positive in the check of the noise's form."""
FEWEST, MOST = 8, 2_000
"""Smallest number of steps and of weights whose noise is checked, and largest number that is compared in pairs."""


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
    """Chooses each step's canary from the past alone, computes its features, and has the attack guess its coin.

    Args:
        attack: The attack.
        noise: Claimed noise multiplier.
        rng: Source of canaries.
        only: The only canary; None to choose among `KINDS`.
        earlier: Earlier trainings to learn from.
        without_search: True if the audit has no search trainings; dense canaries then start with a prior.
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
    ) -> None:
        self._attack, self._noise, self._rng, self._only = attack, noise, rng, only
        self._earlier = next((steps.left for steps in reversed(earlier) if len(steps.left)), None)
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
        self._batches_shown = True

    def gradient(self, weights: int, batch: Floats | None) -> Floats:
        """Return the next canary's gradient in clips, shape (weights,); `batch` has shape (batch, weights)."""
        if self._residuals is None:
            self._residuals = Residuals(weights, self._earlier)
            self._direction = np.asarray((self._only or RandomGradient()).gradient(weights, self._rng), np.float64)
        canary = self._next_canary(batch)
        self._batch = np.zeros((0, weights)) if batch is None else batch
        self._batches_shown &= batch is not None
        self._kind = ROWS * canary + min(len(self._batch), ROWS - 1)
        raw = self._raw(KINDS[canary], weights)
        self._clipped = raw / max(float(np.linalg.norm(raw)), 1.0)
        self._sum = _clipped_sum(self._batch)
        return raw

    def see(self, released: Floats, joined: bool) -> None:
        """Observe a noisy sum, in clips; the guess is made before `joined` is used."""
        assert self._residuals is not None
        if self._only is None:
            residual = released - self._sum
            features = self._residuals.features(released, residual, self._clipped, self._batch)
        else:
            residual, features = released, np.array([released @ self._clipped])
        if not np.isfinite(features).all():
            self._observed.append((joined, self._kind, np.full(len(features), np.nan), 0.0, np.nan))
            return
        score = float(self._attack.score(self._histories[self._kind].view(features))[0])
        if self._only is None and abs(features[BARE]) >= BARE_WEIGHTS:
            score = features[BARE]
        residual = residual - joined * self._clipped
        self._observed.append((joined, self._kind, features, score, float((residual**2).mean()) / self._noise**2))
        self._learn(self._kind, features, joined, score)
        if self._only is None:
            self._residuals.add(residual)

    def steps(self) -> Steps:
        """Return all steps so far."""
        coin, kind, features, score, size = zip(*self._observed, strict=True)
        columns = np.array(coin), np.array(kind, np.int64), np.array(features), np.array(score), np.array(size)
        # Without the batches, the sums contain data.
        if self._residuals is None or self._only is not None or not self._batches_shown:
            return Steps(*columns)
        stored = self._residuals.stored
        latest = stored[-max(1, MAX_PASSED_NUMBERS // stored.shape[1]) :]
        return Steps(*columns, form=form_of(stored, self._noise), left=latest.astype(np.float32))

    def _learn(self, kind: int, features: Floats, joined: bool, score: float) -> None:
        self._histories[kind].add(features, joined)
        self._guesses[kind // ROWS] += 1
        self._correct[kind // ROWS] += (score > 0) == joined and score != 0

    def _next_canary(self, batch: Floats | None) -> int:
        """Choose a canary by Thompson sampling: as often as it probably gives the best guesses."""
        if self._only is not None:
            return 0
        accuracy = self._rng.beta(self._correct, self._guesses - self._correct)
        if batch is None or not len(batch):
            accuracy[2:4] = 0
        return int(np.argmax(accuracy))

    def _raw(self, canary: str, weights: int) -> Floats:
        assert self._direction is not None
        assert self._residuals is not None
        match canary:
            case "far":
                return np.asarray(FAR_CANARY_NORM * RandomGradient().gradient(weights, self._rng), np.float64)
            case "against the last row":
                return np.asarray(-FAR_CANARY_NORM * _unit(self._batch[-1], self._direction))
            case "against the batch":
                return np.asarray(-FAR_CANARY_NORM * _unit(self._batch.sum(0), self._direction))
            case "cycling":
                return CANARY_NORM * _block(weights, len(self._observed))
            case "quietest weight":
                return np.asarray(CANARY_NORM * np.eye(1, weights, self._residuals.quietest())[0])
            case "short":
                return float(np.exp(self._rng.uniform(0.1, 1.6))) * self._direction
            case _:
                return CANARY_NORM * self._direction


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


def _unit(row: Floats, otherwise: Floats) -> Floats:
    norm = np.linalg.norm(row)
    return np.asarray(row / norm if np.isfinite(norm) and norm > 0 else otherwise)


def _clipped_sum(batch: Floats) -> Floats:
    norms = np.linalg.norm(batch, axis=1)
    return np.asarray((batch / np.maximum(norms, 1)[:, None]).sum(0))


class Residuals:
    """Residuals of one training so far, and the features of the next one that they give.

    A feature compares the residual with itself after the canary is subtracted, by the regularities of earlier ones.
    """

    def __init__(self, weights: int, earlier: NDArray[np.float32] | None = None) -> None:
        none = np.zeros((0, weights), np.float32)
        self._earlier = none if earlier is None or earlier.shape[1] != weights else earlier  # of an earlier training
        self._earlier_squares = np.square(self._earlier, dtype=np.float64).sum(1)
        self._latest = np.empty((max(2, MAX_STORED_NUMBERS // weights), weights))  # a ring buffer
        self._norm_squares = np.empty(len(self._latest))
        self._directions = np.empty((min(weights // 2, MAX_STORED_NUMBERS // weights), weights))
        self._rank = 0
        self._squares, self._count = np.zeros(weights), 0
        self._products = np.zeros((weights, weights)) if weights <= MAX_PAIRED_WEIGHTS else None
        self._partner: tuple[Ints, Floats, Floats] | None = None

    @property
    def stored(self) -> Floats:
        """The latest residuals, shape (steps, weights)."""
        return self._latest[: self._count]

    @property
    def _basis(self) -> Floats:
        """Orthonormal basis of the span of earlier residuals."""
        return self._directions[: self._rank]

    def quietest(self) -> int:
        """Return the weight with the least noise so far; the last one at first."""
        return int(np.argmin(self._squares)) if self._count >= MIN_STEPS else len(self._squares) - 1

    def features(self, released: Floats, residual: Floats, canary: Floats, batch: Floats) -> Floats:
        """Return the features of a step; the canary changes the mean of each."""
        without = residual - canary
        typical = float(np.median(np.linalg.norm(batch, axis=1))) + 1e-6 if len(batch) else 1.0
        scaled = released / typical - _clipped_sum(batch / typical)
        norms = float(np.linalg.norm(residual)), float(np.linalg.norm(without))
        size = np.log(norms[0] ** 2 + 1e-12)
        return np.array(
            [
                residual @ canary,
                released @ canary,
                self._nearest(residual, canary, norms),
                self._outside_span(residual, canary, norms),
                self._typical_norm(norms),
                size,
                size + 2 * np.log(max(len(batch), 1)),
                np.log(scaled @ scaled + 1e-12),
                scaled @ canary,
                np.log(np.abs(residual).max() + 1e-12),
                self._bare_weights(residual, without, norms),
                self._by_weight(residual, canary),
                self._by_pair(residual, canary),
            ]
        )

    def add(self, residual: Floats) -> None:
        """Append a residual without its canary."""
        if self._rank < len(self._directions):
            outside = residual - (self._basis @ residual) @ self._basis
            length = np.linalg.norm(outside)
            if length > 1e-6 * np.linalg.norm(residual):
                self._directions[self._rank] = outside / length
                self._rank += 1
        place = self._count % len(self._latest)
        self._latest[place], self._norm_squares[place] = residual, residual @ residual
        self._squares += residual**2
        self._count += 1
        if self._products is not None:
            self._products += np.outer(residual, residual)
            self._pair()

    def _nearest(self, residual: Floats, canary: Floats, norms: tuple[float, float]) -> float:
        """Return the decrease of the distance to the nearest earlier residual or its negative."""
        if not self._count + len(self._earlier):
            return 0.0
        dots, moved = (np.concatenate([self.stored @ row, self._earlier @ row]) for row in (residual, canary))
        squares = np.concatenate([self._norm_squares[: self._count], self._earlier_squares])
        near = (squares - 2 * np.abs([dots, dots - moved])).min(1) + np.square(norms)
        return float(np.sqrt(max(near[0], 0)) - np.sqrt(max(near[1], 0)))

    def _outside_span(self, residual: Floats, canary: Floats, norms: tuple[float, float]) -> float:
        """Return the decrease of the part outside the span of earlier residuals."""
        inside, moved = self._basis @ residual, self._basis @ canary
        out = norms[0] ** 2 - (inside**2).sum(), norms[1] ** 2 - ((inside - moved) ** 2).sum()
        return float(np.sqrt(max(out[0], 0)) - np.sqrt(max(out[1], 0)))

    def _typical_norm(self, norms: tuple[float, float]) -> float:
        """Return the decrease of the distance to the typical norm."""
        if not self._count:
            return 0.0
        squares = self._norm_squares[: self._count]
        typical = np.sqrt(np.partition(squares, len(squares) // 2)[len(squares) // 2])
        return float(abs(norms[0] - typical) - abs(norms[1] - typical))

    def _bare_weights(self, residual: Floats, without: Floats, norms: tuple[float, float]) -> float:
        """Return the increase of the number of weights without noise; all of them if next to no noise remains."""
        if self._count and min(norms) < NEXT_TO_NONE * np.sqrt(np.median(self._norm_squares[: self._count])):
            return float(np.sign(norms[0] - norms[1]) * len(residual))
        return float((np.abs(without) < NO_NOISE).sum()) - float((np.abs(residual) < NO_NOISE).sum())

    def _by_weight(self, residual: Floats, canary: Floats) -> float:
        """Return the log-likelihood ratio by the observed noise of each weight."""
        return 0.0 if self._count < MIN_STEPS else _log_ratio(residual, canary, self._squares / self._count)

    def _by_pair(self, residual: Floats, canary: Floats) -> float:
        """Return the log-likelihood ratio by the differences between each weight and the most similar one."""
        if self._partner is None:
            return 0.0
        partner, factor, variance = self._partner
        return _log_ratio(residual - factor * residual[partner], canary - factor * canary[partner], variance)

    def _pair(self) -> None:
        if self._products is None or self._count < MIN_STEPS or (self._count & (self._count - 1) and self._count % 16):
            return
        power = np.maximum(self._squares, LEAST_VARIANCE)
        alike = np.abs(self._products) / np.sqrt(np.outer(power, power))
        np.fill_diagonal(alike, 0)
        partner = alike.argmax(1)
        each = np.arange(len(partner))
        factor = self._products[each, partner] / power[partner]
        variance = (self._squares - factor * self._products[each, partner]) / self._count
        self._partner = partner, factor, variance


def _log_ratio(residual: Floats, canary: Floats, variance: Floats) -> float:
    return float(((residual - canary / 2) * canary / np.maximum(variance, LEAST_VARIANCE)).sum())


@dataclass(frozen=True, eq=False)
class NoiseForm:
    """Results of the tests of the noise of some trainings."""

    p_values: NDArray[np.float64]  # p-value of each of `LOOKS` over all trainings; NaN if not tested
    noise: float  # claimed noise multiplier

    @property
    def odd(self) -> tuple[str, ...]:
        """Properties in which the noise differs from the stated one; family-wise error at most `ERROR`."""
        return tuple(
            f"{step_count} (p {'< 1e-12' if p < 1e-12 else f'= {p:.1g}'})"
            for step_count, p in zip(LOOKS, self.p_values, strict=True)
            if p < ERROR / len(LOOKS)
        )

    @property
    def smallest_p(self) -> float:
        """p-value of all tests together (Bonferroni); 1 if the noise was not observed."""
        tested = self.p_values[~np.isnan(self.p_values)]
        return float(min(1.0, len(LOOKS) * tested.min())) if tested.size else 1.0

    @property
    def line(self) -> str:
        """One-line summary; "" if the noise was not observed."""
        if np.isnan(self.p_values).all():
            return ""
        stated = f"independent Gaussian noise with noise multiplier {self.noise:g}"
        if self.odd:
            return (
                f"the noise of the training steps is not the stated {stated}: {', '.join(self.odd)}. "
                "Gradients that are clipped in another way than stated also lead to this"
            )
        return f"the noise of the training steps looks like the stated {stated}"


def form_of(residuals: Floats, noise: float) -> Floats:
    """Return p-values of `LOOKS`, shape (5,), for the residuals of steps in clips, shape (steps, weights)."""
    residuals = residuals[-MOST:]
    steps, weights = residuals.shape
    if min(steps, weights) < FEWEST:
        return np.full(len(LOOKS), np.nan)
    scaled = np.asarray(residuals, np.float64) / noise
    by_step, by_weight = (scaled**2).sum(1), (scaled**2).sum(0)
    few = min(steps, weights) // 2
    has_full_rank = np.linalg.matrix_rank(scaled[:few]) == few
    return np.array(
        [
            _p_of_sizes(by_step, weights),
            _p_of_sizes(by_weight, steps),
            _p_of_cosines(scaled @ scaled.T, by_step, weights),
            _p_of_cosines(scaled.T @ scaled, by_weight, steps) if weights <= MOST else math.nan,
            1.0 if has_full_rank else 0.0,
        ]
    )


def _p_of_sizes(sums: Floats, degrees: int) -> float:
    """Return the p-value of the most improbable of several sums of `degrees` squared normal variables."""
    below, above = special.chdtr(degrees, sums), special.chdtrc(degrees, sums)
    return float(min(1.0, 2 * sums.size * np.minimum(below, above).min()))


def _p_of_cosines(products: Floats, squares: Floats, degrees: int) -> float:
    """Return the p-value of the largest cosine between rows; its square has the law Beta(1/2, (degrees - 1) / 2)."""
    lengths = np.maximum(squares, 1e-12)
    cosines = products**2 / np.outer(lengths, lengths)
    np.fill_diagonal(cosines, 0.0)
    pairs = squares.size * (squares.size - 1) / 2
    tail = special.betaincc(0.5, (degrees - 1) / 2, min(1.0, float(cosines.max())))
    return float(min(1.0, pairs * tail))
