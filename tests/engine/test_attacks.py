"""Attacks on challenge points: against slow twins, at extreme confidences, on toys whose answer is known."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest
from mpmath import mp, mpf
from numpy.typing import NDArray
from scipy.stats import norm

from dpaudit.engine.games.two_world.attacks.gradients import GradientDot
from dpaudit.engine.games.two_world.attacks.lira import LiraOffline, LiraOnline
from dpaudit.engine.games.two_world.attacks.rmia import (
    CANDIDATES,
    Rmia,
    inverse_ratio,
    offline_marginal,
    probability,
    tuned_a,
)
from dpaudit.engine.games.two_world.views import ChallengeView, LossThreshold, Shadows, log_probability
from dpaudit.engine.games.two_world.work import (
    QUERIES,
    augmented_queries,
    confidences,
    phi_of_logits,
    phi_of_probabilities,
)
from dpaudit.errors import InputError
from dpaudit.mechanisms.compute import Compute
from dpaudit.mechanisms.examples import Examples
from dpaudit.mechanisms.models.networks import Mlp
from dpaudit.mechanisms.training.stack import NetworkModel


def made_up(seed: int = 0, models: int = 20, points: int = 7, queries: int = 3, trials: int = 11) -> ChallengeView:
    """Return a view with shadow models that are more confident on members, with large differences between points."""
    rng = np.random.default_rng(seed)
    member = np.zeros((models, points), np.bool_)
    for pair in range(models // 2):
        member[2 * pair] = rng.random(points) < 0.5
        member[2 * pair + 1] = ~member[2 * pair]
    difficulty = rng.normal(0, 5, points)
    confidence = difficulty + 2 * member[:, None] + rng.normal(0, 1, (models, queries, points))
    challenge = rng.integers(0, 3, trials)
    return ChallengeView(
        target=(difficulty[challenge][:, None] + rng.normal(1, 1.5, (trials, queries))).astype(np.float32),
        point=challenge,
        population=rng.normal(0, 3, (trials, 3)).astype(np.float32),
        population_points=np.array([4, 5, 6]),
        shadows=Shadows(confidence.astype(np.float32), member),
        gradient_products=np.stack([2 * np.arange(trials), -np.arange(trials)], 1).astype(np.float64),
        gradient_norms=np.ones((trials, 2)),
    )


def phis(view: ChallengeView, point: int, member: bool) -> list[float]:
    """Return the mean confidences of the shadow models of one world at a point."""
    assert view.shadows is not None
    return [
        statistics.fmean(map(float, view.shadows.confidence[model, :, point]))
        for model in range(len(view.shadows.member))
        if view.shadows.member[model, point] == member
    ]


def deviation(view: ChallengeView, point: int, member: bool, variance: str) -> float:
    if variance == "per-point":
        return statistics.stdev(phis(view, point, member))
    assert view.shadows is not None
    squares, freedom = 0.0, 0
    for other in range(view.shadows.member.shape[1]):
        values = phis(view, other, member)
        squares += sum((phi - statistics.fmean(values)) ** 2 for phi in values)
        freedom += len(values) - 1
    return math.sqrt(squares / freedom)


@pytest.mark.parametrize("variance", ["fixed", "per-point"])
def test_lira_equals_slow_twin(variance: str) -> None:
    view = made_up()
    online = LiraOnline(variance).score(view)  # type: ignore[arg-type]
    offline = LiraOffline(variance).score(view)  # type: ignore[arg-type]
    for trial, point in enumerate(view.point):
        phi = statistics.fmean(map(float, view.target[trial]))
        laws = [
            norm(statistics.fmean(phis(view, point, world)), deviation(view, point, world, variance))
            for world in (True, False)
        ]
        assert online[trial] == pytest.approx(laws[0].logpdf(phi) - laws[1].logpdf(phi), rel=1e-9, abs=1e-9)
        assert norm.cdf(offline[trial]) == pytest.approx(laws[1].cdf(phi), rel=1e-9)


def test_fixed_variance_excludes_the_spread_between_points() -> None:
    """Points differ by 5, models of one point by 1 / sqrt(3): raw scores would give 5. The band: 5 deviations."""
    view = made_up(models=200, points=40)
    assert view.shadows is not None
    pooled = deviation(view, 0, False, "fixed")
    freedom = int((~view.shadows.member).sum()) - 40
    assert abs(pooled * math.sqrt(3) - 1) < 5 / math.sqrt(2 * freedom)
    z = LiraOffline().score(view)
    centre = np.array([statistics.fmean(phis(view, point, False)) for point in view.point])
    np.testing.assert_allclose((view.phi - centre) / z, pooled, rtol=1e-9)


def test_offline_lira_gives_low_scores_to_unusually_low_confidence() -> None:
    view = made_up()
    lower, usual, higher = (
        LiraOffline().score(ChallengeView(*(view.target + by, *list(vars(view).values())[1:])))
        for by in (np.float32(-30), np.float32(0), np.float32(30))
    )
    assert (lower < usual).all()
    assert (usual < higher).all()
    assert (lower < -10).all()
    assert np.unique(lower).size == np.unique(usual).size, "no ties far out"


def test_rmia_is_exact_for_known_ratios() -> None:
    """Marginals are 0.25 by construction. The target's 0.5 is a ratio of 2, against 1, 1.6, 2 and 3 of four points."""
    p = np.array([0.3, 0.3, 0.3, 0.3, 0.3])
    q = np.array([0.2, 0.2, 0.2, 0.2, 0.2])
    member = np.array([[True] * 5, [False] * 5])
    at = np.array([0.5, 0.25, 0.4, 0.5, 0.75])
    logit = lambda x: np.log(x / (1 - x))  # noqa: E731
    # Float64 confidences: a ratio of exactly 2 must not be decided by float32 rounding.
    shadows = Shadows(logit(np.stack([p, q]))[:, None], member)
    view = ChallengeView(
        logit(at[:1])[None],
        np.array([0]),
        logit(at[1:])[None],
        np.arange(1, 5),
        shadows,
        np.zeros((1, 0)),
        np.zeros((1, 0)),
    )
    assert Rmia(gamma=1.0).score(view).tolist() == [0.5], "strict: the equal one is not beaten"
    assert Rmia(gamma=1.5).score(view).tolist() == [0.25]
    assert Rmia(gamma=0.5).score(view).tolist() == [1.0]
    # Offline p = ((1 + a) 0.2 + 1 - a) / 2 for all points alike: the same ratios, the same shares.
    assert Rmia(gamma=1.0, offline=True, a=0.3).score(view).tolist() == [0.5]
    np.testing.assert_allclose(offline_marginal(shadows, 0.3), ((1 + 0.3) * 0.2 + 0.7) / 2)


