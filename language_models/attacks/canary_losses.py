"""The attack of the game `text-canaries`: which attacks on texts give the order of guesses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from dpaudit.errors import require
from dpaudit.estimators.arguments import Floats
from dpaudit.language_models.canary_texts.view import TextAttack, TextView
from dpaudit.registry import load, register

LEARNED = "learned"
"""Order of guesses that combines several attacks."""


@register("attack", "canary-losses", source="the text attacks that it names")
@dataclass(frozen=True)
class CanaryLosses:
    """Guesses canaries in the order of one attack on texts, or in an order learned from several.

    Attributes:
        order: Name of the attack whose scores order the guesses (`dpaudit list text-attacks`); or "learned", which
            combines `attacks` as the coins revealed so far suggest. Choose it before you see results.
        attacks: Names of the attacks that the learned order combines; it begins with the order of the first one.
    """

    view: ClassVar[type[TextView]] = TextView

    order: str = "calibrated-loss"
    attacks: tuple[str, ...] = ("calibrated-loss", "loss-difference", "min-k-plus-plus", "largest-token")

    def __post_init__(self) -> None:
        require(len(self.attacks) > 0, "attacks must name at least one attack")
        for name in (*self.attacks, *([] if self.is_learned else [self.order])):
            load("text-attack", name)

    @property
    def is_learned(self) -> bool:
        """True if the order combines several attacks."""
        return self.order == LEARNED

    @property
    def parts(self) -> Mapping[str, TextAttack]:
        """Attacks whose scores are needed, by name."""
        return {name: load("text-attack", name)() for name in (self.attacks if self.is_learned else [self.order])}

    @property
    def reads_update(self) -> bool:
        """True if an attack reads gradients of the texts and the change of the weights."""
        return any("update" in part.needs for part in self.parts.values())

    def score(self, view: TextView) -> Floats:
        """Return the scores of all texts by the first attack, shape (texts,)."""
        return next(iter(self.parts.values())).score(view)
