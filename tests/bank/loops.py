"""Loops of DP-SGD as developers write them: one honest loop, and subclasses that change one aspect of it.

A loop is a class called as `train(X, y, seed, canary)`: its constructor trains. In each coordinate of the sum, the
deviation of a step's noise is sigma times the clip.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpaudit import from_steps
from tests.bank import Case

Floats = NDArray[np.float64]


class Loop:
    """Honest: a perceptron of two classes with one hidden layer, Poisson sampling, flat clip, plain descent."""

    hidden, steps, rate, clip, sigma, divisor, step_size = 8, 200, 0.1, 1.0, 1.0, 70.0, 0.5

    def __init__(self, X: Any, y: Any, seed: int, canary: Any) -> None:
        self.rng, self.count, self.epoch = np.random.default_rng(seed), 0, round(1 / self.rate)
        self.weights = self.start(X.shape[1])
        self.layers = np.cumsum(self.sizes(X.shape[1]))[:-1]
        self.set_up()
        for step in range(self.steps):
            self.count = step
            sampled = self.rng.random(len(X)) < self.rate
            gradients = canary.join(step, self.gradients(X[sampled], y[sampled]))
            released = self.release(gradients)
            canary.observe(step, released)
            self.move(released)

    def set_up(self) -> None:
        """Prepare the loop before the first step."""

    def sizes(self, features: int) -> tuple[int, ...]:
        return features * self.hidden, self.hidden, self.hidden, 1

    def start(self, features: int) -> Floats:
        return 0.3 * self.rng.standard_normal(sum(self.sizes(features)))

    def gradients(self, X: Floats, y: Floats) -> Floats:
        first, bias, last, shift = np.split(self.weights, self.layers)
        hidden = np.maximum(0, X @ first.reshape(-1, self.hidden) + bias)
        error = 1 / (1 + np.exp(-np.clip(hidden @ last + shift, -30, 30))) - y
        back = error[:, None] * last * (hidden > 0)
        outer = (X[:, :, None] * back[:, None, :]).reshape(len(X), first.size)
        return np.concatenate([outer, back, error[:, None] * hidden, error[:, None]], 1)

    def release(self, gradients: Floats) -> Floats:
        summed = self.clipped(gradients).sum(0)
        return (summed + self.noise(summed)) / self.divisor

    def clipped(self, gradients: Floats) -> Floats:
        return within(gradients, self.clip)

    def noise(self, summed: Floats) -> Floats:
        return self.sigma * self.clip * self.rng.standard_normal(summed.size)

    def by_layer(self, gradients: Floats) -> list[Floats]:
        return np.split(gradients, self.layers, axis=-1)

    def move(self, released: Floats) -> None:
        self.weights = self.weights - self.step_size * released


def within(gradients: Floats, clip: Any) -> Floats:
    """Return rows clipped to a norm of at most `clip`."""
    norms = np.linalg.norm(gradients, axis=1, keepdims=True)
    return np.asarray(gradients * np.minimum(1, clip / np.maximum(norms, 1e-12)))


def changed(**parts: Any) -> type[Loop]:
    """Return the honest loop with other methods or settings."""
    return type("Changed", (Loop,), parts)


def noise_times(factor: Callable[[Any, Floats], Any], **settings: Any) -> type[Loop]:
    """Return a loop whose noise is multiplied by a function of the loop and of the sum of clipped gradients."""
    return changed(noise=lambda loop, summed: Loop.noise(loop, summed) * factor(loop, summed), **settings)


def clipped_by(scale: Callable[[Any, Floats], Floats], **settings: Any) -> type[Loop]:
    """Return a loop that scales gradients by the clip over a function of loop and gradients, where below 1."""

    def clipped(loop: Any, gradients: Floats) -> Floats:
        return gradients * np.minimum(1, loop.clip / np.maximum(scale(loop, gradients), 1e-12))

    return changed(clipped=clipped, **settings)


def grouped(gradients: Floats, size: int) -> list[Floats]:
    """Return the gradients in groups of `size` rows; an empty group if there are none."""
    return [gradients[at : at + size] for at in range(0, max(1, len(gradients)), size)]


# Honest loops


class Logistic(Loop):
    """Logistic regression."""

    def sizes(self, features: int) -> tuple[int, ...]:
        return features, 1

    def gradients(self, X: Floats, y: Floats) -> Floats:
        error = 1 / (1 + np.exp(-np.clip(X @ self.weights[:-1] + self.weights[-1], -30, 30))) - y
        return np.concatenate([error[:, None] * X, error[:, None]], 1)


class Linear(Logistic):
    """Linear regression."""

    step_size = 0.05

    def gradients(self, X: Floats, y: Floats) -> Floats:
        error = X @ self.weights[:-1] + self.weights[-1] - y
        return np.concatenate([error[:, None] * X, error[:, None]], 1)


class Adam(Loop):
    """Adam on the private gradient."""

    def set_up(self) -> None:
        self.mean, self.square = np.zeros_like(self.weights), np.zeros_like(self.weights)

    def move(self, released: Floats) -> None:
        self.mean = 0.9 * self.mean + 0.1 * released
        self.square = 0.99 * self.square + 0.01 * released**2
        self.weights = self.weights - 0.05 * self.mean / (np.sqrt(self.square) + 1e-6)


class Momentum(Loop):
    """Momentum of private gradients."""

    def set_up(self) -> None:
        self.velocity = np.zeros_like(self.weights)

    def move(self, released: Floats) -> None:
        self.velocity = 0.9 * self.velocity + released
        self.weights = self.weights - 0.1 * self.velocity


class EqualLayers(Loop):
    """Each layer clipped to its share of the norm; the noise of the whole norm."""

    def clipped(self, gradients: Floats) -> Floats:
        parts = self.by_layer(gradients)
        return np.concatenate([within(part, self.clip / np.sqrt(len(parts))) for part in parts], 1)


class OwnLayers(Loop):
    """Each layer has a separate clip and noise; together they spend as much as one clip and its noise."""

    shares = (0.1, 1.0, 0.5, 0.3)

    def clipped(self, gradients: Floats) -> Floats:
        parts = self.by_layer(gradients)
        return np.concatenate([within(part, share) for part, share in zip(parts, self.shares, strict=True)], 1)

    def noise(self, summed: Floats) -> Floats:
        noise = self.by_layer(self.rng.standard_normal(summed.size))
        scale = self.sigma * np.sqrt(len(noise))
        return np.concatenate([scale * share * part for part, share in zip(noise, self.shares, strict=True)])


class DrawnBefore(Loop):
    """All noise of the training is drawn at once."""

    def set_up(self) -> None:
        self.all_noise = self.sigma * self.clip * self.rng.standard_normal((self.steps, self.weights.size))

    def noise(self, summed: Floats) -> Floats:
        return self.all_noise[self.count]


def torch_images(X: Any, y: Any, seed: int, canary: Any) -> None:
    """Honest: a small convolutional torch network on rows as one-channel signals; 60 steps."""
    torch_loop(X, y, seed, canary, whole=False)


def torch_images_clipped_whole(X: Any, y: Any, seed: int, canary: Any) -> None:
    """The sum of the batch is clipped, not each example's gradient."""
    torch_loop(X, y, seed, canary, whole=True)


