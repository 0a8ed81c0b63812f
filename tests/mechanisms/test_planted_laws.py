"""Planted defects change the law of the draws as documented, and the check of the honest law detects it."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
from numpy.random import SeedSequence
from numpy.typing import NDArray

from dpaudit.mechanisms.compute import Compute
from dpaudit.mechanisms.labels.randomized_response import OneHotLaplace, RandomizedResponse
from dpaudit.mechanisms.learners.dp_sgd import DpSgd
from dpaudit.mechanisms.learners.lp_mst import LP2ST
from dpaudit.mechanisms.planted.dp_sgd import HalfTheNoiseDpSgd, NoClippingDpSgd
from dpaudit.mechanisms.training.private.private_stack import PrivateStack
from dpaudit.mechanisms.training.private.private_steps import PrivateSteps
from dpaudit.mechanisms.training.recipe import TrainingTask
from tests.bank.planted_dp_sgd import (
    ClipDoubledAfterWarmUpDpSgd,
    ClipEachCoordinateDpSgd,
    FixedBatchesDpSgd,
    NoiseSeededEachStepDpSgd,
)
from tests.bank.planted_learners import (
    AlibiHalfScale,
    AlibiSigmaForB,
    BinaryFormulaResponse,
    ConstantSeedResponse,
    LP2STReusedRandomness,
    OneDrawPerLabelResponse,
    OneHotLaplaceHalfScale,
)
from tests.mechanisms.laws import Cells, departures
from tests.mechanisms.test_laws import (
    DELTA,
    DRAWS,
    NETWORK,
    SMALL,
    answered_truly,
    gaussian_chances,
    laplace_chances,
    noise_of_rows,
    releases,
    step_noise,
    steps_from_the_truth,
    two_releases,
    undecided,
)
from tests.mechanisms.test_learners import numbered, rows

HONEST = answered_truly(1.0, 10)


def test_the_binary_formula_costs_log_of_the_other_classes_more() -> None:
    defect = BinaryFormulaResponse(1.0)
    cells = steps_from_the_truth(defect, 10)
    assert departures(cells, HONEST)
    assert departures(cells, answered_truly(1 + math.log(9), 10)) == []
    np.testing.assert_allclose(defect.transition(10)[0], answered_truly(1 + math.log(9), 10))
    assert departures(steps_from_the_truth(defect, 2), answered_truly(1.0, 2)) == []


def test_one_draw_for_a_label_value_is_one_draw() -> None:
    """The marginal law over many releases is right; only the joint law of neighbouring draws shows the defect."""
    cells = steps_from_the_truth(OneDrawPerLabelResponse(1.0), 10)
    assert (cells[:, ::2] == cells[:, 1::2]).all()
    assert any(difference.startswith("neighbouring draws") for difference in departures(cells, HONEST))
    rng = np.random.default_rng(0)
    firsts = [OneDrawPerLabelResponse(1.0).release(np.arange(2), classes=10, rng=rng) for _ in range(5000)]
    assert departures(np.stack(firsts).T, answered_truly(1.0, 10)) != []  # label 1's draws are one step on
    assert departures((np.stack(firsts) - [0, 1]).T % 10, HONEST) == []


def test_a_constant_seed_shows_between_releases_alone() -> None:
    """The law within one release is right."""
    differences = departures(steps_from_the_truth(ConstantSeedResponse(1.0), 10), HONEST)
    assert differences
    assert {line.split(",")[0] for line in differences} == {"two releases"}


@pytest.mark.parametrize(
    ("defect", "less"),
    [
        (OneHotLaplaceHalfScale(1.0), 1 / 2),
        (AlibiHalfScale(1.0).labels(), 1 / 2),
        (AlibiSigmaForB(1.0).labels(), 1 / math.sqrt(2)),
    ],
)
def test_noisy_rows_have_the_smaller_scale(defect: OneHotLaplace, less: float) -> None:
    cells = two_releases(noise_of_rows)(defect)
    assert departures(cells, laplace_chances())
    assert departures(cells, laplace_chances(less)) == []


def both_stages(learner: LP2ST) -> Cells:
    """Return the distance of released from true labels in both stages, one row per stage."""
    learner.fit(numbered(np.zeros(DRAWS, np.int64), 10), seed=SeedSequence(2), compute=Compute())
    first, last = learner.model.training_sets  # type: ignore[attr-defined]
    return np.stack([first.labels, np.delete(last.labels, rows(first))])


def test_stages_with_the_same_randomness_have_the_same_noise() -> None:
    assert departures(both_stages(LP2ST(1.0, model=undecided(10))), HONEST) == []
    cells = both_stages(LP2STReusedRandomness(1.0, model=undecided(10)))
    assert (cells[0] == cells[1]).all()
    assert {line.split(",")[0] for line in departures(cells, HONEST)} == {"two releases"}


def test_half_the_noise_is_half_the_noise() -> None:
    cells = step_noise(HalfTheNoiseDpSgd(1.0, DELTA, 0.5, 1.0, model=NETWORK))
    assert departures(cells, gaussian_chances())
    assert departures(cells, gaussian_chances(1 / 2)) == []


def one_example(learner: DpSgd, label: int = 0) -> NDArray[np.float32]:
    """Noisy sums of each step for one model trained on one example, shape (steps, P)."""
    task = TrainingTask(np.array([0]), np.array([label]), SeedSequence(9))
    return releases(learner, np.ones((1, 64), np.float32), [task])[:, 0]


def test_noise_seeded_in_each_step_is_the_same_in_an_epoch_s_steps() -> None:
    """Two steps in each epoch; the example's gradient hardly changes, and differs by which step takes it."""
    for kind, same in ((DpSgd, False), (NoiseSeededEachStepDpSgd, True)):
        sums = one_example(kind(1.0, DELTA, 1e-6, 0.5, model=NETWORK))
        noise = np.abs(sums).mean()
        assert (np.abs(sums[0] - sums[1]).max() < noise) == same
        assert np.abs(sums[0] - sums[2]).max() > noise