def test_inverse_ratios_equal_numpy_at_every_position() -> None:
    """Relative error 2e-7, two roundings of float32. At the ends the ratios are infinite, 1 or NaN."""
    phi = np.concatenate([np.linspace(-88, 100, 1001), [np.inf, -89, -np.inf, np.nan]]).astype(np.float32)
    marginal = np.linspace(0.1, 1, len(phi)).astype(np.float32)
    ratios = inverse_ratio(phi, marginal)
    np.testing.assert_allclose(ratios[:-3], marginal[:-3] * (1 + np.exp(-phi[:-3].astype(np.float64))), rtol=2e-7)
    assert np.isinf(ratios[-3:-1]).all()
    assert np.isnan(ratios[-1])
    for begin in range(1, 20):
        np.testing.assert_array_equal(inverse_ratio(phi[begin:], marginal[begin:]), ratios[begin:])


def test_rmia_of_a_constant_model_scores_zero() -> None:
    """Equal points tie exactly, in float32 too. There are more trials than fit in one chunk."""
    for phi in np.random.default_rng(0).normal(0, 30, 20).astype(np.float32):
        view = ChallengeView(
            np.full((40, 1), phi),
            np.zeros(40, np.int64),
            np.full((40, 3), phi),
            np.arange(1, 4),
            Shadows(np.full((2, 1, 4), 0.3, np.float32), np.array([[True] * 4, [False] * 4])),
            np.zeros((40, 0)),
            np.zeros((40, 0)),
        )
        assert not Rmia().score(view).any()
        assert Rmia(gamma=0.9).score(view).all()


@pytest.mark.parametrize("offline", [False, True])
def test_rmia_equals_slow_twin(offline: bool) -> None:
    view = made_up()
    attack = Rmia(gamma=1.3, offline=offline, a=0.4)
    shadows = view.shadows
    assert shadows is not None

    def sure(phi: float) -> float:
        return 1 / (1 + math.exp(-phi))

    def marginal(point: int) -> float:
        worlds: dict[bool, list[float]] = {True: [], False: []}
        for model in range(len(shadows.member)):
            worlds[bool(shadows.member[model, point])].append(sure(float(shadows.confidence[model, 0, point])))
        out = statistics.fmean(worlds[False])
        return ((1 + 0.4) * out + 1 - 0.4) / 2 if offline else (statistics.fmean(worlds[True]) + out) / 2

    for trial, score in enumerate(attack.score(view)):
        ratio = sure(float(view.target[trial, 0])) / marginal(int(view.point[trial]))
        others = [sure(float(view.population[trial, i])) / marginal(point) for i, point in enumerate((4, 5, 6))]
        assert score == pytest.approx(sum(ratio / other > 1.3 for other in others) / 3)


