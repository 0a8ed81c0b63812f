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


class Wide(Loop):
    """More weights, another clip, less noise."""

    hidden, clip, sigma = 64, 0.1, 0.8


class Quiet(Loop):
    """More noise."""

    sigma = 2.0


class AllRows(Loop):
    """No sampling: every row in every step."""

    rate, divisor, steps = 1.0, 700.0, 100


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


class MicroBatches(Loop):
    """Sums of four gradients, each clipped first."""

    def clipped(self, gradients: Floats) -> Floats:
        rows = super().clipped(gradients)
        return np.array([rows[at : at + 4].sum(0) for at in range(0, len(rows), 4)] or np.zeros((0, rows.shape[1])))


class NormedGradients(Loop):
    """Every gradient is scaled to about the length of the clip."""

    def clipped(self, gradients: Floats) -> Floats:
        return self.clip * gradients / (np.linalg.norm(gradients, axis=1, keepdims=True) + 0.01)


class DrawnBefore(Loop):
    """All noise of the training is drawn at once."""

    def set_up(self) -> None:
        self.all_noise = self.sigma * self.clip * self.rng.standard_normal((self.steps, self.weights.size))

    def noise(self, summed: Floats) -> Floats:
        return self.all_noise[self.count]


class SinglePrecision(Loop):
    """Single precision."""

    def release(self, gradients: Floats) -> Floats:
        return super().release(gradients.astype(np.float32)).astype(np.float32)


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


class WeightOutsideClip(Loop):
    """The last bias is not clipped."""

    def clipped(self, gradients: Floats) -> Floats:
        return np.concatenate([within(gradients[:, :-1], self.clip), gradients[:, -1:]], 1)


class MicroBatchesTogether(Loop):
    """The mean of four gradients is clipped."""

    def clipped(self, gradients: Floats) -> Floats:
        groups = [gradients[at : at + 4].mean(0) for at in range(0, len(gradients), 4)]
        return within(np.array(groups or np.zeros((0, gradients.shape[1]))), self.clip)


class BareHundredth(Loop):
    """No noise in every 100th step."""

    def noise(self, summed: Floats) -> Floats:
        return super().noise(summed) * (self.count % 100 != 99)


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


class HalvedHalfWay(Loop):
    """Half the noise in the second half of the training."""

    def noise(self, summed: Floats) -> Floats:
        return super().noise(summed) * (0.5 if 2 * self.count >= self.steps else 1)


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


class FirstLayerOutsideClip(Loop):
    """Norm and clip omit the first layer."""

    def clipped(self, gradients: Floats) -> Floats:
        first, *rest = self.by_layer(gradients)
        return np.concatenate([first, within(np.concatenate(rest, 1), self.clip)], 1)


class LayersWithoutShare(Loop):
    """Each layer is clipped to the whole norm; the noise is for one clip."""

    def clipped(self, gradients: Floats) -> Floats:
        return np.concatenate([within(part, self.clip) for part in self.by_layer(gradients)], 1)


class LargestEntry(Loop):
    """Clipped by the largest entry, not by the norm."""

    def clipped(self, gradients: Floats) -> Floats:
        largest = np.abs(gradients).max(1, keepdims=True)
        return gradients * np.minimum(1, self.clip / np.maximum(largest, 1e-12))


class SquaredNorm(Loop):
    """Clipped by the square of the norm."""

    clip = 0.1

    def clipped(self, gradients: Floats) -> Floats:
        squares = (gradients**2).sum(1, keepdims=True)
        return gradients * np.minimum(1, self.clip / np.maximum(squares, 1e-12))


class SumClipped(Loop):
    """The sum of the batch is clipped."""

    def clipped(self, gradients: Floats) -> Floats:
        return within(gradients.sum(0, keepdims=True), self.clip)


class PairsTogether(Loop):
    """Gradients of two rows are added before they are clipped."""

    def clipped(self, gradients: Floats) -> Floats:
        groups = [gradients[at : at + 2].sum(0) for at in range(0, len(gradients), 2)]
        return within(np.array(groups or np.zeros((0, gradients.shape[1]))), self.clip)


class BareLastBatch(Loop):
    """The last batch of an epoch has no noise."""

    def noise(self, summed: Floats) -> Floats:
        return super().noise(summed) * (self.count % self.epoch != self.epoch - 1)


class WarmUpBare(Loop):
    """The first five steps have no noise."""

    def noise(self, summed: Floats) -> Floats:
        return super().noise(summed) * (self.count >= 5)


class NoiseDecays(Loop):
    """The decay of the step size is applied to the noise too."""

    def noise(self, summed: Floats) -> Floats:
        return super().noise(summed) * (1 - self.count / self.steps)


class NoiseTwiceDivided(Loop):
    """The noise is divided by the batch size, then added to the sum."""

    def noise(self, summed: Floats) -> Floats:
        return super().noise(summed) / self.divisor


class NoiseWhereMoved(Loop):
    """Noise only in coordinates with a nonzero sum."""

    def noise(self, summed: Floats) -> Floats:
        return super().noise(summed) * (summed != 0)


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


