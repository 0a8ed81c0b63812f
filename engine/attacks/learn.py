"""Learn a score from runs whose coin is known: `learn(features, coins, way)`.

A way says which runs may be learned from without cost to a bound. They share no coin with the runs that are scored:

* `HeldOut`: search runs. The likeliest classifier on held-out search runs learns again from all of them.
* `Shadow`: runs of other models, whose coins the attacker drew.
* `Folds`: replays with other coins of the same rows. The model that scores a row learned from other rows only.
* Predictable: coins that are revealed one by one, each after its guess (`guess_order.py`).
* A law that is stated: a classifier that learns no more than its scale (`classifiers.calibrated`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dpaudit.engine.attacks.classifiers import MIN_PROBABILITY, Flags, Floats, Odds, standardised

Ints = NDArray[np.int64]

MAX_UNSELECTED_WIDTH = 200
"""Largest width of features that are used without a selection of columns, with any number of runs."""
BLOCK_COLUMNS = 4_096
"""Number of columns of long features that are processed together."""
MAX_SELECTED = 64
"""Largest number of selected columns; one for 16 runs, but at least `MIN_SELECTED`."""
MIN_SELECTED = 8
MAX_LEARNED = 50_000
"""Largest number of rows that a regression learns from; more hardly change its coefficients."""


@dataclass(frozen=True, eq=False)
class Runs:
    """Runs whose coins are known.

    Attributes:
        features: Features of each run, shape (m, d); float32 if they are long.
        coins: True for world 1, shape (m,).
    """

    features: NDArray[Any]
    coins: Flags

    @cached_property
    def _selecting(self) -> Flags:
        """Mask of runs that select columns of long features: every second one of each world; none if not needed."""
        selecting = np.zeros(len(self.coins), np.bool_)
        of_world = [np.flatnonzero(self.coins == world) for world in (False, True)]
        if min(map(len, of_world)) > 1 and self.features.shape[1] > max(MAX_UNSELECTED_WIDTH, len(self.coins) // 2):
            for rows in of_world:
                selecting[rows[::2]] = True
        return selecting

    @cached_property
    def narrow(self) -> Callable[[NDArray[Any]], Floats]:
        """Function that narrows long features to a few columns.

        They are the columns with the largest difference of means over standard deviation, and the sum of all columns
        weighted by difference over variance (the Fisher direction of independent numbers).
        """
        if not self._selecting.any():
            return lambda short: np.asarray(short, np.float64)
        rows_one, rows_zero = (np.flatnonzero(self._selecting & (self.coins == world)) for world in (True, False))
        difference, variance = np.empty((2, self.features.shape[1]))
        blocks = [slice(first, first + BLOCK_COLUMNS) for first in range(0, self.features.shape[1], BLOCK_COLUMNS)]
        for block in blocks:
            block_one, block_zero = (self.features[rows, block].astype(np.float64) for rows in (rows_one, rows_zero))
            difference[block] = block_one.mean(0) - block_zero.mean(0)
            variance[block] = (block_one.var(0) * len(rows_one) + block_zero.var(0) * len(rows_zero)) / (
                len(rows_one) + len(rows_zero)
            )
        # Constant numbers that differ between the worlds reveal the world.
        variance = np.maximum(variance, MIN_PROBABILITY * np.maximum(difference**2, np.finfo(np.float64).tiny))
        weights = difference / variance
        count = min(MAX_SELECTED, max(MIN_SELECTED, len(self.coins) // 16))
        selected = np.argsort(-(difference**2) / variance, kind="stable")[:count]
        return lambda long: np.column_stack(
            [long[:, selected], sum(long[:, block] @ weights[block] for block in blocks)]
        )

    @cached_property
    def short(self) -> tuple[Floats, Flags]:
        """Narrowed features and coins of the runs that did not select their columns."""
        return self.narrow(self.features)[~self._selecting], self.coins[~self._selecting]


Classifier = Callable[[Runs], Odds]
"""Function that learns log-odds of world 1 from runs."""


class Way(Protocol):
    """A valid way to learn log-odds from runs whose coins are known."""

    def learned(self, runs: Runs) -> Odds:
        """Return a function from features, shape (n, d), to log-odds of world 1 in nats, shape (n,)."""
        ...


def learn(features: NDArray[Any], coins: Flags, way: Way) -> Odds:
    """Return a function from features, shape (n, d), to log-odds of world 1 in nats, shape (n,).

    Args:
        features: Features of runs, shape (m, d).
        coins: Their worlds, shape (m,).
        way: A way that is valid for these runs.
    """
    return way.learned(Runs(features, coins))


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Choose the classifier with the largest likelihood on held-out runs; it then learns from all runs.

    Attributes:
        classifiers: The candidates. A later one is preferred if its loss is smaller by the share `gain`.
        learning, held_out: Positions of the runs from which candidates learn, and of those that judge them.
        gain: Decrease of the loss that a later candidate needs, as a share of it.
    """

    classifiers: Sequence[Classifier]
    learning: Ints
    held_out: Ints
    gain: float = 0.0

    def learned(self, runs: Runs) -> Odds:
        return self.classifiers[self.best(runs)](runs)

    def best(self, runs: Runs) -> int:
        """Return the position of the chosen candidate."""
        best = 0
        if len(self.classifiers) > 1:
            losses = self.losses(runs)
            for place, loss in enumerate(losses):
                if loss < (1 - self.gain) * losses[best]:
                    best = place
        return best

    def losses(self, runs: Runs) -> list[float]:
        """Return the mean negative log-likelihood of held-out coins by each candidate, in nats.

        It is inf if one world is missing among the runs to learn from or those held out.
        """
        if any(len(np.unique(runs.coins[part])) < 2 for part in (self.learning, self.held_out)):
            return [math.inf] * len(self.classifiers)
        learning = self.runs_to_learn(runs)
        odds = (self.held_out_odds(classifier, learning, runs) for classifier in self.classifiers)
        return [float(np.logaddexp(0, -each).mean()) for each in odds]

    def runs_to_learn(self, runs: Runs) -> Runs:
        return Runs(runs.features[self.learning], runs.coins[self.learning])

    def held_out_odds(self, classifier: Classifier, learning: Runs, runs: Runs) -> Floats:
        """Return the log-odds of the true coins of held-out runs."""
        odds = classifier(learning)(runs.features[self.held_out])
        return np.where(runs.coins[self.held_out], odds, -odds)