def test_a_is_tuned_on_a_shadow_model() -> None:
    """The tuned a is the best on model 0 by a loop over candidates, for any labels of the targets."""
    view = made_up(seed=3, models=40, points=60, queries=1)
    shadows = view.shadows
    assert shadows is not None
    population = np.arange(50, 60)
    rest, areas = shadows.of_models(slice(1, None)), []
    outsiders = [point for point in population if not shadows.member[0, point]]
    for a in CANDIDATES:
        marginals = offline_marginal(rest, float(a))
        ratio = probability(shadows.confidence[0, 0]) / marginals
        score = [float(np.mean([ratio[x] > ratio[z] for z in outsiders])) for x in range(50)]
        pairs = [
            (score[i] > score[j]) + 0.5 * (score[i] == score[j])
            for i in range(50)
            for j in range(50)
            if shadows.member[0, i] and not shadows.member[0, j]
        ]
        areas.append(np.mean(pairs))
    assert tuned_a(shadows, population, 1.0) == CANDIDATES[int(np.argmax(areas))]


def test_losses_equal_slow_twins() -> None:
    view = made_up()
    loss = LossThreshold().score(view)
    for trial in range(len(view.point)):
        ours = statistics.fmean(-math.log1p(math.exp(-float(phi))) for phi in view.target[trial])
        assert loss[trial] == pytest.approx(ours, rel=1e-9)


def test_gradient_dot_sums_observed_products() -> None:
    view = made_up()
    assert GradientDot().score(view).tolist() == list(range(11))
    assert GradientDot("last").score(view).tolist() == [-float(i) for i in range(11)]


@pytest.mark.parametrize("scale", [1.0, 30.0, 1000.0, 1e6])
def test_phi_is_precise_if_probabilities_round_to_0_or_1(scale: float) -> None:
    """Against 60 digits; float64 errors of a few units of the largest logit's last place."""
    rng = np.random.default_rng(1)
    logits = scale * rng.standard_normal((40, 5))
    labels = rng.integers(0, 5, 40)
    with mp.workdps(60):
        for row, label, phi in zip(logits, labels, phi_of_logits(logits, labels), strict=True):
            powers = [mp.exp(mpf(float(value))) for value in row]
            exact = mp.log(powers[label]) - mp.log(sum(powers[:label] + powers[label + 1 :]))
            assert abs(phi - float(exact)) <= 4e-16 * 8 * np.abs(row).max() + 1e-15


def test_networks_give_logits_if_probabilities_underflow() -> None:
    """Two logits 400 apart: probabilities know no more than log(1e-45) = -104."""
    network = NetworkModel(Mlp(hidden=()), (1,), 2, np.array([200, -200, 0, 0], np.float32))
    points = Examples(np.ones((2, 1), np.float32), np.array([0, 1]), 2)
    phi = confidences([network, network], points, queries=1, compute=Compute())
    np.testing.assert_array_equal(phi, np.broadcast_to([400.0, -400.0], (2, 1, 2)))


def test_phi_of_probabilities_takes_zeros() -> None:
    probabilities: NDArray[np.float64] = np.array([[0.5, 0.25, 0.25], [0.0, 1.0, 0.0], [0.0, 1.0, 0.0]])
    phi = phi_of_probabilities(probabilities, np.array([0, 1, 0]))
    assert phi[0] == pytest.approx(0.0, abs=1e-15)
    assert phi[1] == pytest.approx(-math.log(2e-45))
    assert phi[2] == pytest.approx(math.log(1e-45))
    np.testing.assert_allclose(np.exp(log_probability(phi[:1])), 0.5)
    assert log_probability(np.array([-800.0])) == pytest.approx(-800.0)


def test_queries_are_the_image_with_mirror_and_shifts() -> None:
    image = np.arange(2 * 12, dtype=np.float32).reshape(2, 1, 3, 4)
    queries = augmented_queries(image, QUERIES)
    assert len(queries) == QUERIES
    np.testing.assert_array_equal(queries[0], image)
    np.testing.assert_array_equal(queries[1], image[..., ::-1])
    np.testing.assert_array_equal(np.asarray(queries[2])[..., :-1], image[..., 1:])
    np.testing.assert_array_equal(np.asarray(queries[2])[..., -1], image[..., -1])
    assert len({np.asarray(query).tobytes() for query in queries}) == QUERIES
    assert augmented_queries(np.zeros((2, 3), np.float32), 1)[0].shape == (2, 3)  # type: ignore[union-attr]
    with pytest.raises(InputError, match="several queries need images"):
        augmented_queries(np.zeros((2, 3), np.float32), 2)


def test_missing_shadow_models_are_an_error() -> None:
    view = made_up()
    assert view.shadows is not None
    everyone = Shadows(view.shadows.confidence, np.ones_like(view.shadows.member))
    view = ChallengeView(*(list(vars(view).values())[:4]), everyone, view.gradient_products, view.gradient_norms)
    for attack in (LiraOffline(), LiraOnline()):
        with pytest.raises(InputError, match="left out of"):
            attack.score(view)
    with pytest.raises(InputError, match="gamma must be > 0"):
        Rmia(gamma=0)
