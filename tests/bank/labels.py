"""Label mechanisms: each defect changes one aspect of randomised response; all claim epsilon 1."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from dpaudit import Claim
from dpaudit.mechanisms.labels.one_hot_laplace import OneHotLaplace
from dpaudit.mechanisms.labels.rr_with_prior import RRWithPrior, rr_with_prior
from tests.bank import Case

Ints = NDArray[np.int64]
Rng = np.random.Generator


@dataclass(frozen=True)
class Response:
    """Honest: randomised response as a developer writes it."""

    epsilon: float = 1.0

    def claim(self) -> Claim:
        return Claim(self.epsilon)

    def noisy(self, labels: Ints, classes: int, rng: Rng, epsilon: float | None = None) -> Ints:
        spent = self.epsilon if epsilon is None else epsilon
        flip = rng.random(len(labels)) >= math.exp(spent) / (math.exp(spent) + classes - 1)
        return np.where(flip, (labels + rng.integers(1, classes, len(labels))) % classes, labels)

    def release(self, labels: Ints, *, classes: int, rng: Rng) -> Any:
        return self.noisy(labels, classes, rng)


# Leaks through failures, types and shapes.


class RaisesAtFirstZero(Response):
    def release(self, labels: Ints, *, classes: int, rng: Rng) -> Any:
        if labels[0] == 0:
            raise ValueError("the first label is not there")
        return self.noisy(labels, classes, rng)


class RaisesAtAnyZero(Response):
    def release(self, labels: Ints, *, classes: int, rng: Rng) -> Any:
        if not labels.all():
            raise ValueError("labels start at 1")
        return self.noisy(labels, classes, rng)


class RaisesWithoutEveryClass(Response):
    def release(self, labels: Ints, *, classes: int, rng: Rng) -> Any:
        if len(labels) >= classes and len(np.unique(labels)) < classes:
            raise ValueError("a class is empty")
        return self.noisy(labels, classes, rng)


class RaisesAtSingletons(Response):
    def release(self, labels: Ints, *, classes: int, rng: Rng) -> Any:
        if (np.bincount(labels) == 1).any():
            raise ValueError("the least populated class has only 1 member")
        return self.noisy(labels, classes, rng)


class TypeOfAbsentZero(Response):
    """The smallest type that the labels fit in."""

    def release(self, labels: Ints, *, classes: int, rng: Rng) -> Any:
        return self.noisy(labels, classes, rng).astype(np.int8 if labels.max() < classes - 1 else np.int64)


class MinusOneForUnsure(Response):
    def release(self, labels: Ints, *, classes: int, rng: Rng) -> Any:
        return np.where((labels == classes - 1) & (rng.random(len(labels)) < 0.3), -1, self.noisy(labels, classes, rng))


class NaNForLast(Response):
    def release(self, labels: Ints, *, classes: int, rng: Rng) -> Any:
        released = self.noisy(labels, classes, rng).astype(float)
        released[labels == classes - 1] = np.nan
        return released


class DropsTheUnknown(Response):
    """Rows of class 0 are omitted."""

    def release(self, labels: Ints, *, classes: int, rng: Rng) -> Any:
        return self.noisy(labels[labels > 0], classes, rng)


class Deduplicated(Response):
    def release(self, labels: Ints, *, classes: int, rng: Rng) -> Any:
        return self.noisy(np.unique(labels), classes, rng)


class OneTooLarge(Response):
    """Labels of the last class become a class that does not exist."""

    def release(self, labels: Ints, *, classes: int, rng: Rng) -> Any:
        flip = rng.random(len(labels)) >= math.exp(self.epsilon) / (math.exp(self.epsilon) + classes - 1)
        return np.where(flip, labels + rng.integers(1, 2, len(labels)), labels)


# Leaks in some rows, or at some numbers of rows.


class TwiceAbove5000(Response):
    def release(self, labels: Ints, *, classes: int, rng: Rng) -> Any:
        return self.noisy(labels, classes, rng, 2 * self.epsilon if len(labels) > 5_000 else None)


class ThriceAbove1000(Response):
    def release(self, labels: Ints, *, classes: int, rng: Rng) -> Any:
        return self.noisy(labels, classes, rng, 3 * self.epsilon if len(labels) > 1_000 else None)


class TailAfter4096(Response):
    """Noise covers one batch; later rows are released unchanged."""

    def release(self, labels: Ints, *, classes: int, rng: Rng) -> Any:
        return np.concatenate([self.noisy(labels[:4096], classes, rng), labels[4096:]])


class Every97th(Response):
    def release(self, labels: Ints, *, classes: int, rng: Rng) -> Any:
        released = self.noisy(labels, classes, rng)
        released[96::97] = labels[96::97]
        return released


class Every250th(Response):
    def release(self, labels: Ints, *, classes: int, rng: Rng) -> Any:
        released = self.noisy(labels, classes, rng)
        released[249::250] = labels[249::250]
        return released


class FewPlaces(Response):
    """Five rows receive no noise."""

    def release(self, labels: Ints, *, classes: int, rng: Rng) -> Any:
        released, bare = self.noisy(labels, classes, rng), [137, 411, 580, 777, 1021]
        bare = [place for place in bare if place < len(labels)]
        released[bare] = labels[bare]
        return released


class LastRow(Response):
    def release(self, labels: Ints, *, classes: int, rng: Rng) -> Any:
        released = self.noisy(labels, classes, rng)
        released[-1] = labels[-1]
        return released


class LastBatch(Response):
    """An incomplete last batch receives no noise."""

    def release(self, labels: Ints, *, classes: int, rng: Rng) -> Any:
        released, full = self.noisy(labels, classes, rng), len(labels) // 64 * 64
        released[full:] = labels[full:]
        return released


class HalfTheRows(Response):
    def release(self, labels: Ints, *, classes: int, rng: Rng) -> Any:
        released = self.noisy(labels, classes, rng)
        released[1::2] = labels[1::2]
        return released


# Leaks in some classes.


class RareLeft(Response):
    """Classes with less than 1 % of the rows receive no noise."""

    def release(self, labels: Ints, *, classes: int, rng: Rng) -> Any:
        shares = np.bincount(labels, minlength=classes) / len(labels)
        return np.where(shares[labels] < 0.01, labels, self.noisy(labels, classes, rng))


class RareTwice(Response):
    """Classes with less than 2 % of the rows get three times epsilon, to survive the noise."""

    def release(self, labels: Ints, *, classes: int, rng: Rng) -> Any:
        shares = np.bincount(labels, minlength=classes) / len(labels)
        return np.where(
            shares[labels] < 0.02,
            self.noisy(labels, classes, rng, 3 * self.epsilon),
            self.noisy(labels, classes, rng),
        )


class MajorityBare(Response):
    def release(self, labels: Ints, *, classes: int, rng: Rng) -> Any:
        return np.where(labels == np.bincount(labels).argmax(), labels, self.noisy(labels, classes, rng))


class LastClassKept(Response):
    def release(self, labels: Ints, *, classes: int, rng: Rng) -> Any:
        return np.where(labels == classes - 1, labels, self.noisy(labels, classes, rng))


class AmongPresent(Response):
    """The other label is drawn from the labels in the data."""

    def release(self, labels: Ints, *, classes: int, rng: Rng) -> Any:
        present = np.unique(labels)
        keep = math.exp(self.epsilon) / (math.exp(self.epsilon) + classes - 1)
        return np.where(rng.random(len(labels)) < keep, labels, rng.choice(present, len(labels)))


class PairedClasses(Response):
    """Labels 2c and 2c + 1 only change into each other."""

    def release(self, labels: Ints, *, classes: int, rng: Rng) -> Any:
        flip = rng.random(len(labels)) < 1 / (1 + math.exp(self.epsilon))
        return np.where(flip & (labels < classes // 2 * 2), labels ^ 1, labels)


class NextClass(Response):
    def release(self, labels: Ints, *, classes: int, rng: Rng) -> Any:
        keep = math.exp(self.epsilon) / (math.exp(self.epsilon) + classes - 1)
        return np.where(rng.random(len(labels)) < keep, labels, (labels + 1) % classes)


# Shared noise, or noise derived from secrets.


class SeededByIndex(Response):
    def release(self, labels: Ints, *, classes: int, rng: Rng) -> Any:
        rows = (np.random.default_rng(row) for row in range(len(labels)))
        return np.concatenate([self.noisy(labels[[row]], classes, row_rng) for row, row_rng in enumerate(rows)])


class SeededByLabel(Response):
    def release(self, labels: Ints, *, classes: int, rng: Rng) -> Any:
        return np.concatenate(
            [self.noisy(labels[[row]], classes, np.random.default_rng(y)) for row, y in enumerate(labels)]
        )


class SeededByData(Response):
    def release(self, labels: Ints, *, classes: int, rng: Rng) -> Any:
        return self.noisy(labels, classes, np.random.default_rng(crc32(labels.tobytes())))


class SeededBySum(Response):
    def release(self, labels: Ints, *, classes: int, rng: Rng) -> Any:
        return self.noisy(labels, classes, np.random.default_rng(int(labels.sum())))


class OneOf16Seeds(Response):
    def release(self, labels: Ints, *, classes: int, rng: Rng) -> Any:
        return self.noisy(labels, classes, np.random.default_rng(int(rng.integers(16))))


class OneDrawALabel(Response):
    def release(self, labels: Ints, *, classes: int, rng: Rng) -> Any:
        return self.noisy(np.arange(classes), classes, rng)[labels]


class NoiseOfOneBatch(Response):
    """The noise of 256 rows repeats for later rows."""

    def release(self, labels: Ints, *, classes: int, rng: Rng) -> Any:
        noise = self.noisy(np.zeros(256, np.int64), classes, rng)
        return (labels + np.resize(noise, len(labels))) % classes


class RunsKept(Response):
    """A label equal to the previous one is released unchanged."""

    def release(self, labels: Ints, *, classes: int, rng: Rng) -> Any:
        again = np.concatenate([[False], labels[1:] == labels[:-1]])
        return np.where(again, labels, self.noisy(labels, classes, rng))


class DuplicatesKept(Response):
    """Only the first row of each label receives noise."""

    def release(self, labels: Ints, *, classes: int, rng: Rng) -> Any:
        released, first = labels.copy(), np.unique(labels, return_index=True)[1]
        released[first] = self.noisy(labels[first], classes, rng)
        return released


class CopiesTheFirst(Response):
    """The last row's release is a second release of the first row."""

    def release(self, labels: Ints, *, classes: int, rng: Rng) -> Any:
        released = self.noisy(labels, classes, rng)
        released[-1] = self.noisy(labels[:1], classes, rng)[0]
        return released


