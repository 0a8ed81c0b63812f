"""Attacks on labels and losses compared with their formulas, and label games end to end."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dpaudit.engine.data.generated import GaussianMixture
from dpaudit.engine.games.coins import CanarySetup
from dpaudit.engine.games.one_run.answers import CanaryView, LabelRelease, ReleaseView
from dpaudit.engine.games.one_run.attacks import CalibratedLoss, LabelInferenceScore, LikelihoodRatio, PlantedLabel
from dpaudit.engine.games.one_run.label_inference import LabelCanaries, LabelInference, sample_classes
from dpaudit.engine.games.one_run.membership import Membership, ObservationalMembership
from dpaudit.errors import InputError, SpecError
from dpaudit.estimators.one_run.guess_band import SimultaneousGuessCount
from dpaudit.estimators.one_run.signed_scores import OneRun
from dpaudit.estimators.scores import Scores
from dpaudit.estimators.selection import Fixed
from dpaudit.mechanisms.labels.randomized_response import RandomizedResponse
from dpaudit.mechanisms.learners.non_private import NonPrivate
from tests.bank.planted_learners import OneHotLaplaceHalfScale

RNG = np.random.default_rng(11)
TARGET = RNG.dirichlet(np.ones(4), 50).astype(np.float32)
REFERENCE = RNG.dirichlet(np.ones(4), 50).astype(np.float32)
LABELS = RNG.integers(0, 4, 50)
VIEW = CanaryView(TARGET, REFERENCE, LABELS)


@pytest.mark.parametrize("t", [0.0, 1.0, 2.0])
def test_label_inference_score(t: float) -> None:
    expected = [
        (float(TARGET[i, y]) - float(REFERENCE[i, y])) * (1 - float(REFERENCE[i, y])) ** t for i, y in enumerate(LABELS)
    ]
    np.testing.assert_allclose(LabelInferenceScore(t).score(VIEW), expected, rtol=1e-6)
    ratio = np.log(VIEW.of_labels(VIEW.target)) - np.log(VIEW.of_labels(VIEW.reference))
    np.testing.assert_allclose(LabelInferenceScore(t, score_by="log-ratio").score(VIEW), ratio, rtol=1e-6)
    with pytest.raises(InputError, match="score_by must be one of difference, log-ratio, got 'ratio'"):
        LabelInferenceScore(t, score_by="ratio")  # type: ignore[arg-type]


def test_calibrated_loss_is_reference_loss_minus_target_loss() -> None:
    expected = [-math.log(REFERENCE[i, y]) + math.log(TARGET[i, y]) for i, y in enumerate(LABELS)]
    np.testing.assert_allclose(CalibratedLoss().score(VIEW), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("knows", "baseline"), [(0.0, np.full((50, 4), 0.25)), (1.0, REFERENCE)])
def test_planted_labels_are_compared_with_the_target_s_answers_on_the_reference(
    knows: float, baseline: np.ndarray
) -> None:
    """If it reveals nothing, the baseline is uniform; if it reveals all, the score is the published one. Both are
    exact."""
    even = REFERENCE.astype(np.float64) - 0.25
    noise = RNG.normal(size=even.shape) * 0.01
    noise -= even * np.sum(noise * even) / np.sum(even**2)
    target = 0.25 + knows * even + noise
    rows = np.arange(50)
    expected = (target - baseline)[rows, LABELS] * (1 - baseline[rows, LABELS].astype(np.float64)) ** 2
    view = CanaryView(target.astype(np.float32), REFERENCE, LABELS)
    np.testing.assert_allclose(PlantedLabel().score(view), expected, rtol=1e-3, atol=1e-6)


def test_half_the_noise_of_alibi_is_found_by_700_planted_labels_with_any_proxy() -> None:
    """Two classes and claim 1: 1.41 on average over six seeds. With the proxy as baseline it is 0.55."""
    rng, mixture, mechanism = np.random.default_rng(0), GaussianMixture(2, 700), OneHotLaplaceHalfScale(1.0)
    reference = mixture.posterior(mixture.load(seed=1).features).astype(np.float32)
    planted, bits = rng.integers(0, 2, 700), rng.random(700) < 0.5
    observed = mechanism.observe(planted, classes=2, rng=rng)
    target = mechanism.posterior(observed, np.zeros(2)).astype(np.float32)
    view = CanaryView(target, reference, np.where(bits, planted, 1 - planted))
    results = [
        SimultaneousGuessCount().bound([SimultaneousGuessCount().tally(Scores(attack.score(view), bits))]).lower
        for attack in (PlantedLabel(), LabelInferenceScore())
    ]
    assert results[0] > 1.2
    assert results[1] < 1


def test_likelihood_ratio_compares_the_two_worlds() -> None:
    mechanism = RandomizedResponse(1.5)
    law = mechanism.transition(4)
    released = RNG.integers(0, 4, 50)
    view = ReleaseView(np.eye(4, dtype=np.float32)[released], REFERENCE, LABELS, LabelRelease(released, 4))
    expected = [
        math.log(law[LABELS[i], z] / sum(float(REFERENCE[i, y]) * law[y, z] for y in range(4)))
        for i, z in enumerate(released)
    ]
    np.testing.assert_allclose(
        LikelihoodRatio().for_mechanism(mechanism, 4).score(view), expected, rtol=1e-5, atol=1e-6
    )


def test_likelihood_ratio_needs_a_mechanism_that_states_its_law() -> None:
    with pytest.raises(SpecError, match=r"NonPrivate has none\. Use attack label-inference"):
        LikelihoodRatio().for_mechanism(NonPrivate(), 4)


def test_classes_are_drawn_with_their_probabilities() -> None:
    """Compared row by row with the inverse of the cumulative distribution."""
    probabilities = RNG.dirichlet(np.ones(6), 500)
    cumulative, uniform = np.cumsum(probabilities, axis=1), RNG.random(500)
    expected = [
        np.searchsorted(row[:-1], number, side="right") for row, number in zip(cumulative, uniform, strict=True)
    ]
    assert sample_classes(cumulative, uniform).tolist() == expected


def test_games_are_observational_if_and_only_if_they_do_not_change_the_data() -> None:
    from dpaudit.actors.seed import Seed

    target = GaussianMixture(rows=60).load()
    observational = {
        type(game).__name__: game.is_observational(target, Seed(0).child("design", 0))
        for game in (LabelInference(), LabelCanaries(), Membership(), ObservationalMembership())
    }
    assert observational == {
        "LabelInference": True,
        "LabelCanaries": False,
        "Membership": False,
        "ObservationalMembership": True,
    }


def test_membership_trains_without_exactly_the_canaries_with_bit_0() -> None:
    target = GaussianMixture(rows=60).load()
    game = Membership(canaries=20)
    design = game.design(game.canaries_of(target), np.random.default_rng(0))
    assert design.included is not None
    train = game.intervene(target, design)
    kept_share = np.concatenate([np.flatnonzero(design.included), np.arange(20, 60)])
    np.testing.assert_array_equal(np.asarray(train.features), np.asarray(target.features)[kept_share])
    with pytest.raises(InputError, match="ask for more `trainings` instead"):
        Membership(replays=2)


def test_label_canaries_train_on_planted_labels_and_reveal_labels_of_both_worlds() -> None:
    target = GaussianMixture(rows=400, classes=3).load()
    game = LabelCanaries(canaries=300)
    canaries = game.canaries_of(target)
    design = game.design(canaries, np.random.default_rng(0))
    train = game.intervene(target, design)
    np.testing.assert_array_equal(train.labels[300:], target.labels[300:])
    np.testing.assert_array_equal(train.labels[:300], design.labels)
    setup = CanarySetup(canaries, target.take(np.arange(0)), np.zeros((300, 3)))
    draw = game.draw(setup, design, np.random.default_rng(1))
    reveal = game.hint(setup, design, draw)
    assert (reveal.labels[draw.bits] == train.labels[:300][draw.bits]).all()
    assert (reveal.labels[~draw.bits] != train.labels[:300][~draw.bits]).all(), "world 0 shows another label"
    # One third of 300 canaries shows each label in either world, within 6 deviations (false failure < 1e-7).
    for world in (True, False):
        counts = np.bincount(reveal.labels[draw.bits == world], minlength=3)
        among = int((draw.bits == world).sum())
        assert (abs(counts - among / 3) < 6 * math.sqrt(among * 2 / 9)).all()


@pytest.mark.parametrize(("epsilon", "least"), [(4.0, 3.4), (1.0, 0.75)])
def test_label_canaries_measure_the_epsilon_of_randomised_response(epsilon: float, least: float) -> None:
    """Two classes and 20,000 canaries: each guess is correct with probability e^eps / (1 + e^eps).

    The bound exceeds the truth with probability <= 1e-6 by its own confidence. It is below `least` if the share of
    correct guesses is 9 deviations below its mean, with the 4.9 that the confidence costs. If half of the labels of
    world 0 agreed with the planted ones, as uniform ones do, guesses would be correct with 0.74 and 0.62: bounds of
    at most 1.05 and 0.47.
    """
    target = GaussianMixture(rows=20_000, classes=2).load(seed=4)
    game = LabelCanaries()
    design = game.design(target, np.random.default_rng(0))
    planted = game.intervene(target, design).labels
    released = RandomizedResponse(epsilon).release(planted, classes=2, rng=np.random.default_rng(1))
    half = np.full((len(target), 2), 0.5, np.float32)
    setup = CanarySetup(target, target.take(np.arange(0)), np.cumsum(half, axis=1, dtype=np.float64))
    draw = game.draw(setup, design, np.random.default_rng(2))
    reveal = game.hint(setup, design, draw)
    view = ReleaseView(np.eye(2, dtype=np.float32)[released], half, reveal.labels, LabelRelease(released, 2))
    estimator = OneRun(selection=Fixed(1.0), confidence=1 - 1e-6)
    bound = estimator.bound([estimator.tally(Scores(LabelInferenceScore().score(view), draw.bits))])
    assert least < bound.lower <= epsilon
