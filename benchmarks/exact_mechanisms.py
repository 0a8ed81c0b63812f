"""Data, mechanisms and proxies with exactly known laws, for audits whose correct verdict is known.

Each honest mechanism leaks exactly its claim, and the game's usual attack detects all of that: the mechanism is as
close to a violation as possible.
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
    """Two normal features, an attribute correlated with the first, and a label determined by the second.

    Attributes:
        rows: Number of rows.
        spread: Deviation of the features; 1 is true, other values give fresh points from a wrong law.
        learned_from: Rows to estimate mean and spread on, as a fitted generator does; 0 uses the exact values.
    """

    rows: int = 1
    spread: float = 1.0
    learned_from: int = 0

    def load(self, *, seed: int = 0) -> Examples:
        """Return the records."""
        return self.sample(self.rows, np.random.default_rng(seed))

    def sample(self, count: int, rng: np.random.Generator) -> Examples:
        """Return `count` independent records."""
        center, spread = np.zeros(2), np.full(2, self.spread)
        if self.learned_from:
            sample = rng.standard_normal((self.learned_from, 2))
            center, spread = sample.mean(axis=0), sample.std(axis=0)
        features = center + spread * rng.standard_normal((count, 2))
        attribute = rng.random(count) < expit(2 * features[:, 0])
        labels = (features[:, 1] > 0).astype(np.int64)
        return Examples(np.column_stack([features, attribute]).astype(np.float32), labels, 2, "records")

    def posterior(self, features: Features) -> Floats:
        """Return the law of the attribute for a table without it; otherwise uncertain label probabilities."""
        if isinstance(features, pa.Table):
            positive = expit(2 * np.asarray(features["0"], np.float64))
        else:
            positive = expit(np.clip(features[:, 1].astype(np.float64), -1, 1))
        return np.column_stack([1 - positive, positive])


@dataclass(frozen=True)
class Powered:
    """A proxy whose log-probabilities are the true ones times a factor; a factor of 1 is exact.

    Attributes:
        power: The factor.
    """

    power: float = 1.0

    def predictor(
        self, *, reference: Examples | None, data: Any, seed: np.random.SeedSequence, compute: Compute
    ) -> Predictor:
        """Return a predictor from the known law of the data set."""

        def predict(examples: Examples) -> Floats:
            sharp: Floats = data.posterior(examples.features) ** self.power
            return sharp / sharp.sum(axis=1, keepdims=True)

        return predict


@dataclass(frozen=True, eq=False)
class Recalled:
    """A model that recalls training rows and answers other rows by a rule.

    Attributes:
        rows: Each training row's `row_keys`, ascending, shape (n,).
        learned: Learned values of each training row, shape (n, ...).
        answer: Function from features, a mask of training rows (m,) and their learned values to probabilities.
    """

    rows: NDArray[np.uint64]
    learned: NDArray[Any]
    answer: Callable[[NDArray[np.float32], NDArray[np.bool_], NDArray[Any]], Floats]

    @classmethod
    def by_heart(cls, train: Examples, learned: NDArray[Any], answer: Any) -> Recalled:
        """Return the model of training rows in any order."""
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
    """Return a 64-bit key of each row from its first two features, which have densities and so never repeat."""
    pairs = np.ascontiguousarray(np.asarray(features)[:, :2], dtype=np.float32)
    return pairs.view(np.uint64)[:, 0]


class ExactLearner(ABC):
    """A learner with a known law, independent of devices and validation data."""

    def fit(
        self, train: Examples, *, seed: np.random.SeedSequence, compute: Compute, validation: Examples | None = None
    ) -> Model:
        """Return the model of the training data."""
        return self.learn(train, seed)

    @abstractmethod
    def learn(self, train: Examples, seed: np.random.SeedSequence) -> Model:
        """Return the model of these examples."""


@dataclass(frozen=True)
class Remembers(ExactLearner):
    """Answers with the posterior given features and labels after randomised response; rows of a Gaussian mixture.

    Attributes:
        epsilon: Epsilon spent on each label.
    """

    epsilon: float = 1.0

    def claim(self) -> Claim:
        """Return the exact claim."""
        return Claim(self.epsilon, relation=Relation.LABEL)

    def learn(self, train: Examples, seed: np.random.SeedSequence) -> Model:
        """Release the labels and store their likelihood ratios."""
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
    """Stores each record's attribute (column 2) after randomised response, and fits records with that attribute better.

    Attributes:
        epsilon: Epsilon spent on each attribute.
    """

    epsilon: float = 1.0

    def claim(self) -> Claim:
        """Return the claim for the attribute, the only secret in the game."""
        return Claim(self.epsilon, relation=Relation.REPLACE)

    def learn(self, train: Examples, seed: np.random.SeedSequence) -> Model:
        """Release the attributes; the public label is stored unchanged."""
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
    """Is confident of the label of recognised rows: training rows with odds e^epsilon, others with e^-epsilon.

    An attacker who guesses the membership of one row has odds of at most e^epsilon, and reaches them.

    Attributes:
        epsilon: Leak about a queried row.
        relation: The game's neighbouring relation.
    """

    epsilon: float = 1.0
    relation: Relation = Relation.ADD_REMOVE

    def claim(self) -> Claim:
        """Return the claim, equal to the leak."""
        return Claim(self.epsilon, relation=self.relation)

    def learn(self, train: Examples, seed: np.random.SeedSequence) -> Model:
        """Store the rows; answers err by independent coins for each position in a query."""

        def answer(features: NDArray[np.float32], learned_rows: NDArray[np.bool_], _: NDArray[Any]) -> Floats:
            errs = np.random.default_rng(seed).random(len(features)) >= expit(self.epsilon)
            sure = np.where(learned_rows ^ errs, 0.99, 0.01)  # the proxies are less sure than either
            label = features[:, 1] > 0
            return np.where(np.arange(2) == label[:, None], sure[:, None], 1 - sure[:, None])

        return Recalled.by_heart(train, np.zeros((len(train), 0)), answer)


@dataclass(frozen=True)
class NoisyCount(ExactLearner):
    """Releases the number of examples with label 0 plus noise: Laplace (exactly epsilon) or normal (exactly mu).

    Attributes:
        epsilon: Epsilon of the Laplace noise, used if mu is 0.
        mu: Parameter of the normal noise, used if above 0.
    """

    epsilon: float = 1.0
    mu: float = 0.0

    def claim(self) -> Claim:
        """Return the claim of the Laplace noise; audits with normal noise state its curve."""
        return Claim(self.epsilon, relation=Relation.ADD_REMOVE)

    def learn(self, train: Examples, seed: np.random.SeedSequence) -> Model:
        """Return a model of the noisy count."""
        rng = np.random.default_rng(seed)
        noise = rng.normal(0, 1 / self.mu) if self.mu else rng.laplace(0, 1 / self.epsilon)
        return Counted(float(np.count_nonzero(train.labels == 0) + noise) / 10)


@dataclass(frozen=True)
class Counted:
    """A model whose confidence in label 0 grows with the released number.

    Attributes:
        number: The released number in tens.
    """

    number: float

    def probabilities(self, features: Features) -> Floats:
        """Class probabilities, shape (n, 2)."""
        positive = expit(-self.number)
        return np.tile([1 - positive, positive], (len(features), 1))


@dataclass(frozen=True)
class Opposites:
    """Rows with alternating labels 0 and 1.

    Attributes:
        rows: Number of rows.
    """

    rows: int

    def load(self, *, seed: int = 0) -> Examples:
        """Return the rows, which do not depend on the seed."""
        places = np.arange(self.rows)
        return Examples(places[:, None].astype(np.float32), places % 2, 2, "opposites")


@dataclass(frozen=True)
class Drifting:
    """Rows in order of time, with a period of noisy labels.

    Attributes:
        rows: Number of rows.
    """

    rows: int

    def load(self, *, seed: int = 0) -> Examples:
        """Return rows with labels decided by a line, except two fifths of those between 0.4 and 0.7 of the time."""
        rng = np.random.default_rng(seed)
        features = rng.standard_normal((self.rows, 2)).astype(np.float32)
        time = np.arange(self.rows) / self.rows
        noisy = (rng.random(self.rows) < 0.4) & (time > 0.4) & (time < 0.7)
        labels = (features[:, 0] > 0).astype(np.int64)
        return Examples(features, np.where(noisy, 1 - labels, labels), 2, "drifting")


@dataclass(frozen=True)
class Blank:
    """A model independent of the data, confident in the attributes (last column) that the proxy finds unlikely.

    With an overconfident proxy, this alone distinguishes its draws from true attributes.
    """

    def probabilities(self, features: Features) -> Floats:
        """Class probabilities, shape (n, 2)."""
        assert isinstance(features, np.ndarray)
        fits = np.where((features[:, -1] > 0.5) == (features[:, 0] > 0), 0.2, 0.8)
        label = features[:, 1] > 0
        return np.where(np.arange(2) == label[:, None], fits[:, None], 1 - fits[:, None])


@dataclass(frozen=True)
class Forgets(ExactLearner):
    """A learner that ignores its data, so its true epsilon is 0 under any relation.

    Attributes:
        relation: Relation of its claim of 0.1.
        model: The constant release.
    """

    relation: Relation
    model: Model = Blank()

    def claim(self) -> Claim:
        """Return a claim above the true epsilon."""
        return Claim(0.1, relation=self.relation)

    def learn(self, train: Examples, seed: np.random.SeedSequence) -> Model:
        """Return the constant release."""
        return self.model
