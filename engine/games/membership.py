"""Membership in one run: by leaving canaries out of the training data, or by showing fresh points instead of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dpaudit.claims import Relation
from dpaudit.engine.games.one_run import Design, Draw, Hint, OneRunGame, Stage
from dpaudit.errors import SpecError, require
from dpaudit.mechanisms.examples import Examples
from dpaudit.registry import register


@register("game", "membership", source="Steinke et al. (2023), arXiv:2305.08846; arXiv:2511.14084, section 4")
@dataclass(frozen=True)
class Membership(OneRunGame):
    """Interventional: each canary is trained on with probability 1/2; one training has one replay.

    Attributes:
        replays: 1: the bits decide the training, so new bits need a new training.
        canaries: How many of the target rows are canaries; None takes all.
        trainings: How many independent trainings, each with bits of its own, >= 1.
    """

    replays: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            self.replays == 1,
            "a training of the membership game has one replay, since its bits decide what is trained on",
            do="ask for more `trainings` instead",
            replays=self.replays,
        )

    @property
    def relation(self) -> Relation:
        """One record is present or absent."""
        return Relation.ADD_REMOVE

    @property
    def assumes(self) -> str:
        """Nothing: the challenger flips the coins."""
        return "Nothing beyond fair bits: the challenger decides by coin which canaries are trained on."

    def design(self, canaries: Examples, rng: np.random.Generator) -> Design:
        """A fair bit for each canary; True = trained on."""
        return Design(included=rng.random(len(canaries)) < 0.5)

    def draw(self, stage: Stage, design: Design, rng: np.random.Generator) -> Draw:
        """The bits the training was designed with."""
        assert design.included is not None
        return Draw(design.included)

    def hint(self, stage: Stage, design: Design, draw: Draw) -> Hint:
        """All canaries with their labels."""
        return Hint(np.arange(len(stage.canaries)), stage.canaries.labels)


@register("game", "observational-membership", source="Ye et al. (2022), arXiv:2111.09679; arXiv:2511.14084, section 4")
@dataclass(frozen=True)
class ObservationalMembership(OneRunGame):
    """Observational: shows each training point or a fresh point in its place; training untouched.

    It is attribute inference with the whole record protected; the proxy is where the fresh points come from.

    Attributes:
        replays: How often bits are drawn for one trained model, >= 1.
        canaries: How many of the target rows are canaries; None takes all.
        trainings: How many independent trainings, >= 1; their bounds are combined like replays.
        fresh: One's own source of fresh points, "module:Class": a dataclass with a method
            `sample(count, rng) -> Examples`, a generative model for one. None takes them from the test part.
    """

    fresh: Any = field(default=None, metadata={"kind": "data"})

    @property
    def relation(self) -> Relation:
        """One record is replaced by a fresh one."""
        return Relation.REPLACE

    @property
    def assumes(self) -> str:
        """Fresh points come from the training distribution."""
        return "The fresh points must have the law of the training points, independently of each other."

    def needs_fresh_points(self) -> bool:
        """One for each canary."""
        return True

    def draw_fresh(self, count: int, rng: np.random.Generator) -> Examples | None:
        """The generator's, when there is one.

        Raises: SpecError when `fresh` is no generator of examples.
        """
        if self.fresh is None:
            return None
        if not hasattr(self.fresh, "sample"):
            raise SpecError("the `fresh` of a membership game needs a method `sample(count, rng) -> Examples`")
        drawn: Examples = self.fresh.sample(count, rng)
        return drawn

    def draw(self, stage: Stage, design: Design, rng: np.random.Generator) -> Draw:
        """A fair bit for each canary; True shows the training point."""
        return Draw(rng.random(len(stage.canaries)) < 0.5)

    def hint(self, stage: Stage, design: Design, draw: Draw) -> Hint:
        """The canary where the bit is True, else the fresh point, each with its own label."""
        count = len(stage.canaries)
        points = np.where(draw.bits, np.arange(count), count + np.arange(count))
        return Hint(points, np.where(draw.bits, stage.canaries.labels, stage.fresh.labels))