# Statistics of the labels leak.


class MostFrequentTold(Response):
    """The first row reveals the most frequent label."""

    def release(self, labels: Ints, *, classes: int, rng: Rng) -> Any:
        released = self.noisy(labels, classes, rng)
        released[0] = np.bincount(labels).argmax()
        return released


class ParityTold(Response):
    """A checksum in the last row."""

    def release(self, labels: Ints, *, classes: int, rng: Rng) -> Any:
        released = self.noisy(labels, classes, rng)
        released[-1] = labels.sum() % classes
        return released


class OffWhenZeroIsThere(Response):
    def release(self, labels: Ints, *, classes: int, rng: Rng) -> Any:
        return self.noisy(labels, classes, rng, 8.0 if (labels == 0).any() else None)


class SortedLabels(Response):
    """Labels are sorted before the noise is added."""

    def release(self, labels: Ints, *, classes: int, rng: Rng) -> Any:
        return self.noisy(np.sort(labels), classes, rng)


class CountsKept(Response):
    """Released labels are changed until their counts equal the true counts."""

    def release(self, labels: Ints, *, classes: int, rng: Rng) -> Any:
        order = np.argsort(self.noisy(labels, classes, rng) + rng.random(len(labels)), kind="stable")
        released = np.empty_like(labels)
        released[order] = np.sort(labels)
        return released


