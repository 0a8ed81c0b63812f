"""Tests of how the batches of a training were drawn, from the steps in which records or planted texts came.

An accountant of DP-SGD with Poisson sampling assumes that each record joins each step by a separate coin. Then the
numbers of steps of different records vary, and so do the sizes of batches. Shuffled batches, and batches of one size,
give a weaker amplification (Chua et al., 2024, arXiv:2403.17673), which no attack on the loss can show.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binomtest

DRAWS = 1_999
"""Simulated trainings of the test of the spread; its smallest p-value is 1 / (DRAWS + 1)."""
SAID_BELOW = 1e-3
"""P-value below which a deviation is reported."""
LARGEST_RATIO = 0.5
"""Spread, as a multiple of that of Poisson sampling, below which texts count as shuffled.

If a step has several batches and its end is not known, honest counts spread less than expected, but not by so much.
"""
FEWEST_EPOCHS = 0.5
"""Mean number of times of a copy below which no missing text is explained."""
FEWEST_STEPS, FEWEST_TEXTS = 10, 10
"""Steps and planted texts below which sampling is not judged."""


@dataclass(frozen=True)
class Spread:
    """Spread of the times that texts came, compared with Poisson sampling.

    Attributes:
        ratio: Chi-square statistic of the counts over its mean under Poisson sampling.
        below, above: P-values of spreads so small and so large.
        zeros: P-value of so many texts that never came.
    """

    ratio: float
    below: float
    above: float
    zeros: float


@dataclass(frozen=True, eq=False)
class BatchSampling:
    """Steps in which planted texts, or records, took part; "texts" means either.

    Attributes:
        sizes: Number of sequences with loss, or of records, in each step, shape (steps,).
        steps: Number of the step of each time that a text received loss, shape (times,).
        texts: Number of the text of each time, in [0, texts), shape (times,).
        copies: Copies of each text in the data set, shape (texts,).
        of_records: True for all records of a data set, which the sentences then name.
    """

    sizes: NDArray[np.int64]
    steps: NDArray[np.int64]
    texts: NDArray[np.int64]
    copies: NDArray[np.int64]
    of_records: bool = False

    @property
    def counts(self) -> NDArray[np.int64]:
        """Number of times that each text received loss, shape (texts,)."""
        return np.bincount(self.texts, minlength=self.copies.size).astype(np.int64)

    @property
    def is_judged(self) -> bool:
        """True if there are enough steps and texts, and each copy came at most once in each step."""
        return (
            self.sizes.size >= FEWEST_STEPS
            and self.copies.size >= FEWEST_TEXTS
            and self.texts.size > 0
            and bool((self.counts <= self.copies * self.sizes.size).all())
        )

    @cached_property
    def spread(self) -> Spread:
        """The spread of the counts, compared with independent coins of one unknown rate.

        Given the total, such counts have the multivariate hypergeometric law for every rate. So the ranks of the
        chi-square statistic and of the number of zeros among simulated ones are exact p-values.
        """
        slots = self.copies * self.sizes.size
        total = int(self.counts.sum())
        expected = total * slots / slots.sum()
        rng = np.random.default_rng([total, self.sizes.size, self.copies.size])
        simulated = rng.multivariate_hypergeometric(slots, total, DRAWS, method="marginals")
        spreads = ((simulated - expected) ** 2 / expected).sum(axis=1)
        spread = ((self.counts - expected) ** 2 / expected).sum()
        zeros = (simulated == 0).sum(axis=1)
        tolerance = 1e-9 * (1 + spread)

        def share(at_least_as_extreme: NDArray[np.bool_]) -> float:
            return float(1 + np.count_nonzero(at_least_as_extreme)) / (DRAWS + 1)

        return Spread(
            float(spread / spreads.mean()),
            share(spreads <= spread + tolerance),
            share(spreads >= spread - tolerance),
            share(zeros >= np.count_nonzero(self.counts == 0)),
        )

    def rate_p_value(self, sampling_rate: float) -> float:
        """Return the exact two-sided p-value of the total number of times at this rate of Poisson sampling."""
        trials = int(self.copies.sum()) * self.sizes.size
        return float(binomtest(int(self.counts.sum()), trials, sampling_rate).pvalue)

    @property
    def has_one_order(self) -> bool:
        """True if every text with more than one time came again after one and the same number of steps."""
        order = np.lexsort((self.steps, self.texts))
        gaps = np.diff(self.steps[order])[np.diff(self.texts[order]) == 0]
        return gaps.size >= FEWEST_TEXTS and bool((gaps == gaps[0]).all()) and int(self.copies.max()) == 1

    @cached_property
    def explains_missing_texts(self) -> bool:
        """True if Poisson sampling explains the texts that never came, and they are fewer than half.

        In less than half an epoch nothing is explained: removed duplicates would look the same.
        """
        return bool(
            self.is_judged
            and self.counts.sum() >= FEWEST_EPOCHS * self.copies.sum()
            and 2 * np.count_nonzero(self.counts < self.copies) < self.copies.size
            and not self.is_shuffled
            and min(self.spread.above, self.spread.zeros) > SAID_BELOW
        )

    @property
    def is_shuffled(self) -> bool:
        """True if the counts of the texts are far more equal than Poisson sampling makes them."""
        return self.is_judged and 2 * self.spread.below <= SAID_BELOW and self.spread.ratio < LARGEST_RATIO

    @property
    def _shuffled_as(self) -> str:
        """Words for batches in which each record comes once before any comes again."""
        varying = self.of_records and np.unique(self.sizes[:-1]).size > 2
        return (
            "Each epoch was dealt into batches of random sizes (balls and bins)" if varying else "Batches were shuffled"
        )

    def remarks(self, sampling_rate: float | None = None) -> list[str]:
        """Return sentences on what contradicts Poisson sampling, at the stated rate if there is one."""
        if not self.is_judged:
            return []
        remarks, counts, steps = [], self.counts, self.sizes.size
        kind, rows = ("record", "records") if self.of_records else ("copy of a planted text", "sequences")
        if self.is_shuffled:
            by_copy = counts / self.copies
            rate = counts.sum() / (self.copies.sum() * steps)
            usual = np.sqrt(np.mean(rate * (1 - rate) * steps / self.copies))
            times = " to ".join(f"{end:g}" for end in sorted({by_copy.min(), by_copy.max()}))
            order = ", in the same order each time" if self.has_one_order else ""
            remarks.append(
                f"not Poisson sampling (p <= {2 * self.spread.below:.1g}): each {kind} came {times} "
                f"times in {steps} steps{order}; under Poisson sampling these numbers vary by about {usual:.2g}. "
                f"{self._shuffled_as}, so an accountant that assumes Poisson sampling does not apply"
            )
        # All sizes, or both if there are two, such as that of the last batch. The most probable size of a binomial law
        # of this mean, and a rate of at most 1/2, has about this probability.
        sizes, most_probable = np.unique(self.sizes), 1 / np.sqrt(np.pi * max(self.sizes.mean(), 1.0))
        by_chance = min(1.0, sizes.size * most_probable) ** (steps - sizes.size)
        if sizes.size <= 2 and by_chance <= SAID_BELOW:
            listed = " or ".join(map(str, sizes.tolist()))
            remarks.append(
                f"not Poisson sampling: each of {steps} batches held {listed} {rows}; under Poisson sampling the "
                f"sizes vary by about {np.sqrt(self.sizes.mean()):.2g}, so an accountant that assumes it does not apply"
            )
        if sampling_rate is not None and (chance := self.rate_p_value(sampling_rate)) <= SAID_BELOW:
            expected = sampling_rate * self.copies.sum() * steps
            counted = "records" if self.of_records else "planted texts"
            remarks.append(
                f"not the stated sampling rate of {sampling_rate:g} (p = {chance:.1g}): {counted} came "
                f"{counts.sum():,} times in {steps} steps; {expected:,.0f} times are expected"
            )
        return remarks


def participation_remarks(batches: Sequence[NDArray[np.int64]], participations: int, separation: int) -> list[str]:
    """Return sentences on records that take part more often, or sooner again, than a matrix mechanism states."""
    steps, numbers = np.repeat(np.arange(len(batches)), [batch.size for batch in batches]), np.concatenate(batches)
    order = np.lexsort((steps, numbers))
    steps, numbers = steps[order], numbers[order]
    gaps = np.diff(steps)[np.diff(numbers) == 0]
    most, nearest = int(np.bincount(numbers).max(initial=0)), int(gaps.min(initial=len(batches)))
    remarks = []
    if most > participations:
        remarks.append(f"a record took part in {most} steps, and the claim is about at most {participations}")
    if nearest < separation:
        remarks.append(f"a record took part again after {nearest} steps, and the claim is about at least {separation}")
    return [f"not the stated participation: {remark}" for remark in remarks]


def repeated_in_batches(batches: Sequence[NDArray[np.int64]]) -> list[str]:
    """Return a sentence if a record, or a user who is numbered in its place, stands several times in a step."""
    most = max((int(np.bincount(batch).max(initial=0)) for batch in batches), default=0)
    sentence = f"a record stands {most} times in one step, with one clip each, and the claim is about one contribution"
    return [sentence] if most > 1 else []


def of_batches(batches: Sequence[NDArray[np.int64]], records: int) -> BatchSampling:
    """Return the sampling of all records, from the numbers of the records in each step.

    Args:
        batches: Numbers of the records of each step, each in [0, records).
        records: Number of records of the data set, >= 1.
    """
    sizes = np.array([batch.size for batch in batches], dtype=np.int64)
    steps = np.repeat(np.arange(sizes.size), sizes)
    numbers = np.concatenate([np.zeros(0, np.int64), *batches])
    return BatchSampling(sizes, steps, numbers, np.ones(records, np.int64), of_records=True)


def by_step(times: Sequence[tuple[int, int]], sizes: Sequence[int], copies: NDArray[np.int64]) -> BatchSampling:
    """Return the sampling of texts with at least one copy, from pairs of step and text.

    Args:
        times: Step and text of each time that a text received loss.
        sizes: Number of sequences with loss in each step.
        copies: Copies of each text; texts with none are left out.
    """
    pairs = np.array(times, dtype=np.int64).reshape(-1, 2)
    numbers = np.cumsum(copies > 0) - 1
    pairs = pairs[copies[pairs[:, 1]] > 0]
    return BatchSampling(np.asarray(sizes, dtype=np.int64), pairs[:, 0], numbers[pairs[:, 1]], copies[copies > 0])