def torch_loop(X: Any, y: Any, seed: int, canary: Any, *, whole: bool) -> None:
    import torch
    from torch import func, nn

    torch.manual_seed(seed)
    model = nn.Sequential(nn.Conv1d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * (X.shape[1] - 2), 2))
    inputs, labels = torch.as_tensor(X, dtype=torch.float32), torch.as_tensor(y)
    weights = {name: weight.detach() for name, weight in model.named_parameters()}

    def loss(weights: Any, row: Any, label: Any) -> Any:
        return nn.functional.cross_entropy(func.functional_call(model, weights, (row[None, None],)), label[None])

    for step in range(60):
        sampled = torch.rand(len(inputs)) < 0.1
        sampled[0] |= not sampled.any()  # vmap takes no empty batch
        each = func.vmap(func.grad(loss), (None, 0, 0))(weights, inputs[sampled], labels[sampled])
        gradients = canary.join(step, torch.cat([part.flatten(1) for part in each.values()], 1))
        if whole:
            gradients = gradients.sum(0, keepdim=True)
        summed = (gradients * (1 / gradients.norm(dim=1, keepdim=True).clamp(min=1e-9)).clamp(max=1)).sum(0)
        noisy = (summed + torch.randn_like(summed)) / 70
        canary.observe(step, noisy)
        parts = noisy.split([weight.numel() for weight in weights.values()])
        for (name, weight), part in zip(list(weights.items()), parts, strict=True):
            weights[name] = weight - 0.5 * part.view_as(weight)


# Loops with a defect


class OneNoiseForLayers(Loop):
    """All layers share the noise of the longest layer."""

    def noise(self, summed: Floats) -> Floats:
        noise = super().noise(summed)
        return np.concatenate([noise[: len(part)] for part in self.by_layer(summed)])


