"""A classifier that learns, without the mechanism, to distinguish the proxy's draws from true values.

The attack may miss errors of the proxy. The classifier gets the same view, trains on some rows with the bits of
separate replays, and scores the other rows (cross-fitting).
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
"""Number of folds; each is scored by a model trained on the others."""
MAX_LEARNED = 50_000
"""Largest number of training rows of a fold; more change scores by less than the width of the limits."""
LEARNED_ROUNDS = 8
"""Number of replays for training: fresh bits and draws on the same rows."""
MAX_CLASSES = 20
"""Largest number of classes with a feature column for each class."""
_SMALLEST = 1e-9

Floats = NDArray[np.float64]


class Distinguisher:
    """Logistic regressions on the attacker's view, one for each left-out fold."""

    def __init__(self, rounds: list[ScoredReplay], rng: np.random.Generator) -> None:
        """Train on replays of the same m rows; `rng` assigns the folds."""
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
        """Return the log-odds of world 1 for each row, shape (m,); 0 if its fold had no training rows."""
        columns = feature_columns(played.view, played.score)
        odds = np.zeros(len(columns))
        for part, model in enumerate(self._models):
            rows = self._fold == part
            if model is not None and rows.any():
                odds[rows] = model.decision_function(columns[rows])
        return odds


def feature_columns(view: CanaryView, score: Floats) -> Floats:
    """Return features of each shown value from both models and the attack, shape (m, columns).

    They include sums of powers of probabilities: for a proxy whose log-probabilities are wrong by a factor, the
    log-ratio to the truth is c log q(v) + log sum_y q(y)^(1 + c).
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
    """Yield the scores of the same replays by a classifier that trains on further replays of other rows."""
    learning = seed.child("learning")
    learned = scored_replays(rules, attack, replayed, design_seed, learning, range(LEARNED_ROUNDS))
    classifier = Distinguisher([played for _, played in learned], learning.child("parts").rng())
    for replay, played in scored_replays(rules, attack, replayed, design_seed, seed, range(first, last)):
        yield scored(replay, played.bits, classifier.score(played))