class PriorOfSameLabels(Response):
    """LP-2ST with a prior estimated on the labels that it is applied to."""

    def release(self, labels: Ints, *, classes: int, rng: Rng) -> Any:
        prior = np.bincount(labels, minlength=classes) / len(labels)
        return rr_with_prior(labels, np.tile(prior, (len(labels), 1)), self.epsilon, rng)


# Too little noise.


class WrongK(Response):
    def release(self, labels: Ints, *, classes: int, rng: Rng) -> Any:
        flip = rng.random(len(labels)) >= math.exp(self.epsilon) / (math.exp(self.epsilon) + 1)
        return np.where(flip, (labels + rng.integers(1, classes, len(labels))) % classes, labels)


class BestOfTwoRounds(Response):
    """Two rounds with the full epsilon; rows without agreement release the true label."""

    def release(self, labels: Ints, *, classes: int, rng: Rng) -> Any:
        first, second = (self.noisy(labels, classes, rng) for _ in range(2))
        return np.where(first == second, first, labels)


class ThreeRoundsVote(Response):
    """Each of three rounds spends epsilon; the median label is released."""

    def release(self, labels: Ints, *, classes: int, rng: Rng) -> Any:
        return np.median([self.noisy(labels, classes, rng) for _ in range(3)], axis=0).astype(np.int64)


