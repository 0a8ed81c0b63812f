"""Attacks that compare the target model with a proxy or with shadow models."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from dpaudit.engine.attacks.learn import Shadow, learn
from dpaudit.engine.games.one_run.answers import (
    CanaryView,
    MembershipView,
    ReleaseView,
    ShadowAnswers,
    log_probability_of,
)
from dpaudit.errors import SpecError, require
from dpaudit.registry import register

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

FLOOR = 1e-8
"""Probabilities are clipped here before a logarithm is taken, a tenth of the precision of the stored ones."""
SCORES = ("difference", "log-ratio")
SMALLEST_VARIANCE = 1e-3
"""Smallest variance of a logit over shadow models, in nats squared."""


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
    """Score s = s1 * s2^t: excess probability of the shown label over the proxy, weighted by the proxy's doubt.

    Attributes:
        score_by: "difference" for s; "log-ratio" for log M(x)[y] - log M'(x)[y] without weight, as the third version of
            the paper's code does.
    """

    score_by: Literal["difference", "log-ratio"] = "difference"

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.score_by in SCORES, f"score_by must be one of {', '.join(SCORES)}", score_by=self.score_by)

    def score(self, view: CanaryView) -> Floats:
        """Return scores of shape (m,); > 0 = training label.

        By difference s1 = M(x)[y] - M'(x)[y] and s2 = 1 - M'(x)[y], in [-1, 1]; the log-ratio is in nats.
        """
        if self.score_by == "log-ratio":
            return CalibratedLoss().score(view)
        ours = view.of_labels(view.reference)
        return np.asarray((view.of_labels(view.target) - ours) * (1.0 - ours) ** self.t)


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
        even = 1 / view.target.shape[1]
        baseline = even + known_share(view.target, view.reference) * (view.of_labels(view.reference) - even)
        return np.asarray((view.of_labels(view.target) - baseline) * (1 - baseline) ** self.t)


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

    def score(self, view: CanaryView) -> Floats:
        """Return scores of shape (m,), in [-1, 1]; positive = the true value is shown."""
        joint = view.reference.astype(np.float64) * view.target
        total, ours = joint.sum(axis=1), view.of_labels(view.reference)
        # A model that gives the label probability 0 for every value carries no information on the value.
        posterior = np.where(total > 0, view.of_labels(joint) / np.where(total > 0, total, 1), ours)
        return np.asarray((posterior - ours) * (1 - ours) ** self.t)


@register("attack", "calibrated-loss", source="Watson et al. (2022), arXiv:2111.08440; arXiv:2511.14084, section 6.5")
@dataclass(frozen=True)
class CalibratedLoss:
    """Reference loss minus target loss on the shown label; larger = the target has memorised the point."""

    view: ClassVar[type[CanaryView]] = CanaryView

    def score(self, view: CanaryView) -> Floats:
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

    def score(self, view: CanaryView) -> Floats:
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
        return np.asarray(np.where(abstains, 0.0, view.of_labels(target) - others.max(axis=1)))


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

    def score(self, view: ReleaseView) -> Floats:
        """Return log T[v, z] - log sum_y M'(x)[y] T[y, z], shape (m,); positive = training label."""
        law = np.asarray(self.law)
        require(
            law.shape == (view.release.classes,) * 2, "the mechanism's law must be of shape (K, K)", shape=law.shape
        )
        released = view.release.labels
        world_0 = np.einsum("ij,ij->i", view.reference, law.T[released])
        return np.asarray(np.log(law[view.labels, released]) - np.log(world_0))


