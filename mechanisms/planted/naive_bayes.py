"""Defects on purpose in naive Bayes: an audit that does not find them is not looking."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpaudit.mechanisms.learners.gaussian_naive_bayes import ClassSums, GaussianNaiveBayes, NoisySums
from dpaudit.registry import register


@register("mechanism", "planted-naive-bayes-exposed-size", source="planted defect, as in diffprivlib 0.6.6")
@dataclass(frozen=True)
class NaiveBayesExposedSize(GaussianNaiveBayes):
    """DEFECT ON PURPOSE: noisy counts are moved until they sum to the number of records, which they thereby tell."""

    def noisy(self, sums: ClassSums, classes: int, trainings: int, rng: np.random.Generator) -> NoisySums:
        """The largest count takes what is missing, as long as 1 is left to it, then the next."""
        released = super().noisy(sums, classes, trainings, rng)
        count, every = released.count.copy(), np.arange(trainings)
        for _ in range(classes):
            largest = count.argmax(1)
            moved = count[every, largest] + sums.count.sum() - count.sum(1)
            count[every, largest] = np.maximum(moved, 1.0)
        return NoisySums(count, released.mean, released.variance)
