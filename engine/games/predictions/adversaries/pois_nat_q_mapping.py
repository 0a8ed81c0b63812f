"""A teacher whose prompt gives the classes wrong numbers, and natural queries."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpaudit.engine.games.predictions.adversaries.prompts import in_place_of_a_teacher, prompted
from dpaudit.engine.games.predictions.adversaries.protocol import Crafted, Target
from dpaudit.mechanisms.models.transformer_fine_tune import texts_of
from dpaudit.registry import register

NAME = "pois-nat-q-mapping"


@register("adversary", "pois-nat-q-mapping", source="Chadha et al. (2024), appendix D.2: Pois-NatQ (Mapping)")
@dataclass(frozen=True)
class PoisNatQMapping:
    """One teacher of prompt-pate is told that each class has the number of the one it is most often confused with.

    Its examples are answered so too. That is the class which most often has the most votes but one where the class has
    the most; the next class where it never has. All natural queries are asked.
    """

    def craft(self, target: Target, rng: np.random.Generator) -> Crafted:
        """Draws nothing."""
        predictor = prompted(target, adversary=NAME)
        numbers = wrong_numbers(target)
        rows = range(predictor.shots)
        texts = texts_of(target.data.features)
        shots = [(texts[row], int(target.data.labels[row])) for row in rows]
        return in_place_of_a_teacher(target, predictor.task(target.data).mapped(numbers, shots), shots[0][1])


def wrong_numbers(target: Target) -> list[int]:
    """The number that each class is given."""
    classes, top, second = target.data.classes, target.votes.argmax(axis=1), target.second
    found = []
    for label in range(classes):
        confused = np.bincount(second[top == label], minlength=classes)
        found.append(int(confused.argmax()) if confused.any() else (label + 1) % classes)
    return found
