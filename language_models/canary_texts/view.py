"""The attacker's view of canary texts, attacks on it, and how several attacks become one order of guesses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from dpaudit.engine.attacks.guess_order import order_of_attacks
from dpaudit.errors import InputError, require
from dpaudit.estimators.arguments import Floats
from dpaudit.estimators.one_run.right_guesses import largest_gap
from dpaudit.estimators.scores import SharedOrders
from dpaudit.language_models.canary_texts.canaries import Canaries
from dpaudit.language_models.mechanisms.fine_tuning.update_products import UpdateProducts
from dpaudit.language_models.mechanisms.token_statistics import TokenStatistics


@dataclass(frozen=True, eq=False)
class TextView:
    """Numbers of a training about all texts, planted or not. Coins act on them through the training alone.

    Attributes:
        trained: Log-probabilities of the secrets under the audited model.
        base: The same under the model before training; None if it is not known.
        reference: The same under another model that never saw the canaries; None if there is none.
        update: Gradients of the texts, compared with the change of the weights; None if no attack needs them.
    """

    shows: ClassVar[str] = "log-probabilities of secrets in texts"

    trained: TokenStatistics
    base: TokenStatistics | None = None
    reference: TokenStatistics | None = None
    update: UpdateProducts | None = None

    def __post_init__(self) -> None:
        shapes = {values.log_probability.shape for values in self.models.values()}
        require(len(shapes) == 1, "the log-probabilities of all models must be those of the same texts", shapes=shapes)
        require(
            self.update is None or self.update.product.size == len(self.trained),
            "products with the change must be those of the same texts",
        )

    @property
    def models(self) -> dict[str, TokenStatistics]:
        """Statistics by the names of the models that are known."""
        models = {name: getattr(self, name) for name in ("trained", "base", "reference")}
        return {name: values for name, values in models.items() if values is not None}

    @property
    def available(self) -> frozenset[str]:
        """Names of the attributes that are not None."""
        return frozenset(field.name for field in fields(self) if getattr(self, field.name) is not None)


class TextAttack(Protocol):
    """A membership attack on canary texts, registered as "text-attack". It is deterministic and sees no coin.

    Attributes:
        needs: Attributes of the view that the attack reads: "base", "reference", "update".
        needs_moments: True if it reads mean and deviation of the audited model.
    """

    needs: ClassVar[tuple[str, ...]] = ()
    needs_moments: ClassVar[bool] = False

    def score(self, view: TextView) -> Floats:
        """Return one finite score for each text, shape (texts,); larger = more likely trained on."""
        ...


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


def distances(score: Floats, centre: float) -> Floats:
    """Return scores minus a centre in half-widths of their bulk, clipped, shape as `score`."""
    low, _, high = np.quantile(score, BULK)
    with np.errstate(over="ignore"):  # of a bulk of equal scores; such distances are clipped
        return np.asarray(
            np.clip((score - centre) / max((high - low) / 2, np.finfo(np.float64).tiny), -LARGEST, LARGEST)
        )


def order_of_all(scores: Mapping[str, Floats], coins: NDArray[np.bool_]) -> SharedOrders:
    """Return the orders of all attacks, which share the error: one that is learned, and one of each attack alone.

    Each attack has two experts: one centred at its median, and one at the largest gap near the middle rank if that is
    clear, in whose order it also guesses alone. The first attack leads until coins say otherwise, or the one with the
    largest gap if there are clear ones; that follows from scores alone. Texts have few attacks, so that the learned
    order need not see coins in advance to tell good ones from bad ones.
    """
    gaps = {name: largest_gap(score) for name, score in scores.items()}
    centres = [gaps[name][0] if gaps[name][1] else float(np.median(score)) for name, score in scores.items()]
    at_gaps = [distances(score, centre) for score, centre in zip(scores.values(), centres, strict=True)]
    widths = [np.abs(each).min() if gaps[name][1] else 0.0 for name, each in zip(scores, at_gaps, strict=True)]
    leader = int(np.argmax(widths))
    at_gaps[0], at_gaps[leader] = at_gaps[leader], at_gaps[0]
    at_medians = [distances(score, float(np.median(score))) for score in scores.values()]
    opinions, count = np.column_stack([*at_gaps, *at_medians]), len(scores)
    features = np.concatenate([opinions[:, count:], np.ones((coins.size, 1))], axis=1)  # with an intercept
    at_median = range(count, 2 * count)
    return order_of_attacks(opinions, at_median, features, coins, alone=range(count), revealed=0.0)
