"""Adversaries of prompted teachers, which write the prompt of one teacher."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from dpaudit.engine.games.predictions.adversaries import Crafted, Target
from dpaudit.errors import require
from dpaudit.mechanisms.models.pretrained import texts_of
from dpaudit.mechanisms.predictors.language_model import Teacher
from dpaudit.mechanisms.predictors.prompt_pate import PromptPate
from dpaudit.registry import register


def in_place_of_a_teacher(target: Target, teacher: Teacher, label: int) -> Crafted:
    """Return a pair with the adversary's teacher as the added record, and all natural queries."""
    assert isinstance(target.data.features, pa.Table)
    features = pa.table([pa.array([teacher.as_record()])], schema=target.data.features.schema)
    return Crafted.of_one(target, target.data.with_(features=features, labels=np.array([label])))


@register("adversary", "pois-nat-q-all-same", source="Chadha et al. (2024), appendix D.2: Pois-NatQ (All same)")
@dataclass(frozen=True)
class PoisNatQAllSame:
    """Instructs one teacher of prompt-pate to give the same answer to all queries; asks all natural queries.

    Attributes:
        answer: Class that the teacher answers, >= 0; 1 in the paper.
    """

    answer: int = 1

    def __post_init__(self) -> None:
        require(self.answer >= 0, "answer must be >= 0", answer=self.answer)

    def craft(self, target: Target, rng: np.random.Generator) -> Crafted:
        target.required(PromptPate, adversary="pois-nat-q-all-same")
        require(self.answer < target.data.classes, "answer must be one of the classes", answer=self.answer)
        return in_place_of_a_teacher(target, Teacher.all_same(self.answer), self.answer)


@register("adversary", "pois-nat-q-mapping", source="Chadha et al. (2024), appendix D.2: Pois-NatQ (Mapping)")
@dataclass(frozen=True)
class PoisNatQMapping:
    """Instructs one teacher of prompt-pate to answer the class that is most often confused with the true one.

    That class most often has the second most votes if the true one has the most; if there is no such query, it is the
    next class. The teacher's examples have such answers too. All natural queries are asked.
    """

    def craft(self, target: Target, rng: np.random.Generator) -> Crafted:
        predictor = target.required(PromptPate, adversary="pois-nat-q-mapping")
        numbers = wrong_numbers(target)
        rows = range(predictor.shots)
        texts = texts_of(target.data.features)
        shots = [(texts[row], int(target.data.labels[row])) for row in rows]
        return in_place_of_a_teacher(target, predictor.task(target.data).mapped(numbers, shots), shots[0][1])


def wrong_numbers(target: Target) -> list[int]:
    """Return the wrong answer for each class."""
    classes, top, second = target.data.classes, target.votes.argmax(axis=1), target.second
    numbers = []
    for label in range(classes):
        confused = np.bincount(second[top == label], minlength=classes)
        numbers.append(int(confused.argmax()) if confused.any() else (label + 1) % classes)
    return numbers
