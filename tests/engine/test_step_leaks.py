"""Leaks of DP-SGD between steps, by the clip of a batch and by stored noise: neighbours are found, twins pass."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import binom

from dpaudit import from_steps
from dpaudit.actors.seed import Seed
from dpaudit.claims import GaussianDP, Scope
from dpaudit.engine.games.steps.aggregation import Aggregation, clipped_sum
from dpaudit.engine.games.steps.dp_sgd_steps import DpSgdSteps, StepMidpoint, score_steps, train_steps
from dpaudit.engine.games.steps.noise import THRESHOLD_NATS, LowDigits, Recurrence
from dpaudit.engine.games.steps.step_probes import RUN_NATS, Steps
from dpaudit.errors import SpecError
from dpaudit.estimators.one_run.step_martingale import StepAccuracy, StepMartingale
from dpaudit.mechanisms.compute import Compute
from dpaudit.mechanisms.examples import Examples
from tests import nightly
from tests.bank import step_leaks as bank
from tests.bank.loops import Adam, EqualLayers, Loop


def random_examples(seed: int, rows: int = 700) -> Examples:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, rows)
    return Examples((rng.standard_normal((rows, 5)) + labels[:, None]).astype(np.float32), labels, 2, "drawn")


def learner(loop: type[Loop]) -> Any:
    return from_steps(
        loop,
        noise_multiplier=loop.sigma,
        steps=loop.steps,
        sample_rate=loop.rate,
        divisor=loop.divisor,
        clip=loop.clip,
    )


def p_value(loop: type[Loop], seed: int, *, trainings: int = 4, rows: int = 700, **settings: Any) -> float:
    """P-value of the step's claim in the last half of some trainings, which learn from those before."""
    trained: tuple[Steps, ...] = ()
    for number in range(trainings):
        attacked = (learner(loop), StepMidpoint(), None, random_examples(seed, rows), None, trained, Compute())
        trained += (train_steps(*attacked, size=rows, seed=Seed(seed).child(number), **settings),)
    (scores,) = score_steps(None, trained[trainings // 2 :])
    return StepAccuracy(StepMartingale().tally(scores), 0.0).p_value(GaussianDP(1 / loop.sigma))


@pytest.mark.parametrize(
    "loop",
    [
        bank.NoiseFromTable,
        bank.NoiseFromTableInTurn,
        bank.NoiseFromTableByLayer,
        bank.NoiseFromTableBackwards,
        bank.NoiseFromOwnTable,
        bank.RawNormScales,
        bank.ClipOfTheStepBefore,
    ],
)
def test_what_a_step_keeps_is_seen_in_four_trainings(loop: type[Loop]) -> None:
    """The seed is fixed."""
    assert p_value(loop, 1, without_search=True) < 0.001


def short(loop: type[Loop]) -> type[Loop]:
    """Return a loop of 40 steps."""
    return type(f"Short{loop.__name__}", (loop,), {"steps": 40})


OWN = (bank.Decaying, bank.EmptyBatches, bank.ObservedMomentum, bank.ClipOfReleases)
HONEST = [short(loop) for loop in (Loop, Adam, EqualLayers, *OWN)]


def test_honest_loops_are_refuted_no_more_often_than_stated_though_the_next_step_is_seen() -> None:
    """Audits of two trainings; false failure < 1e-4, and none at the level of a check."""
    seeds = nightly.by_day(3, by_night=30)
    p_values = [p_value(loop, seed, trainings=2, rows=200) for loop in HONEST for seed in range(seeds)]
    assert (np.array(p_values) <= 0.05).sum() <= binom.ppf(1 - 1e-4, len(p_values), 0.05)
    assert min(p_values) > 1e-5


@pytest.mark.parametrize(
    "loop",
    [bank.HalfPrecisionNoise, bank.SinglePrecisionNoise, bank.BrainPrecisionNoise, bank.FixedPointNoise],
)
def test_digits_of_the_noise_are_a_side_finding(loop: type[Loop], tmp_path: Path) -> None:
    """Noise in fewer bits than the sum tells by its digits, not by more. The seed is fixed."""
    assert p_value(loop, 1, trainings=2, full_digits=True) < 1e-9
    assert p_value(loop, 1, trainings=2) > 0.01
    (test,) = [test for test in DpSgdSteps.traits.check_tests if test.scope is Scope.FLOATING_POINT]
    assert test.game["full_digits"] is True


@pytest.mark.parametrize("loop", [short(Loop), short(Adam), bank.RoundedTogether, bank.EmptyBatches])
def test_digits_of_honest_loops_tell_nothing(loop: type[Loop]) -> None:
    assert p_value(loop, 1, trainings=2, full_digits=True) > 0.01


def test_full_digits_choose_their_canaries() -> None:
    with pytest.raises(SpecError, match="with `full_digits` chooses its canaries"):
        DpSgdSteps(full_digits=True, sampling=True)


def test_the_clip_of_a_loop_is_fitted() -> None:
    """From ten steps: a canary against the average of a batch moves a clipped average by two clips, not by one."""
    rng, honest, averaged = np.random.default_rng(3), Aggregation(), Aggregation()
    batches = [2 * rng.standard_normal((5, 20)) + 1 for _ in range(10)]
    for batch in batches:
        canary = 100 * rng.standard_normal(20)
        noise, joined = rng.standard_normal(20), bool(rng.random() < 0.5)
        rows = np.concatenate([batch, canary[None]]) if joined else batch
        mean = rows.mean(0)
        for fitted, summed in ((honest, clipped_sum(rows)), (averaged, mean / max(1.0, np.linalg.norm(mean)))):
            expected = fitted.expected(batch, canary)
            fitted.add(fitted.fit(expected, summed + noise), joined)
    against = -100 * batches[0].sum(0)
    assert honest.effect_norm(batches[0], against) is None
    norm = averaged.effect_norm(batches[0], against)
    assert norm is not None
    assert norm > 1.2
    base, effect = honest.base_and_effect(honest.expected(batches[0], against))
    np.testing.assert_allclose(base, clipped_sum(batches[0]))
    np.testing.assert_allclose(np.linalg.norm(effect), 1)


def test_a_run_of_stored_noise_is_found_at_any_shift_and_sign() -> None:
    rng = np.random.default_rng(4)
    table = rng.standard_normal(2_000)
    stored = Recurrence(np.zeros((0, 40)), 1.0)
    for start in range(0, 2_000, 40):
        stored.add(table[start : start + 40])
    cut = table[613:653]
    assert min(stored.nats(cut), stored.nats(-cut), stored.nats(cut[::-1])) > RUN_NATS
    mixed = np.concatenate([cut[:8], rng.standard_normal(32)])
    assert stored.nats(mixed) > RUN_NATS, "a part of it"
    assert stored.nats(np.concatenate([cut[:20], cut[:20]])) > RUN_NATS, "within one step too"
    fresh = [stored.nats(rng.standard_normal(40)) for _ in range(200)]
    assert max(fresh) < RUN_NATS
    coarse = Recurrence(np.round(rng.standard_normal((50, 40)), 2), 1.0)
    assert max(coarse.nats(np.round(rng.standard_normal(40), 2)) for _ in range(200)) < RUN_NATS, "digits alone"


def test_low_digits_know_a_grid_and_values_that_recur() -> None:
    rng = np.random.default_rng(5)
    canary = rng.standard_normal(30) / 6
    digits = LowDigits((1.0, 0.5))
    half = rng.standard_normal(30).astype(np.float16).astype(np.float64)
    assert digits.score(half, half - canary) < -THRESHOLD_NATS
    assert digits.score(2 * half + canary, 2 * half) > THRESHOLD_NATS
    values = rng.standard_normal(10)
    digits.add(values)
    drawn_again = rng.choice(values, 30)
    assert digits.score(drawn_again, drawn_again - canary) < -THRESHOLD_NATS
    fresh = rng.standard_normal(30)
    assert abs(digits.score(fresh, fresh - canary)) <= THRESHOLD_NATS