class NoiseRecurs(Loop):
    """Fifty noise vectors repeat cyclically."""

    period = 50

    def set_up(self) -> None:
        self.all_noise = self.sigma * self.clip * self.rng.standard_normal((self.period, self.weights.size))

    def noise(self, summed: Floats) -> Floats:
        return self.all_noise[self.count % self.period]


class MedianNorm(Loop):
    """Clip and noise by the median norm of the batch."""

    def release(self, gradients: Floats) -> Floats:
        self.clip = float(np.median(np.linalg.norm(gradients, axis=1))) if len(gradients) else 0.0
        return super().release(gradients)


class RealBatchSize(Loop):
    """The sum is divided by the actual batch size."""

    def release(self, gradients: Floats) -> Floats:
        self.divisor = max(1, len(gradients))
        return super().release(gradients)


class MedianOfSome(MedianNorm):
    """Clip and noise by the median norm of the batch; an empty batch is an error."""

    def release(self, gradients: Floats) -> Floats:
        if not len(gradients):
            raise ValueError("empty batch")
        return super().release(gradients)


# Variants of these defects


class OtherLagThenSign(NoiseRecurs):
    """Noise repeats after 37 steps with the opposite sign."""

    period = 37

    def noise(self, summed: Floats) -> Floats:
        return super().noise(summed) * (-1) ** (self.count // self.period)


class SeededEachEpoch(Loop):
    """The noise generator is reseeded in each epoch."""

    def noise(self, summed: Floats) -> Floats:
        if self.count % self.epoch == 0:
            self.drawing = np.random.default_rng(7)
        return self.sigma * self.clip * self.drawing.standard_normal(summed.size)


class PermutedNoise(Loop):
    """One noise vector for the training, its coordinates permuted in each step."""

    def set_up(self) -> None:
        self.all_noise = self.sigma * self.clip * self.rng.standard_normal(self.weights.size)

    def noise(self, summed: Floats) -> Floats:
        return self.rng.permutation(self.all_noise)


class MirroredHalves(Loop):
    """The second half of the noise mirrors the first half."""

    def noise(self, summed: Floats) -> Floats:
        half = super().noise(summed)[: summed.size // 2]
        rest = np.zeros(summed.size - 2 * half.size)
        return np.concatenate([half, rest + half[0], -half[::-1]])


class FewDirections(Loop):
    """Noise of ten dimensions, of the claimed size on average."""

    def set_up(self) -> None:
        self.basis = self.rng.standard_normal((10, self.weights.size)) / np.sqrt(10)

    def noise(self, summed: Floats) -> Floats:
        return self.sigma * self.clip * self.rng.standard_normal(10) @ self.basis


class BareBias(Loop):
    """The last bias has no noise."""

    def noise(self, summed: Floats) -> Floats:
        noise = super().noise(summed)
        noise[-1] = 0
        return noise


class BareFirstLayer(Loop):
    """The first layer, an embedding, has no noise."""

    def noise(self, summed: Floats) -> Floats:
        first, *rest = self.by_layer(super().noise(summed))
        return np.concatenate([0 * first, *rest])


class NoiseByLayerSpread(Loop):
    """The noise of a layer is scaled by the spread of its weights."""

    def noise(self, summed: Floats) -> Floats:
        noise, weights = self.by_layer(super().noise(summed)), self.by_layer(self.weights)
        return np.concatenate([part * (layer.std() or 1) for part, layer in zip(noise, weights, strict=True)])


class NoiseOverflows(Loop):
    """Half precision: noise beyond 1.5 deviations overflows and is replaced by 0."""

    def noise(self, summed: Floats) -> Floats:
        noise = super().noise(summed)
        return noise * (np.abs(noise) < 1.5 * self.sigma * self.clip)


class NoiseOfBatch(Loop):
    """The noise grows with the batch: sigma times the mean norm of its clipped gradients."""

    def release(self, gradients: Floats) -> Floats:
        rows = self.clipped(gradients)
        scale = np.linalg.norm(rows, axis=1).mean() if len(rows) else 0.0
        return np.asarray((rows.sum(0) + scale * self.noise(rows.sum(0))) / self.divisor)


class NoNoiseWhenSmall(Loop):
    """Steps of fewer than six rows get no noise."""

    rate = 0.01

    def release(self, gradients: Floats) -> Floats:
        self.small = len(gradients) < 6
        return super().release(gradients)

    def noise(self, summed: Floats) -> Floats:
        return super().noise(summed) * (not self.small)


class RawMomentum(Loop):
    """Release and update include a momentum of unclipped gradients."""

    def set_up(self) -> None:
        self.raw = np.zeros_like(self.weights)

    def release(self, gradients: Floats) -> Floats:
        released = super().release(gradients) + 0.5 * self.raw
        self.raw = 0.5 * self.raw + gradients.sum(0) / self.divisor
        return released


class NanBecomesZero(Loop):
    """An overlong gradient counts as invalid, and empties the step."""

    def release(self, gradients: Floats) -> Floats:
        if len(gradients) and np.abs(gradients).max() > 50:
            return np.zeros(gradients.shape[1])
        return super().release(gradients)


# Defects written after the games, without tuning the games on them.


class NoiseOverRoot(Loop):
    """The noise is divided by the root of the number of sampled rows."""

    def release(self, gradients: Floats) -> Floats:
        self.rows = max(1, len(gradients))
        return super().release(gradients)

    def noise(self, summed: Floats) -> Floats:
        return super().noise(summed) / np.sqrt(self.rows)


class RunningLargest(Loop):
    """The clip is the largest norm so far; the noise is for the claimed clip."""

    def set_up(self) -> None:
        self.largest = self.clip

    def clipped(self, gradients: Floats) -> Floats:
        self.largest = max(self.largest, np.linalg.norm(gradients, axis=1).max(initial=0.0))
        return within(gradients, self.largest)


class MovingAverage(Loop):
    """The noise is the sum of this step's draw and the previous draw, with the claimed deviation."""

    def set_up(self) -> None:
        self.last = np.zeros_like(self.weights)

    def noise(self, summed: Floats) -> Floats:
        last, self.last = self.last, super().noise(summed)
        return (last + self.last) / np.sqrt(2)


class LargestTenth(Loop):
    """The largest tenth of the coordinates of the sum get noise; the others are not released."""

    def release(self, gradients: Floats) -> Floats:
        summed = self.clipped(gradients).sum(0)
        large = np.abs(summed) >= np.quantile(np.abs(summed), 0.9)
        return np.where(large, summed + self.noise(summed), 0.0) / self.divisor


class SeededByStep(Loop):
    """The noise generator is seeded by the number of the step."""

    def noise(self, summed: Floats) -> Floats:
        return self.sigma * self.clip * np.random.default_rng(self.count).standard_normal(summed.size)


def first_layer_bare(loop: Any, gradients: Floats) -> Floats:
    """Norm and clip omit the first layer."""
    first, *rest = loop.by_layer(gradients)
    return np.concatenate([first, within(np.concatenate(rest, 1), loop.clip)], 1)


def uniform_noise(loop: Any, summed: Floats) -> Floats:
    """Return uniform noise of the claimed deviation."""
    return loop.sigma * loop.clip * loop.rng.uniform(-np.sqrt(3), np.sqrt(3), summed.size)


def longer(loop: Any, gradients: Floats) -> Floats:
    """The factor is at least 1 instead of at most 1."""
    norms = np.linalg.norm(gradients, axis=1, keepdims=True)
    return gradients * np.maximum(1, loop.clip / np.maximum(norms, 0.01))


def _case(defect: Any, twin: Any = None, *, base: Any = Loop, missed: str = "") -> Case:
    def make(loop: Any) -> Callable[[], Any]:
        sigma, clip = getattr(loop, "sigma", base.sigma), getattr(loop, "clip", base.clip)
        steps, rate = getattr(loop, "steps", base.steps), getattr(loop, "rate", base.rate)
        divisor = getattr(loop, "divisor", base.divisor)
        return lambda: from_steps(
            loop, noise_multiplier=sigma, steps=steps, clip=clip, sample_rate=rate, divisor=divisor
        )

    return Case(make(defect), None if twin is None else make(twin), missed=missed)


class _Torch(Loop):
    steps = 60


BANK: dict[str, Case] = {
    "one noise for layers": _case(OneNoiseForLayers, Logistic),
    "noise recurs every 50 steps": _case(NoiseRecurs, DrawnBefore),
    "weight outside the clip": _case(
        changed(clipped=lambda loop, rows: np.concatenate([within(rows[:, :-1], loop.clip), rows[:, -1:]], 1)), Linear
    ),
    "micro-batches clipped together": _case(
        changed(
            clipped=lambda loop, rows: within(
                np.array([part.mean(0) for part in grouped(rows, 4) if len(part)] or rows), loop.clip
            )
        ),
        changed(clipped=lambda loop, rows: np.array([part.sum(0) for part in grouped(within(rows, loop.clip), 4)])),
    ),
    "every 100th step bare": _case(noise_times(lambda loop, _: loop.count % 100 != 99), Loop),
    "clip by the median norm": _case(
        MedianNorm,
        changed(clipped=lambda loop, rows: loop.clip * rows / (np.linalg.norm(rows, axis=1, keepdims=True) + 0.01)),
    ),
    "the same, no empty batch": _case(
        MedianOfSome,
        missed="an empty batch breaks the training off where few rows are tried, and many rows hardly move a median",
    ),
    "divided by the real batch size": _case(RealBatchSize, changed(rate=1.0, divisor=700.0, steps=100)),
    "sigma halved half-way": _case(
        noise_times(lambda loop, _: 0.5 if 2 * loop.count >= loop.steps else 1), changed(sigma=2.0)
    ),
    "noise comes back negated": _case(OtherLagThenSign, Adam),
    "seeded each epoch": _case(SeededEachEpoch, Momentum),
    "permuted noise": _case(
        PermutedNoise,
        changed(release=lambda loop, rows: Loop.release(loop, rows.astype(np.float32)).astype(np.float32)),
    ),
    "mirrored halves": _case(MirroredHalves, changed(hidden=64, clip=0.1, sigma=0.8)),
    "noise of ten dimensions": _case(FewDirections),
    "bare bias": _case(BareBias, OwnLayers),
    "bare first layer": _case(BareFirstLayer, EqualLayers),
    "noise by layer spread": _case(NoiseByLayerSpread),
    "first layer outside the clip": _case(changed(clipped=first_layer_bare)),
    "layers without a share": _case(
        changed(
            clipped=lambda loop, rows: np.concatenate([within(part, loop.clip) for part in loop.by_layer(rows)], 1)
        ),
        missed="no canary is as long in every layer: layers are not known; found with some seeds and data alone",
    ),
    "clipped by the largest entry": _case(clipped_by(lambda loop, rows: np.abs(rows).max(1, keepdims=True))),
    "squared norm": _case(clipped_by(lambda loop, rows: (rows**2).sum(1, keepdims=True), clip=0.1)),
    "sum clipped": _case(changed(clipped=lambda loop, rows: within(rows.sum(0, keepdims=True), loop.clip))),
    "pairs clipped together": _case(
        changed(clipped=lambda loop, rows: within(np.array([part.sum(0) for part in grouped(rows, 2)]), loop.clip)),
        missed="the partner's gradient is shorter than the clip; found with some seeds alone",
    ),
    "last batch of an epoch bare": _case(noise_times(lambda loop, _: loop.count % loop.epoch != loop.epoch - 1)),
    "first five steps bare": _case(noise_times(lambda loop, _: loop.count >= 5)),
    "noise decays": _case(noise_times(lambda loop, _: 1 - loop.count / loop.steps)),
    "noise divided twice": _case(noise_times(lambda loop, _: 1 / loop.divisor)),
    "noise where moved": _case(noise_times(lambda _, summed: summed != 0)),
    "noise overflows": _case(NoiseOverflows),
    "noise by the batch's norms": _case(NoiseOfBatch),
    "small batches bare": _case(NoNoiseWhenSmall),
    "raw momentum": _case(RawMomentum),
    "long gradients empty the step": _case(
        NanBecomesZero,
        missed="no canary has a single weight beyond 50 clips",
    ),
    "torch, sum clipped": _case(
        torch_images_clipped_whole,
        torch_images,
        base=_Torch,
        missed="in 30 seconds the test of many trainings is not begun",
    ),
    "uniform noise": _case(changed(noise=uniform_noise)),
    "noise over the root of the batch": _case(NoiseOverRoot),
    "clipped by the first layer": _case(
        clipped_by(lambda loop, rows: np.linalg.norm(loop.by_layer(rows)[0], axis=1, keepdims=True)),
        missed="canaries that spare the first layer are few: layers are not known",
    ),
    "running largest norm": _case(RunningLargest),
    "every second coordinate": _case(noise_times(lambda _, summed: np.arange(summed.size) % 2 == 0)),
    "moving average of noise": _case(MovingAverage),
    "first 64 rows clipped": _case(
        changed(clipped=lambda loop, rows: np.concatenate([within(rows[:64], loop.clip), rows[64:]]))
    ),
    "longer, not shorter": _case(changed(clipped=longer)),
    "largest tenth released": _case(LargestTenth),
    "seeded by the step": _case(SeededByStep),
    "bare once small": _case(noise_times(lambda _, summed: np.linalg.norm(summed) > 1.0)),
}
