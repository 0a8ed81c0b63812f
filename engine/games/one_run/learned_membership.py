"""Membership attack that learns from shadow models which answers tell members of the training data apart.

No single statistic is best for all models: for trees it is the probability of the label, for networks the confidence
relative to other models. A logistic regression combines them. It is trained before the audited model is looked at: each
shadow model in turn plays the audited model, with its known coins as labels and the other shadow models as references.
The audited model is then scored in the same way.

The choice is free of charge. Shadow models and their coins are drawn independently of the coins of the audited model.
Given the shadow models, everything that is released and any other coins, the odds of a coin are therefore those that
the mechanism allows, e^-epsilon to e^epsilon. Scores use no coin of the audited model. So the order of the canaries and
the guesses are functions of what the attacker sees, which is all that one-run estimators assume, at any delta.

Source: Shokri et al. (2017), arXiv:1610.05820, for learning from shadow models; statistics by Yeom et al. (2018),
arXiv:1709.01604 (loss), Watson et al. (2022), arXiv:2111.08440 (calibrated loss), Carlini et al. (2022),
arXiv:2112.03570 (logit and LiRA with one variance for all points), Zarifzadeh et al. (2024), arXiv:2312.03262 (RMIA).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dpaudit.engine.attacks.learn import Shadow, learn
from dpaudit.engine.games.one_run.answers import MembershipView, ShadowAnswers
from dpaudit.errors import SpecError
from dpaudit.registry import register

FLOOR = 1e-8
"""Probabilities are clipped here before a logarithm is taken, a tenth of the precision of the stored ones."""
SMALLEST_VARIANCE = 1e-3
"""Smallest variance of a logit over shadow models, in nats squared."""

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


@register("attack", "learned-membership", source="Shokri et al. (2017), arXiv:1610.05820, with later statistics")
@dataclass(frozen=True)
class LearnedMembership:
    """Log-odds of membership by a logistic regression on loss, logit, calibrated loss, LiRA and RMIA statistics.

    It learns from shadow models with known coins and uses no coin of the audited model.
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
