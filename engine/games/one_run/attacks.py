"""Attacks that compare the target model with a proxy; labels that the proxy finds unlikely weigh more."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dpaudit.engine.games.one_run.answers import CanaryView, ReleaseView, log_probability_of
from dpaudit.errors import SpecError, require
from dpaudit.registry import register


@dataclass(frozen=True)
class WeightedByProxy:
    """Base of scores s1 * s2^t, where s2 is 1 minus the proxy's (or another baseline's) probability of the shown value.

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
    """Score s = s1 * s2^t: excess probability of the shown label over the proxy, weighted by the proxy's doubt."""

    def score(self, view: CanaryView) -> NDArray[np.float64]:
        """Return s with s1 = M(x)[y] - M'(x)[y] and s2 = 1 - M'(x)[y], shape (m,), in [-1, 1]; > 0 = training label."""
        rows = np.arange(len(view.labels))
        ours = view.reference[rows, view.labels].astype(np.float64)
        difference = view.target[rows, view.labels] - ours
        return np.asarray(difference * (1.0 - ours) ** self.t)


Floats = NDArray[np.float64]


@register("attack", "planted-label", source="Ours, after arXiv:2511.14084, section 6.2")
@dataclass(frozen=True)
class PlantedLabel(WeightedByProxy):
    """Score of `label-inference` with the target's prediction for a row without a planted label as baseline.

    A planted label is independent of the features. For a target trained on planted labels only, the baseline is 1 / K.
    A target also trained on other rows predicts for a row what the reference predicts. The baseline therefore mixes the
    reference and 1 / K, with the share of the reference that the target's answers clearly show (least squares). It uses
    answers only, neither truths nor shown labels.
    """

    def score(self, view: CanaryView) -> Floats:
        """Return (M(x)[y] - b) (1 - b)^t with the baseline b, shape (m,), in [-1, 1]; positive = training label."""
        rows, even = np.arange(len(view.labels)), 1 / view.target.shape[1]
        ours = view.reference[rows, view.labels].astype(np.float64)
        baseline = even + known_share(view.target, view.reference) * (ours - even)
        return np.asarray((view.target[rows, view.labels] - baseline) * (1 - baseline) ** self.t)


def known_share(target: NDArray[np.float32], reference: NDArray[np.float32]) -> float:
    """Return the share of the reference (beyond 1 / K) in the target's answers, in [0, 1]; 0 if not significant."""
    even = 1 / target.shape[1]
    beyond, ours = target.astype(np.float64) - even, reference.astype(np.float64) - even
    weight = max(float(np.sum(ours**2)), 1e-12)
    share = float(np.sum(beyond * ours)) / weight
    error = float(np.sqrt(np.sum((beyond - share * ours) ** 2 * ours**2))) / weight
    return min(share, 1.0) if share > CLEAR_SHARE * error else 0.0


CLEAR_SHARE = 4.0
"""Standard errors above 0 at which the share of the reference counts as significant."""


@register("attack", "attribute-inference", source="arXiv:2511.14084, section 5, with the score of section 6.2")
@dataclass(frozen=True)
class AttributeInferenceScore(WeightedByProxy):
    """Score s = s1 * s2^t with s1 = P(value | model) - P(value | proxy).

    P(value | model) follows from Bayes' rule: the proxy's probability of a value times the trained model's probability
    of the record's label with that value, normalised over all values. It is large if the model fits the record better
    with the shown value than with the proxy's alternatives.
    """

    def score(self, view: CanaryView) -> NDArray[np.float64]:
        """Return scores of shape (m,), in [-1, 1]; positive = the true value is shown."""
        rows = np.arange(len(view.labels))
        prior = view.reference.astype(np.float64)
        joint = prior * view.target
        total = joint.sum(axis=1)
        # A model that gives the label probability 0 for every value carries no information on the value.
        posterior = np.where(
            total > 0, joint[rows, view.labels] / np.where(total > 0, total, 1), prior[rows, view.labels]
        )
        ours = prior[rows, view.labels]
        return np.asarray((posterior - ours) * (1 - ours) ** self.t)


