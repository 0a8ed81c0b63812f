"""What the scores against a proxy share: the more the proxy doubts what is shown, the more it counts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dpaudit.engine.games.one_run.answers import CanaryView, ReleaseView
from dpaudit.errors import SpecError, require
from dpaudit.registry import register


@dataclass(frozen=True)
class WeightedByProxy:
    """A score s1 * s2^t, where s2 is 1 less the proxy's (or another baseline's) probability of what is shown.

    Attributes:
        t: Weight of s2, >= 0; t > 1 gives tight bounds for randomised response.
    """

    t: float = 2.0
    view: ClassVar[type[CanaryView]] = CanaryView

    def __post_init__(self) -> None:
        require(self.t >= 0, "t must be >= 0", t=self.t)


@register("attack", "label-inference", source="arXiv:2511.14084, section 6.2")
@dataclass(frozen=True)
class LabelInferenceScore(WeightedByProxy):
    """s = s1 * s2^t: how much likelier the target finds the shown label than the proxy, on labels the proxy doubts."""

    def score(self, view: CanaryView) -> NDArray[np.float64]:
        """s1 = M(x)[y] - M'(x)[y], s2 = 1 - M'(x)[y]; shape (m,), in [-1, 1], positive = the training label."""
        rows = np.arange(len(view.labels))
        ours = view.reference[rows, view.labels].astype(np.float64)
        difference = view.target[rows, view.labels] - ours
        return np.asarray(difference * (1.0 - ours) ** self.t)


Floats = NDArray[np.float64]


@register("attack", "planted-label", source="Ours, after arXiv:2511.14084, section 6.2")
@dataclass(frozen=True)
class PlantedLabel(WeightedByProxy):
    """The score of `label-inference`, with what the target would say of a row that was not planted as its baseline.

    A planted label has nothing to do with the features. A target that learned from planted labels alone knows nothing
    of them but the labels: the baseline is 1 / K. One that learned from other rows too, says of a row what the
    reference says. The baseline is so much of the reference as the target's answers clearly show (least squares), and
    1 / K for the rest; it takes answers alone, neither truth nor shown labels.
    """

    def score(self, view: CanaryView) -> Floats:
        """(M(x)[y] - b) (1 - b)^t with the baseline b; shape (m,), in [-1, 1], positive = the training label."""
        rows, even = np.arange(len(view.labels)), 1 / view.target.shape[1]
        ours = view.reference[rows, view.labels].astype(np.float64)
        baseline = even + known_share(view.target, view.reference) * (ours - even)
        return np.asarray((view.target[rows, view.labels] - baseline) * (1 - baseline) ** self.t)


def known_share(target: NDArray[np.float32], reference: NDArray[np.float32]) -> float:
    """How much of what the reference says beyond 1 / K the target says too, in [0, 1]; 0 where that is not clear."""
    even = 1 / target.shape[1]
    beyond, ours = target.astype(np.float64) - even, reference.astype(np.float64) - even
    weight = max(float(np.sum(ours**2)), 1e-12)
    share = float(np.sum(beyond * ours)) / weight
    error = float(np.sqrt(np.sum((beyond - share * ours) ** 2 * ours**2))) / weight
    return min(share, 1.0) if share > CLEAR_SHARE * error else 0.0


CLEAR_SHARE = 4.0
"""Standard errors."""


@register("attack", "attribute-inference", source="arXiv:2511.14084, section 5, with the score of section 6.2")
@dataclass(frozen=True)
class AttributeInferenceScore(WeightedByProxy):
    """s = s1 * s2^t with s1 = P(value | model) - P(value | proxy): how much the model speaks for the shown value.

    P(value | model) is Bayes' rule: the proxy's probability of a value times the probability that the trained model
    gives the record's label with that value, over the sum for all values. A model that fits the record better with the
    shown value than with the proxy's alternatives raises it.
    """

    def score(self, view: CanaryView) -> NDArray[np.float64]:
        """Shape (m,), in [-1, 1], positive = the record's own value is shown."""
        rows = np.arange(len(view.labels))
        prior = view.reference.astype(np.float64)
        joint = prior * view.target
        total = joint.sum(axis=1)
        # Where the model denies the label whatever the value, it says nothing of the value.
        posterior = np.where(
            total > 0, joint[rows, view.labels] / np.where(total > 0, total, 1), prior[rows, view.labels]
        )
        ours = prior[rows, view.labels]
        return np.asarray((posterior - ours) * (1 - ours) ** self.t)


