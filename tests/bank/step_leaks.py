"""Loops of DP-SGD that leak between steps, by the clip of a whole batch, or by stored noise; and honest twins."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from tests.bank import Case
from tests.bank.loops import Adam, DrawnBefore, Floats, Logistic, Loop, _case, within

STORED = np.random.default_rng(20).standard_normal(10_000)
"""Normals that loops cut their noise from."""


class Regression(Logistic):
    """Honest: logistic regression on batches of seven rows."""

    rate, divisor, steps, step_size = 0.01, 7.0, 200, 0.1


# The clip of a whole batch


class AverageClipped(Regression):
    """The average of the batch is clipped, and gets the noise of one clip."""

    divisor = 1.0

    def clipped(self, gradients: Floats) -> Floats:
        return within(gradients.mean(0, keepdims=True), self.clip) if len(gradients) else gradients


class AverageOfMany(AverageClipped):
    """The average of a batch of some seventy rows is clipped."""

    rate = 0.1


class AverageNormed(AverageClipped):
    """The average of the batch is scaled to the clip, long or short."""

    def clipped(self, gradients: Floats) -> Floats:
        norm = np.linalg.norm(gradients.sum(0))
        return gradients.sum(0, keepdims=True) * self.clip / max(float(norm), 1e-12)


class HalvesClipped(AverageClipped):
    """Two micro-batches, the average of each clipped."""

    rate = 0.03

    def clipped(self, gradients: Floats) -> Floats:
        halves = [part.mean(0) for part in np.array_split(gradients, 2) if len(part)]
        return within(np.array(halves or np.zeros((0, gradients.shape[1]))), self.clip)


class AverageByLayer(AverageClipped):
    """The average of each layer is clipped to its share of the clip."""

    def clipped(self, gradients: Floats) -> Floats:
        if not len(gradients):
            return gradients
        parts = self.by_layer(gradients.mean(0, keepdims=True))
        return np.concatenate([within(part, self.clip / np.sqrt(len(parts))) for part in parts], 1)


# Sizes that gradients have before the clip


class RawSquares(Loop):
    """Adam whose second moments are those of the average before the clip; the update is observed."""

    decay: ClassVar[float] = 0.99

    def set_up(self) -> None:
        self.square = np.zeros_like(self.weights)

    def release(self, gradients: Floats) -> Floats:
        noisy = super().release(gradients)
        self.learn(gradients)
        return noisy / (np.sqrt(self.square) + 1e-3)

    def learn(self, gradients: Floats) -> None:
        raw = gradients.sum(0) / self.divisor
        self.square = self.decay * self.square + (1 - self.decay) * raw**2

    def move(self, released: Floats) -> None:
        self.weights = self.weights - 0.02 * released


class RawSquaresLate(RawSquares):
    """A step is scaled by the raw second moments of the steps before."""

    def release(self, gradients: Floats) -> Floats:
        noisy = Loop.release(self, gradients) / (np.sqrt(self.square) + 1e-3)
        self.learn(gradients)
        return np.asarray(noisy)


class RawSquaresOfRows(RawSquaresLate):
    """Second moments of single rows; they never decay (Adagrad)."""

    def learn(self, gradients: Floats) -> None:
        self.square = self.square + (gradients**2).sum(0) / self.divisor


class RawNormScales(Loop):
    """The step is scaled by the norm of the previous average before the clip, as LARS scales a layer."""

    def set_up(self) -> None:
        self.norm = 1.0

    def release(self, gradients: Floats) -> Floats:
        released = super().release(gradients) / (0.1 + self.norm)
        self.norm = float(np.linalg.norm(gradients.sum(0))) / self.divisor
        return released


class RawSquaresUnseen(Regression):
    """Adam whose second moments are those before the clip; the noisy gradient is observed, not the update."""

    rate, divisor, step_size = 0.1, 70.0, 0.05

    def set_up(self) -> None:
        self.square = np.zeros_like(self.weights)

    def release(self, gradients: Floats) -> Floats:
        self.square = 0.9 * self.square + 0.1 * (gradients.sum(0) / self.divisor) ** 2
        return super().release(gradients)

    def move(self, released: Floats) -> None:
        self.weights = self.weights - self.step_size * released / (np.sqrt(self.square) + 1e-6)


# The clip follows the gradients


class RunningMean(Loop):
    """The clip is a running mean of norms; the noise is for the clip of the step before."""

    def set_up(self) -> None:
        self.clip = 1.0

    def follow(self, norms: Floats) -> float:
        return 0.9 * self.clip + 0.1 * float(norms.mean()) if len(norms) else self.clip

    def release(self, gradients: Floats) -> Floats:
        before, self.clip = self.clip, self.follow(np.linalg.norm(gradients, axis=1))
        summed = self.clipped(gradients).sum(0)
        return np.asarray((summed + self.sigma * before * self.rng.standard_normal(summed.size)) / self.divisor)


class RunningQuantile(RunningMean):
    """The clip follows the largest norm but one."""

    def follow(self, norms: Floats) -> float:
        return 0.8 * self.clip + 0.2 * float(np.sort(norms)[-1]) if len(norms) else self.clip


class RunningMeanInTime(RunningMean):
    """The clip is a running mean of norms, this step's included, and so is the noise."""

    def release(self, gradients: Floats) -> Floats:
        self.clip = self.follow(np.linalg.norm(gradients, axis=1))
        return Loop.release(self, gradients)


class ClipOfTheStepBefore(RunningMean):
    """Clip and noise are the mean norm of the step before."""

    def release(self, gradients: Floats) -> Floats:
        released = Loop.release(self, gradients)
        if len(gradients):
            self.clip = float(np.linalg.norm(gradients, axis=1).mean())
        return released


