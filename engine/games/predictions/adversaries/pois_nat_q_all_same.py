"""A teacher whose prompt orders one answer whatever is asked, and natural queries."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpaudit.engine.games.predictions.adversaries.prompts import in_place_of_a_teacher, prompted
from dpaudit.engine.games.predictions.adversaries.protocol import Crafted, Target
from dpaudit.errors import require
from dpaudit.mechanisms.language_models.prompts import Teacher
from dpaudit.registry import register

NAME = "pois-nat-q-all-same"


@register("adversary", "pois-nat-q-all-same", source="Chadha et al. (2024), appendix D.2: Pois-NatQ (All same)")
@dataclass(frozen=True)
class PoisNatQAllSame:
    """One teacher of prompt-pate is told to answer the same whatever it is asked; all natural queries are asked.

    Attributes:
        answer: The class it is told to answer, >= 0; the paper's is 1.
    """

    answer: int = 1

    def __post_init__(self) -> None:
        require(self.answer >= 0, "answer must be >= 0", answer=self.answer)

    def craft(self, target: Target, rng: np.random.Generator) -> Crafted:
        """Draws nothing."""
        prompted(target, adversary=NAME)
        require(self.answer < target.data.classes, "answer must be one of the classes", answer=self.answer)
        return in_place_of_a_teacher(target, Teacher.all_same(self.answer), self.answer)