SMALLEST_PROBABILITY = 1e-30


@register("attack", "calibrated-loss", source="Watson et al. (2022), arXiv:2111.08440; arXiv:2511.14084, section 6.5")
@dataclass(frozen=True)
class CalibratedLoss:
    """Reference loss minus target loss on the shown label: larger = the target knows the point too well."""

    view: ClassVar[type[CanaryView]] = CanaryView

    def score(self, view: CanaryView) -> NDArray[np.float64]:
        """log M(x)[y] - log M'(x)[y], probabilities cut at 1e-30; shape (m,), in nats."""
        rows = np.arange(len(view.labels))
        target = np.log(np.maximum(view.target[rows, view.labels].astype(np.float64), SMALLEST_PROBABILITY))
        reference = np.log(np.maximum(view.reference[rows, view.labels].astype(np.float64), SMALLEST_PROBABILITY))
        return np.asarray(target - reference)


@register("attack", "canary-confidence", source="Malek et al. (2021), arXiv:2106.03408, memorisation attack")
@dataclass(frozen=True)
class CanaryConfidence:
    """Confidence in the shown label minus the largest in any other wrong label; for the game label-canaries.

    The original compares two wrong labels of an example whose true label it knows, and abstains unless the larger
    confidence is large. Here the reference's first choice stands for the true label, and |score| says how sure to be.
    With two classes there is one other label, and no label is taken for the true one.

    The original's epsilon (normal intervals, the best of seven thresholds) errs more often than it says and is not
    offered: the bound is a one-run estimator's.
    """

    view: ClassVar[type[CanaryView]] = CanaryView

    def score(self, view: CanaryView) -> NDArray[np.float64]:
        """Shape (m,), in [-1, 1]; 0 where the label that is taken for the true one is shown."""
        rows = np.arange(len(view.labels))
        target = view.target.astype(np.float64)
        others = target.copy()
        others[rows, view.labels] = -np.inf
        silent = np.zeros(len(rows), np.bool_)
        if target.shape[1] > 2:
            true = view.reference.argmax(axis=1)
            others[rows, true] = -np.inf
            silent = view.labels == true
        return np.asarray(np.where(silent, 0.0, target[rows, view.labels] - others.max(axis=1)))


@register("attack", "likelihood-ratio", source="Neyman-Pearson, for Algorithm 2 of arXiv:2511.14084; ours")
@dataclass(frozen=True)
class LikelihoodRatio:
    """How much likelier the released label is if the shown one was trained on than if the proxy drew it.

    Given features x and shown label v, the released label z has probability T[v, z] in world 1 and
    sum_y M'(x)[y] T[y, z] in world 0: the log of their ratio orders the canaries best. Where z differs from v it speaks
    for world 0 as strongly as z = v speaks for world 1; the published score leaves those canaries aside.

    Attributes:
        law: T, the probability of each released label (columns) given each true one (rows); filled in from the
            mechanism's `transition(classes)`.
    """

    law: tuple[tuple[float, ...], ...] = ()
    view: ClassVar[type[ReleaseView]] = ReleaseView

    def for_mechanism(self, mechanism: Any, classes: int) -> LikelihoodRatio:
        """The attack on one mechanism: Algorithm 1's adversary has access to it.

        Raises: SpecError when the mechanism does not state its law.
        """
        if not hasattr(mechanism, "transition"):
            raise SpecError(
                "attack likelihood-ratio needs a label mechanism that states its law, with a method "
                f"`transition(classes)`; {type(mechanism).__name__} has none: use attack label-inference"
            )
        return replace(self, law=tuple(map(tuple, mechanism.transition(classes).tolist())))

    def score(self, view: ReleaseView) -> NDArray[np.float64]:
        """log T[v, z] - log sum_y M'(x)[y] T[y, z]; shape (m,), positive = the training label."""
        law = np.asarray(self.law)
        require(
            law.shape == (view.release.classes,) * 2, "the mechanism's law must be of shape (K, K)", shape=law.shape
        )
        released = view.release.labels
        world_0 = np.einsum("ij,ij->i", view.reference, law.T[released])
        return np.asarray(np.log(law[view.labels, released]) - np.log(world_0))
