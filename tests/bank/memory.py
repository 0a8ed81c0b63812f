"""Code that keeps state between calls: some of it is private for one release, some only appears to be."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpaudit import Claim, Relation, Verdict, from_predictor, from_summary
from tests.bank import Case
from tests.bank.predictors import KeptNoise, Memoised

RECORDS = Claim(1.0, relation=Relation.REPLACE)


def answered(labels: Any, classes: int, rng: Any) -> Any:
    """Return randomised responses at epsilon 1."""
    other = (labels + rng.integers(1, classes, labels.size)) % classes
    return np.where(rng.random(labels.size) < math.e / (math.e + classes - 1), labels, other)


@dataclass(frozen=True)
class Response:
    """Honest."""

    def claim(self) -> Claim:
        return Claim(1.0, relation=Relation.LABEL)

    def release(self, labels: Any, *, classes: int, rng: Any) -> Any:
        return answered(labels, classes, rng)


@functools.cache
def _response(labels: tuple[int, ...], classes: int) -> Any:
    return answered(np.array(labels), classes, np.random.default_rng())


class MemoisedResponse(Response):
    """Memoised by the labels."""

    def release(self, labels: Any, *, classes: int, rng: Any) -> Any:
        return _response(tuple(labels.tolist()), classes)


_KEPT: dict[Any, Any] = {}


class KeptByDigest(Response):
    """Memoised in a dictionary of the module, by the bytes of the labels."""

    def release(self, labels: Any, *, classes: int, rng: Any) -> Any:
        return _KEPT.setdefault(labels.tobytes(), answered(labels, classes, np.random.default_rng()))


class KeptNoiseOfLabels(Response):
    """The noise is drawn once for each number of labels."""

    def release(self, labels: Any, *, classes: int, rng: Any) -> Any:
        zeros = np.zeros(labels.size, np.int64)
        offsets = _KEPT.setdefault((labels.size, classes), answered(zeros, classes, np.random.default_rng()))
        return (labels + offsets) % classes


SHARED = np.random.default_rng()


class SharedGenerator(Response):
    """One generator for all calls, never reset, so no noise repeats."""

    def release(self, labels: Any, *, classes: int, rng: Any) -> Any:
        return answered(labels, classes, SHARED)


class SeedsTheGenerator(Response):
    """The global generator is seeded in each call: a defect."""

    def release(self, labels: Any, *, classes: int, rng: Any) -> Any:
        np.random.seed(0)
        return answered(labels, classes, np.random.default_rng(np.random.randint(2**31)))


def mean(X: Any, y: Any, seed: int) -> Any:
    """Return the noisy mean of a coordinate in [0, 1]."""
    return X[:, 0].mean() + np.random.default_rng(seed).laplace(0, 1 / len(X), 1)


@functools.cache
def _mean(column: bytes) -> Any:
    numbers = np.frombuffer(column, np.float32)
    return numbers.mean() + np.random.default_rng().laplace(0, 1 / len(numbers), 1)


def memoised_mean(X: Any, y: Any, seed: int) -> Any:
    """Return the noisy mean, memoised by the data."""
    return _mean(np.ascontiguousarray(X[:, 0], np.float32).tobytes())


def mean_with_kept_noise(X: Any, y: Any, seed: int) -> Any:
    """Return the noisy mean, with noise that is drawn once for each number of records."""
    return X[:, 0].mean() + _KEPT.setdefault(len(X), np.random.default_rng().laplace(0, 1 / len(X), 1))


_case = functools.partial(Case, expects=Verdict.UNDECIDED)

BANK = {
    "labels": _case(MemoisedResponse, Response),
    "labels by digest": _case(KeptByDigest),
    "noise of labels": _case(KeptNoiseOfLabels),
    "one generator": Case(SharedGenerator, expects=Verdict.NO_VIOLATION),
    "global seed": Case(SeedsTheGenerator, true=math.inf),
    "mean": _case(lambda: from_summary(memoised_mean, RECORDS), lambda: from_summary(mean, RECORDS)),
    "noise of a mean": _case(lambda: from_summary(mean_with_kept_noise, RECORDS)),
    "answers": _case(lambda: from_predictor(Memoised, Claim(1.0, relation=Relation.ADD_REMOVE))),
    "noise of answers": _case(lambda: from_predictor(KeptNoise, Claim(1.0, relation=Relation.ADD_REMOVE))),
}
