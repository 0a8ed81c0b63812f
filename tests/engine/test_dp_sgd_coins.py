"""DP-SGD with many coins a step: loops, learners and Opacus are trained with the canaries of a running audit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import binom

from dpaudit import Audit, AuditSpec, RunOptions, Verdict, audit, from_steps
from dpaudit.actors.seed import Seed
from dpaudit.claims import GaussianDP
from dpaudit.engine.games.steps.aggregation import Aggregation
from dpaudit.engine.games.steps.dp_sgd_coins import CoinProbe, CoinSteps, DpSgdCoins, score_coins, train_with_coins
from dpaudit.engine.games.steps.step_observer import LearnedNoise
from dpaudit.errors import InputError
from dpaudit.estimators.one_run.coin_averages import CoinAverages, CoinTally
from dpaudit.estimators.one_run.step_martingale import StepMartingale
from dpaudit.mechanisms.compute import Compute
from dpaudit.mechanisms.examples import Examples
from dpaudit.mechanisms.learners.dp_sgd import DpSgd
from dpaudit.mechanisms.models.networks import Mlp
from dpaudit.mechanisms.planted.dp_sgd import HalfTheNoiseDpSgd
from dpaudit.mechanisms.training.private.private_steps import StepCanary
from tests.bank.loops import Adam, BareFirstLayer, Loop, MovingAverage, OwnLayers, SeededEachEpoch, changed, noise_times
from tests.nightly import by_day

HERE = RunOptions(runner="in-process", figures=False, repeats=0)


def examples(seed: int, rows: int = 400) -> Examples:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, rows)
    return Examples((rng.standard_normal((rows, 5)) + labels[:, None]).astype(np.float32), labels, 2, "drawn")


def learner(loop: type[Loop]) -> Any:
    stated = {"steps": loop.steps, "sample_rate": loop.rate, "divisor": loop.divisor, "clip": loop.clip}
    return from_steps(loop, noise_multiplier=loop.sigma, **stated)


def observed(mechanism: Any, seed: int, data: Examples | None = None) -> CoinSteps:
    return train_with_coins(mechanism, LearnedNoise(), data or examples(seed), Compute(), coins=20, seed=Seed(seed))


def tally_of(*trainings: CoinSteps) -> CoinTally:
    (scores,) = score_coins(trainings)
    return CoinAverages().tally(scores)


CLAIMED = GaussianDP(1.0).delta(0.0)


@pytest.mark.parametrize(
    ("loop", "points_to"),
    [
        (noise_times(lambda loop, _: 0.5, steps=48), "noise size: the noise of all weights in all steps has 0.5"),
        (noise_times(lambda loop, _: 0.5 if 2 * loop.count >= loop.steps else 1), "noise size: the noise of the last"),
        (BareFirstLayer, "parameters outside of the noised ones: no noise on 70 % of the weights"),
        (SeededEachEpoch, "repeat the noise of 10 steps before"),
        (MovingAverage, "noise form: the noise of a step is correlated with that of the step before (0.5"),
    ],
)
def test_noise_that_is_too_small_or_repeats_is_found_in_one_training(loop: type[Loop], points_to: str) -> None:
    """The seed is fixed; each of 10 other seeds found the defect too."""
    steps = observed(learner(loop), 1)
    assert tally_of(steps).p_value(CLAIMED) < 0.001
    assert any(points_to in hint for hint in steps.points_to)


def test_honest_loops_are_rejected_no_more_often_than_stated() -> None:
    """Loops of 40 steps, with exact Gaussian noise; false failure < 1e-4."""
    trained = [
        observed(learner(type(f"Short{loop.__name__}", (loop,), {"steps": 40})), seed)
        for loop in (Loop, Adam, OwnLayers)
        for seed in range(by_day(10, by_night=100))
    ]
    tallies = [tally_of(steps) for steps in trained]
    p_values = [tally.p_value(CLAIMED) for tally in tallies]
    assert (np.array(p_values) <= 0.05).sum() <= binom.ppf(1 - 1e-4, len(p_values), 0.05)
    assert min(p_values) > 1e-5
    above = [CoinAverages(delta=1e-5).find([tally]).violation_point(GaussianDP(1.0)) is not None for tally in tallies]
    assert sum(above) <= binom.ppf(1 - 1e-4, len(p_values), 0.05)


def test_a_loop_is_told_where_its_noise_is_wrong(tmp_path: Path) -> None:
    """The seed is fixed."""
    part = Audit(learner(noise_times(lambda loop, _: 0.5)), examples(0), "dp-sgd-coins")
    (result,) = audit(AuditSpec((part,), seed=3, run=HERE), output=tmp_path / "run", quiet=True).results
    assert result.verdict is Verdict.VIOLATION
    assert "points-to     noise size: the noise of all weights in all steps has 0.5 of the stated" in result.text()
    counts = dict(result.finding.counts)  # type: ignore[union-attr]
    assert (counts["steps"], counts["coins"]) == (200, 200 * 19), "a model of 57 weights has 19 coins"


def test_canaries_are_beyond_the_clip_and_what_is_seen_is_noise_and_canaries() -> None:
    """Without noise a clipped canary adds 1 / length on each of its weights, and a canary without a clip ten times."""
    for clip, expected in ((1.0, 1.0), (100.0, 10.0)):
        probe, rng = CoinProbe(LearnedNoise(), 1.0, 4, np.random.default_rng(0)), np.random.default_rng(1)
        canary = StepCanary(probe, np.random.default_rng(2), clip=1.0, divisor=2.0)
        for step in range(30):
            rows = canary.join(step, rng.standard_normal((5, 60)).astype(np.float32))
            norms = np.linalg.norm(rows, axis=1, keepdims=True)
            clipped = rows * np.minimum(1, np.append(np.ones(5), np.full(len(rows) - 5, clip))[:, None] / norms)
            canary.observe(step, clipped.sum(0) / 2)
        steps = probe.steps(33)
        assert (steps.truth.shape, steps.truth[30:].any()) == ((33, 4), False)
        assert (steps.score[30:] == 0).all(), "missing steps are not guessed"
        observer = probe._observer
        assert observer is not None
        assert observer.model.effect == pytest.approx(expected, abs=0.2 * expected)


def test_learners_and_their_data_do_not_hide_half_of_the_noise() -> None:
    """Our own learner does not show its batches, so the data are in the sums. The seed is fixed."""
    rng = np.random.default_rng(8)
    data = Examples(rng.standard_normal((400, 20)).astype(np.float32), rng.integers(0, 2, 400), 2, "drawn")
    model = Mlp(hidden=(16,), epochs=20, batch_size=40, learning_rate=0.5, momentum=0.0)
    p_values = []
    for kind in (DpSgd, HalfTheNoiseDpSgd):
        mechanism = kind(16.0, sample_rate=0.1, model=model)
        steps = observed(mechanism, 1, data)
        p_values.append(tally_of(steps).p_value(GaussianDP(1 / mechanism.noise_multiplier()).delta(0.0)))
        assert not steps.points_to, "hints need the batches"
    assert p_values[0] > 0.05
    assert p_values[1] < 0.001


def test_the_clip_of_a_batch_is_named() -> None:
    aggregation, rng = Aggregation(), np.random.default_rng(0)
    assert not aggregation.points_to(0.1)
    for rows in range(3, 23):
        batch, canary = 0.3 * rng.standard_normal((rows, 30)), 10 * rng.standard_normal(30)
        expected = aggregation.expected(batch, canary)
        total = batch.sum(0)
        released = total / max(1, np.linalg.norm(total)) + 0.1 * rng.standard_normal(30)
        aggregation.add(aggregation.fit(expected, released), False)
    assert aggregation.points_to(0.01) == (
        "clip: the observed sums are not those of clipped gradients and the stated noise",
    )
    assert aggregation.points_to(0.1) == ("clip: the sum of the batch is clipped, and not each gradient",)


def test_a_training_without_noise_gives_every_coin_away() -> None:
    """A learner of infinite epsilon claims nothing, but its steps are shown too."""
    rows = Examples(np.zeros((9, 4), np.float32), np.zeros(9, np.int64), 2, "blank")
    model = Mlp(hidden=(8,), epochs=3, batch_size=3, learning_rate=0.5, momentum=0.0)
    steps = observed(DpSgd(np.inf, sample_rate=0.3, model=model), 0, rows)
    assert ((steps.score > 0) == steps.truth).mean() > 0.9


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(InputError, match="coins must be >= 1"):
        DpSgdCoins(coins=0)
    (scores,) = score_coins((observed(learner(changed(steps=3)), 0),))
    with pytest.raises(InputError, match="a step must have one coin"):
        StepMartingale().tally(scores)
