"""Canaries: the choice of points, crafted points, and their descriptions."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import norm

from dpaudit.engine.games.two_world.attacks.lira import SelectWorst
from dpaudit.engine.games.two_world.canaries import (
    Blank,
    ClipBackdoor,
    DiracGradient,
    GivenRow,
    Mislabelled,
    RandomGradient,
    last_direction,
)
from dpaudit.engine.games.two_world.views import Shadows
from dpaudit.errors import InputError
from dpaudit.mechanisms.examples import Examples


def pool_of(rows: int = 40, width: int = 6, classes: int = 3) -> Examples:
    rng = np.random.default_rng(2)
    features = rng.standard_normal((rows, width)).astype(np.float32) * np.arange(1, width + 1, dtype=np.float32)
    return Examples(features, rng.integers(0, classes, rows), classes)


def shadows_with_gaps(gaps: NDArray[np.float64], models: int = 50, seed: int = 0) -> Shadows:
    """Return shadow models whose confidence at z is larger by gaps[z] if they were trained on z."""
    rng = np.random.default_rng(seed)
    half = rng.random((models // 2, len(gaps))) < 0.5
    member = np.stack([half, ~half], 1).reshape(models, -1)
    noise = rng.standard_normal(member.shape)
    return Shadows((noise + gaps * member)[:, None].astype(np.float32), member)


@pytest.mark.parametrize("weight", ["accuracy", "auc", "tpr"])
def test_select_worst_equals_slow_twin(weight: str) -> None:
    """Algorithm 3 with LiRA fitted to the first 40 of 50 models, point by point."""
    shadows = shadows_with_gaps(np.linspace(0, 3, 12))
    weights, _ = SelectWorst(weight=weight, fpr=0.25, variance="per-point").weights(shadows)  # type: ignore[arg-type]
    for point in range(12):
        phi, member = shadows.confidence[:, 0, point].astype(float), shadows.member[:, point]
        law = {
            world: norm(phi[:40][member[:40] == world].mean(), phi[:40][member[:40] == world].std(ddof=1))
            for world in (True, False)
        }
        score = law[True].logpdf(phi[40:]) - law[False].logpdf(phi[40:])
        inside, outside = score[member[40:]], score[~member[40:]]
        if weight == "accuracy":
            expected = (np.sum(inside > 0) + np.sum(outside <= 0)) / 10
        elif weight == "auc":
            expected = np.mean([i > o for i in inside for o in outside])
        else:
            expected = max(
                (np.mean(inside >= threshold) for threshold in score if np.mean(outside >= threshold) <= 0.25),
                default=0.0,
            )
        assert weights[point] == pytest.approx(expected)


def test_select_worst_finds_the_planted_points() -> None:
    """Gaps of 12 deviations are classified without error, gaps of 0 never on all 20 test models of 100.

    False failure: accuracy 1 on a point without a gap has probability 2^-10 for 10 independent pairs at most; ties go
    by the mean gap, where 12 beats the rest by 10 deviations.
    """
    gaps = np.zeros(300)
    gaps[[17, 230, 41]] = 12.0, 14.0, 16.0
    pool = pool_of(300)
    chosen = SelectWorst(count=3).choose(pool, shadows_with_gaps(gaps, 100), np.random.default_rng(0))
    assert set(chosen.rows) == {17, 230, 41}
    assert not chosen.crafted
    np.testing.assert_array_equal(chosen.examples.labels, pool.labels[chosen.rows])
    np.testing.assert_array_equal(chosen.weight, 1.0)
    with pytest.raises(InputError, match="at least 6 shadow models"):
        SelectWorst().choose(pool, shadows_with_gaps(gaps, 4), np.random.default_rng(0))


def test_weights_are_measured_on_held_out_models() -> None:
    """Without any gap the weights are fair: their mean over 3,000 points is 1/2 within 5 deviations.

    A pair's two verdicts may be one: 5 pairs are at least 5 coins a point. Measured on the fitted models, the planted
    defect, the mean is clearly above.
    """
    shadows = shadows_with_gaps(np.zeros(3000))
    weights, _ = SelectWorst(variance="per-point").weights(shadows)
    limit = 5 * 0.5 / np.sqrt(5 * 3000)
    assert abs(weights.mean() - 0.5) < limit
    twice = Shadows(
        np.concatenate([shadows.confidence[:40], shadows.confidence[:10]]),
        np.concatenate([shadows.member[:40], shadows.member[:10]]),
    )
    leaked, _ = SelectWorst(variance="per-point").weights(twice)
    assert leaked.mean() - 0.5 > limit


def test_mislabelled_points_have_true_features_and_wrong_labels() -> None:
    pool = pool_of()
    challenges = Mislabelled(count=10).choose(pool, None, np.random.default_rng(1))
    assert len(set(challenges.rows)) == 10
    np.testing.assert_array_equal(challenges.examples.features, pool.take(challenges.rows).features)
    assert (challenges.examples.labels != pool.labels[challenges.rows]).all()
    assert challenges.crafted
    np.testing.assert_array_equal(challenges.points(len(pool)), len(pool) + np.arange(10))


def test_blank_and_given_points() -> None:
    pool = pool_of()
    blank = Blank(count=2, value=3.0).choose(pool, None, np.random.default_rng(0))
    assert np.all(blank.examples.features == 3.0)
    assert blank.examples.labels.tolist() == [0, 1]
    assert blank.rows.tolist() == [-1, -1]
    rows = GivenRow((5, 3)).choose(pool, None, np.random.default_rng(0))
    assert rows.points(len(pool)).tolist() == [5, 3]
    with pytest.raises(InputError, match=r"rows must be in 0\.\.39"):
        GivenRow((40,)).choose(pool, None, np.random.default_rng(0))
    with pytest.raises(InputError, match="rows must be different"):
        GivenRow((1, 1))
    with pytest.raises(InputError, match="at most the number of classes"):
        Blank(count=4).choose(pool, None, np.random.default_rng(0))


def test_clip_bkd_lies_along_the_direction_of_least_variance() -> None:
    pool = pool_of(rows=200)
    assert isinstance(pool.features, np.ndarray)
    flat = pool.features.astype(np.float64)
    direction = last_direction(flat)
    others = [np.random.default_rng(i).standard_normal(6) for i in range(200)]
    least = np.var(flat @ direction)
    assert all(np.var(flat @ (other / np.linalg.norm(other))) >= least for other in others)
    assert direction[np.abs(direction).argmax()] > 0, "the sign is the same everywhere"
    np.testing.assert_allclose(last_direction(flat[::-1]), direction, atol=1e-9)
    challenges = ClipBackdoor().choose(pool, None, np.random.default_rng(0))
    point = np.asarray(challenges.examples.features)[0].astype(np.float64)
    np.testing.assert_allclose(np.linalg.norm(point), np.median(np.linalg.norm(flat, axis=1)), rtol=1e-6)
    np.testing.assert_allclose(point / np.linalg.norm(point), direction, atol=1e-6)
    assert np.linalg.norm(ClipBackdoor(norm=10.0).choose(pool, None, np.random.default_rng(0)).examples.features) == (
        pytest.approx(10, rel=1e-6)
    )


def test_last_direction_does_not_depend_on_the_basis() -> None:
    """With fewer rows than features, the order of sums changes the basis of a library, but not the direction."""
    flat = np.random.default_rng(0).random((30, 200))
    direction = last_direction(flat)
    np.testing.assert_allclose((flat - flat.mean(0)) @ direction, 0, atol=1e-9)
    turned = np.random.default_rng(1).permutation(30)
    np.testing.assert_allclose(last_direction(flat[turned]), direction, atol=1e-9)
    basis = [np.linalg.eigh(rows.T @ rows)[1][:, 0] for rows in (flat - flat.mean(0), (flat - flat.mean(0))[turned])]
    assert abs(basis[0] @ basis[1]) < 0.99, "the first of the basis is another one"
    uneven = np.random.default_rng(0).standard_normal((200, 4)) * [1e5, 1, 0.01, 2]
    assert abs(last_direction(uneven)[2]) > 0.99, "small is not none"


def test_clip_bkd_takes_the_least_likely_label() -> None:
    """Class = sign along the axis of least variance, to which the point belongs: its label is the other class."""
    rng = np.random.default_rng(3)
    features = (rng.standard_normal((400, 3)) * [5, 3, 0.5]).astype(np.float32)
    pool = Examples(features, (features[:, 2] > 0).astype(np.int64), 2)
    challenges = ClipBackdoor().choose(pool, None, rng)
    side = int(np.asarray(challenges.examples.features)[0, 2] > 0)
    assert challenges.examples.labels.tolist() == [1 - side]


def test_gradient_canaries_have_norm_one() -> None:
    dirac = DiracGradient(weight=4).gradient(9, np.random.default_rng(0))
    assert dirac.tolist() == [0, 0, 0, 0, 1, 0, 0, 0, 0]
    assert DiracGradient().gradient(9, np.random.default_rng(0)).sum() == 1
    assert np.linalg.norm(RandomGradient().gradient(1000, np.random.default_rng(0))) == pytest.approx(1, rel=1e-5)
    with pytest.raises(InputError, match=r"weight must be in 0\.\.8"):
        DiracGradient(weight=9).gradient(9, np.random.default_rng(0))