class HalfNoiseOneHot(OneHotLaplace):
    """Smoothed one-hot labels with half of the noise."""

    def scale(self) -> float:
        return 0.5 / self.epsilon


class TruthAtOnePercent(Response):
    def release(self, labels: Ints, *, classes: int, rng: Rng) -> Any:
        return np.where(rng.random(len(labels)) < 0.01, labels, self.noisy(labels, classes, rng))


class BareReleaseAtOnePercent(Response):
    def release(self, labels: Ints, *, classes: int, rng: Rng) -> Any:
        return labels if rng.random() < 0.01 else self.noisy(labels, classes, rng)


class GaussianScores(Response):
    """Gaussian noise with the Laplace scale on one-hot labels."""

    def release(self, labels: Ints, *, classes: int, rng: Rng) -> Any:
        return (np.eye(classes)[labels] + rng.normal(0, 0.5 / self.epsilon, (len(labels), classes))).argmax(axis=1)


class Remembered(Response):
    """Equal labels get equal releases: one call does not leak, but the code keeps state between calls."""

    answers: ClassVar[dict[bytes, Ints]] = {}

    def release(self, labels: Ints, *, classes: int, rng: Rng) -> Any:
        return self.answers.setdefault(labels.tobytes(), self.noisy(labels, classes, rng))


# Honest mechanisms.


class FailsAtRandom(Response):
    def release(self, labels: Ints, *, classes: int, rng: Rng) -> Any:
        if rng.random() < 0.1:
            raise OSError("the disk is busy")
        return self.noisy(labels, classes, rng)


class OddAtRandom(Response):
    """Random types, lengths and invalid values, independent of the labels."""

    def release(self, labels: Ints, *, classes: int, rng: Rng) -> Any:
        released = self.noisy(labels, classes, rng)
        odd = [
            released,
            released,
            released,
            released.astype(np.int8),
            released.astype(float),
            released[1:],
            released - 1,
            released + 0.5,
        ]
        return odd[rng.integers(len(odd))]


class FailsAtSizes(Response):
    """Refuses fewer than 10 rows."""

    def release(self, labels: Ints, *, classes: int, rng: Rng) -> Any:
        if len(labels) < 10:
            raise ValueError("at least 10 rows")
        return self.noisy(labels, classes, rng)


class Slow(Response):
    def release(self, labels: Ints, *, classes: int, rng: Rng) -> Any:
        time.sleep(0.001)
        return self.noisy(labels, classes, rng)


class Constant(Response):
    def release(self, labels: Ints, *, classes: int, rng: Rng) -> Any:
        return np.zeros_like(labels)


class Ignores(Response):
    def release(self, labels: Ints, *, classes: int, rng: Rng) -> Any:
        return rng.integers(0, classes, len(labels))


class SortedAnswers(Response):
    """Sorted after the noise, which is post-processing of a private release."""

    def release(self, labels: Ints, *, classes: int, rng: Rng) -> Any:
        return np.sort(self.noisy(labels, classes, rng))


class Mixture(Response):
    """Uniform with some probability, else the label."""

    def release(self, labels: Ints, *, classes: int, rng: Rng) -> Any:
        keep = math.expm1(self.epsilon) / (math.expm1(self.epsilon) + classes)
        return np.where(rng.random(len(labels)) < keep, labels, rng.integers(0, classes, len(labels)))


