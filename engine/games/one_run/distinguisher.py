"""A classifier that learns, without the mechanism, to tell what the proxy drew from what is true.

The attack may be blind to what is wrong with the proxy alone. The classifier sees what the attack sees, learns on some
rows with the bits of rounds of its own, and is asked about the others: no row is judged by what was learned from it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpaudit.actors.seed import Seed
from dpaudit.actors.work import unit
from dpaudit.engine.games.one_run.answers import CanaryView
from dpaudit.engine.games.one_run.game import ScoredReplay, scored_replays
from dpaudit.engine.games.one_run.rules import OneRunRules, Replayed, RowsT
from dpaudit.estimators.scores import Scores, scored

FOLDS = 5
"""Parts of the rows: each is asked about with what was learned from the others."""
MAX_LEARNED = 50_000
"""Rounds times rows that a fold learns from at most: more change the score by less than the limits are wide."""
LEARNED_ROUNDS = 8
"""Rounds a classifier learns from: fresh bits and draws on the same rows."""
MAX_CLASSES = 20
"""Classes up to which each has a column of its own."""
_SMALLEST = 1e-9

Floats = NDArray[np.float64]


class Distinguisher:
    """Logistic regressions on what the attack sees, one for each part of the rows that is left out."""

    def __init__(self, rounds: list[ScoredReplay], rng: np.random.Generator) -> None:
        """Learns from rounds on the same m rows; `rng` decides the parts."""
        from sklearn.linear_model import LogisticRegression  # slow to import
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler

        rows = len(rounds[0].bits)
        self._fold = rng.permutation(rows) % FOLDS
        columns = np.concatenate([feature_columns(played.view, played.score) for played in rounds])
        bits = np.concatenate([played.bits for played in rounds])
        fold = np.tile(self._fold, len(rounds))
        order = rng.permutation(bits.size)
        self._models: list[Any] = []
        for part in range(FOLDS):
            learned = order[fold[order] != part][:MAX_LEARNED]
            model = make_pipeline(StandardScaler(), LogisticRegression(solver="newton-cholesky"))
            both = bits[learned].any() and not bits[learned].all()
            self._models.append(model.fit(columns[learned], bits[learned]) if both else None)

    def score(self, played: ScoredReplay) -> Floats:
        """The log-odds of world 1 for each row, shape (m,); 0 where there was nothing to learn from."""
        columns = feature_columns(played.view, played.score)
        odds = np.zeros(len(columns))
        for part, model in enumerate(self._models):
            rows = self._fold == part
            if model is not None and rows.any():
                odds[rows] = model.decision_function(columns[rows])
        return odds


def feature_columns(view: CanaryView, score: Floats) -> Floats:
    """What is told of each shown value, shape (m, columns): of both models and of the attack.

    A proxy whose log-probabilities are off by a factor has the log-ratio c log q(v) + log sum_y q(y)^(1 + c) to the
    truth: such sums are among the columns.
    """
    rows = np.arange(len(view.labels))
    columns = [score]
    for probabilities in (view.reference, view.target):
        total = np.maximum(probabilities.sum(axis=1, keepdims=True, dtype=np.float64), _SMALLEST)
        p = np.maximum(probabilities / total, _SMALLEST)
        log_shown = np.log(p[rows, view.labels])
        columns += [
            np.log(np.maximum(probabilities[rows, view.labels], _SMALLEST)),
            log_shown,
            log_shown**2,
            p[rows, view.labels],
            np.log(p).max(axis=1),
            -(p * np.log(p)).sum(axis=1),
            np.log(np.sqrt(p).sum(axis=1)),
            np.log((p**2).sum(axis=1)),
        ]
        if p.shape[1] <= MAX_CLASSES:
            columns += list(p.T)
    classes = view.reference.shape[1]
    if classes <= MAX_CLASSES:
        columns += [(view.labels == value).astype(np.float64) for value in range(classes)]
    return np.column_stack(columns)


@unit
def replay_with_classifier(
    rules: OneRunRules[RowsT],
    attack: Any,
    replayed: Replayed[RowsT],
    *,
    design_seed: Seed,
    seed: Seed,
    first: int,
    last: int,
) -> Iterator[Scores]:
    """The same replays with a classifier in the attack's place, which learns from further rounds on other rows."""
    learning = seed.child("learning")
    learned = scored_replays(rules, attack, replayed, design_seed, learning, range(LEARNED_ROUNDS))
    classifier = Distinguisher([played for _, played in learned], learning.child("parts").rng())
    for replay, played in scored_replays(rules, attack, replayed, design_seed, seed, range(first, last)):
        yield scored(replay, played.bits, classifier.score(played))
