"""Membership in one run: by leaving canaries out of the training data, or by showing fresh points instead of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpaudit.engine.games.one_run import Artifacts, Hint, OneRunGame, Stage
from dpaudit.mechanisms.claim import Relation
from dpaudit.mechanisms.examples import Examples
from dpaudit.registry import register


@register("game", "membership", source="Steinke et al. (2023), arXiv:2305.08846; arXiv:2511.14084, section 4")
@dataclass(frozen=True)
class Membership(OneRunGame):
    """Interventional: each canary is trained on with probability 1/2; one training a replay.

    Attributes:
        replays: How often the game is played; each replay trains anew, so 1 is the default.
        canaries: How many of the target rows are canaries; None takes all.
    """

    replays: int = 1

    @property
    def relation(self) -> Relation:
        """One record is present or absent."""
        return Relation.ADD_REMOVE

    def artifacts(self, stage: Stage, rng: np.random.Generator) -> Artifacts:
        """A fair bit for each canary; True = trained on."""
        return Artifacts(rng.random(len(stage.canaries)) < 0.5)

    def intervene(self, train: Examples, artifacts: Artifacts) -> Examples:
        """The training data without the canaries whose bit is False."""
        kept = np.ones(len(train), np.bool_)
        kept[: len(artifacts.bits)] = artifacts.bits
        return train.take(kept)

    def hint(self, stage: Stage, artifacts: Artifacts) -> Hint:
        """All canaries with their labels."""
        return Hint(np.arange(len(stage.canaries)), stage.canaries.labels)


@register("game", "observational-membership", source="Ye et al. (2022), arXiv:2111.09679; arXiv:2511.14084, section 4")
@dataclass(frozen=True)
class ObservationalMembership(OneRunGame):
    """Observational: shows each training point or a fresh point of the test part in its place; training untouched.

    Attributes:
        replays: How often bits are drawn for one trained model, >= 1.
        canaries: How many of the target rows are canaries; None takes all.
    """

    @property
    def relation(self) -> Relation:
        """One record is replaced by a fresh one."""
        return Relation.REPLACE

    def needs_fresh_points(self) -> bool:
        """One for each canary."""
        return True

    def artifacts(self, stage: Stage, rng: np.random.Generator) -> Artifacts:
        """A fair bit for each canary; True shows the training point."""
        return Artifacts(rng.random(len(stage.canaries)) < 0.5)

    def intervene(self, train: Examples, artifacts: Artifacts) -> Examples:
        """The training data as they are."""
        return train

    def hint(self, stage: Stage, artifacts: Artifacts) -> Hint:
        """The canary where the bit is True, else the fresh point, each with its own label."""
        count = len(stage.canaries)
        points = np.where(artifacts.bits, np.arange(count), count + np.arange(count))
        return Hint(points, np.where(artifacts.bits, stage.canaries.labels, stage.fresh.labels))
