"""The incremental setting: an earlier model of an online learner is the adversary's reference."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dpaudit.engine.games.proxies.model import Predictor
from dpaudit.errors import SpecError, require
from dpaudit.mechanisms.compute import Compute
from dpaudit.mechanisms.examples import Examples, own_features
from dpaudit.mechanisms.learners.non_private import NonPrivate
from dpaudit.mechanisms.protocols import Learner
from dpaudit.registry import register


@register("proxy", "checkpoint", source="arXiv:2511.14084, section 5, incremental setting")
@dataclass(frozen=True)
class Checkpoint:
    """An earlier model of the learner itself: trained on the oldest rows, while the audit runs on newer ones.

    For data in the order of time, with `split.order: given`: then the reference part is the oldest. No model beside
    those the learner makes anyway is needed. What has changed since the checkpoint is shift; the control shows it.

    Attributes:
        learner: What made the checkpoint: the audited learner as it is written in the spec, privacy and all, or
            another one.
        share: The checkpoint had seen this first share of the reference part, in (0, 1].
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
        """Trains the checkpoint.

        Raises: SpecError when there is no row it could have seen.
        """
        rows_seen = 0 if reference is None else round(self.share * len(reference))
        if reference is None or not rows_seen:
            raise SpecError("a checkpoint has seen the reference part; give `split.reference` a larger share")
        model = self.learner.fit(reference.take(np.arange(rows_seen)), seed=seed, compute=compute)
        return lambda examples: model.probabilities(own_features(examples.features))
