"""Label games: is this the training label, or another one? Observational (Algorithm 2), and with planted labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dpaudit.claims import Relation
from dpaudit.engine.games.one_run.answers import CanaryView, ReleaseView
from dpaudit.engine.games.one_run.proxy_game import ProxyGame
from dpaudit.engine.games.one_run.rules import CanarySetup, Design, Reveal, TrialRandomness
from dpaudit.engine.games.protocol import LABEL_MECHANISMS, LEARNERS, CheckTest, GameTraits, Setting, every_row
from dpaudit.engine.games.proxies.model import KnownLaw
from dpaudit.engine.games.reference import PlantedLabels, ProxyLabels, Response
from dpaudit.mechanisms.examples import Examples
from dpaudit.registry import register


@register("game", "label-inference", source="arXiv:2511.14084, Algorithm 2")
@dataclass(frozen=True)
class LabelInference(ProxyGame):
    """Observational: shows each training point with its own label or with one drawn from a proxy; training untouched.

    Attributes:
        control: Whether the game is played on the test part too, whose rows the mechanism never saw: there an honest
            proxy shows nothing.
    """

    traits: ClassVar[GameTraits] = GameTraits(
        relation=Relation.LABEL,
        assumes="Given the features, the proxy's labels must follow the same distribution as the true ones, as far as "
        "the adversary can tell before it sees the model; a proxy that differs adds what it gives away itself (the "
        "shift tau).",
        views={LABEL_MECHANISMS: ReleaseView, LEARNERS: CanaryView},
        attack="label-inference",
        estimator="simultaneous-guess-count",
        curve_estimator="one-run",
        uses_proxy=True,
        run_on=every_row,
        helps="more rows in the target part, or `game: label-canaries`, whose planted labels no proxy knows",
        check_tests=(
            CheckTest(
                LEARNERS,
                (Relation.LABEL, Relation.REPLACE),
                "what the training labels themselves give away, the data left as they are",
                trainings=1,
                confirm=True,
            ),
        ),
    )

    answers_with_labels: ClassVar[bool] = True

    control: bool = True

    def has_control(self) -> bool:
        return self.control

    def rests_on_proxy(self, setting: Setting) -> bool:
        """Unless the proxy is the law of the labels itself."""
        return not isinstance(setting.proxy, KnownLaw)

    def draw(self, setup: CanarySetup[Examples], design: Design, rng: np.random.Generator) -> TrialRandomness:
        """A fair bit and a proxy label y1 ~ Multinoulli(M'(x)) for each canary; bit True shows the training label."""
        bits = rng.random(len(setup.canaries)) < 0.5
        assert setup.proxy_cdf is not None
        return TrialRandomness(bits, sample_classes(setup.proxy_cdf, rng.random(len(setup.canaries))))

    def response(self, canaries: Examples) -> Response:
        """The proxy's labels come as often as the canaries'."""
        counts = np.bincount(canaries.labels, minlength=canaries.classes)
        return ProxyLabels(tuple((counts / counts.sum()).tolist()))

    def hint(self, setup: CanarySetup[Examples], design: Design, draw: TrialRandomness) -> Reveal:
        """Every canary, with the training label where the bit is True, else with the proxy's."""
        assert draw.labels is not None
        labels = np.where(draw.bits, setup.canaries.labels, draw.labels)
        return Reveal(np.arange(len(labels)), labels)


@register("game", "label-canaries", source="Malek et al. (2021), arXiv:2106.03408; one-run as in arXiv:2511.14084")
@dataclass(frozen=True)
class LabelCanaries(ProxyGame):
    """Interventional: trains canaries with uniformly random labels, shows each with that label or another random one.

    The other label is drawn among those that were not planted. Given the shown label the planted one was that label or,
    as likely, another one: fair bits, and each of the two labels is uniform whatever the features say. So there is no
    distribution shift to worry about, and the attack has power even where features give the label away; the price is
    that canaries spoil the training data.

    """

    traits: ClassVar[GameTraits] = GameTraits(
        relation=Relation.LABEL,
        assumes="Nothing beyond fair bits: the challenger draws the planted label and the other one, each uniform.",
        views={LABEL_MECHANISMS: ReleaseView, LEARNERS: CanaryView},
        attack="planted-label",
        estimator="simultaneous-guess-count",
        curve_estimator="one-run",
        uses_proxy=True,
        run_on=every_row,
        helps="more `canaries`",
        check_tests=(
            CheckTest(
                LABEL_MECHANISMS, (Relation.LABEL, Relation.REPLACE), "what one release gives away of its labels"
            ),
            CheckTest(
                LEARNERS,
                (Relation.LABEL, Relation.REPLACE),
                "planted labels that the trained model gives away",
                trainings=1,
            ),
        ),
    )

    answers_with_labels: ClassVar[bool] = True

    def design(self, canaries: Examples, rng: np.random.Generator) -> Design:
        return Design(labels=rng.integers(0, canaries.classes, len(canaries)))

    def draw(self, setup: CanarySetup[Examples], design: Design, rng: np.random.Generator) -> TrialRandomness:
        """A fair bit and a label for each canary, uniform over those other than the planted one."""
        assert design.labels is not None
        bits = rng.random(len(setup.canaries)) < 0.5
        steps = rng.integers(1, setup.canaries.classes, len(setup.canaries))
        return TrialRandomness(bits, (design.labels + steps) % setup.canaries.classes)

    def response(self, canaries: Examples) -> Response:
        """The other label is one of those that were not planted."""
        return PlantedLabels(canaries.classes)

    def hint(self, setup: CanarySetup[Examples], design: Design, draw: TrialRandomness) -> Reveal:
        """Every canary, with the label it was trained with where the bit is True, else with the other one."""
        assert design.labels is not None
        assert draw.labels is not None
        return Reveal(np.arange(len(draw.bits)), np.where(draw.bits, design.labels, draw.labels))


def sample_classes(cumulative: NDArray[np.float64], uniform: NDArray[np.float64]) -> NDArray[np.int64]:
    """The first class whose cumulative probability, none falling, exceeds the row's uniform number; else the last."""
    labels = np.zeros(len(uniform), np.int64)
    for passed in cumulative[:, :-1].T:
        labels += uniform >= passed
    return labels
