"""Label games: is this the training label, or another one? Observational (Algorithm 2), and with planted labels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpaudit.claims import Relation
from dpaudit.engine.games.one_run import Design, Draw, Hint, OneRunGame, Stage
from dpaudit.engine.games.sampling import drawn_classes
from dpaudit.mechanisms.examples import Examples
from dpaudit.registry import register


@register("game", "label-inference", source="arXiv:2511.14084, Algorithm 2")
@dataclass(frozen=True)
class LabelInference(OneRunGame):
    """Observational: shows each training point with its own label or with one drawn from a proxy; training untouched.

    Attributes:
        replays: How often bits and proxy labels are drawn for one trained model, >= 1.
        canaries: How many of the target rows are canaries; None takes all.
        trainings: How many independent trainings, >= 1; their bounds are combined like replays.
        control: Whether the game is played on the test part too, whose rows the mechanism never saw: there an honest
            proxy shows nothing.
    """

    control: bool = True

    @property
    def relation(self) -> Relation:
        """One label is substituted."""
        return Relation.LABEL

    def has_control(self) -> bool:
        """As chosen; needs a test part."""
        return self.control

    @property
    def assumes(self) -> str:
        """The proxy is taken for the truth."""
        return (
            "Given the features, the proxy's labels must have the law of the true ones, as far as the adversary can "
            "tell before it sees the model; a proxy that differs adds what it gives away itself (the shift tau)."
        )

    def draw(self, stage: Stage, design: Design, rng: np.random.Generator) -> Draw:
        """A fair bit and a proxy label y1 ~ Multinoulli(M'(x)) for each canary; bit True shows the training label."""
        bits = rng.random(len(stage.canaries)) < 0.5
        return Draw(bits, drawn_classes(stage.proxy, rng.random(len(stage.canaries))))

    def hint(self, stage: Stage, design: Design, draw: Draw) -> Hint:
        """Every canary, with the training label where the bit is True, else with the proxy's."""
        assert draw.labels is not None
        labels = np.where(draw.bits, stage.canaries.labels, draw.labels)
        return Hint(np.arange(len(labels)), labels)


@register("game", "label-canaries", source="Malek et al. (2021), arXiv:2106.03408; one-run as in arXiv:2511.14084")
@dataclass(frozen=True)
class LabelCanaries(OneRunGame):
    """Interventional: trains canaries with uniformly random labels, shows each with that label or another random one.

    The two labels have one law whatever the features say, so there is no distribution shift to worry about and the
    attack has power even where features give the label away; the price is that canaries spoil the training data.

    Attributes:
        replays: How often bits and other labels are drawn for one trained model, >= 1.
        canaries: How many of the target rows are canaries; None takes all.
        trainings: How many independent trainings, each with labels of its own, >= 1.
    """

    @property
    def relation(self) -> Relation:
        """One label is substituted."""
        return Relation.LABEL

    @property
    def assumes(self) -> str:
        """Nothing: both labels are drawn by the challenger."""
        return "Nothing beyond fair bits: planted and other labels are drawn by the challenger from one law."

    def design(self, canaries: Examples, rng: np.random.Generator) -> Design:
        """A uniformly random label for each canary."""
        return Design(labels=rng.integers(0, canaries.classes, len(canaries)))

    def draw(self, stage: Stage, design: Design, rng: np.random.Generator) -> Draw:
        """A fair bit and another uniformly random label for each canary."""
        bits = rng.random(len(stage.canaries)) < 0.5
        return Draw(bits, rng.integers(0, stage.canaries.classes, len(stage.canaries)))

    def hint(self, stage: Stage, design: Design, draw: Draw) -> Hint:
        """Every canary, with the label it was trained with where the bit is True, else with the other one."""
        assert design.labels is not None
        assert draw.labels is not None
        return Hint(np.arange(len(draw.bits)), np.where(draw.bits, design.labels, draw.labels))
