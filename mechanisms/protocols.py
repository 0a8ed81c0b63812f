"""What the engine asks of a mechanism. Implementations are frozen dataclasses whose fields are public facts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from dpaudit.claims import Claim
from dpaudit.errors import AuditError, require
from dpaudit.mechanisms.examples import Examples, Features


class TrainingError(AuditError):
    """A training went wrong for this seed (NaN loss, a library's error, out of memory); it may be tried again."""


@dataclass(frozen=True)
class Compute:
    """What one piece of work may use.

    Attributes:
        threads: CPU threads, >= 1.
        device: A device name of torch ("cpu", "cuda:0").
        scratch: A folder of this piece's own for checkpoints of a long training; they change no result. None keeps
            none.
    """

    threads: int = 1
    device: str = "cpu"
    scratch: Path | None = None

    def __post_init__(self) -> None:
        require(self.threads >= 1, "threads must be >= 1", threads=self.threads)


@runtime_checkable
class Model(Protocol):
    """A trained classifier: all that is looked at are its probabilities."""

    def probabilities(self, features: Features) -> NDArray[np.float64]:
        """Class probabilities, shape (n, classes), rows summing to 1."""
        ...


@runtime_checkable
class Trainer(Protocol):
    """A non-private way to train a classifier (registered as "model"): CatBoost, an MLP, a CNN."""

    def fit(
        self, train: Examples, *, seed: np.random.SeedSequence, compute: Compute, validation: Examples | None = None
    ) -> Model:
        """Trains on the labels as they are given. Decided by `seed` alone, whatever else runs beside it.

        Raises: TrainingError when this seed's training failed.
        """
        ...


@runtime_checkable
class LabelMechanism(Protocol):
    """Releases one privatised label for each example (registered as "mechanism")."""

    def claim(self) -> Claim:
        """What it promises."""
        ...

    def release(self, labels: NDArray[np.int64], *, classes: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """One released label for each example, shape (n,) to (n,), drawn once."""
        ...


@runtime_checkable
class Learner(Protocol):
    """Trains a model whose training data it protects as its claim says (registered as "mechanism")."""

    def claim(self) -> Claim:
        """What it promises."""
        ...

    def fit(
        self, train: Examples, *, seed: np.random.SeedSequence, compute: Compute, validation: Examples | None = None
    ) -> Model:
        """Trains on `train`. `validation` holds examples that are nobody's secret (early stopping).

        Raises: TrainingError when this seed's training failed.
        """
        ...
