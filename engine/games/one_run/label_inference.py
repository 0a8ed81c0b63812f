"""Label games: guess if a shown label is the training label. Observational (Algorithm 2) or with planted labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from dpaudit.claims import Relation
from dpaudit.engine.games.coins import CanarySetup, Design, Reveal, TrialRandomness
from dpaudit.engine.games.one_run.answers import CanaryView, ReleaseView
from dpaudit.engine.games.one_run.labelled import LabelledCoins
from dpaudit.engine.games.protocol import LABEL_MECHANISMS, LEARNERS, CheckTest, GameTraits, Setting, every_row
from dpaudit.engine.games.proxies import KnownLaw
from dpaudit.engine.games.reference import PlantedLabels, ProxyLabels, Response
from dpaudit.mechanisms.examples import Examples
from dpaudit.registry import register


@register("game", "label-inference", source="arXiv:2511.14084, Algorithm 2")
@dataclass(frozen=True)
class LabelInference(LabelledCoins):
    """Observational: shows each training point with its true label or a proxy label; training data are unchanged.

    Attributes:
        control: True to run the game on the test part too. The mechanism never saw those rows, so an accurate proxy
            shows nothing there.
    """

    traits: ClassVar[GameTraits] = GameTraits(
        relation=Relation.LABEL,
        assumes="Given the features, the proxy's labels must follow the same distribution as the true ones, as far as "
        "the attacker can tell before it sees the model. A proxy that differs adds its own shift tau to the bound.",
        views={LABEL_MECHANISMS: ReleaseView, LEARNERS: CanaryView},
        attack="label-inference",
        estimator="simultaneous-guess-count",
        curve_estimator="one-run",
        uses_proxy=True,
        run_on=every_row,
        helps="more rows in the target part, or `game: label-canaries`, whose planted labels need no proxy",
        check_tests=(
            CheckTest(
                LEARNERS,
                (Relation.LABEL, Relation.REPLACE),
                "leaks of the training labels, with unchanged data",
                trainings=1,
                confirm=True,
            ),
        ),
    )

    answers_with_labels: ClassVar[bool] = True
    bits_follow: ClassVar[Literal["", "design", "replay"]] = "replay"

    control: bool = True

    def has_control(self) -> bool:
        return self.control

    def rests_on_proxy(self, setting: Setting) -> bool:
        """Return False if the proxy is the true law of the labels."""
        return not isinstance(setting.proxy, KnownLaw)

    def draw(self, setup: CanarySetup[Examples], design: Design, rng: np.random.Generator) -> TrialRandomness:
        """Draw a fair bit and a proxy label y1 ~ Multinoulli(M'(x)) for each canary; True shows the training label."""
        bits = self.toss(len(setup.canaries), rng)
        assert setup.proxy_cdf is not None
        return TrialRandomness(bits, sample_classes(setup.proxy_cdf, rng.random(len(setup.canaries))))

    def response(self, setting: Setting) -> Response:
        """Return the response for proxy labels as frequent as those of the canaries."""
        canaries = self.proxy_task(self.canaries_of(setting.parts.target), setting.parts.reference)
        counts = np.bincount(canaries.labels, minlength=canaries.classes)
        return ProxyLabels(tuple((counts / counts.sum()).tolist()))

    def hint(self, setup: CanarySetup[Examples], design: Design, draw: TrialRandomness) -> Reveal:
        """Show every canary, with its training label if the bit is True, else with the proxy label."""
        assert draw.labels is not None
        labels = np.where(draw.bits, setup.canaries.labels, draw.labels)
        return Reveal(np.arange(len(labels)), labels)


@register("game", "label-canaries", source="Malek et al. (2021), arXiv:2106.03408; one-run as in arXiv:2511.14084")
@dataclass(frozen=True)
class LabelCanaries(LabelledCoins):
    """Interventional: trains canaries with uniformly random labels; shows each with that label or another one.

    The other label is drawn from the classes that were not planted. Given the shown label, the planted label is equally
    likely that label or another one, and both are uniform and independent of the features. So there is no distribution
    shift, and the attack has power even if features determine the true label. The price is training data with wrong
    labels.
    """

    traits: ClassVar[GameTraits] = GameTraits(
        relation=Relation.LABEL,
        assumes="Nothing beyond fair bits: the challenger draws the planted label and the other one uniformly.",
        views={LABEL_MECHANISMS: ReleaseView, LEARNERS: CanaryView},
        attack="planted-label",
        estimator="simultaneous-guess-count",
        curve_estimator="one-run",
        uses_proxy=True,
        run_on=every_row,
        helps="more `canaries`",
        check_tests=(
            CheckTest(LABEL_MECHANISMS, (Relation.LABEL, Relation.REPLACE), "leaks of labels in one release"),
            CheckTest(
                LEARNERS,
                (Relation.LABEL, Relation.REPLACE),
                "leaks of planted labels through the trained model",
                trainings=1,
            ),
        ),
    )

    answers_with_labels: ClassVar[bool] = True
    bits_follow: ClassVar[Literal["", "design", "replay"]] = "replay"

    def design(self, canaries: Examples, rng: np.random.Generator) -> Design:
        return Design(labels=rng.integers(0, canaries.classes, len(canaries)))

    def draw(self, setup: CanarySetup[Examples], design: Design, rng: np.random.Generator) -> TrialRandomness:
        """Draw a fair bit and a label other than the planted one, uniformly, for each canary."""
        assert design.labels is not None
        bits = self.toss(len(setup.canaries), rng)
        steps = rng.integers(1, setup.canaries.classes, len(setup.canaries))
        return TrialRandomness(bits, (design.labels + steps) % setup.canaries.classes)

    def response(self, setting: Setting) -> Response:
        """Return the response for a uniform other label."""
        return PlantedLabels(setting.parts.target.classes)

    def hint(self, setup: CanarySetup[Examples], design: Design, draw: TrialRandomness) -> Reveal:
        """Show every canary, with its planted label if the bit is True, else with the other one."""
        assert design.labels is not None
        assert draw.labels is not None
        return Reveal(np.arange(len(draw.bits)), np.where(draw.bits, design.labels, draw.labels))


def sample_classes(cumulative: NDArray[np.float64], uniform: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the first class whose cumulative probability exceeds the row's uniform number; else the last class."""
    labels = np.zeros(len(uniform), np.int64)
    for limit in cumulative[:, :-1].T:
        labels += uniform >= limit
    return labels