@dataclass(frozen=True, eq=False)
class Shadow:
    """Learn a logistic regression from runs of models that are not audited; log-odds are 0 if all coins agree."""

    rng: np.random.Generator  # chooses at most `MAX_LEARNED` rows

    def learned(self, runs: Runs) -> Odds:
        if runs.coins.all() or not runs.coins.any():
            return lambda features: np.zeros(len(features))
        rows = self.rng.permutation(runs.coins.size)[:MAX_LEARNED]
        return standardised(runs.features[rows], runs.coins[rows])


@dataclass(frozen=True, eq=False)
class Folds:
    """Learn a logistic regression for each fold of rows, from replays of the rows of the other folds.

    The runs are those of all replays, one after another. Log-odds are those of the rows of one replay; they are 0 for
    a fold whose regression has coins of a single world.

    Attributes:
        fold: Fold of each row of a replay, shape (rows,).
        rng: Chooses at most `MAX_LEARNED` runs for each fold.
    """

    fold: Ints
    rng: np.random.Generator

    def learned(self, runs: Runs) -> Odds:
        of_run = np.tile(self.fold, len(runs.coins) // len(self.fold))
        order, models = self.rng.permutation(runs.coins.size), dict[int, Odds]()
        for part in range(int(self.fold.max()) + 1):
            rows = order[of_run[order] != part][:MAX_LEARNED]
            if runs.coins[rows].any() and not runs.coins[rows].all():
                models[part] = standardised(runs.features[rows], runs.coins[rows])

        def odds(features: Floats) -> Floats:
            values = np.zeros(len(features))
            for part, model in models.items():
                rows = self.fold == part
                if rows.any():
                    values[rows] = model(features[rows])
            return values

        return odds
