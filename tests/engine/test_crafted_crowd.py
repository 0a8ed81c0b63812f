"""The game of a crafted crowd: the likelihood ratio against a slow twin, its power, and its false positives."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import binom, norm

from dpaudit import Audit, AuditSpec, Claim, Relation, RunOptions, Verdict, audit
from dpaudit.claims import SubsampledGaussian
from dpaudit.engine.games.steps.opposing_gradients import (
    HYPOTHESES,
    CrowdLaw,
    CrowdLikelihood,
    CrowdSearch,
    CrowdSteps,
    CrowdView,
    OpposingGradients,
    crowd_examples,
    crowd_shape,
    first_steps,
    fitted_law,
    information_gains,
    sizes_for,
)
from dpaudit.errors import InputError, SpecError
from dpaudit.estimators.scores import Scores
from dpaudit.estimators.two_world.fair_coins import FairCoins
from dpaudit.mechanisms.learners.dp_sgd import DpSgd
from dpaudit.mechanisms.training.private.private_steps import ClaimedSteps, PrivateSteps
from tests.nightly import by_day

Floats = NDArray[np.float64]
CLAIMED = PrivateSteps(clip=1.0, noise_multiplier=2.0, sample_rate=0.25)
STEPS, EPOCH, RECORDS = 40, 4, 5
MODEL = {"name": "mlp", "hidden": [8], "epochs": 10, "batch_size": 70, "learning_rate": 1.0, "momentum": 0.0}


@pytest.mark.parametrize("once", [False, True])
def test_the_likelihood_ratio_equals_its_slow_twin(once: bool) -> None:
    """The twin enumerates all ways in which the canary may join four steps. A law without `driven_out` differs."""
    rng = np.random.default_rng(0)
    steps = CrowdSteps(rng.standard_normal((3, 4)), rng.uniform(0.5, 1, (3, 4)), -rng.uniform(0.3, 1, (3, 4)))
    joins = np.array([0.3, 0.7, 0.6, 0.4]) if once else np.array([0.1, 0.5, 0.25, 1.0])
    epochs = np.array([0, 2, 4]) if once else np.empty(0, np.int64)
    law = CrowdLaw(
        joins, epochs, np.array([1.0, 2, 1, 2]), np.array([1.0, 2, 2, 3]), 1.0, 1.5, np.array([4.0, 4, 1, 4]), 0.2
    )
    expected = [math.log(_likelihood(law, steps, row, True) / _likelihood(law, steps, row, False)) for row in range(3)]
    np.testing.assert_allclose(law.log_ratio(steps), expected, rtol=1e-9)
    assert np.abs(replace(law, driven_out=0.0).log_ratio(steps) - expected).max() > 0.01


def _likelihood(law: CrowdLaw, steps: CrowdSteps, row: int, is_member: bool) -> float:
    """Return the sum over all sets of joined steps of their probability times the density of the release."""
    total = 0.0
    for joined in itertools.product((False, True), repeat=4):
        if not is_member:
            likely = float(not any(joined))
        elif len(law.epochs):
            likely = math.prod(
                law.joins[first:last][list(joined[first:last])].sum() if sum(joined[first:last]) == 1 else 0.0
                for first, last in itertools.pairwise(law.epochs)
            )
        else:
            likely = math.prod(p if joins_step else 1 - p for p, joins_step in zip(law.joins, joined, strict=True))
        for step, joins_step in enumerate(joined):
            k, count = (
                steps.crowd[row, step],
                (law.count_in if is_member else law.count)[step] - law.driven_out * joins_step,
            )
            mean = count * k + law.gain * steps.canary[row, step] * joins_step
            likely *= norm.pdf(steps.released[row, step], mean, math.sqrt(law.variance[step] + law.spread * k**2))
        total += likely
    return total


@dataclass(frozen=True)
class Played:
    """Steps drawn from a law without a network; gradients have the length of the clip."""

    sampling: str
    noise: float = CLAIMED.noise_multiplier

    def steps(self, trials: int, rng: np.random.Generator) -> tuple[CrowdSteps, NDArray[np.bool_]]:
        """Return the steps of trainings, and their worlds."""
        truth = rng.random(trials) < 0.5
        crowd, canary = self._batches(truth, rng)
        ones = np.ones((trials, STEPS))
        released = canary - crowd + self.noise * rng.standard_normal((trials, STEPS))
        return CrowdSteps(released, ones, -ones), truth

    def _batches(self, truth: NDArray[np.bool_], rng: np.random.Generator) -> tuple[Any, Any]:
        if self.sampling == "poisson":
            in_batch = rng.random((len(truth), STEPS, RECORDS + 1)) < CLAIMED.sample_rate
            return in_batch[..., :RECORDS].sum(-1), in_batch[..., RECORDS] & truth[:, None]
        counts = np.zeros((2, len(truth), STEPS))
        for trial, is_member in enumerate(truth):
            for first in range(0, STEPS, EPOCH):
                if self.sampling == "fixed":
                    batches = [rng.choice(RECORDS + is_member, 1, replace=False) for _ in range(EPOCH)]
                else:
                    batches = np.array_split(rng.permutation(RECORDS + is_member), EPOCH)
                for step, batch in enumerate(batches, first):
                    counts[:, trial, step] = (batch < RECORDS).sum(), (batch == RECORDS).sum()
        return counts[0], counts[1]

    def search(self, trials: int, rng: np.random.Generator) -> CrowdSearch:
        """Return the search trainings."""
        return CrowdSearch(*self.steps(trials, rng), CLAIMED, RECORDS)


@pytest.mark.parametrize(
    ("sampling", "learned"), [("fixed", "batches of fixed size"), ("shuffled", "changes the batch sizes")]
)
def test_effect_of_an_added_record_is_learned(sampling: str, learned: str) -> None:
    """The seed is fixed. 1,000 trainings are more than enough to distinguish the laws."""
    search = Played(sampling).search(by_day(1_000, by_night=3_000), np.random.default_rng(1))
    gains = information_gains(search)
    (learned_hypothesis,) = (hypothesis for hypothesis in HYPOTHESES if learned in hypothesis.words)
    assert gains[learned_hypothesis] > gains[HYPOTHESES[0]] + 0.01


def test_too_small_noise_is_detected_and_claimed_noise_is_not() -> None:
    """Variances of 3,000 trainings of 40 steps err by more than a tenth with probability far below 10^-6."""
    rng = np.random.default_rng(2)
    for noise in (CLAIMED.noise_multiplier, CLAIMED.noise_multiplier / 2):
        law = fitted_law(HYPOTHESES[0], Played("poisson", noise).search(3_000, rng))
        expected = RECORDS * CLAIMED.sample_rate * (1 - CLAIMED.sample_rate)
        total = law.variance.mean() + law.spread
        assert total == pytest.approx(noise**2 + expected, rel=0.1)


def test_steps_as_claimed_are_rejected_no_more_often_than_stated() -> None:
    """False failure < 1e-6: the limit is the 1 - 1e-6 quantile of Binomial(honest, 0.05); defects exceed it."""
    honest, shuffled = by_day((8, 8), by_night=(40, 20))
    claim = Claim.of(SubsampledGaussian(2.0, 0.25, STEPS), relation=Relation.ADD_REMOVE, delta=1e-5)
    limit = binom.ppf(1 - 1e-6, honest, 0.05)
    assert sum(_rejections("poisson", claim, seed) for seed in range(honest)) <= limit
    assert sum(_rejections("shuffled", claim, seed) for seed in range(shuffled)) > limit


def _rejections(sampling: str, claim: Claim, seed: int) -> bool:
    rng = np.random.default_rng([seed, 3])
    played = Played(sampling)
    fresh, truth = played.steps(400, rng)
    scores = CrowdLikelihood().score(CrowdView(played.search(200, rng), fresh))
    estimator = FairCoins(delta=claim.delta)
    bound = estimator.bound([estimator.tally(Scores(scores, truth))])
    return bound.lower > claim.epsilon or any(
        comparison.observed > comparison.claimed
        for comparison in (evidence.comparison(claim.curve) for evidence in bound.evidence)
    )


@pytest.mark.parametrize(
    ("mechanism", "size", "trials", "verdict"),
    [
        ("tests.bank.planted_dp_sgd:FixedBatchesDpSgd", 14, 256, Verdict.VIOLATION),
        pytest.param(
            "tests.bank.planted_dp_sgd:ShuffledBatchesDpSgd", 2, 512, Verdict.VIOLATION, marks=pytest.mark.nightly
        ),
        pytest.param("dp-sgd", 14, 128, Verdict.NO_VIOLATION, marks=pytest.mark.nightly),
    ],
)
def test_batches_that_differ_from_the_accounting_are_rejected(
    mechanism: str, size: int, trials: int, verdict: Verdict, tmp_path: Path
) -> None:
    """Real trainings. The seed is fixed; with another seed DP-SGD would be flagged with probability <= 0.05."""
    entry = Audit(
        {"name": mechanism, "epsilon": 1.0, "sample_rate": 0.1, "model": MODEL},
        {"name": "gaussian-mixture", "classes": 2, "rows": 40},
        game={"name": "opposing-gradients", "trials": trials, "search": trials // 2, "sizes": [size]},
    )
    spec = AuditSpec((entry,), seed=5, run=RunOptions(runner="in-process", figures=False, repeats=0))
    (result,) = audit(spec, output=tmp_path, quiet=True).results
    assert result.verdict is verdict


def test_sizes_are_those_at_which_batches_may_grow() -> None:
    assert sizes_for(DpSgd(1.0, sample_rate=0.1), 500) == (2, 10, 14, 19)
    assert sizes_for(DpSgd(1.0, sample_rate=1.0), 500) == (1, 2)


@dataclass(frozen=True)
class ByRows(DpSgd):
    """Claim whose number of steps depends on the number of rows: on tens of rows, or on every row."""

    each: int = 10

    def claimed_steps(self, rows: int) -> ClaimedSteps:
        return ClaimedSteps(replace(self.private_steps(), sample_rate=1 / (2 + rows // self.each)), 10)


def test_claim_that_depends_on_the_rows_is_tested_at_a_size_with_equal_claims() -> None:
    assert sizes_for(ByRows(1.0), 49) == (50,)
    with pytest.raises(SpecError, match="Set `sizes` explicitly"):
        sizes_for(ByRows(1.0, each=1), 49)


def test_the_crowd_has_the_canary_s_features_and_the_other_label() -> None:
    examples = crowd_examples((2, 8), 3.0)
    assert examples.labels.tolist() == [0, 1]
    assert np.linalg.norm(examples.features[0]) == pytest.approx(3.0)
    assert np.array_equal(examples.features[0], examples.features[1])
    assert crowd_shape(np.zeros((7, 64), np.float32)) == (1,)
    assert crowd_shape(np.zeros((7, 1, 8, 8), np.float32)) == (1, 8, 8)


def test_epochs_are_passes_over_the_data() -> None:
    assert first_steps(30, 0.1).tolist() == [0, 10, 20, 30]
    assert first_steps(10, 0.15).tolist() == [0, 5, 10]
    assert first_steps(3, 0.01).tolist() == [0, 3]


def test_invalid_options_are_refused() -> None:
    with pytest.raises(InputError, match="sizes of crowds must be >= 1"):
        OpposingGradients(sizes=(0,))
    with pytest.raises(InputError, match="length must be > 0"):
        OpposingGradients(length=0.0)
    rng = np.random.default_rng(0)
    search = Played("poisson").search(30, rng)
    with pytest.raises(InputError, match="must come from both worlds"):
        information_gains(search.of(search.truth))
