"""Proxy for the incremental setting: an earlier model of an online learner is the attacker's reference."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dpaudit.engine.games.proxies.model import Predictor
from dpaudit.errors import SpecError, require
from dpaudit.mechanisms.compute import Compute
from dpaudit.mechanisms.examples import Examples, writable_features
from dpaudit.mechanisms.learners.non_private import NonPrivate
from dpaudit.mechanisms.protocols import Learner
from dpaudit.registry import register


@register("proxy", "checkpoint", source="arXiv:2511.14084, section 5, incremental setting")
@dataclass(frozen=True)
class Checkpoint:
    """An earlier model of the learner, trained on the oldest rows, while the audit runs on newer ones.

    It is for data in order of time with `split.order: given`, where the reference part is the oldest. No additional
    model is needed. Changes since the checkpoint are a shift, which the control measures.

    Attributes:
        learner: Learner that trains the checkpoint: the audited learner of the spec with its privacy, or another one.
        share: Share of the reference part, from its start, on which the checkpoint is trained, in (0, 1].
    """

    learner: Learner = field(default=NonPrivate(), metadata={"kind": "mechanism"})
    share: float = 1.0

    def __post_init__(self) -> None:
        require(0 < self.share <= 1, "share must be in (0, 1]", share=self.share)
        require(
            hasattr(self.learner, "fit"),
            "the learner of a checkpoint must train a model",
            learner=type(self.learner).__name__,
        )

    def predictor(
        self, *, reference: Examples | None, data: Any, seed: np.random.SeedSequence, compute: Compute
    ) -> Predictor:
        """Train the checkpoint and return its predictor.

        Raises: SpecError if there are no rows to train on.
        """
        rows_seen = 0 if reference is None else round(self.share * len(reference))
        if reference is None or not rows_seen:
            raise SpecError(
                "the reference part has no rows to train a checkpoint. Give `split.reference` a larger share"
            )
        model = self.learner.fit(reference.take(np.arange(rows_seen)), seed=seed, compute=compute)
        return lambda examples: model.probabilities(writable_features(examples.features))
