"""RMIA: compares the target's probability of the challenge with that of other points, relative to shadow models.

With ratio(x) = p(x | target) / p(x), the score is the share of population points z with ratio(x) / ratio(z) > gamma.
p(x) is the mean over models, half of which were trained on x. The offline attack replaces it by
((1 + a) p_out(x) + 1 - a) / 2, since p_in is about a p_out + 1 - a. Augmented queries are not used.
Source: Zarifzadeh et al. (2024), arXiv:2312.03262, sections 3 and 4.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dpaudit.engine.games.two_world.views import ChallengeView, Shadows
from dpaudit.errors import require
from dpaudit.registry import register

CANDIDATES = np.linspace(0.0, 1.0, 11)
MAX_TUNED_ON = 2000
NUMBERS_AT_ONCE = 2**20
"""Number of ratios in memory."""


@register("attack", "rmia", source="Zarifzadeh et al. (2024), arXiv:2312.03262")
@dataclass(frozen=True)
class Rmia:
    """RMIA: share of population points with a smaller likelihood ratio than the challenge.

    Attributes:
        gamma: Factor between the likelihood ratios, > 0.
        offline: True to use only shadow models that were not trained on the point.
        a: Parameter of the offline attack, in [0, 1]; None to tune it on one shadow model, whose members are known.
    """

    gamma: float = 1.0
    offline: bool = False
    a: float | None = None
    view: ClassVar[type[ChallengeView]] = ChallengeView
    needs: ClassVar[frozenset[str]] = frozenset({"shadows", "population"})

    def __post_init__(self) -> None:
        require(self.gamma > 0, "gamma must be > 0", gamma=self.gamma)
        require(self.a is None or 0 <= self.a <= 1, "a must be in [0, 1]", a=self.a)

    def score(self, view: ChallengeView) -> NDArray[np.float64]:
        """Return shares in [0, 1]; with a strict inequality, an uninformed target has score 0 at gamma = 1.

        Raises: InputError if the population is empty, or a point lacks shadow models.
        """
        assert view.shadows is not None
        require(view.population.shape[1] > 0, "rmia needs points of the population", do="set `population` in the game")
        a = self.a
        if self.offline and a is None:
            a = tuned_a(view.shadows, view.population_points, self.gamma)
        points, place = view.points()
        challenge_inverse = inverse_ratio(view.target[:, 0], self._marginal(view.shadows.at_points(points), a)[place])
        marginal = self._marginal(view.shadows.at_points(view.population_points), a)
        return shares_beaten(challenge_inverse, view.population, marginal, self.gamma)

    def _marginal(self, shadows: Shadows, a: float | None) -> NDArray[np.float64]:
        return online_marginal(shadows) if not self.offline or a is None else offline_marginal(shadows, a)


def shares_beaten(
    challenge_inverse: NDArray[np.float32],
    population: NDArray[np.float32],
    marginal: NDArray[np.floating[Any]],
    gamma: float,
) -> NDArray[np.float64]:
    """Return the share of population points whose ratio, times gamma, is below that of the trial, shape (T,)."""
    least = (gamma * challenge_inverse).astype(np.float32)[:, None]
    shares, size = np.empty(len(population)), max(1, NUMBERS_AT_ONCE // len(marginal))
    for first in range(0, len(population), size):
        rows = slice(first, first + size)
        shares[rows] = (inverse_ratio(population[rows], marginal) > least[rows]).mean(1)
    return shares


def inverse_ratio(phi: NDArray[np.float32], marginal: NDArray[np.floating[Any]]) -> NDArray[np.float32]:
    """Return p(x) / p(x | target) = p(x) (1 + e^-phi) in float32, bit-equal for equal points; shapes (..., n), (n,)."""
    with np.errstate(over="ignore"):
        return np.asarray(marginal.astype(np.float32) * (1 + np.exp(-phi.astype(np.float32))))


def beaten_of_one_model(
    ratio: NDArray[np.float64], of_others: NDArray[np.float64], gamma: float
) -> NDArray[np.float64]:
    """Return the share of `of_others` that, times gamma, are below each ratio; shapes (n,) and (P,) to (n,)."""
    return np.asarray(np.searchsorted(np.sort(gamma * of_others), ratio) / len(of_others))


def online_marginal(shadows: Shadows) -> NDArray[np.float64]:
    """Return the mean probability of each point: (mean over members + mean over others) / 2, shape (points,)."""
    probabilities = probability(shadows.confidence[:, 0])
    return (_mean(probabilities, shadows.member) + _mean(probabilities, ~shadows.member)) / 2


def offline_marginal(shadows: Shadows, a: float) -> NDArray[np.float64]:
    """Return ((1 + a) p_out + 1 - a) / 2 of each point, shape (points,)."""
    return _from_outside(_mean(probability(shadows.confidence[:, 0]), ~shadows.member), a)


def _from_outside(p_out: NDArray[np.float64], a: float) -> NDArray[np.float64]:
    return np.asarray(((1 + a) * p_out + 1 - a) / 2)


def tuned_a(shadows: Shadows, population: NDArray[np.int64], gamma: float) -> float:
    """Return the a in 0, 0.1, ..., 1 with the largest area under the curve against the first shadow model.

    The attacker knows its members. At most 2,000 points outside the population are used.
    """
    others = np.setdiff1d(np.arange(shadows.member.shape[1]), population)[:MAX_TUNED_ON]
    rest = shadows.of_models(slice(1, None))
    target, is_member = shadows.of_models(slice(1)), shadows.member[0]
    outsiders = population[~is_member[population]]
    if not len(outsiders) or len(rest.member) < 2:
        return 0.0
    out_of_points, out_of_population = (
        _mean(probability(models.confidence[:, 0]), ~models.member)
        for models in (rest.at_points(others), rest.at_points(outsiders))
    )
    of_points = probability(target.at_points(others).confidence[:, 0])
    of_population = probability(target.at_points(outsiders).confidence[:, 0])
    areas = [
        _area(
            beaten_of_one_model(
                (of_points / _from_outside(out_of_points, a))[0],
                (of_population / _from_outside(out_of_population, a))[0],
                gamma,
            ),
            is_member[others],
        )
        for a in CANDIDATES
    ]
    return float(CANDIDATES[int(np.argmax(areas))])


def _mean(probabilities: NDArray[np.float64], chosen: NDArray[np.bool_]) -> NDArray[np.float64]:
    require(bool(chosen.any(0).all()), "each point must have a shadow model of its world")
    return np.asarray(np.where(chosen, probabilities, 0.0).sum(0) / chosen.sum(0))


def _area(score: NDArray[np.float64], member: NDArray[np.bool_]) -> float:
    """Return the area under the ROC curve; ties count half."""
    from scipy.stats import rankdata

    inside = int(member.sum())
    if inside in (0, len(member)):
        return 0.5
    ranks = rankdata(score)
    return float((ranks[member].sum() - inside * (inside + 1) / 2) / (inside * (len(member) - inside)))


def probability(phi: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
    """Return p_y = 1 / (1 + e^-phi); 0 below e^-709."""
    with np.errstate(over="ignore"):
        result: NDArray[np.float64] = 1.0 / (1.0 + np.exp(-phi.astype(np.float64)))
    return result
