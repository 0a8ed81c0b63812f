"""Data, mechanisms and proxies whose laws are known exactly, for audits whose right verdict is known.

Each mechanism gives away exactly what it claims, and all of it to the game's usual attack: an honest one is as near to
a violation as it can be.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from scipy.special import expit, softmax

from dpaudit.claims import Claim, Relation
from dpaudit.mechanisms.compute import Compute
from dpaudit.mechanisms.examples import Examples, Features
from dpaudit.mechanisms.labels.randomized_response import RandomizedResponse
from dpaudit.mechanisms.protocols import Model

Floats = NDArray[np.float64]
Predictor = Callable[[Examples], Floats]


@dataclass(frozen=True)
class Records:
    """Two normal features and an attribute that the first one tells something of; the second one decides the label.

    Attributes:
        rows: How many.
        spread: Of the features; 1 is the truth, others are fresh points that are off.
        learned_from: Rows of the truth that mean and spread are estimated on, as a fitted generator does; 0 takes the
            exact ones.
    """

    rows: int = 1
    spread: float = 1.0
    learned_from: int = 0

    def load(self, *, seed: int = 0) -> Examples:
        """The records."""
        return self.sample(self.rows, np.random.default_rng(seed))

    def sample(self, count: int, rng: np.random.Generator) -> Examples:
        """That many independent records."""
        center, spread = np.zeros(2), np.full(2, self.spread)
        if self.learned_from:
            sample = rng.standard_normal((self.learned_from, 2))
            center, spread = sample.mean(axis=0), sample.std(axis=0)
        features = center + spread * rng.standard_normal((count, 2))
        attribute = rng.random(count) < expit(2 * features[:, 0])
        labels = (features[:, 1] > 0).astype(np.int64)
        return Examples(np.column_stack([features, attribute]).astype(np.float32), labels, 2, "records")

    def posterior(self, features: Features) -> Floats:
        """Of a table without the attribute the law of the attribute; else some doubt about the label."""
        if isinstance(features, pa.Table):
            positive = expit(2 * np.asarray(features["0"], np.float64))
        else:
            positive = expit(np.clip(features[:, 1].astype(np.float64), -1, 1))
        return np.column_stack([1 - positive, positive])


@dataclass(frozen=True)
class Powered:
    """A proxy whose log-probabilities are those of the truth times a factor; 1 is the truth, which nobody knows.

    Attributes:
        power: The factor.
    """

    power: float = 1.0

    def predictor(
        self, *, reference: Examples | None, data: Any, seed: np.random.SeedSequence, compute: Compute
    ) -> Predictor:
        """Asks the data set, which knows its law."""

        def predict(examples: Examples) -> Floats:
            sharp: Floats = data.posterior(examples.features) ** self.power
            return sharp / sharp.sum(axis=1, keepdims=True)

        return predict


@dataclass(frozen=True, eq=False)
class Recalled:
    """A model that answers training rows as it learned them, and others by a rule.

    Attributes:
        rows: Each training row's `row_keys`, ascending, shape (n,).
        learned: What it learned of each, shape (n, ...).
        answer: From features, which of them are known (m,), and what was learned of those, to probabilities.
    """

    rows: NDArray[np.uint64]
    learned: NDArray[Any]
    answer: Callable[[NDArray[np.float32], NDArray[np.bool_], NDArray[Any]], Floats]

    @classmethod
    def by_heart(cls, train: Examples, learned: NDArray[Any], answer: Any) -> Recalled:
        """Of training rows in any order."""
        keys = row_keys(train.features)
        order = np.argsort(keys)
        return cls(keys[order], learned[order], answer)

    def probabilities(self, features: Features) -> Floats:
        """Class probabilities, shape (n, classes)."""
        assert isinstance(features, np.ndarray)
        keys = row_keys(features)
        place = np.searchsorted(self.rows, keys).clip(max=len(self.rows) - 1)
        learned_rows = self.rows[place] == keys
        return self.answer(features, learned_rows, self.learned[place[learned_rows]])


def row_keys(features: Features) -> NDArray[np.uint64]:
    """64 bits of each row: its first two features, which are drawn from densities."""
    pairs = np.ascontiguousarray(np.asarray(features)[:, :2], dtype=np.float32)
    return pairs.view(np.uint64)[:, 0]


class ExactLearner(ABC):
    """A learner whose law is known; where it is trained, and what it is validated on, change nothing."""

    def fit(
        self, train: Examples, *, seed: np.random.SeedSequence, compute: Compute, validation: Examples | None = None
    ) -> Model:
        """What it learns."""
        return self.learn(train, seed)

    @abstractmethod
    def learn(self, train: Examples, seed: np.random.SeedSequence) -> Model:
        """The model of these examples."""


@dataclass(frozen=True)
class Remembers(ExactLearner):
    """Answers with all that follows from features and labels after randomised response; rows of a Gaussian mixture.

    Attributes:
        epsilon: What it spends on each label.
    """

    epsilon: float = 1.0

    def claim(self) -> Claim:
        """What it spends."""
        return Claim(self.epsilon, relation=Relation.LABEL)

    def learn(self, train: Examples, seed: np.random.SeedSequence) -> Model:
        """Releases the labels and keeps what they say."""
        mechanism, classes = RandomizedResponse(self.epsilon), train.classes
        released = mechanism.release(train.labels, classes=classes, rng=np.random.default_rng(seed))
        likelihood = mechanism.transition(classes)[:, released].T

        def answer(features: NDArray[np.float32], learned_rows: NDArray[np.bool_], learned: Floats) -> Floats:
            truth: Floats = softmax(features[:, :classes].astype(np.float64), axis=1)
            truth[learned_rows] *= learned
            return truth / truth.sum(axis=1, keepdims=True)

        return Recalled.by_heart(train, likelihood, answer)


@dataclass(frozen=True)
class KeepsAttribute(ExactLearner):
    """Keeps each record's attribute (column 2) after randomised response, and fits records that have it so much better.

    Attributes:
        epsilon: What it spends on each attribute.
    """

    epsilon: float = 1.0

    def claim(self) -> Claim:
        """What it spends on the attribute; nothing else of a record is at stake in the game."""
        return Claim(self.epsilon, relation=Relation.REPLACE)

    def learn(self, train: Examples, seed: np.random.SeedSequence) -> Model:
        """Releases the attributes; the label, which is public, is kept as it is."""
        sensitive = np.asarray(train.features)[:, 2] > 0.5
        released = sensitive ^ (np.random.default_rng(seed).random(len(train)) >= expit(self.epsilon))

        def answer(
            features: NDArray[np.float32], learned_rows: NDArray[np.bool_], learned: NDArray[np.int64]
        ) -> Floats:
            fits = np.full(len(features), 0.5)
            fits[learned_rows] = expit(
                np.where((features[learned_rows, 2] > 0.5) == learned[:, 1], self.epsilon, -self.epsilon)
            )
            label = np.zeros(len(features), np.int64)
            label[learned_rows] = learned[:, 0]
            return np.where(np.arange(2) == label[:, None], fits[:, None], 1 - fits[:, None])

        return Recalled.by_heart(train, np.column_stack([train.labels, released]), answer)


@dataclass(frozen=True)
class Recognises(ExactLearner):
    """Is sure of the label of a row it recognises: each of its own with odds e^epsilon, others with e^-epsilon.

    Whoever sees one row and must say whether it was trained on has the odds e^epsilon at most, and reaches them.

    Attributes:
        epsilon: What it gives away of a shown row.
        relation: What the game shows it under.
    """

    epsilon: float = 1.0
    relation: Relation = Relation.ADD_REMOVE

    def claim(self) -> Claim:
        """What it gives away."""
        return Claim(self.epsilon, relation=self.relation)

    def learn(self, train: Examples, seed: np.random.SeedSequence) -> Model:
        """Keeps the rows; asked about some points, it errs about each by a coin of its place among them."""

        def answer(features: NDArray[np.float32], learned_rows: NDArray[np.bool_], _: NDArray[Any]) -> Floats:
            errs = np.random.default_rng(seed).random(len(features)) >= expit(self.epsilon)
            sure = np.where(learned_rows ^ errs, 0.99, 0.01)  # the proxies are less sure than either
            label = features[:, 1] > 0
            return np.where(np.arange(2) == label[:, None], sure[:, None], 1 - sure[:, None])

        return Recalled.by_heart(train, np.zeros((len(train), 0)), answer)


@dataclass(frozen=True)
class NoisyCount(ExactLearner):
    """Releases how many examples have label 0 with noise: Laplace (exactly epsilon) or normal (exactly mu).

    Attributes:
        epsilon: Of the Laplace noise; or
        mu: Of normal noise, taken where it is above 0.
    """

    epsilon: float = 1.0
    mu: float = 0.0

    def claim(self) -> Claim:
        """Of the Laplace noise; whoever asks for normal noise claims its curve."""
        return Claim(self.epsilon, relation=Relation.ADD_REMOVE)

    def learn(self, train: Examples, seed: np.random.SeedSequence) -> Model:
        """One number."""
        rng = np.random.default_rng(seed)
        noise = rng.normal(0, 1 / self.mu) if self.mu else rng.laplace(0, 1 / self.epsilon)
        return Counted(float(np.count_nonzero(train.labels == 0) + noise) / 10)


@dataclass(frozen=True)
class Counted:
    """Its confidence in label 0 grows with the released number.

    Attributes:
        number: In tens.
    """

    number: float

    def probabilities(self, features: Features) -> Floats:
        """Class probabilities, shape (n, 2)."""
        positive = expit(-self.number)
        return np.tile([1 - positive, positive], (len(features), 1))


@dataclass(frozen=True)
class Opposites:
    """Rows of label 0 and 1 in turn.

    Attributes:
        rows: How many.
    """

    rows: int

    def load(self, *, seed: int = 0) -> Examples:
        """The same whatever the seed."""
        places = np.arange(self.rows)
        return Examples(places[:, None].astype(np.float32), places % 2, 2, "opposites")


@dataclass(frozen=True)
class Drifting:
    """Rows in the order of time, with a spell of noisy labels.

    Attributes:
        rows: How many.
    """

    rows: int

    def load(self, *, seed: int = 0) -> Examples:
        """Labels that a line decides, but for two fifths of those between 0.4 and 0.7 of the time."""
        rng = np.random.default_rng(seed)
        features = rng.standard_normal((self.rows, 2)).astype(np.float32)
        time = np.arange(self.rows) / self.rows
        noisy = (rng.random(self.rows) < 0.4) & (time > 0.4) & (time < 0.7)
        labels = (features[:, 0] > 0).astype(np.int64)
        return Examples(features, np.where(noisy, 1 - labels, labels), 2, "drifting")


@dataclass(frozen=True)
class Blank:
    """A model that was not made from data: it thinks that attributes (the last column) are what the proxy doubts.

    Where a proxy is too sure of itself, that alone tells its draws from true ones.
    """

    def probabilities(self, features: Features) -> Floats:
        """Class probabilities, shape (n, 2)."""
        assert isinstance(features, np.ndarray)
        fits = np.where((features[:, -1] > 0.5) == (features[:, 0] > 0), 0.2, 0.8)
        label = features[:, 1] > 0
        return np.where(np.arange(2) == label[:, None], fits[:, None], 1 - fits[:, None])


@dataclass(frozen=True)
class Forgets(ExactLearner):
    """A learner that looks at nothing, so its true epsilon is 0 under any relation.

    Attributes:
        relation: Of its claim of 0.1.
        model: What it releases whatever the data are.
    """

    relation: Relation
    model: Model = Blank()

    def claim(self) -> Claim:
        """More than it spends."""
        return Claim(0.1, relation=self.relation)

    def learn(self, train: Examples, seed: np.random.SeedSequence) -> Model:
        """Looks at nothing."""
        return self.model
