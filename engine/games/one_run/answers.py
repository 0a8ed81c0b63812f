"""Answers of the audited mechanism about the points of a one-run game."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dpaudit.engine.games.protocol import LossView

SMALLEST_PROBABILITY = 1e-30
"""Probabilities are clipped here before a logarithm is taken."""
SMALLEST_SHARE = 1e-9
"""Probabilities in the columns of a control are clipped here."""
MAX_CLASSES = 20
"""Largest number of classes with a column for each class."""


@dataclass(frozen=True, eq=False)
class CanaryView(LossView):
    """The attacker's view of m canaries: outputs on the shown points, without the secret bits."""

    # class probabilities of the audited mechanism, shape (m, classes); in the attribute game, its probability of the
    # record's label for each value of the attribute, shape (m, values)
    target: NDArray[np.float32]
    # probabilities of the reference model M' for the secret label or attribute, same shape
    reference: NDArray[np.float32]
    labels: NDArray[np.int64]  # shown labels (in the attribute game, shown values), shape (m,)
    shows: ClassVar[str] = "a model's answers on the canaries of one training"

    @property
    def log_probability(self) -> NDArray[np.float64]:
        """Log-probability of the shown label, relative to the median canary, so that its sign is a guess; in nats."""
        of_labels = log_probability_of(self.labels, self.target)
        return np.asarray(of_labels - np.median(of_labels))

    def of_labels(self, answers: NDArray[Any]) -> NDArray[np.float64]:
        """Return what answers, shape (m, classes), say of the shown labels, shape (m,)."""
        return answers[np.arange(len(self.labels)), self.labels].astype(np.float64)

    def columns(self) -> list[NDArray[np.float64]]:
        """Return features of each shown value from both models, for a control that learns, each of shape (m,).

        They include sums of powers of probabilities: for a proxy whose log-probabilities are wrong by a factor, the
        log-ratio to the truth is c log q(v) + log sum_y q(y)^(1 + c).
        """
        columns, rows = [], np.arange(len(self.labels))
        for probabilities in (self.reference, self.target):
            total = np.maximum(probabilities.sum(axis=1, keepdims=True, dtype=np.float64), SMALLEST_SHARE)
            p = np.maximum(probabilities / total, SMALLEST_SHARE)
            log_shown = np.log(self.of_labels(p))
            columns += [
                np.log(np.maximum(probabilities[rows, self.labels], SMALLEST_SHARE)),
                log_shown,
                log_shown**2,
                self.of_labels(p),
                np.log(p).max(axis=1),
                -(p * np.log(p)).sum(axis=1),
                np.log(np.sqrt(p).sum(axis=1)),
                np.log((p**2).sum(axis=1)),
            ]
            if p.shape[1] <= MAX_CLASSES:
                columns += list(p.T)
        classes = self.reference.shape[1]
        if classes <= MAX_CLASSES:
            columns += [(self.labels == value).astype(np.float64) for value in range(classes)]
        return columns


def log_probability_of(labels: NDArray[np.int64], answers: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the log-probability of each label, in nats; answers have the shape (m, classes), the result (m,)."""
    probability = answers[np.arange(len(labels)), labels].astype(np.float64)
    return np.asarray(np.log(np.maximum(probability, SMALLEST_PROBABILITY)))


@dataclass(frozen=True, eq=False)
class ShadowAnswers:
    """Answers of shadow models. The attacker trained each on the canaries that separate fair coins selected."""

    answers: NDArray[np.float32]  # class probabilities at each canary, shape (shadows, m, classes)
    member: NDArray[np.bool_]  # True if the shadow model was trained on the canary, shape (shadows, m)


@dataclass(frozen=True, eq=False)
class MembershipView(CanaryView):
    """The attacker's view of m canaries, of which fair coins selected the training rows."""

    shadows: ShadowAnswers | None = None  # None if the attack needs no shadow models


@dataclass(frozen=True, eq=False)
class Predictions:
    """Outputs of a trained model."""

    # class probabilities, or other outputs that the game requests; shape (n, classes)
    probabilities: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.probabilities)

    @classmethod
    def uninformative(cls, count: int, classes: int) -> Predictions:
        """Return the same probability for every class."""
        return cls(np.full((count, classes), 1 / classes, np.float32))

    @classmethod
    def revealing(cls, labels: NDArray[np.int64], classes: int) -> Predictions:
        return cls(np.eye(classes, dtype=np.float32)[labels])

    def at(self, points: NDArray[np.int64] | slice) -> Predictions:
        return Predictions(self.probabilities[points])

    def view(self, reference: NDArray[np.float32], labels: NDArray[np.int64]) -> CanaryView:
        return CanaryView(self.probabilities, reference, labels)


@dataclass(frozen=True, eq=False)
class LabelRelease:
    """Labels released by a label mechanism."""

    labels: NDArray[np.int64]  # one label for each of n points, in 0 .. classes - 1, shape (n,)
    classes: int  # number of classes K
    informative: bool = True  # False if all labels are a constant that says nothing

    def __len__(self) -> int:
        return len(self.labels)

    @cached_property
    def probabilities(self) -> NDArray[np.float32]:
        """Class probabilities for attacks on models: one-hot of the released label, or uniform; shape (n, classes)."""
        if not self.informative:
            return Predictions.uninformative(len(self), self.classes).probabilities
        return Predictions.revealing(self.labels, self.classes).probabilities

    @classmethod
    def uninformative(cls, count: int, classes: int) -> LabelRelease:
        """Return a constant label for every point."""
        return cls(np.zeros(count, np.int64), classes, informative=False)

    @classmethod
    def revealing(cls, labels: NDArray[np.int64], classes: int) -> LabelRelease:
        return cls(labels, classes)

    def at(self, points: NDArray[np.int64] | slice) -> LabelRelease:
        return replace(self, labels=self.labels[points])

    def view(self, reference: NDArray[np.float32], labels: NDArray[np.int64]) -> ReleaseView:
        return ReleaseView(self.probabilities, reference, labels, self)


@dataclass(frozen=True, eq=False)
class ReleaseView(CanaryView):
    """The attacker's view of m canaries of a label mechanism; `target` is one-hot of the released label."""

    release: LabelRelease  # the released labels themselves
    shows: ClassVar[str] = "the labels released by a label mechanism"