def test_clipped_coordinates_leave_the_norm_unbounded() -> None:
    clip = 0.01
    honest, defect = (
        one_example(kind(math.inf, DELTA, clip, 1.0, model=NETWORK)) for kind in (DpSgd, ClipEachCoordinateDpSgd)
    )
    assert np.linalg.norm(honest, axis=1).max() <= clip * (1 + 1e-4)
    assert np.abs(defect).max() == pytest.approx(clip)
    assert np.linalg.norm(defect, axis=1).min() > 10 * clip


def test_without_clipping_the_norm_is_the_gradient_s_own() -> None:
    """At twice the clip nothing changes, while honest DP-SGD follows it."""
    norms = {
        kind: [
            np.linalg.norm(one_example(kind(math.inf, DELTA, clip, 1.0, model=NETWORK)), axis=1)[0]
            for clip in (0.01, 0.02)
        ]
        for kind in (DpSgd, NoClippingDpSgd)
    }
    np.testing.assert_allclose(norms[DpSgd], [0.01, 0.02], rtol=1e-3)
    assert norms[NoClippingDpSgd][0] == norms[NoClippingDpSgd][1] > 1


def test_the_clip_is_doubled_after_a_tenth_of_the_epochs() -> None:
    norms = np.linalg.norm(one_example(ClipDoubledAfterWarmUpDpSgd(math.inf, DELTA, 0.01, 1.0, model=SMALL)), axis=1)
    np.testing.assert_allclose(norms, [0.01] * 4 + [0.02] * 36, rtol=1e-3)


def test_fixed_batches_have_one_size() -> None:
    """40 records at rate 0.1: Poisson sizes vary by 1.9; 100 of them are all 4 with probability < 1e-60."""
    stack = SimpleNamespace(counts=np.array([40]), records=np.array([40]), private=PrivateSteps(1.0, 1.0, 0.1))
    fixed = FixedBatchesDpSgd(1.0).stack_type()
    sizes = {
        kind: {len(batch[0]) for batch in kind.batches(stack, [np.random.default_rng(0)], 100)}  # type: ignore[arg-type]
        for kind in (PrivateStack, fixed)
    }
    assert sizes[fixed] == {4}
    assert len(sizes[PrivateStack]) > 3
    norms = np.linalg.norm(one_example(FixedBatchesDpSgd(math.inf, DELTA, 0.01, 0.1, model=SMALL)), axis=1)
    np.testing.assert_allclose(norms, 0.01, rtol=1e-3)  # one record of one is in every batch


def test_defects_claim_what_honest_mechanisms_do() -> None:
    for defect in (BinaryFormulaResponse(1.0), OneDrawPerLabelResponse(1.0), ConstantSeedResponse(1.0)):
        assert defect.claim() == RandomizedResponse(1.0).claim()
    assert AlibiHalfScale(1.0).claim() == AlibiSigmaForB(1.0).claim() == OneHotLaplaceHalfScale(1.0).claim()
    assert LP2STReusedRandomness(1.0).claim() == LP2ST(1.0).claim()
