"""A classifier that learns, without the mechanism, to distinguish the proxy's draws from true values.

The attack may miss errors of the proxy. The classifier gets the same view, trains on some rows with the bits of
separate replays, and scores the other rows (cross-fitting).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpaudit.actors.seed import Seed
from dpaudit.actors.work import unit
from dpaudit.engine.attacks.learn import Folds, learn
from dpaudit.engine.games.coins import Coins, Replayed, RowsT, ScoredReplay, scored_replays
from dpaudit.engine.games.one_run.answers import CanaryView
from dpaudit.estimators.scores import Scores, scored

FOLDS = 5
"""Number of folds; each is scored by a model trained on the others."""
LEARNED_ROUNDS = 8
"""Number of replays for training: fresh bits and draws on the same rows."""
MAX_CLASSES = 20
"""Largest number of classes with a feature column for each class."""
_SMALLEST = 1e-9

Floats = NDArray[np.float64]


def learned_by_folds(rounds: Sequence[ScoredReplay], rng: np.random.Generator) -> Callable[[ScoredReplay], Floats]:
    """Learn from replays of the same m rows; return the log-odds of world 1 of the rows of another replay, shape (m,).

    `rng` assigns the folds. Log-odds are 0 if a fold had no training rows.
    """
    fold = rng.permutation(len(rounds[0].bits)) % FOLDS
    columns = np.concatenate([feature_columns(played.view, played.score) for played in rounds])
    odds = learn(columns, np.concatenate([played.bits for played in rounds]), Folds(fold, rng))
    return lambda played: odds(feature_columns(played.view, played.score))


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
    game: Coins[RowsT],
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
    learned = scored_replays(game, attack, replayed, design_seed, learning, range(LEARNED_ROUNDS))
    odds = learned_by_folds([played for _, played in learned], learning.child("parts").rng())
    for replay, played in scored_replays(game, attack, replayed, design_seed, seed, range(first, last)):
        yield scored(replay, played.bits, odds(played))