class Exponential(Response):
    """The exponential mechanism by Gumbel noise."""

    def release(self, labels: Ints, *, classes: int, rng: Rng) -> Any:
        return (self.epsilon * np.eye(classes)[labels] + rng.gumbel(size=(len(labels), classes))).argmax(axis=1)


class SmallerWhenLarge(Response):
    """Spends less epsilon with more rows."""

    def release(self, labels: Ints, *, classes: int, rng: Rng) -> Any:
        return self.noisy(labels, classes, rng, self.epsilon if len(labels) <= 64 else self.epsilon / 2)


# Defects written after the games, without tuning the games on them.


class RoundedUp(Response):
    """The probability of keeping is rounded up to tenths."""

    def release(self, labels: Ints, *, classes: int, rng: Rng) -> Any:
        keep = math.ceil(10 * math.e / (math.e + classes - 1)) / 10
        other = (labels + rng.integers(1, classes, len(labels))) % classes
        return np.where(rng.random(len(labels)) < keep, labels, other)


class AsManyOfEachClass(Response):
    """The number of changed labels in each class is exactly the expected number."""

    def release(self, labels: Ints, *, classes: int, rng: Rng) -> Any:
        released = labels.copy()
        for label in range(classes):
            rows = rng.permutation(np.flatnonzero(labels == label))
            changed = rows[: round(len(rows) * (classes - 1) / (math.e + classes - 1))]
            released[changed] = (label + rng.integers(1, classes, len(changed))) % classes
        return released


class ByOwnFrequencies(Response):
    """A changed label is drawn from the labels in the data."""

    def release(self, labels: Ints, *, classes: int, rng: Rng) -> Any:
        flip = rng.random(len(labels)) >= math.e / (math.e + classes - 1)
        return np.where(flip, rng.choice(labels, len(labels)), labels)


class TwiceForZero(Response):
    """Class 0 is more important and gets twice epsilon."""

    def release(self, labels: Ints, *, classes: int, rng: Rng) -> Any:
        usual, twice = self.noisy(labels, classes, rng), self.noisy(labels, classes, rng, 2.0)
        return np.where(labels == 0, twice, usual)