class UniformNoise(Loop):
    """Uniform noise of the claimed deviation."""

    def noise(self, summed: Floats) -> Floats:
        return self.sigma * self.clip * self.rng.uniform(-np.sqrt(3), np.sqrt(3), summed.size)


class NoiseOverRoot(Loop):
    """The noise is divided by the root of the number of sampled rows."""

    def release(self, gradients: Floats) -> Floats:
        self.rows = max(1, len(gradients))
        return super().release(gradients)

    def noise(self, summed: Floats) -> Floats:
        return super().noise(summed) / np.sqrt(self.rows)


class ByFirstLayersNorm(Loop):
    """All layers are scaled by the first layer's clipping factor."""

    def clipped(self, gradients: Floats) -> Floats:
        first = np.linalg.norm(self.by_layer(gradients)[0], axis=1, keepdims=True)
        return gradients * np.minimum(1, self.clip / np.maximum(first, 1e-12))


class RunningLargest(Loop):
    """The clip is the largest norm so far; the noise is for the claimed clip."""

    def set_up(self) -> None:
        self.largest = self.clip

    def clipped(self, gradients: Floats) -> Floats:
        self.largest = max(self.largest, np.linalg.norm(gradients, axis=1).max(initial=0.0))
        return within(gradients, self.largest)


class EverySecondCoordinate(Loop):
    """Noise in every second coordinate."""

    def noise(self, summed: Floats) -> Floats:
        noise = super().noise(summed)
        noise[1::2] = 0
        return noise


class MovingAverage(Loop):
    """The noise is the sum of this step's draw and the previous draw, with the claimed deviation."""

    def set_up(self) -> None:
        self.last = np.zeros_like(self.weights)

    def noise(self, summed: Floats) -> Floats:
        last, self.last = self.last, super().noise(summed)
        return (last + self.last) / np.sqrt(2)


class FirstSixtyFour(Loop):
    """A buffer holds 64 rows; later rows are added without clipping."""

    def clipped(self, gradients: Floats) -> Floats:
        return np.concatenate([within(gradients[:64], self.clip), gradients[64:]])


class LongerNotShorter(Loop):
    """The factor is at least 1 instead of at most 1."""

    def clipped(self, gradients: Floats) -> Floats:
        norms = np.linalg.norm(gradients, axis=1, keepdims=True)
        return gradients * np.maximum(1, self.clip / np.maximum(norms, 0.01))


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


class BareOnceSmall(Loop):
    """No noise if the mean gradient is short, because training has converged."""

    def noise(self, summed: Floats) -> Floats:
        return super().noise(summed) * (np.linalg.norm(summed) > 1.0)


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
    "weight outside the clip": _case(WeightOutsideClip, Linear),
    "micro-batches clipped together": _case(MicroBatchesTogether, MicroBatches),
    "every 100th step bare": _case(BareHundredth, Loop),
    "clip by the median norm": _case(MedianNorm, NormedGradients),
    "the same, no empty batch": _case(
        MedianOfSome,
        missed="an empty batch breaks the training off where few rows are tried, and many rows hardly move a median",
    ),
    "divided by the real batch size": _case(RealBatchSize, AllRows),
    "sigma halved half-way": _case(HalvedHalfWay, Quiet),
    "noise comes back negated": _case(OtherLagThenSign, Adam),
    "seeded each epoch": _case(SeededEachEpoch, Momentum),
    "permuted noise": _case(PermutedNoise, SinglePrecision),
    "mirrored halves": _case(MirroredHalves, Wide),
    "noise of ten dimensions": _case(FewDirections),
    "bare bias": _case(BareBias, OwnLayers),
    "bare first layer": _case(BareFirstLayer, EqualLayers),
    "noise by layer spread": _case(NoiseByLayerSpread),
    "first layer outside the clip": _case(FirstLayerOutsideClip),
    "layers without a share": _case(
        LayersWithoutShare,
        missed="no canary is as long in every layer: layers are not known; found with some seeds and data alone",
    ),
    "clipped by the largest entry": _case(LargestEntry),
    "squared norm": _case(SquaredNorm),
    "sum clipped": _case(SumClipped),
    "pairs clipped together": _case(
        PairsTogether,
        missed="the partner's gradient is shorter than the clip; found with some seeds alone",
    ),
    "last batch of an epoch bare": _case(BareLastBatch),
    "first five steps bare": _case(WarmUpBare),
    "noise decays": _case(NoiseDecays),
    "noise divided twice": _case(NoiseTwiceDivided),
    "noise where moved": _case(NoiseWhereMoved),
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
    "uniform noise": _case(UniformNoise),
    "noise over the root of the batch": _case(NoiseOverRoot),
    "clipped by the first layer": _case(
        ByFirstLayersNorm, missed="canaries that spare the first layer are few: layers are not known"
    ),
    "running largest norm": _case(RunningLargest),
    "every second coordinate": _case(EverySecondCoordinate),
    "moving average of noise": _case(MovingAverage),
    "first 64 rows clipped": _case(FirstSixtyFour),
    "longer, not shorter": _case(LongerNotShorter),
    "largest tenth released": _case(LargestTenth),
    "seeded by the step": _case(SeededByStep),
    "bare once small": _case(BareOnceSmall),
}
