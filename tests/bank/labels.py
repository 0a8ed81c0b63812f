"""Label mechanisms: each defect changes one aspect of randomised response; all claim epsilon 1.

A mechanism is a function of the labels y, the number of classes k and a generator.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any
from zlib import crc32

import numpy as np

from dpaudit import Claim
from dpaudit.mechanisms.labels.randomized_response import OneHotLaplace, RRWithPrior, rr_with_prior
from tests.bank import Case


def keep(k, epsilon=1.0):
    """Return the probability that randomised response keeps a label."""
    return math.exp(epsilon) / (math.exp(epsilon) + k - 1)


def noisy(y, k, rng, epsilon=1.0):
    """Return randomised responses as a developer draws them."""
    flip = rng.random(len(y)) >= keep(k, epsilon)
    return np.where(flip, (y + rng.integers(1, k, len(y))) % k, y)


@dataclass(frozen=True)
class Released:
    """Mechanism that releases what a function returns; randomised response, which is honest, by default."""

    released: Callable[..., Any] = noisy

    def claim(self) -> Claim:
        return Claim(1.0)

    def release(self, labels: Any, *, classes: int, rng: np.random.Generator) -> Any:
        return self.released(labels, classes, rng)


def raises(is_raised: Callable[..., Any], message: str, error: type[Exception] = ValueError) -> Callable[..., Any]:
    """Return randomised response that raises an error where a function of labels, classes and generator is true."""

    def release(y, k, rng):
        if is_raised(y, k, rng):
            raise error(message)
        return noisy(y, k, rng)

    return release


def bare(chosen: Callable[..., Any]) -> Callable[..., Any]:
    """Return randomised response whose rows that a function of the labels chooses get no noise."""

    def release(y, k, rng):
        released, rows = noisy(y, k, rng), chosen(y)
        released[rows] = y[rows]
        return released

    return release


def drawn_from(generator: Callable[..., Any]) -> Callable[..., Any]:
    """Return randomised response drawn from the generator that a function of labels and generator returns."""
    return lambda y, k, rng: noisy(y, k, generator(y, rng))


# Leaks through failures, types and shapes.


def nan_for_last(y, k, rng):
    released = noisy(y, k, rng).astype(float)
    released[y == k - 1] = np.nan
    return released


def one_too_large(y, k, rng):
    """Labels of the last class become a class that does not exist."""
    flip = rng.random(len(y)) >= keep(k)
    return np.where(flip, y + rng.integers(1, 2, len(y)), y)


# Leaks in some rows and classes.


def of_share(y, k):
    """Return the share of each row's class."""
    return (np.bincount(y, minlength=k) / len(y))[y]


def rare_thrice(y, k, rng):
    """Classes with less than 2 % of the rows get three times epsilon, to survive the noise."""
    return np.where(of_share(y, k) < 0.02, noisy(y, k, rng, 3.0), noisy(y, k, rng))


def among_present(y, k, rng):
    """The other label is drawn from the labels in the data."""
    return np.where(rng.random(len(y)) < keep(k), y, rng.choice(np.unique(y), len(y)))


