"""Membership in one run: by leaving canaries out of the training data, or by showing fresh points instead of them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from dpaudit.actors.unit import Unit
from dpaudit.claims import Relation
from dpaudit.engine.games.one_run.answers import CanaryView
from dpaudit.engine.games.one_run.proxy_game import ProxyGame, ProxyGameInputs
from dpaudit.engine.games.one_run.rules import CanarySetup, Design, IncludedByCoin, Reveal, TrialRandomness
from dpaudit.engine.games.protocol import LEARNERS, GameTraits, Setting, every_row
from dpaudit.errors import SpecError
from dpaudit.mechanisms.examples import Examples
from dpaudit.registry import register


def half_of_the_canaries(game: Any, rows: int) -> tuple[int, int]:
    """As many as coins leave: hardly ever fewer than five standard deviations below half of the canaries."""
    canaries = min(game.canaries or rows, rows)
    usual = rows - canaries // 2
    return usual, max(1, rows - canaries, math.floor(usual - 2.5 * math.sqrt(canaries)))


@register("game", "membership", source="Steinke et al. (2023), arXiv:2305.08846; arXiv:2511.14084, section 4")
@dataclass(frozen=True)
class Membership(IncludedByCoin[Examples], ProxyGame):
    """Interventional: each canary is trained on with probability 1/2; one training has one replay.

    Attributes:
        replays: 1: the bits decide the training, so new bits need a new training.
    """

    traits: ClassVar[GameTraits] = GameTraits(
        relation=Relation.ADD_REMOVE,
        assumes="Nothing beyond fair bits: the challenger decides by coin which canaries are trained on.",
        views={LEARNERS: CanaryView},
        attack="calibrated-loss",
        estimator="simultaneous-guess-count",
        curve_estimator="one-run",
        uses_proxy=True,
        run_on=half_of_the_canaries,
        helps="more `canaries`; more `trainings` of the same canaries are no help",
    )


@register("game", "observational-membership", source="Ye et al. (2022), arXiv:2111.09679; arXiv:2511.14084, section 4")
@dataclass(frozen=True)
class ObservationalMembership(ProxyGame):
    """Observational: shows each training point or a fresh point in its place; training untouched.

    It is attribute inference with the whole record protected; the proxy is where the fresh points come from. Where the
    audit itself divided the rows at random and the fresh points are the test part's, a fair coin decided which point of
    each pair is trained on: nothing is assumed then. Otherwise the control plays the game with the reference alone.

    Attributes:
        fresh: One's own source of fresh points, "module:Class": a dataclass with a method
            `sample(count, rng) -> Examples`, a generative model for one. None takes them from the test part.
    """

    traits: ClassVar[GameTraits] = GameTraits(
        relation=Relation.REPLACE,
        assumes="The fresh points must have the law of the training points, independently of each other, as far as the "
        "adversary can tell without the model; rows that the audit divides at random do.",
        views={LEARNERS: CanaryView},
        attack="calibrated-loss",
        estimator="simultaneous-guess-count",
        curve_estimator="one-run",
        uses_proxy=True,
        run_on=every_row,
        helps="more `canaries`, and rows in the test part for each",
    )

    needs_fresh_points: ClassVar[bool] = True
    controlled_on: ClassVar[str] = "pairs of a canary and a fresh point, without the model,"

    fresh: Any = field(default=None, metadata={"kind": "data"})

    def rests_on_proxy(self, setting: Setting) -> bool:
        """Unless the audit's own draw decided which of a pair is trained on."""
        return self.fresh is not None or not setting.split_at_random

    def control_replays(self, setting: Setting, inputs: ProxyGameInputs, trained: Unit) -> list[tuple[str, Any]]:
        """Canary against fresh point with the reference alone."""
        if not self.rests_on_proxy(setting):
            return []
        return [("reference alone", inputs.canaries(inputs.silence()))]

    def draw_fresh(self, count: int, rng: np.random.Generator) -> Examples | None:
        """The generator's, when there is one."""
        if self.fresh is None:
            return None
        if not hasattr(self.fresh, "sample"):
            raise SpecError("the `fresh` of a membership game needs a method `sample(count, rng) -> Examples`")
        sampled: Examples = self.fresh.sample(count, rng)
        return sampled

    def draw(self, setup: CanarySetup[Examples], design: Design, rng: np.random.Generator) -> TrialRandomness:
        """A fair bit for each canary; True shows the training point."""
        return TrialRandomness(rng.random(len(setup.canaries)) < 0.5)

    def hint(self, setup: CanarySetup[Examples], design: Design, draw: TrialRandomness) -> Reveal:
        """The canary where the bit is True, else the fresh point, each with its own label."""
        count = len(setup.canaries)
        return Reveal(np.where(draw.bits, np.arange(count), count + np.arange(count)))
