"""What a canary of DP-SGD's steps tries, and what an attack reads of each step.

A step is shown whole: the gradients of its batch, as a worst case knows them, and the noisy sum. What is left of the
sum once the batch is taken away is noise, and half of the time a canary. Where noise is too regular (it comes back,
lies in few directions, is equal in two coordinates, spares some) one of the features tells the two apart, and where
clipping does not hold one of the canaries moves the sum by more than a clip. Which do is learned from earlier steps.

Whether the noise has the form that is stated, Gaussian and independent, is asked apart: no verdict about privacy.
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

LENGTH = 10.0
"""Norm of a canary in clips, before it is clipped."""
FAR = 100.0
"""The same of one that outweighs others, and shows a single weight that is not clipped."""
MEMORY = 2_000_000
"""Numbers of earlier steps that are kept for comparison."""
HANDED_ON = 500_000
"""The same of a training, for those after it."""
PAIRED = 512
"""Weights at most that are compared in pairs."""
LEAST = 8
"""Earlier steps from which the noise of a weight is told."""
HISTORY = 128
"""Earlier steps of a kind that an attack is shown at least, where there are; it is never twice as many."""
EXACT = 1e-4
"""In clips: what is no noise."""
NEXT_TO_NONE = 0.2
"""Of the usual noise."""
LEAST_VARIANCE = 1e-6
"""In clips squared."""

KINDS = ("dense", "far", "against the last row", "against the batch", "cycling", "quietest weight", "short")
"""Canaries that are tried."""
BELIEVED = 14.0, 20.0
"""Right guesses, of all, that the first kind is taken to have had where a training has no others to learn from."""
FEATURES = 13
BARE, BARE_WEIGHTS = 10, 3
"""The feature that counts weights without noise; from how many on these alone are asked."""
ROWS = 4
"""Sizes of a batch that are told apart: 0, 1, 2, and more rows."""
LOOKS = ("its size by step", "its size by weight", "likeness of steps", "likeness of weights", "its directions")
ERROR = 1e-3
"""Probability that noise as stated is said to be another."""
FEWEST, MOST = 8, 2_000
"""Steps and weights from which on noise is looked at, and how many of either are compared with each other at most."""


@dataclass(frozen=True, eq=False)
class StepView:
    """A step that has just been released, and earlier ones with a canary of its kind, whose coins are known by now."""

    # what was read of each step, shape (steps so far, features): first what the noisy sum less the batch has along the
    # canary, in clips; NaN where it was not finite
    features: Floats
    coins: Flags  # whether the canary was let in, shape (steps so far - 1,)
    shows: ClassVar[str] = "the steps of one training, one after another"


@dataclass(frozen=True, eq=False)
class Steps:
    """What a training showed of each step, all of shape (steps,) or (steps, features)."""

    coin: Flags  # whether it let the canary in
    kind: Ints  # which canary it was, a place in `KINDS`, times `ROWS`, and how many rows it joined
    features: Floats  # NaN for a step that was not made
    score: Floats  # the attack's, before the coin was known; 0 for no guess
    size: Floats  # mean square of what is left of the sum, over the claimed variance
    rows: int = 0  # that it was trained on
    form: Floats = field(default_factory=lambda: np.full(len(LOOKS), np.nan))  # of its noise, see `form_of`
    # what was left of its latest sums, in clips, shape (some steps, weights): it may come back in another training
    left: NDArray[np.float32] = field(default_factory=lambda: np.zeros((0, 0), np.float32))

    @classmethod
    def joined(cls, parts: Sequence[Steps]) -> Steps:
        """Of several trainings, one after another."""
        columns: dict[str, Any] = {name: np.concatenate([getattr(part, name) for part in parts]) for name in COLUMNS}
        return cls(rows=parts[0].rows, **columns)

    @classmethod
    def none(cls, count: int, features: int = FEATURES) -> Steps:
        """Steps that were not made."""
        missing, zeros = np.full(count, np.nan), np.zeros(count)
        return cls(zeros > 0, zeros.astype(np.int64), np.full((count, features), np.nan), zeros, missing)

    def padded(self, count: int) -> Steps:
        """With steps that were not made behind them."""
        joined = Steps.joined([self, Steps.none(count - len(self.coin), self.features.shape[1])])
        return replace(joined, form=self.form, left=self.left)


COLUMNS = ("coin", "kind", "features", "score", "size")
"""The fields of `Steps` with a place for each step."""


class Past:
    """Steps with one kind of canary; of many, the latest."""

    def __init__(self) -> None:
        self._features, self._coins, self._count = np.zeros((0, 0)), np.zeros(2 * HISTORY, np.bool_), 0

    def view(self, features: Floats) -> StepView:
        """Of the next one."""
        if not self._features.size:
            self._features = np.zeros((2 * HISTORY, len(features)))
        self._features[self._count] = features
        return StepView(self._features[: self._count + 1], self._coins[: self._count])

    def add(self, features: Floats, joined: bool) -> None:
        """One whose coin is known."""
        self.view(features)
        self._coins[self._count] = joined
        self._count += 1
        if self._count == 2 * HISTORY:
            self._features[:HISTORY], self._coins[:HISTORY] = self._features[HISTORY:], self._coins[HISTORY:]
            self._count = HISTORY


class StepProber:
    """Chooses each step's canary from the past alone, reads its features, and has the attack guess its coin."""

    def __init__(
        self,
        attack: Any,
        noise: float,
        rng: np.random.Generator,
        *,
        only: GradientCanary | None = None,
        before: Sequence[Steps] = (),
        alone: bool = False,
    ) -> None:
        self._attack, self._noise, self._rng, self._only = attack, noise, rng, only
        self._before = next((steps.left for steps in reversed(before) if len(steps.left)), None)
        self._seen: list[tuple[bool, int, Floats, float, float]] = []
        self._past = [Past() for _ in range(ROWS * len(KINDS))]
        self._right, self._asked = np.full(len(KINDS), 2.0), np.full(len(KINDS), 4.0)
        if alone:
            self._right[0], self._asked[0] = BELIEVED
        for steps in before:
            for kind, features, coin, score in zip(steps.kind, steps.features, steps.coin, steps.score, strict=True):
                if np.isfinite(features).all():
                    self._learn(int(kind), features, bool(coin), float(score))
        self._left: Leftovers | None = None
        self._own: Floats | None = None
        self._batches_shown = True

    def gradient(self, weights: int, batch: Floats | None) -> Floats:
        """The next canary's, in clips, shape (weights,); `batch` has the others', shape (batch, weights)."""
        if self._left is None:
            self._left = Leftovers(weights, self._before)
            self._own = np.asarray((self._only or RandomGradient()).gradient(weights, self._rng), np.float64)
        canary = self._next_canary(batch)
        self._batch = np.zeros((0, weights)) if batch is None else batch
        self._batches_shown &= batch is not None
        self._kind = ROWS * canary + min(len(self._batch), ROWS - 1)
        raw = self._raw(KINDS[canary], weights)
        self._raw_length = float(np.linalg.norm(raw))
        self._along = raw / max(self._raw_length, 1.0)
        self._sum = _clipped_sum(self._batch)
        return raw

    def see(self, released: Floats, joined: bool) -> None:
        """A noisy sum, in clips; the guess is made before `joined` is looked at."""
        assert self._left is not None
        if self._only is None:
            left = released - self._sum
            features = self._left.features(released, left, self._along, self._batch)
        else:
            left, features = released, np.array([released @ self._along])
        if not np.isfinite(features).all():
            self._seen.append((joined, self._kind, np.full(len(features), np.nan), 0.0, np.nan))
            return
        past = self._past[self._kind]
        score = float(self._attack.score(past.view(features))[0])
        if self._only is None and abs(features[BARE]) >= BARE_WEIGHTS:
            score = features[BARE]
        left = left - joined * self._along
        self._seen.append((joined, self._kind, features, score, float((left**2).mean()) / self._noise**2))
        self._learn(self._kind, features, joined, score)
        if self._only is None:
            self._left.add(left)

    def shown(self) -> Steps:
        """All steps so far."""
        coin, kind, features, score, size = zip(*self._seen, strict=True)
        columns = np.array(coin), np.array(kind, np.int64), np.array(features), np.array(score), np.array(size)
        if self._left is None or self._only is not None or not self._batches_shown:  # then data are left in the sums
            return Steps(*columns)
        own = self._left.kept[-max(1, HANDED_ON // self._left.kept.shape[1]) :]
        return Steps(*columns, form=form_of(self._left.kept, self._noise), left=own.astype(np.float32))

    def _learn(self, kind: int, features: Floats, joined: bool, score: float) -> None:
        self._past[kind].add(features, joined)
        self._asked[kind // ROWS] += 1
        self._right[kind // ROWS] += (score > 0) == joined and score != 0

    def _next_canary(self, batch: Floats | None) -> int:
        """By Thompson's rule: as often as it is likely to be guessed best."""
        if self._only is not None:
            return 0
        drawn = self._rng.beta(self._right, self._asked - self._right)
        if batch is None or not len(batch):
            drawn[2:4] = 0
        return int(np.argmax(drawn))

    def _raw(self, canary: str, weights: int) -> Floats:
        assert self._own is not None
        assert self._left is not None
        step = len(self._seen)
        match canary:
            case "far":
                return np.asarray(FAR * RandomGradient().gradient(weights, self._rng), np.float64)
            case "against the last row":
                return np.asarray(-FAR * _unit(self._batch[-1], self._own))
            case "against the batch":
                return np.asarray(-FAR * _unit(self._batch.sum(0), self._own))
            case "cycling":
                return LENGTH * _block(weights, step)
            case "quietest weight":
                return np.asarray(LENGTH * np.eye(1, weights, self._left.quietest())[0])
            case "short":
                return float(np.exp(self._rng.uniform(0.1, 1.6))) * self._own
            case _:
                return LENGTH * self._own


def _block(weights: int, step: int) -> Floats:
    """The last weight, the last two, four, ..., all, then single ones from the back; norm 1."""
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


class Leftovers:
    """What is left of the noisy sums of one training so far, and what it says of the next one."""

    def __init__(self, weights: int, before: NDArray[np.float32] | None = None) -> None:
        none = np.zeros((0, weights), np.float32)
        self._before = none if before is None or before.shape[1] != weights else before  # of an earlier training
        self._before_norms = np.square(self._before, dtype=np.float64).sum(1)
        self._latest = np.empty((max(2, MEMORY // weights), weights))  # in turn; more overwrite the oldest
        self._norms = np.empty(len(self._latest))  # of these, squared
        self._directions, self._found = np.empty((min(weights // 2, MEMORY // weights), weights)), 0
        self._squares, self._count = np.zeros(weights), 0
        self._products = np.zeros((weights, weights)) if weights <= PAIRED else None
        self._partner: tuple[Ints, Floats, Floats] | None = None

    @property
    def kept(self) -> Floats:
        """The latest, shape (steps, weights)."""
        return self._latest[: self._count]

    @property
    def _own(self) -> Floats:
        return self._norms[: self._count]

    @property
    def _basis(self) -> Floats:
        """Directions at right angles that earlier ones lie in."""
        return self._directions[: self._found]

    def quietest(self) -> int:
        """The weight of the least noise so far; the last one at first."""
        return int(np.argmin(self._squares)) if self._count >= LEAST else len(self._squares) - 1

    def features(self, released: Floats, left: Floats, along: Floats, batch: Floats) -> Floats:
        """Of a step: each is larger, or smaller, where the canary takes part."""
        with_it = left - along
        usual = float(np.median(np.linalg.norm(batch, axis=1))) + 1e-6 if len(batch) else 1.0
        scaled = released / usual - _clipped_sum(batch / usual)
        norms = float(np.linalg.norm(left)), float(np.linalg.norm(with_it))
        size = np.log(norms[0] ** 2 + 1e-12)
        return np.array(
            [
                left @ along,
                released @ along,
                self._nearer(left, along, norms),
                self._outside(left, along, norms),
                self._usual(norms),
                size,
                size + 2 * np.log(max(len(batch), 1)),
                np.log(scaled @ scaled + 1e-12),
                scaled @ along,
                np.log(np.abs(left).max() + 1e-12),
                self._bare(left, with_it, norms),
                self._weighted(left, along),
                self._paired(left, along),
            ]
        )

    def add(self, left: Floats) -> None:
        """The next one, without the canary."""
        if self._found < len(self._directions):
            outside = left - (self._basis @ left) @ self._basis
            length = np.linalg.norm(outside)
            if length > 1e-6 * np.linalg.norm(left):
                self._directions[self._found] = outside / length
                self._found += 1
        place = self._count % len(self._latest)
        self._latest[place], self._norms[place] = left, left @ left
        self._squares += left**2
        self._count += 1
        if self._products is not None:
            self._products += np.outer(left, left)
            self._pair()

    def _nearer(self, left: Floats, along: Floats, norms: tuple[float, float]) -> float:
        """How much nearer to an earlier one, or its negative, it is with the canary taken away."""
        if not self._count + len(self._before):
            return 0.0
        without, moved = (np.concatenate([self.kept @ row, self._before @ row]) for row in (left, along))
        dots = np.abs([without, without - moved])
        near = (np.concatenate([self._own, self._before_norms]) - 2 * dots).min(1) + np.square(norms)
        return float(np.sqrt(max(near[0], 0)) - np.sqrt(max(near[1], 0)))

    def _outside(self, left: Floats, along: Floats, norms: tuple[float, float]) -> float:
        """How much less of it is outside the span of earlier ones with the canary taken away."""
        inside, moved = self._basis @ left, self._basis @ along
        out = norms[0] ** 2 - (inside**2).sum(), norms[1] ** 2 - ((inside - moved) ** 2).sum()
        return float(np.sqrt(max(out[0], 0)) - np.sqrt(max(out[1], 0)))

    def _usual(self, norms: tuple[float, float]) -> float:
        """How much nearer to the usual norm it is with the canary taken away."""
        if not self._count:
            return 0.0
        usual = np.sqrt(np.partition(self._own, len(self._own) // 2)[len(self._own) // 2])
        return float(abs(norms[0] - usual) - abs(norms[1] - usual))

    def _bare(self, left: Floats, with_it: Floats, norms: tuple[float, float]) -> float:
        """How many more weights are left without noise with the canary taken away; all, where next to none is left."""
        if self._count and min(norms) < NEXT_TO_NONE * np.sqrt(np.median(self._own)):
            return float(np.sign(norms[0] - norms[1]) * len(left))
        return float((np.abs(with_it) < EXACT).sum()) - float((np.abs(left) < EXACT).sum())

    def _weighted(self, left: Floats, along: Floats) -> float:
        """The likelihood ratio with the noise of each weight as seen."""
        if self._count < LEAST:
            return 0.0
        return _ratio(left, along, self._squares / self._count)

    def _paired(self, left: Floats, along: Floats) -> float:
        """The same of differences between weights and the one that each resembles most."""
        if self._partner is None:
            return 0.0
        partner, factor, variance = self._partner
        return _ratio(left - factor * left[partner], along - factor * along[partner], variance)

    def _pair(self) -> None:
        if self._products is None or self._count < LEAST or (self._count & (self._count - 1) and self._count % 16):
            return
        power = np.maximum(self._squares, LEAST_VARIANCE)
        alike = np.abs(self._products) / np.sqrt(np.outer(power, power))
        np.fill_diagonal(alike, 0)
        partner = alike.argmax(1)
        each = np.arange(len(partner))
        factor = self._products[each, partner] / power[partner]
        variance = (self._squares - factor * self._products[each, partner]) / self._count
        self._partner = partner, factor, variance


def _ratio(left: Floats, along: Floats, variance: Floats) -> float:
    return float(((left - along / 2) * along / np.maximum(variance, LEAST_VARIANCE)).sum())


@dataclass(frozen=True, eq=False)
class NoiseForm:
    """What the noise of some trainings looks like."""

    p_values: NDArray[np.float64]  # of `LOOKS`, each for all trainings together; NaN where it was not looked at
    noise: float  # claimed, in clips

    @property
    def odd(self) -> tuple[str, ...]:
        """In what it is not as stated: together wrong with probability `ERROR` at most."""
        return tuple(
            f"{look} (p {'< 1e-12' if p < 1e-12 else f'= {p:.1g}'})"
            for look, p in zip(LOOKS, self.p_values, strict=True)
            if p < ERROR / len(LOOKS)
        )

    @property
    def smallest_p(self) -> float:
        """p-value of all looks together (Bonferroni); 1 where the noise could not be seen."""
        seen = self.p_values[~np.isnan(self.p_values)]
        return float(min(1.0, len(LOOKS) * seen.min())) if seen.size else 1.0

    @property
    def line(self) -> str:
        """For a reader; "" where the noise could not be seen."""
        if np.isnan(self.p_values).all():
            return ""
        stated = f"independent Gaussian noise with noise multiplier {self.noise:g}"
        if self.odd:
            return (
                f"the noise of the training steps is not the stated {stated}: {', '.join(self.odd)}. "
                "Gradients that are clipped in another way than stated also lead to this"
            )
        return f"the noise of the training steps looks like the stated {stated}"


def form_of(left: Floats, noise: float) -> Floats:
    """p-values of `LOOKS`, shape (5,), for what steps leave of their sums, in clips, shape (steps, weights)."""
    left = left[-MOST:]
    steps, weights = left.shape
    if min(steps, weights) < FEWEST:
        return np.full(len(LOOKS), np.nan)
    scaled = np.asarray(left, np.float64) / noise
    by_step, by_weight = (scaled**2).sum(1), (scaled**2).sum(0)
    few = min(steps, weights) // 2
    full = np.linalg.matrix_rank(scaled[:few]) == few
    found = [
        _sizes(by_step, weights),
        _sizes(by_weight, steps),
        _alike(scaled @ scaled.T, by_step, weights),
        _alike(scaled.T @ scaled, by_weight, steps) if weights <= MOST else math.nan,
        1.0 if full else 0.0,
    ]
    return np.array(found)


def _sizes(sums: Floats, degrees: int) -> float:
    """Of the most improbable of several sums of squares, each of so many normal numbers."""
    below, above = special.chdtr(degrees, sums), special.chdtrc(degrees, sums)
    return float(min(1.0, 2 * sums.size * np.minimum(below, above).min()))


def _alike(products: Floats, squares: Floats, degrees: int) -> float:
    """Of the largest cosine between different rows: squared, it has the law Beta(1/2, (degrees - 1) / 2)."""
    lengths = np.maximum(squares, 1e-12)
    cosines = products**2 / np.outer(lengths, lengths)
    np.fill_diagonal(cosines, 0.0)
    pairs = squares.size * (squares.size - 1) / 2
    tail = special.betaincc(0.5, (degrees - 1) / 2, min(1.0, float(cosines.max())))
    return float(min(1.0, pairs * tail))
