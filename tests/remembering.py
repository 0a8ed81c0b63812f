"""Mechanisms that carry something from one call to the next, or only look as if: each claims epsilon 1."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpaudit.claims import Claim, Relation

Ints = NDArray[np.int64]


def answered(labels: Ints, classes: int, rng: Any) -> Ints:
    """Randomised response at epsilon 1."""
    keep = math.e / (math.e + classes - 1)
    other = (labels + rng.integers(1, classes, labels.size)) % classes
    return np.asarray(np.where(rng.random(labels.size) < keep, labels, other))


@dataclass(frozen=True)
class Fresh:
    """Honest, and remembers nothing."""

    def claim(self) -> Claim:
        return Claim(1.0, relation=Relation.LABEL)

    def release(self, labels: Ints, *, classes: int, rng: np.random.Generator) -> Ints:
        return answered(labels, classes, rng)


@functools.cache
def _memoised(labels: tuple[int, ...], classes: int) -> tuple[int, ...]:
    return tuple(answered(np.array(labels), classes, np.random.default_rng()).tolist())


class Memoised(Fresh):
    """Honest by itself; the same labels get the same release again."""

    def release(self, labels: Ints, *, classes: int, rng: np.random.Generator) -> Ints:
        return np.array(_memoised(tuple(labels.tolist()), classes))


_NOISE: dict[int, Ints] = {}


class KeptNoise(Fresh):
    """Honest by itself; the noise of so many labels is drawn once in a process."""

    def release(self, labels: Ints, *, classes: int, rng: np.random.Generator) -> Ints:
        if labels.size not in _NOISE:
            _NOISE[labels.size] = answered(np.zeros(labels.size, np.int64), classes, np.random.default_rng())
        return (labels + _NOISE[labels.size]) % classes


class Seeded(Fresh):
    """A defect: the seed is in the code."""

    def release(self, labels: Ints, *, classes: int, rng: np.random.Generator) -> Ints:
        return answered(labels, classes, np.random.default_rng(3))


class SeedsTheGlobalGenerator(Fresh):
    """A defect: the global generator is seeded in each call."""

    def release(self, labels: Ints, *, classes: int, rng: np.random.Generator) -> Ints:
        np.random.seed(0)
        return answered(labels, classes, np.random.default_rng(np.random.randint(2**31)))


class Bare(Fresh):
    """A defect: no noise."""

    def release(self, labels: Ints, *, classes: int, rng: np.random.Generator) -> Ints:
        return labels


class Mostly(Fresh):
    """A defect: one label in 10,000 is another, so that equal releases come by chance."""

    def release(self, labels: Ints, *, classes: int, rng: np.random.Generator) -> Ints:
        return np.where(rng.random(labels.size) < 1e-4, (labels + 1) % classes, labels)


class Failing(Fresh):
    """Raises, always the same."""

    def release(self, labels: Ints, *, classes: int, rng: np.random.Generator) -> Ints:
        raise ValueError("no")


class HalfRemembered(Fresh):
    """Honest by itself; gives one of two releases again."""

    def release(self, labels: Ints, *, classes: int, rng: np.random.Generator) -> Ints:
        return np.array(_memoised((*labels.tolist(), int(rng.integers(2))), classes)[:-1])
