"""What adversaries of prompted teachers share: a teacher that they write, in place of one."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from dpaudit.engine.games.predictions.adversaries.protocol import Crafted, Target, required
from dpaudit.mechanisms.language_models.prompts import Teacher
from dpaudit.mechanisms.predictors.prompt_pate import PromptPate


def prompted(target: Target, *, adversary: str) -> PromptPate:
    """The predictor.

    Raises: SpecError where its voters are no prompts.
    """
    return required(target, PromptPate, adversary=adversary)


def in_place_of_a_teacher(target: Target, teacher: Teacher, label: int) -> Crafted:
    """One teacher is the adversary's, and all natural queries are asked."""
    assert isinstance(target.data.features, pa.Table)
    features = pa.table([pa.array([teacher.as_record()])], schema=target.data.features.schema)
    return Crafted.of_one(target, target.data.with_(features=features, labels=np.array([label])))