def paired_classes(y, k, rng):
    """Labels 2c and 2c + 1 only change into each other."""
    flip = rng.random(len(y)) < 1 / (1 + math.e)
    return np.where(flip & (y < k // 2 * 2), y ^ 1, y)


# Shared noise, or noise derived from secrets.


def seeded_by_index(y, k, rng):
    return np.concatenate([noisy(y[[row]], k, np.random.default_rng(row)) for row in range(len(y))])


def seeded_by_label(y, k, rng):
    return np.concatenate([noisy(y[[row]], k, np.random.default_rng(label)) for row, label in enumerate(y)])


def noise_of_one_batch(y, k, rng):
    """The noise of 256 rows repeats for later rows."""
    return (y + np.resize(noisy(np.zeros(256, np.int64), k, rng), len(y))) % k


def runs_kept(y, k, rng):
    """A label equal to the previous one is released unchanged."""
    return np.where(np.concatenate([[False], y[1:] == y[:-1]]), y, noisy(y, k, rng))


def duplicates_kept(y, k, rng):
    """Only the first row of each label receives noise."""
    released, first = y.copy(), np.unique(y, return_index=True)[1]
    released[first] = noisy(y[first], k, rng)
    return released


def copies_the_first(y, k, rng):
    """The last row's release is a second release of the first row."""
    released = noisy(y, k, rng)
    released[-1] = noisy(y[:1], k, rng)[0]
    return released


# Statistics of the labels leak.


def most_frequent_told(y, k, rng):
    """The first row reveals the most frequent label."""
    released = noisy(y, k, rng)
    released[0] = np.bincount(y).argmax()
    return released


def parity_told(y, k, rng):
    """A checksum in the last row."""
    released = noisy(y, k, rng)
    released[-1] = y.sum() % k
    return released


def counts_kept(y, k, rng):
    """Released labels are changed until their counts equal the true counts."""
    order = np.argsort(noisy(y, k, rng) + rng.random(len(y)), kind="stable")
    released = np.empty_like(y)
    released[order] = np.sort(y)
    return released


def prior_of_same_labels(y, k, rng):
    """LP-2ST with a prior estimated on the labels that it is applied to."""
    return rr_with_prior(y, np.tile(np.bincount(y, minlength=k) / len(y), (len(y), 1)), 1.0, rng)


# Too little noise.


def wrong_k(y, k, rng):
    flip = rng.random(len(y)) >= keep(2)
    return np.where(flip, (y + rng.integers(1, k, len(y))) % k, y)


def best_of_two_rounds(y, k, rng):
    """Two rounds with the full epsilon; rows without agreement release the true label."""
    first, second = (noisy(y, k, rng) for _ in range(2))
    return np.where(first == second, first, y)


def three_rounds_vote(y, k, rng):
    """Each of three rounds spends epsilon; the median label is released."""
    return np.median([noisy(y, k, rng) for _ in range(3)], axis=0).astype(np.int64)


class HalfNoiseOneHot(OneHotLaplace):
    """Smoothed one-hot labels with half of the noise."""

    def scale(self) -> float:
        return 0.5 / self.epsilon


def gaussian_scores(y, k, rng):
    """Gaussian noise with the Laplace scale on one-hot labels."""
    return (np.eye(k)[y] + rng.normal(0, 0.5, (len(y), k))).argmax(axis=1)


_ANSWERS: dict[bytes, Any] = {}


def remembered(y, k, rng):
    """Equal labels get equal releases: one call does not leak, but the code keeps state between calls."""
    return _ANSWERS.setdefault(y.tobytes(), noisy(y, k, rng))


# Honest mechanisms.


def odd_at_random(y, k, rng):
    """Random types, lengths and invalid values, independent of the labels."""
    released = noisy(y, k, rng)
    types = [released, released, released, released.astype(np.int8), released.astype(float)]
    odd = [*types, released[1:], released - 1, released + 0.5]
    return odd[rng.integers(len(odd))]


def slow(y, k, rng):
    time.sleep(0.001)
    return noisy(y, k, rng)


def mixture(y, k, rng):
    """Uniform with some probability, else the label."""
    is_kept = rng.random(len(y)) < math.expm1(1.0) / (math.expm1(1.0) + k)
    return np.where(is_kept, y, rng.integers(0, k, len(y)))


def exponential(y, k, rng):
    """The exponential mechanism by Gumbel noise."""
    return (np.eye(k)[y] + rng.gumbel(size=(len(y), k))).argmax(axis=1)


# Defects written after the games, without tuning the games on them.


def rounded_up(y, k, rng):
    """The probability of keeping is rounded up to tenths."""
    other = (y + rng.integers(1, k, len(y))) % k
    return np.where(rng.random(len(y)) < math.ceil(10 * keep(k)) / 10, y, other)


def as_many_of_each_class(y, k, rng):
    """The number of changed labels in each class is exactly the expected number."""
    released = y.copy()
    for label in range(k):
        rows = rng.permutation(np.flatnonzero(y == label))
        changed = rows[: round(len(rows) * (k - 1) / (math.e + k - 1))]
        released[changed] = (label + rng.integers(1, k, len(changed))) % k
    return released


def by_own_frequencies(y, k, rng):
    """A changed label is drawn from the labels in the data."""
    flip = rng.random(len(y)) >= keep(k)
    return np.where(flip, rng.choice(y, len(y)), y)


def twice_for_zero(y, k, rng):
    """Class 0 is more important and gets twice epsilon."""
    usual, twice = noisy(y, k, rng), noisy(y, k, rng, 2.0)
    return np.where(y == 0, twice, usual)


def groups_then_classes(y, k, rng):
    """Epsilon is spent on the half of the classes, and again within the half."""
    half = -(-k // 2)
    return np.minimum(noisy(y // half, 2, rng) * half + noisy(y % half, half, rng), k - 1)


def own_label_among_the_others(y, k, rng):
    """A changed label is drawn from all classes, including the true one."""
    flip = rng.random(len(y)) >= keep(k)
    return np.where(flip, rng.integers(0, k, len(y)), y)


def ordered_classes(y, k, rng):
    """Classes are numbers with a sensitivity of 1: rounded Laplace noise, clipped at the ends."""
    return np.clip(np.rint(y + rng.laplace(0, 1, len(y))), 0, k - 1).astype(np.int64)


def drawn_until_useful(y, k, rng):
    """Repeated until 30 % of the labels are unchanged, at most a hundred times."""
    for _ in range(100):
        released = noisy(y, k, rng)
        if (released == y).mean() >= 0.3:
            break
    return released


def _case(
    defect: Callable[..., Any], true: float | None = math.inf, twin: Callable[..., Any] | None = None, missed: str = ""
) -> Case:
    return Case(partial(Released, defect), twin and partial(Released, twin), true=true, missed=missed)


BANK: dict[str, Case] = {
    "raises-at-first-zero": _case(
        raises(lambda y, k, rng: y[0] == 0, "the first label is not there"),
        twin=raises(lambda y, k, rng: rng.random() < 0.1, "the disk is busy", OSError),
    ),
    "raises-at-any-zero": _case(raises(lambda y, k, rng: not y.all(), "labels start at 1"), twin=odd_at_random),
    "raises-without-every-class": _case(
        raises(lambda y, k, rng: len(y) >= k and len(np.unique(y)) < k, "a class is empty"),
        twin=raises(lambda y, k, rng: len(y) < 10, "at least 10 rows"),
    ),
    "raises-at-singletons": _case(
        raises(lambda y, k, rng: (np.bincount(y) == 1).any(), "the least populated class has only 1 member")
    ),
    "type-by-largest": _case(lambda y, k, rng: noisy(y, k, rng).astype(np.int8 if y.max() < k - 1 else np.int64)),
    "minus-one-for-unsure": _case(
        lambda y, k, rng: np.where((y == k - 1) & (rng.random(len(y)) < 0.3), -1, noisy(y, k, rng))
    ),
    "nan-for-last": _case(nan_for_last),
    "drops-rows": _case(lambda y, k, rng: noisy(y[y > 0], k, rng)),
    "deduplicated": _case(lambda y, k, rng: noisy(np.unique(y), k, rng)),
    "one-too-large": _case(one_too_large),
    "twice-above-5000": _case(lambda y, k, rng: noisy(y, k, rng, 2.0 if len(y) > 5_000 else 1.0), 2.0, noisy),
    "thrice-above-1000": _case(
        lambda y, k, rng: noisy(y, k, rng, 3.0 if len(y) > 1_000 else 1.0),
        3.0,
        twin=lambda y, k, rng: noisy(y, k, rng, 1.0 if len(y) <= 64 else 0.5),
    ),
    "tail-after-4096": _case(lambda y, k, rng: np.concatenate([noisy(y[:4096], k, rng), y[4096:]])),
    "every-97th-bare": _case(bare(lambda y: slice(96, None, 97))),
    "every-250th-bare": _case(bare(lambda y: slice(249, None, 250))),
    "five-places-bare": _case(bare(lambda y: [place for place in (137, 411, 580, 777, 1021) if place < len(y)])),
    "last-row-bare": _case(bare(lambda y: -1), twin=lambda y, k, rng: np.sort(noisy(y, k, rng))),
    "last-batch-bare": _case(bare(lambda y: slice(len(y) // 64 * 64, None))),
    "half-of-rows": _case(bare(lambda y: slice(1, None, 2))),
    "rare-left-alone": _case(lambda y, k, rng: np.where(of_share(y, k) < 0.01, y, noisy(y, k, rng))),
    "rare-thrice": _case(rare_thrice, 3.0),
    "majority-bare": _case(bare(lambda y: y == np.bincount(y).argmax())),
    "last-class-kept": _case(lambda y, k, rng: np.where(y == k - 1, y, noisy(y, k, rng))),
    "among-present": _case(among_present),
    "paired-classes": _case(paired_classes),
    "next-class": _case(lambda y, k, rng: np.where(rng.random(len(y)) < keep(k), y, (y + 1) % k)),
    "seeded-by-index": _case(seeded_by_index),
    "seeded-by-label": _case(seeded_by_label),
    "seeded-by-data": _case(drawn_from(lambda y, rng: np.random.default_rng(crc32(y.tobytes())))),
    "seeded-by-sum": _case(drawn_from(lambda y, rng: np.random.default_rng(int(y.sum())))),
    "one-of-16-seeds": _case(drawn_from(lambda y, rng: np.random.default_rng(int(rng.integers(16))))),
    "one-draw-a-label": _case(lambda y, k, rng: noisy(np.arange(k), k, rng)[y], twin=slow),
    "noise-of-one-batch": _case(noise_of_one_batch),
    "runs-kept": _case(runs_kept),
    "duplicates-kept": _case(duplicates_kept),
    "copies-the-first": _case(copies_the_first, 2.0),
    "most-frequent-told": _case(most_frequent_told, twin=lambda y, k, rng: np.zeros_like(y)),
    "parity-told": _case(parity_told, twin=lambda y, k, rng: rng.integers(0, k, len(y))),
    "off-when-zero-is-there": _case(lambda y, k, rng: noisy(y, k, rng, 8.0 if (y == 0).any() else 1.0)),
    "sorted-labels": _case(lambda y, k, rng: noisy(np.sort(y), k, rng), 9.0),
    "counts-kept": _case(counts_kept),
    "prior-of-same-labels": Case(
        partial(Released, prior_of_same_labels), lambda: RRWithPrior(1.0, (0.4, 0.2) + (0.05,) * 8)
    ),
    "wrong-k": _case(wrong_k, 1 + math.log(9), twin=mixture),
    "best-of-two-rounds": _case(best_of_two_rounds, None),
    "three-rounds-vote": _case(three_rounds_vote, None),
    "half-noise-one-hot": Case(lambda: HalfNoiseOneHot(1.0), lambda: OneHotLaplace(1.0)),
    "gaussian-scores": _case(gaussian_scores, None, twin=exponential),
    "truth-at-one-percent": _case(
        lambda y, k, rng: np.where(rng.random(len(y)) < 0.01, y, noisy(y, k, rng)),
        math.log1p(0.01 * (math.e + 9) / (0.99 * math.e)) + 1,
    ),
    "bare-release-at-one-percent": _case(lambda y, k, rng: y if rng.random() < 0.01 else noisy(y, k, rng)),
    "remembered": _case(
        remembered, 1.0, missed="no leak of one call: epsilon is what it claims; memory between calls is another game's"
    ),
    "rounded-up": _case(rounded_up, math.log(0.3 * 9 / 0.7)),
    "as-many-of-each-class": _case(as_many_of_each_class),
    "by-own-frequencies": _case(by_own_frequencies),
    "twice-for-zero": _case(twice_for_zero, 2.0),
    "groups-then-classes": _case(groups_then_classes, None),
    "own-label-among-the-others": _case(own_label_among_the_others, math.log1p(10 * math.e / 9)),
    "ordered-classes": _case(ordered_classes, 9.0),
    "small-sets-thrice": _case(lambda y, k, rng: noisy(y, k, rng, 3.0 if len(y) < 50 else 1.0), 3.0),
    "seeded-by-size": _case(drawn_from(lambda y, rng: np.random.default_rng(len(y)))),
    "drawn-until-useful": _case(drawn_until_useful, None),
}