# Stored noise


class NoiseFromTable(Loop):
    """The noise is cut from a table of 10,000 stored normals, at a random place."""

    def cut(self, size: int) -> Floats:
        return np.take(STORED, self.rng.integers(len(STORED)) + np.arange(size), mode="wrap")

    def noise(self, summed: Floats) -> Floats:
        return self.sigma * self.clip * self.cut(summed.size)


class NoiseFromTableInTurn(NoiseFromTable):
    """A cursor runs through 1,009 stored normals."""

    def set_up(self) -> None:
        self.cursor = int(self.rng.integers(1_009))

    def cut(self, size: int) -> Floats:
        self.cursor += size
        return np.take(STORED[:1_009], self.cursor + np.arange(size), mode="wrap")


class NoiseFromTableByLayer(NoiseFromTable):
    """Each layer is cut at a random place of the table."""

    def noise(self, summed: Floats) -> Floats:
        return self.sigma * self.clip * np.concatenate([self.cut(len(part)) for part in self.by_layer(summed)])


class NoiseFromTableBackwards(NoiseFromTable):
    """Cut at a random place, with a random sign and direction."""

    def cut(self, size: int) -> Floats:
        part = super().cut(size)[:: self.rng.choice([-1, 1])]
        return np.asarray(part * self.rng.choice([-1, 1]))


class NoiseFromOwnTable(NoiseFromTable):
    """Each training draws a table of 4,000 normals first."""

    def set_up(self) -> None:
        self.table = self.rng.standard_normal(4_000)

    def cut(self, size: int) -> Floats:
        return np.take(self.table, self.rng.integers(4_000) + np.arange(size), mode="wrap")


# Digits of the noise


class HalfPrecisionNoise(Loop):
    """Noise in half precision; the sum is in double precision."""

    def noise(self, summed: Floats) -> Floats:
        return super().noise(summed).astype(np.float16).astype(np.float64)


class SinglePrecisionNoise(Loop):
    """Noise in single precision; the sum is in double precision."""

    def noise(self, summed: Floats) -> Floats:
        return super().noise(summed).astype(np.float32).astype(np.float64)


class BrainPrecisionNoise(Loop):
    """Noise with eight bits (bfloat16); the sum is in double precision."""

    def noise(self, summed: Floats) -> Floats:
        bits = super().noise(summed).astype(np.float32).view(np.uint32) & np.uint32(0xFFFF0000)
        return bits.view(np.float32).astype(np.float64)


class FixedPointNoise(Loop):
    """Noise in steps of 1/1,024 clip; the sum is in double precision."""

    def noise(self, summed: Floats) -> Floats:
        return np.round(super().noise(summed) * 1024) / 1024


# Honest loops


class Decaying(Loop):
    """Honest: the step size decays."""

    def move(self, released: Floats) -> None:
        self.weights = self.weights - self.step_size * 0.99**self.count * released


class EmptyBatches(Regression):
    """Honest: most batches are empty."""

    rate, divisor = 0.001, 0.7


class ObservedMomentum(Loop):
    """Honest: the observed gradient is a momentum of private ones."""

    def set_up(self) -> None:
        self.velocity = np.zeros_like(self.weights)

    def release(self, gradients: Floats) -> Floats:
        self.velocity = 0.5 * self.velocity + super().release(gradients)
        return self.velocity


class ObservedAdam(Adam):
    """Honest: the update by Adam is observed, of private gradients."""

    def release(self, gradients: Floats) -> Floats:
        noisy = super().release(gradients)
        self.square = 0.99 * self.square + 0.01 * noisy**2
        return np.asarray(noisy / (np.sqrt(self.square) + 1e-3))

    def move(self, released: Floats) -> None:
        self.weights = self.weights - 0.02 * released


class ClipOfReleases(Loop):
    """Honest: clip and noise follow the size of earlier releases."""

    def release(self, gradients: Floats) -> Floats:
        released = super().release(gradients)
        self.clip = float(np.clip(0.9 * self.clip + 0.1 * np.linalg.norm(released) * self.divisor / 8, 0.5, 2))
        return released


class RoundedTogether(Loop):
    """Honest: the noisy sum is rounded to half precision."""

    def release(self, gradients: Floats) -> Floats:
        return super().release(gradients).astype(np.float16)


BANK: dict[str, Case] = {
    "average clipped": _case(AverageClipped, Regression),
    "average of many clipped": _case(AverageOfMany),
    "average scaled to the clip": _case(AverageNormed),
    "averages of two halves clipped": _case(HalvesClipped),
    "averages of layers clipped": _case(AverageByLayer),
    "second moments of raw gradients": _case(RawSquares, ObservedAdam),
    "raw second moments, a step late": _case(RawSquaresLate),
    "raw squares of rows": _case(RawSquaresOfRows),
    "scaled by the raw norm": _case(RawNormScales, Decaying),
    "raw second moments, update not observed": _case(
        RawSquaresUnseen, missed="only gradients of the next batch have them, and these differ from step to step anyway"
    ),
    "clip at a running mean norm": _case(RunningMean, ClipOfReleases),
    "clip at a running quantile": _case(RunningQuantile),
    "clip and noise at a running mean": _case(RunningMeanInTime),
    "clip of the step before": _case(ClipOfTheStepBefore),
    "noise from a table": _case(NoiseFromTable, DrawnBefore),
    "noise from a table in turn": _case(NoiseFromTableInTurn, ObservedMomentum),
    "noise from a table by layer": _case(NoiseFromTableByLayer),
    "noise from a table backwards": _case(NoiseFromTableBackwards),
    "noise from a table of each training": _case(NoiseFromOwnTable, EmptyBatches),
}
