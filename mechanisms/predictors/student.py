"""The student of Interactive-GNMax: what it says of a query before the teachers are asked."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from functools import lru_cache
from typing import Protocol, cast

import numpy as np
from numpy.random import SeedSequence
from numpy.typing import NDArray

from dpaudit.mechanisms.examples import Examples, Features
from dpaudit.mechanisms.protocols import Compute, Model, Trainer


class PublicData(Protocol):
    """Data that are nobody's secret; any data set."""

    def load(self, *, seed: int = 0) -> Examples:
        """The labelled records."""
        ...

    def __hash__(self) -> int: ...


def predictions(student: Trainer, public: PublicData, queries: Features, compute: Compute) -> NDArray[np.float64]:
    """Its probability of each class of each query, shape (q, K); trained once, by one seed, in each process.

    Raises: TrainingError when the training failed.
    """
    assert isinstance(student, Hashable)
    return np.asarray(_trained(student, public, replace(compute, scratch=None)).probabilities(queries), np.float64)


@lru_cache(maxsize=4)
def _trained(student: Hashable, public: PublicData, compute: Compute) -> Model:
    return cast("Trainer", student).fit(public.load(), seed=SeedSequence(0), compute=compute)