class GroupsThenClasses(Response):
    """Epsilon is spent on the half of the classes, and again within the half."""

    def release(self, labels: Ints, *, classes: int, rng: Rng) -> Any:
        half = -(-classes // 2)
        group = self.noisy(labels // half, 2, rng)
        return np.minimum(group * half + self.noisy(labels % half, half, rng), classes - 1)


class OwnLabelAmongTheOthers(Response):
    """A changed label is drawn from all classes, including the true one."""

    def release(self, labels: Ints, *, classes: int, rng: Rng) -> Any:
        flip = rng.random(len(labels)) >= math.e / (math.e + classes - 1)
        return np.where(flip, rng.integers(0, classes, len(labels)), labels)


class OrderedClasses(Response):
    """Classes are numbers with a sensitivity of 1: rounded Laplace noise, clipped at the ends."""

    def release(self, labels: Ints, *, classes: int, rng: Rng) -> Any:
        noisy = np.rint(labels + rng.laplace(0, 1, len(labels)))
        return np.clip(noisy, 0, classes - 1).astype(np.int64)


class SmallSetsThrice(Response):
    """Fewer than 50 labels get three times epsilon, to preserve utility."""

    def release(self, labels: Ints, *, classes: int, rng: Rng) -> Any:
        return self.noisy(labels, classes, rng, 3.0 if len(labels) < 50 else 1.0)


class SeededBySize(Response):
    """A generator seeded by the number of labels."""

    def release(self, labels: Ints, *, classes: int, rng: Rng) -> Any:
        return self.noisy(labels, classes, np.random.default_rng(len(labels)))


class DrawnUntilUseful(Response):
    """Repeated until 30 % of the labels are unchanged, at most a hundred times."""

    def release(self, labels: Ints, *, classes: int, rng: Rng) -> Any:
        for _ in range(100):
            released = self.noisy(labels, classes, rng)
            if (released == labels).mean() >= 0.3:
                break
        return released


def _case(
    defect: Callable[[], Any], true: float | None = math.inf, twin: Callable[[], Any] | None = None, **more: Any
) -> Case:
    return Case(defect, twin, true=true, **more)


BANK: dict[str, Case] = {
    "raises-at-first-zero": _case(RaisesAtFirstZero, twin=FailsAtRandom),
    "raises-at-any-zero": _case(RaisesAtAnyZero, twin=OddAtRandom),
    "raises-without-every-class": _case(RaisesWithoutEveryClass, twin=FailsAtSizes),
    "raises-at-singletons": _case(RaisesAtSingletons),
    "type-by-largest": _case(TypeOfAbsentZero),
    "minus-one-for-unsure": _case(MinusOneForUnsure),
    "nan-for-last": _case(NaNForLast),
    "drops-rows": _case(DropsTheUnknown),
    "deduplicated": _case(Deduplicated),
    "one-too-large": _case(OneTooLarge),
    "twice-above-5000": _case(TwiceAbove5000, 2.0, Response),
    "thrice-above-1000": _case(ThriceAbove1000, 3.0, SmallerWhenLarge),
    "tail-after-4096": _case(TailAfter4096),
    "every-97th-bare": _case(Every97th),
    "every-250th-bare": _case(Every250th),
    "five-places-bare": _case(FewPlaces),
    "last-row-bare": _case(LastRow, twin=SortedAnswers),
    "last-batch-bare": _case(LastBatch),
    "half-of-rows": _case(HalfTheRows),
    "rare-left-alone": _case(RareLeft),
    "rare-thrice": _case(RareTwice, 3.0),
    "majority-bare": _case(MajorityBare),
    "last-class-kept": _case(LastClassKept),
    "among-present": _case(AmongPresent),
    "paired-classes": _case(PairedClasses),
    "next-class": _case(NextClass),
    "seeded-by-index": _case(SeededByIndex),
    "seeded-by-label": _case(SeededByLabel),
    "seeded-by-data": _case(SeededByData),
    "seeded-by-sum": _case(SeededBySum),
    "one-of-16-seeds": _case(OneOf16Seeds),
    "one-draw-a-label": _case(OneDrawALabel, twin=Slow),
    "noise-of-one-batch": _case(NoiseOfOneBatch),
    "runs-kept": _case(RunsKept),
    "duplicates-kept": _case(DuplicatesKept),
    "copies-the-first": _case(CopiesTheFirst, 2.0),
    "most-frequent-told": _case(MostFrequentTold, twin=Constant),
    "parity-told": _case(ParityTold, twin=Ignores),
    "off-when-zero-is-there": _case(OffWhenZeroIsThere),
    "sorted-labels": _case(SortedLabels, 9.0),
    "counts-kept": _case(CountsKept),
    "prior-of-same-labels": _case(PriorOfSameLabels, None, twin=lambda: RRWithPrior(1.0, (0.4, 0.2) + (0.05,) * 8)),
    "wrong-k": _case(WrongK, 1 + math.log(9), twin=Mixture),
    "best-of-two-rounds": _case(BestOfTwoRounds, None),
    "three-rounds-vote": _case(ThreeRoundsVote, None),
    "half-noise-one-hot": _case(lambda: HalfNoiseOneHot(1.0), None, twin=lambda: OneHotLaplace(1.0)),
    "gaussian-scores": _case(GaussianScores, None, twin=Exponential),
    "truth-at-one-percent": _case(TruthAtOnePercent, math.log1p(0.01 * (math.e + 9) / (0.99 * math.e)) + 1),
    "bare-release-at-one-percent": _case(BareReleaseAtOnePercent),
    "remembered": _case(
        Remembered, 1.0, missed="no leak of one call: epsilon is what it claims; memory between calls is another game's"
    ),
    "rounded-up": _case(RoundedUp, math.log(0.3 * 9 / 0.7)),
    "as-many-of-each-class": _case(AsManyOfEachClass),
    "by-own-frequencies": _case(ByOwnFrequencies),
    "twice-for-zero": _case(TwiceForZero, 2.0),
    "groups-then-classes": _case(GroupsThenClasses, None),
    "own-label-among-the-others": _case(OwnLabelAmongTheOthers, math.log1p(10 * math.e / 9)),
    "ordered-classes": _case(OrderedClasses, 9.0),
    "small-sets-thrice": _case(SmallSetsThrice, 3.0),
    "seeded-by-size": _case(SeededBySize),
    "drawn-until-useful": _case(DrawnUntilUseful, None),
}
