"""Scores of canaries from attacks, and how several attacks become one order of guesses."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from dpaudit.engine.attacks.guess_order import learned_order, signed_tail_rank
from dpaudit.errors import InputError, require
from dpaudit.estimators.arguments import Floats
from dpaudit.estimators.scores import Scores
from dpaudit.language_models.canary_texts.canaries import Canaries
from dpaudit.language_models.canary_texts.view import TextAttack, TextView

BULK = (0.2, 0.5, 0.8)
"""Quantiles of the scores: the ends of the bulk and its middle."""
LARGEST = 30.0
"""Largest distance from the median that counts, in half-widths of the bulk."""


def attack_scores(canaries: Canaries, view: TextView, attacks: Mapping[str, TextAttack]) -> dict[str, Floats]:
    """Return the scores of all canaries by each attack that has what it needs, shape (canaries,).

    The score of a user with several texts is the mean over the texts.

    Raises: InputError if no attack has what it needs.
    """
    owner = np.array([canary for canary, _ in canaries.all_texts])
    texts = np.bincount(owner)
    scores = {}
    for name, attack in attacks.items():
        if set(attack.needs) <= view.available and (view.trained.has_moments or not attack.needs_moments):
            by_text = attack.score(view)
            require(bool(np.isfinite(by_text).all()), f"the scores of the attack {name} must be finite")
            scores[name] = np.bincount(owner, weights=by_text) / texts
    if not scores:
        raise InputError(
            f"none of the attacks {', '.join(attacks)} has what it needs: give the base model, or a model that returns "
            "log-probabilities of the whole vocabulary"
        )
    return scores


def centred(score: Floats) -> Floats:
    """Return scores minus their median, in half-widths of their bulk, shape as `score`."""
    low, middle, high = np.quantile(score, BULK)
    with np.errstate(over="ignore"):  # of a bulk of equal scores; such distances are limited later
        return np.asarray((score - middle) / max((high - low) / 2, np.finfo(np.float64).tiny))


def order_of_all(scores: Mapping[str, Floats], coins: NDArray[np.bool_]) -> Scores:
    """Return signed scores of the learned order of all attacks; the first attack leads until coins say otherwise."""
    distances = np.column_stack([np.clip(centred(score), -LARGEST, LARGEST) for score in scores.values()])
    together = distances.sum(axis=1, keepdims=True)
    intercept = np.ones((coins.size, 1))
    experts = signed_tail_rank(np.concatenate([distances, together], axis=1))
    return learned_order(experts, np.concatenate([distances, intercept], axis=1), coins)
