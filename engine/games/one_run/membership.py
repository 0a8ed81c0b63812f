"""One-run membership: canaries left out of the training data, or fresh points shown instead of canaries."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import numpy as np

from dpaudit.actors.unit import Unit
from dpaudit.actors.work import Work
from dpaudit.claims import Relation
from dpaudit.engine.data.partition import shared_name
from dpaudit.engine.games.coins import CanarySetup, Design, IncludedByCoin, Replayed, Reveal, TrialRandomness
from dpaudit.engine.games.one_run.answers import CanaryView, MembershipView
from dpaudit.engine.games.one_run.labelled import LabelledCoins, Prepared
from dpaudit.engine.games.protocol import LEARNERS, GameTraits, Setting, every_row
from dpaudit.errors import SpecError, require
from dpaudit.mechanisms.examples import Examples
from dpaudit.registry import register


def half_of_the_canaries(game: Any, rows: int) -> tuple[int, int]:
    """Return the expected number of training rows, and a lower limit five standard deviations below it."""
    canaries = min(game.canaries or rows, rows)
    usual = rows - canaries // 2
    return usual, max(1, rows - canaries, math.floor(usual - 2.5 * math.sqrt(canaries)))


@register("game", "membership", source="Steinke et al. (2023), arXiv:2305.08846; arXiv:2511.14084, section 4")
@dataclass(frozen=True)
class Membership(IncludedByCoin[Examples], LabelledCoins):
    """Interventional: each canary is trained on with probability 1/2. One training has one replay.

    The attacker may train shadow models: the same mechanism on the same rows, with canaries that separate fair coins
    select. From them the attack learns, before it sees the audited model, which answers tell members apart. The coins
    of the audited model are not used, so the choice of the attack costs no error and every estimator stays valid.

    Attributes:
        replays: Always 1, because the bits decide the training data.
        shadows: Number of shadow models, >= 2; trained only if the attack needs them. All `trainings` share them.
    """

    counts: ClassVar[tuple[str, ...]] = ("replays", "trainings", "shadows")

    shadows: int = 4

    traits: ClassVar[GameTraits] = GameTraits(
        relation=Relation.ADD_REMOVE,
        assumes="Nothing beyond fair bits: the challenger decides by fair coins which canaries are trained on.",
        views={LEARNERS: MembershipView},
        attack="learned-membership",
        estimator="simultaneous-guess-count",
        curve_estimator="one-run",
        uses_proxy=True,
        run_on=half_of_the_canaries,
        asks_membership=True,
        helps="more `canaries`, or more `shadows`; more `trainings` of the same canaries do not help",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            self.shadows >= 2,
            "shadows must be >= 2",
            do="name an attack without shadow models (`attack: loss`) to train none",
            shadows=self.shadows,
        )

    def prepared(self, setting: Setting, work: Work) -> Prepared:
        """Return what all trainings share, with shadow models if the attack needs them."""
        prepared = super().prepared(setting, work)
        if "shadows" not in getattr(setting.attack, "needs", ()):
            return prepared
        seeds = tuple(self.design_seed(setting, number, "shadow ") for number in range(self.shadows))
        shadows = tuple(
            self.training(setting, work, prepared, number, f"shadow model {number + 1} of {self.shadows}", "shadow ")
            for number in range(self.shadows)
        )
        return replace(prepared, shadows=shadows, shadow_seeds=seeds)

    def view(self, replayed: Replayed[Examples], reveal: Reveal) -> MembershipView:
        """Return the answers of the audited model, the proxy and the shadow models at the canaries."""
        view = super().view(replayed, reveal)
        return MembershipView(view.target, view.reference, view.labels, replayed.shadows)


@register("game", "observational-membership", source="Ye et al. (2022), arXiv:2111.09679; arXiv:2511.14084, section 4")
@dataclass(frozen=True)
class ObservationalMembership(LabelledCoins):
    """Observational: shows each training point or a fresh point instead; training data are unchanged.

    It is attribute inference with the whole record protected. The source of fresh points is the proxy. If the audit
    split the rows at random and the fresh points are from the test part, a fair coin decided which point of each pair
    is trained on, and nothing is assumed. Otherwise the control runs the game with the reference only.

    Attributes:
        fresh: User-defined source of fresh points, "module:Class": a dataclass with a method
            `sample(count, rng) -> Examples`, such as a generative model. None for the test part.
    """

    traits: ClassVar[GameTraits] = GameTraits(
        relation=Relation.REPLACE,
        assumes="The fresh points must be independent draws from the law of the training points, as far as the "
        "attacker can tell without the model. This holds for rows that the audit splits at random.",
        views={LEARNERS: CanaryView},
        attack="calibrated-loss",
        estimator="simultaneous-guess-count",
        curve_estimator="one-run",
        uses_proxy=True,
        run_on=every_row,
        asks_membership=True,
        helps="more `canaries`, with a row in the test part for each",
    )

    controlled_on: ClassVar[str] = "pairs of a canary and a fresh point, without the model,"
    bits_follow: ClassVar[Literal["", "design", "replay"]] = "replay"

    fresh: Any = field(default=None, metadata={"kind": "data"})

    def rests_on_proxy(self, setting: Setting) -> bool:
        """Return False if a random split by the audit decided which point of a pair is trained on."""
        return self.fresh is not None or not setting.split_at_random

    def control_replays(self, setting: Setting, prepared: Prepared, trained: Unit) -> list[tuple[str, Any]]:
        """Return the game with the reference only."""
        if not self.rests_on_proxy(setting):
            return []
        return [("reference alone", self.replayed(setting, prepared, self.silence(setting, prepared)))]

    def fresh_points(self, setting: Setting, work: Work) -> Any:
        """Return a placeholder for the test part, or for points of the user-defined source if there is one."""
        count = self.canary_count(setting.parts.target)
        if self.fresh is None:
            points, placeholder = setting.parts.test, setting.part_argument("test")
        elif hasattr(self.fresh, "sample"):
            points = self.fresh.sample(count, setting.seed.child("fresh").rng())
            placeholder = work.share(shared_name("fresh", points), points)
        else:
            raise SpecError("the `fresh` of a membership game needs a method `sample(count, rng) -> Examples`")
        if len(points) < count:
            raise SpecError(
                f"this game shows a fresh point for each canary: the test part must have at least {count} rows, got "
                f"{len(points)}. Give `split.test` a larger share or ask for fewer `canaries`"
            )
        return placeholder

    def draw(self, setup: CanarySetup[Examples], design: Design, rng: np.random.Generator) -> TrialRandomness:
        """Draw a fair bit for each canary; True shows the training point."""
        return TrialRandomness(self.toss(len(setup.canaries), rng))

    def hint(self, setup: CanarySetup[Examples], design: Design, draw: TrialRandomness) -> Reveal:
        """Show the canary if the bit is True, else the fresh point, each with its true label."""
        count = len(setup.canaries)
        return Reveal(np.where(draw.bits, np.arange(count), count + np.arange(count)))