@register("attack", "calibrated-loss", source="Watson et al. (2022), arXiv:2111.08440; arXiv:2511.14084, section 6.5")
@dataclass(frozen=True)
class CalibratedLoss:
    """Reference loss minus target loss on the shown label; larger = the target has memorised the point."""

    view: ClassVar[type[CanaryView]] = CanaryView

    def score(self, view: CanaryView) -> NDArray[np.float64]:
        """Return log M(x)[y] - log M'(x)[y] with probabilities clipped at 1e-30, in nats, shape (m,)."""
        return log_probability_of(view.labels, view.target) - log_probability_of(view.labels, view.reference)


@register("attack", "canary-confidence", source="Malek et al. (2021), arXiv:2106.03408, memorisation attack")
@dataclass(frozen=True)
class CanaryConfidence:
    """Confidence in the shown label minus the largest confidence in another wrong label; for the game label-canaries.

    The original attack compares two wrong labels of an example with known true label, and abstains unless the larger
    confidence is large. Here the reference's top class replaces the true label, and |score| orders the guesses. With
    two classes there is only one other label, so no class is treated as true.

    The original epsilon (normal intervals, best of seven thresholds) exceeds its stated error and is not offered;
    one-run estimators give the bound.
    """

    view: ClassVar[type[CanaryView]] = CanaryView

    def score(self, view: CanaryView) -> NDArray[np.float64]:
        """Return scores of shape (m,), in [-1, 1]; 0 if the shown label is the one treated as true."""
        rows = np.arange(len(view.labels))
        target = view.target.astype(np.float64)
        others = target.copy()
        others[rows, view.labels] = -np.inf
        abstains = np.zeros(len(rows), np.bool_)
        if target.shape[1] > 2:
            true = view.reference.argmax(axis=1)
            others[rows, true] = -np.inf
            abstains = view.labels == true
        return np.asarray(np.where(abstains, 0.0, target[rows, view.labels] - others.max(axis=1)))


@register("attack", "likelihood-ratio", source="Neyman-Pearson, for Algorithm 2 of arXiv:2511.14084; ours")
@dataclass(frozen=True)
class LikelihoodRatio:
    """Log-likelihood ratio of the released label: shown label trained on, against shown label drawn by the proxy.

    Given features x and shown label v, the released label z has probability T[v, z] in world 1 and sum_y M'(x)[y] T[y,
    z] in world 0. The log of their ratio is the optimal order of the canaries. If z differs from v, it supports world
    0, which the published score ignores.

    Attributes:
        law: T, the probability of each released label (columns) given each true label (rows), from the mechanism's
            `transition(classes)`.
    """

    law: tuple[tuple[float, ...], ...] = ()
    view: ClassVar[type[ReleaseView]] = ReleaseView

    def for_mechanism(self, mechanism: Any, classes: int) -> LikelihoodRatio:
        """Return the attack with the law of `mechanism`, which the attacker of Algorithm 1 knows.

        Raises: SpecError if the mechanism does not state its law.
        """
        if not hasattr(mechanism, "transition"):
            raise SpecError(
                "attack likelihood-ratio needs a label mechanism with a method `transition(classes)` for its law; "
                f"{type(mechanism).__name__} has none. Use attack label-inference"
            )
        return replace(self, law=tuple(map(tuple, mechanism.transition(classes).tolist())))

    def score(self, view: ReleaseView) -> NDArray[np.float64]:
        """Return log T[v, z] - log sum_y M'(x)[y] T[y, z], shape (m,); positive = training label."""
        law = np.asarray(self.law)
        require(
            law.shape == (view.release.classes,) * 2, "the mechanism's law must be of shape (K, K)", shape=law.shape
        )
        released = view.release.labels
        world_0 = np.einsum("ij,ij->i", view.reference, law.T[released])
        return np.asarray(np.log(law[view.labels, released]) - np.log(world_0))
