"""PromptPATE: each teacher is a prompt that shows a language model a few private records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.random import SeedSequence
from numpy.typing import NDArray

from dpaudit.claims import Claim, Relation
from dpaudit.errors import require
from dpaudit.mechanisms.compute import Compute, TrainingError
from dpaudit.mechanisms.examples import Examples, Features
from dpaudit.mechanisms.models.pretrained import texts_of
from dpaudit.mechanisms.predictors.ensemble import NoisyVotes
from dpaudit.mechanisms.predictors.language_model import UNREAD, Expected, LanguageModel, Task, Teacher, read_class
from dpaudit.mechanisms.predictors.protocol import AddedRecords
from dpaudit.mechanisms.predictors.vote_laws import KnownVotes, VoteLaw
from dpaudit.mechanisms.ranges import require_at_least
from dpaudit.registry import register

Ints = NDArray[np.int64]


@register("mechanism", "prompt-pate", source="Duan et al. (2023), arXiv:2305.15594; Chadha et al. (2024), 5.3 and D.2")
@dataclass(frozen=True, kw_only=True)
class PromptPate(NoisyVotes):
    """PromptPATE: teacher i shows a language model records i k to i k + k - 1 and has it classify the query.

    The data must be texts (`raw: true`). At temperature 0 only the noise is random. An answer that names no class is
    no vote. In neighbouring data sets one record is replaced.

    Attributes:
        model: The language model.
        teachers: Number of prompts, >= 2.
        shots: Records in each prompt, k >= 1.
        given: Description of the texts for the instruction, such as "text from film reviews by sentiment"; "" uses the
            paper's description if the data set is one of the paper's.
        names: Names of the classes; none uses the paper's names, or those of the data.
    """

    sigma: float = 20.0
    model: LanguageModel = field(metadata={"kind": "language-model"})
    teachers: int = 200
    shots: int = 1
    given: str = ""
    names: tuple[str, ...] = ()

    deterministic = True

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(2, self, "teachers")
        require_at_least(1, self, "shots")

    def claim(self) -> Claim:
        """Return the claim of one answer: replacing a record moves one vote."""
        return Claim.of(self.release().curve(), relation=Relation.REPLACE, delta=self.delta)

    def task(self, data: Examples) -> Task:
        usual = Task.of_data(data.name, data.class_names, data.classes)
        names = self.names or usual.names
        require(len(names) == data.classes, f"names must be those of the {data.classes} classes", names=len(names))
        return Task(self.given or usual.description, names)

    def prompts(self, data: Examples) -> list[Teacher]:
        """Return the teachers; records beyond the last teacher's are not used."""
        needed = self.teachers * self.shots
        require(len(data) >= needed, f"{self.teachers} teachers need {needed} records", records=len(data))
        texts = texts_of(data.features)
        task = self.task(data)
        shots = list(zip(texts, data.labels.tolist(), strict=True))
        return [task.teacher(shots[first : first + self.shots]) for first in range(0, needed, self.shots)]

    def votes(self, data: Examples, queries: Features, *, seed: SeedSequence, compute: Compute) -> Ints:
        return self._votes(data, self.prompts(data), queries)

    def votes_with_canary(
        self, canaries: AddedRecords, queries: Features, *, seed: SeedSequence, compute: Compute
    ) -> Ints:
        """Return the votes of the teacher of each point, which takes the place of that teacher's first record."""
        return self._votes(canaries.data, self.moved_prompts(canaries), queries)

    def moved_prompts(self, canaries: AddedRecords) -> list[Teacher]:
        """Return the teacher of each point."""
        task, texts, labels = self.task(canaries.data), texts_of(canaries.data.features), canaries.data.labels
        teachers = []
        shots = zip(texts_of(canaries.records.features), canaries.records.labels.tolist(), strict=True)
        for place, shot in zip(canaries.places.tolist(), shots, strict=True):
            rows = range(place * self.shots + 1, (place + 1) * self.shots)
            teachers.append(task.teacher([shot, *((texts[row], int(labels[row])) for row in rows)]))
        return teachers

    def law(self, votes: Ints, moved: Ints, labels: Ints, *, added: bool, classes: int) -> VoteLaw:
        """Return the exact law: the model gives equal prompts equal answers."""
        classes_voted = np.concatenate([moved[0], votes[0, moved.shape[1] :]]) if added else votes[0]
        return KnownVotes(np.bincount(classes_voted, minlength=classes + 1)[:classes])

    def histograms(self, votes: Ints, *, classes: int, rng: np.random.Generator) -> Ints:
        return np.stack([np.bincount(column, minlength=classes + 1)[:classes] for column in votes.T])

    def expected(self, data: Examples, queries: Features) -> Expected:
        return self.model.expected(_all(self.prompts(data), texts_of(queries)))

    def _votes(self, data: Examples, teachers: Sequence[Teacher], queries: Features) -> Ints:
        texts = texts_of(queries)
        answers = self.model.complete(_all(teachers, texts))
        missing = Counter(answer.missing for answer in answers if answer.text is None)
        if missing:
            why = ", ".join(f"{count} of {reason}" for reason, count in missing.most_common(3))
            raise TrainingError(
                f"{missing.total():,} of {len(answers):,} prompts have no answer ({why}). "
                "The other answers are stored and will not be requested again"
            )
        task = self.task(data)
        numbers = [read_class(answer.text, task.labels, task.names) for answer in answers]
        classes = [data.classes if number == UNREAD else number for number in numbers]
        return np.array(classes, np.int64).reshape(len(teachers), len(texts))


def _all(teachers: Sequence[Teacher], texts: Sequence[str]) -> list[str]:
    return [teacher.about(text) for teacher in teachers for text in texts]