@register("attack", "learned-membership", source="Shokri et al. (2017), arXiv:1610.05820, with later statistics")
@dataclass(frozen=True)
class LearnedMembership:
    """Log-odds of membership by a logistic regression on loss, logit, calibrated loss, LiRA and RMIA statistics.

    No single statistic is best for all models: for trees it is the probability of the label, for networks the
    confidence relative to other models. A logistic regression combines them. It is trained before the audited model is
    looked at: each shadow model in turn plays the audited model, with its known coins as labels and the other shadow
    models as references. The audited model is then scored in the same way.

    The choice is free of charge. Shadow models and their coins are drawn independently of the coins of the audited
    model. Given the shadow models, everything that is released and any other coins, the odds of a coin are therefore
    those that the mechanism allows, e^-epsilon to e^epsilon. Scores use no coin of the audited model. So the order of
    the canaries and the guesses are functions of what the attacker sees, which is all that one-run estimators assume,
    at any delta.

    Source: Shokri et al. (2017), arXiv:1610.05820, for learning from shadow models; statistics by Yeom et al. (2018),
    arXiv:1709.01604 (loss), Watson et al. (2022), arXiv:2111.08440 (calibrated loss), Carlini et al. (2022),
    arXiv:2112.03570 (logit and LiRA with one variance for all points), Zarifzadeh et al. (2024), arXiv:2312.03262
    (RMIA).
    """

    view: ClassVar[type[MembershipView]] = MembershipView
    needs: ClassVar[frozenset[str]] = frozenset({"shadows"})

    def score(self, view: MembershipView) -> Floats:
        """Return log-odds of membership in nats, shape (m,); 0 if the coins of the shadow models all agree.

        Raises: SpecError if the view has no shadow models.
        """
        if view.shadows is None:
            raise SpecError("attack learned-membership needs a game with shadow models: use game membership")
        answers, member = view.shadows.answers, view.shadows.member
        others = [np.arange(len(answers)) != model for model in range(len(answers))]
        # The audited model is compared with as many shadow models as each of them is.
        references = [ShadowAnswers(answers[rest], member[rest]) for rest in others]
        columns = np.concatenate(
            [statistics_of(answers[model], view, reference) for model, reference in enumerate(references)]
        )
        odds = learn(columns, member.reshape(-1), Shadow(np.random.default_rng(0)))
        return np.asarray(np.mean([odds(statistics_of(view.target, view, each)) for each in references], axis=0))


def statistics_of(answers: NDArray[np.float32], view: MembershipView, shadows: ShadowAnswers) -> Floats:
    """Return the statistics of one model about each canary, shape (m, statistics).

    Args:
        answers: Class probabilities of the model at the canaries, shape (m, classes).
        view: Labels of the canaries, and the predictions of the proxy.
        shadows: Other models, with which it is compared.
    """
    labels = view.labels
    probability, logit = label_probabilities(answers, labels), logits(answers, labels)
    with_it, without_it = means_by_world(label_probabilities(shadows.answers, labels), shadows.member)
    usual = (with_it + without_it) / 2
    shadow_logits = logits(shadows.answers, labels)
    logit_with, logit_without = means_by_world(shadow_logits, shadows.member)
    variance_with, variance_without = (
        variance(shadow_logits - mean, world)
        for mean, world in ((logit_with, shadows.member), (logit_without, ~shadows.member))
    )
    log_loss, proxy_logit = log(probability), logits(view.reference, labels)
    others = answers.astype(np.float64)
    others[np.arange(len(labels)), labels] = -1
    return np.column_stack(
        [
            probability,
            logit,
            log_loss,
            log_loss - log(label_probabilities(view.reference, labels)),  # calibrated loss
            probability - without_it,
            probability - usual,
            log_loss - log(usual),  # RMIA at gamma = 1 has the order of this ratio
            (logit - logit_without) ** 2 / (2 * variance_without) - (logit - logit_with) ** 2 / (2 * variance_with),
            without_it,
            proxy_logit,
            probability - others.max(axis=1),
        ]
    )


def label_probabilities(answers: NDArray[np.float32], labels: NDArray[np.int64]) -> Floats:
    """Return the probability of each label, shape (..., m, classes) to (..., m)."""
    return np.asarray(answers[..., np.arange(len(labels)), labels], dtype=np.float64)


def logits(answers: NDArray[np.float32], labels: NDArray[np.int64]) -> Floats:
    """Return log p_y - log(sum of the other probabilities), shape (..., m, classes) to (..., m)."""
    others = answers.astype(np.float64)
    others[..., np.arange(len(labels)), labels] = 0
    return log(label_probabilities(answers, labels)) - log(others.sum(axis=-1))


def log(probabilities: Floats) -> Floats:
    return np.asarray(np.log(np.maximum(probabilities, FLOOR)))


def means_by_world(values: Floats, member: Bools) -> tuple[Floats, Floats]:
    """Return the mean of each canary over models with it and over models without it, each of shape (m,).

    Few models are in either world. Each mean counts one more value, the canary's mean over all models, corrected by
    the mean gap between the worlds over all canaries.

    Args:
        values: One value for each model and canary, shape (models, m).
        member: True if the model was trained on the canary, shape (models, m).
    """
    gap = values[member].mean() - values[~member].mean() if member.any() and not member.all() else 0.0
    expected_without = (values - gap * member).mean(axis=0)
    means = [
        (np.where(world, values, 0.0).sum(axis=0) + expected) / (world.sum(axis=0) + 1)
        for world, expected in ((member, expected_without + gap), (~member, expected_without))
    ]
    return means[0], means[1]


def variance(residuals: Floats, world: Bools) -> float:
    """Return the mean square of the residuals in one world, over models and canaries, at least `SMALLEST_VARIANCE`."""
    return max(float(np.mean(residuals[world] ** 2)) if world.any() else 0.0, SMALLEST_VARIANCE)
