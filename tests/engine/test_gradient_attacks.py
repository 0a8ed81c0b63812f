"""White-box attacks on steps: against slow twins written from the law, in power, and on noise that is used again."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import norm

from dpaudit.engine.games.two_world.attacks.gradients import (
    GradientDifferences,
    GradientDot,
    GradientLikelihood,
    observed_noise,
)
from dpaudit.engine.games.two_world.views import ChallengeView
from dpaudit.errors import SpecError
from dpaudit.mechanisms.learners.dp_sgd import DpSgd
from dpaudit.mechanisms.learners.non_private import NonPrivate
from dpaudit.mechanisms.models.networks import Mlp
from dpaudit.mechanisms.training.private.private_steps import PrivateSteps

Floats = NDArray[np.float64]
STEPS = PrivateSteps(clip=2.0, noise_multiplier=0.99, sample_rate=0.1)


def view_of(products: Floats, norms: Floats) -> ChallengeView:
    trials = len(products)
    none = np.empty((trials, 0), np.float32)
    empty = np.empty(0, np.int64)
    return ChallengeView(none, np.full(trials, -1), none, empty, None, products, norms)


def game(rng: np.random.Generator, trials: int, *, shared: bool = False) -> tuple[ChallengeView, NDArray[np.bool_]]:
    """Return a view of a canary of one clipping norm in 100 steps; with `shared`, ten steps share their noise."""
    truth = rng.random(trials) < 0.5
    noise = rng.standard_normal((trials, 10 if shared else 100)) * STEPS.noise_multiplier
    sampled = (rng.random((trials, 100)) < STEPS.sample_rate) & truth[:, None]
    return view_of(sampled + (np.repeat(noise, 10, axis=1) if shared else noise), np.ones((trials, 100))), truth


def test_likelihood_ratio_equals_slow_twin() -> None:
    """Densities step by step, from the law of the dot product."""
    rng = np.random.default_rng(0)
    products, norms = rng.standard_normal((3, 7)), rng.uniform(0.1, 1, (3, 7))
    for steps in (STEPS, replace(STEPS, sample_rate=1.0, noise_multiplier=2.0)):
        expected = []
        for row, lengths in zip(products, norms, strict=True):
            total = 0.0
            for x, length in zip(row, lengths, strict=True):
                deviation = steps.noise_multiplier * math.sqrt(length)
                q, out = steps.sample_rate, norm.pdf(x, 0, deviation)
                total += math.log(((1 - q) * out + q * norm.pdf(x, length, deviation)) / out)
            expected.append(total)
        score = GradientLikelihood(steps).score(view_of(products, norms))
        np.testing.assert_allclose(score, expected, rtol=1e-9)


def test_ratio_of_differences_equals_slow_twin() -> None:
    rng = np.random.default_rng(1)
    products, norms = rng.standard_normal((3, 6)), rng.uniform(0.1, 1, (3, 6))
    attack, q = GradientDifferences(STEPS, fresh=0.3, left=0.2), STEPS.sample_rate

    def density(x: float, both: float) -> float:
        wide = STEPS.noise_multiplier * math.sqrt(both)
        return 0.3 * norm.pdf(x, 0, wide) + 0.7 * norm.pdf(x, 0, 0.2 * wide / math.sqrt(2))

    expected = []
    for row, lengths in zip(products, norms, strict=True):
        total = 0.0
        for step in range(1, 6):
            before, after, x = lengths[step - 1], lengths[step], row[step] - row[step - 1]
            mixed = sum(
                (q if later else 1 - q)
                * (q if earlier else 1 - q)
                * density(x - later * after + earlier * before, before + after)
                for earlier in (0, 1)
                for later in (0, 1)
            )
            total += math.log(mixed / density(x, before + after))
        expected.append(total)
    np.testing.assert_allclose(attack.score(view_of(products, norms)), expected, rtol=1e-9)


def hits(score: Floats, truth: NDArray[np.bool_]) -> float:
    """Return the true positive rate at a false positive rate of 1 %."""
    return float((score[truth] > np.quantile(score[~truth], 0.99)).mean())


def test_reused_noise_cancels_in_differences() -> None:
    """Noise shared by ten steps hides the sum of 100 steps, but cancels in nine of ten differences."""
    view, truth = game(np.random.default_rng(3), 200, shared=True)
    differences = GradientDifferences(STEPS).score(view)
    assert ((differences > 0) == truth).mean() > 0.99
    assert ((GradientDot().score(view) > 5) == truth).mean() < 0.95
    honest, truth = game(np.random.default_rng(4), 200)
    assert hits(GradientDifferences(STEPS).score(honest), truth) < 0.2, "fresh noise hides there"


def test_step_without_noise_is_detected_and_others_stay_as_claimed() -> None:
    """The last of 100 steps has no noise: all canaries in it, one in twenty, are certain."""
    rng = np.random.default_rng(8)
    view, truth = game(rng, 512)
    norms = view.gradient_norms
    assert (observed_noise(view.gradient_products, norms, STEPS.noise_multiplier) == 0.99).all()
    last = (rng.random(512) < STEPS.sample_rate) & truth
    products = np.column_stack([view.gradient_products[:, :-1], last])
    noise = observed_noise(products, norms, STEPS.noise_multiplier)
    assert noise[8:, -1] == pytest.approx(1e-3 * STEPS.noise_multiplier)
    assert (noise[:, :-1] == STEPS.noise_multiplier).all()
    score = GradientLikelihood(STEPS).score(view_of(products, norms))[8:]
    assert score[last[8:]].min() > 1e4 > score[~last[8:]].max()


def test_scores_do_not_depend_on_later_trials() -> None:
    rng = np.random.default_rng(9)
    view, _ = game(rng, 100)
    products = view.gradient_products * np.where(np.arange(100) % 7 == 0, 0.01, 1)
    score = GradientLikelihood(STEPS).score(view_of(products, view.gradient_norms))
    for trials in (1, 9, 40, 99):
        fewer = GradientLikelihood(STEPS).score(view_of(products[:trials], view.gradient_norms[:trials]))
        np.testing.assert_array_equal(fewer, score[:trials])


def test_attacks_need_a_noisy_mechanism() -> None:
    private = DpSgd(8.0, sample_rate=0.1, model=Mlp(epochs=10))
    informed = GradientLikelihood().for_mechanism(private, 10)
    assert informed == GradientLikelihood(private.private_steps())
    for quiet in (DpSgd(math.inf), NonPrivate(model=Mlp())):
        with pytest.raises(SpecError, match="Use attack: gradient-dot"):
            GradientDifferences().for_mechanism(quiet, 10)
    with pytest.raises(SpecError, match="needs the mechanism"):
        GradientLikelihood().score(view_of(np.zeros((1, 1)), np.ones((1, 1))))
