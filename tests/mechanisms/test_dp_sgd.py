"""DP-SGD: its steps against a slow twin, its accounting against quadrature, its bugs against the honest law."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from mpmath import mp
from numpy.random import SeedSequence
from numpy.typing import NDArray
from scipy.stats import binom, chi2
from sklearn.datasets import load_digits
from torch import Tensor, nn

from dpaudit.claims import Relation, SubsampledGaussian
from dpaudit.errors import InputError
from dpaudit.mechanisms.compute import Compute, epoch_generator, spawned, torch_generator
from dpaudit.mechanisms.examples import Examples
from dpaudit.mechanisms.learners.dp_sgd import DpSgd
from dpaudit.mechanisms.models.networks import Mlp, Network, ResNet18, SmallCnn
from dpaudit.mechanisms.planted.dp_sgd import ClipBatchMeanDpSgd, NoiseOverBatchDpSgd, PlantedDpSgd
from dpaudit.mechanisms.protocols import Learner
from dpaudit.mechanisms.training.kernels import draw_weights
from dpaudit.mechanisms.training.private.private_stack import PrivateStack, poisson_sample, train_private_stack
from dpaudit.mechanisms.training.private.private_steps import PrivateSteps, dp_sgd_epsilon, dp_sgd_noise_multiplier
from dpaudit.mechanisms.training.recipe import StackPlan, TrainingTask
from dpaudit.mechanisms.training.stack import NetworkModel
from dpaudit.registry import catalogue
from tests.bank.planted_dp_sgd import NoNoiseInLastStepDpSgd, ShuffledBatchesDpSgd

CPU = Compute()
DATA = load_digits()
DIGITS = (DATA.data / 16).astype(np.float32)
IMAGES = DIGITS.reshape(-1, 1, 8, 8)
LABELS = DATA.target.astype(np.int64)
PLAIN = Mlp(hidden=(16,), epochs=2, batch_size=20, learning_rate=0.2, momentum=0.5)


def tasks_of(models: int, rows: int = 100) -> list[TrainingTask]:
    seeds = SeedSequence(4).spawn(models)
    starts = [np.arange(k, k + rows - 3 * k) for k in range(models)]
    return [TrainingTask(subset, LABELS[subset], seed) for subset, seed in zip(starts, seeds, strict=True)]


def weights(outcomes: object) -> NDArray[np.float32]:
    assert isinstance(outcomes, list)
    assert all(isinstance(outcome, NetworkModel) for outcome in outcomes)
    return np.stack([outcome.parameters for outcome in outcomes])


def test_steps_are_those_of_a_slow_twin() -> None:
    """One example at a time by autograd, no noise: the engine's weights to float32 rounding."""
    steps = PrivateSteps(clip=0.5, noise_multiplier=0.0, sample_rate=0.2)
    (task,) = tasks_of(1)
    ours = weights(train_private_stack(PLAIN, steps, DIGITS, [task], classes=10, compute=CPU))[0]
    first, order, _ = spawned(task.seed, 3)
    module = PLAIN.module((64,), 10)
    nn.utils.vector_to_parameters(draw_weights(module, torch_generator(first)), module.parameters())
    optimizer = torch.optim.SGD(module.parameters(), lr=0.2, momentum=0.5)
    for epoch in range(2):
        rng = epoch_generator(order, epoch)
        for batch in [poisson_sample(rng, 100, 0.2) for _ in range(5)]:
            total = torch.zeros(len(ours))
            for position in batch:
                module.zero_grad()
                x = torch.from_numpy(DIGITS[task.rows[position]])[None]
                nn.functional.cross_entropy(module(x), torch.tensor([LABELS[task.rows[position]]])).backward()
                gradient = nn.utils.parameters_to_vector([p.grad for p in module.parameters()])
                total += gradient * min(1.0, 0.5 / (float(gradient.norm()) + 1e-6))
            place = 0
            for p in module.parameters():
                p.grad = (total[place : place + p.numel()] / 20).view_as(p)
                place += p.numel()
            optimizer.step()
    expected = nn.utils.parameters_to_vector(module.parameters()).detach().numpy()
    np.testing.assert_allclose(ours, expected, atol=1e-5)


@pytest.mark.parametrize(("trainer", "features"), [(PLAIN, DIGITS), (SmallCnn(epochs=1, batch_size=20), IMAGES)])
def test_a_stack_gives_each_model_its_own_numbers(trainer: Network, features: NDArray[np.float32]) -> None:
    steps = PrivateSteps(clip=1.0, noise_multiplier=0.7, sample_rate=0.2)
    tasks = tasks_of(4, rows=60)
    plan = StackPlan("batched" if isinstance(trainer, Mlp) else "vmapped", 4)
    together = weights(train_private_stack(trainer, steps, features, tasks, classes=10, compute=CPU, plan=plan))
    alone = [train_private_stack(trainer, steps, features, [t], classes=10, compute=CPU)[0] for t in tasks]
    np.testing.assert_allclose(together, weights(alone), atol=1e-5)


def releases(
    steps: PrivateSteps,
    tasks: list[TrainingTask],
    canaries: list[NDArray[np.float32] | None] | None = None,
    *,
    stack_type: type[PrivateStack] = PrivateStack,
) -> NDArray[np.float32]:
    """Noisy sums of each step, shape (steps, models, P)."""
    gradients: list[NDArray[np.float32]] = []

    def observer(places: NDArray[np.int64], step: int, parameters: Tensor, released: Tensor) -> None:
        assert step == len(gradients)
        ordered = np.empty(released.shape, np.float32)
        ordered[places] = released.numpy() * PLAIN.batch_size
        gradients.append(ordered)

    train_private_stack(
        PLAIN,
        steps,
        DIGITS,
        tasks,
        classes=10,
        compute=CPU,
        canaries=canaries,
        observer=observer,
        stack_type=stack_type,
    )
    return np.stack(gradients)


PLANTED = (NoiseOverBatchDpSgd, NoNoiseInLastStepDpSgd, ClipBatchMeanDpSgd, ShuffledBatchesDpSgd)
NoiseOverBatch, NoNoiseInLastStep, ClipBatchMean, ShuffledBatches = (planted(8.0).stack_type() for planted in PLANTED)


def test_empty_batches_still_step_with_pure_noise_of_the_right_size() -> None:
    """q = 1e-9: all batches empty. The squared norm is (m C)^2 chi2(P): outside its 1e-6 limits once in 10^6."""
    gradients = releases(PrivateSteps(clip=2.0, noise_multiplier=1.5, sample_rate=0.1), [empty_task()])
    count = gradients.shape[-1]
    squares = (gradients.astype(np.float64) ** 2).sum() / 9
    freedom = gradients.size
    assert len(gradients) == 20
    assert count == 64 * 16 + 16 + 16 * 10 + 10
    assert chi2.ppf(5e-7, freedom) < squares < chi2.ppf(1 - 5e-7, freedom)


def empty_task() -> TrainingTask:
    """One example whose gradient is 0: its weights are not used by DP-SGD, its label is no class at all."""
    return TrainingTask(np.array([0]), np.zeros((1, 10), np.float32), SeedSequence(9))


def test_one_example_moves_the_sum_by_the_clip_at_most() -> None:
    steps = PrivateSteps(clip=0.01, noise_multiplier=0.0, sample_rate=1.0)
    gradients = releases(steps, [TrainingTask(np.array([5]), LABELS[[5]], SeedSequence(1))])
    np.testing.assert_allclose(np.linalg.norm(gradients[:, 0], axis=1), 0.01, rtol=1e-3)


def test_a_gradient_canary_takes_part_with_the_sample_rate() -> None:
    """Clipped to norm C and present in Binomial(200, 0.3) steps; false failure < 1e-6."""
    trainer_parameters = 64 * 16 + 16 + 160 + 10
    canary = np.zeros(trainer_parameters, np.float32)
    canary[7] = 100.0
    present = []
    for seed in range(34):
        task = TrainingTask(np.array([0]), np.zeros((1, 10), np.float32), SeedSequence(seed))
        present.append(releases(PrivateSteps(2.0, 0.0, 0.3), [task], [canary])[:, 0, 7])
    values = np.concatenate(present)
    assert set(np.round(values, 4)) == {0.0, 2.0}
    hits = int((values > 1).sum())
    assert binom.ppf(5e-7, len(values), 0.3) <= hits <= binom.ppf(1 - 5e-7, len(values), 0.3)


def test_a_canary_meets_the_planted_bugs_like_an_example() -> None:
    """Without per-example clipping it moves the sum by the clipped mean's norm; shuffled, once per epoch."""
    canary = np.zeros(64 * 16 + 16 + 160 + 10, np.float32)
    canary[7] = 1e6
    steps = PrivateSteps(clip=0.5, noise_multiplier=0.0, sample_rate=0.2)
    values = releases(steps, [empty_task()], [canary], stack_type=ClipBatchMean)[:, 0, 7]
    assert set(np.round(values, 3)) == {0.0, 0.5 * PLAIN.batch_size}
    values = releases(steps, [empty_task()], [canary], stack_type=ShuffledBatches)[:, 0, 7]
    np.testing.assert_allclose(values.reshape(2, 5).sum(1), 0.5)


def test_poisson_sampling_has_the_law_of_independent_coins() -> None:
    """Inclusion counts of each record and pair over 4,000 draws; false failure < 1e-6 by the union over 55 counts."""
    rng = np.random.default_rng(0)
    included = np.zeros((4000, 10), bool)
    for row in included:
        row[poisson_sample(rng, 10, 0.3)] = True
    counts = included.T.astype(int) @ included.astype(int)
    tail = 1e-6 / 110
    for i in range(10):
        for j in range(i + 1):
            rate = 0.3 if i == j else 0.09
            assert binom.ppf(tail, 4000, rate) <= counts[i, j] <= binom.ppf(1 - tail, 4000, rate)


def test_each_defect_has_its_documented_effect() -> None:
    tasks, honest = tasks_of(1), PrivateStack
    noisy, quiet = PrivateSteps(0.5, 1.0, 0.2), PrivateSteps(0.5, 0.0, 0.2)
    stacks = (honest, NoiseOverBatch, NoNoiseInLastStep, ClipBatchMean, ShuffledBatches)
    deviation = {stack: releases(noisy, [empty_task()], stack_type=stack)[:, 0].std(1) for stack in stacks}
    np.testing.assert_allclose(deviation[honest], 0.5, rtol=0.15)
    np.testing.assert_allclose(deviation[NoiseOverBatch], 0.5 / 20, rtol=0.15)
    assert deviation[NoNoiseInLastStep][-1] == 0
    assert deviation[NoNoiseInLastStep][:-1].min() > 0.4
    sums = {stack: releases(quiet, tasks, stack_type=stack)[:, 0] for stack in stacks}
    assert np.linalg.norm(sums[ClipBatchMean], axis=1).max() > 20 * 0.5 * 0.99  # one record can move this far
    assert np.linalg.norm(sums[honest], axis=1).max() <= 100 * quiet.clip
    assert not np.allclose(sums[ShuffledBatches], sums[honest])


@pytest.mark.parametrize("planted", PLANTED)
def test_a_planted_learner_trains_with_its_bug_and_claims_what_dp_sgd_does(planted: type[PlantedDpSgd]) -> None:
    learner = planted(epsilon=8.0)
    assert issubclass(learner.stack_type(), planted.Stack)
    assert learner.claim() == DpSgd(epsilon=8.0).claim()
    assert learner.private_steps() == DpSgd(epsilon=8.0).private_steps()


def test_every_planted_defect_says_so_in_its_name() -> None:
    """`rr-leaky` is the defect of the demonstration and keeps its name."""
    planted = {name for name, entry in catalogue("mechanism").items() if ".planted." in entry.module}
    assert {name for name in planted if not name.startswith("planted-")} == {"rr-leaky"}


def test_a_planted_training_does_not_resume_an_honest_checkpoint(tmp_path: Path) -> None:
    steps = PrivateSteps(0.5, 1.0, 0.2)
    plan = StackPlan("batched", 1)
    fresh = weights(
        train_private_stack(
            PLAIN, steps, DIGITS, tasks_of(2), classes=10, compute=CPU, plan=plan, stack_type=NoiseOverBatch
        )
    )
    trained: list[NDArray[np.float32]] = []
    for stack_type in (PrivateStack, NoiseOverBatch):
        outcomes = train_private_stack(
            PLAIN,
            steps,
            DIGITS,
            tasks_of(2),
            classes=10,
            compute=Compute(scratch=tmp_path),
            plan=plan,
            stack_type=stack_type,
        )
        trained.append(weights(outcomes))
    assert len(list(tmp_path.iterdir())) == 2
    np.testing.assert_array_equal(trained[1], fresh)
    assert not np.allclose(trained[0], fresh)


@pytest.mark.parametrize("order", [1.1, 1.5, 2, 2.5, 7.3, 16, 10.9])
@pytest.mark.parametrize(("rate", "noise"), [(0.01, 1.0), (0.2, 0.6), (0.05, 4.0), (0.9, 2.0)])
def test_renyi_cost_is_the_integral_it_stands_for(order: float, rate: float, noise: float) -> None:
    """log E_{N(0, m^2)}[((1 - q) + q exp((2z - 1) / (2 m^2)))^a] / (a - 1), by quadrature with 30 digits."""
    mp.dps = 30

    def integrand(z: object) -> object:
        ratio = (1 - rate) + rate * mp.exp((2 * z - 1) / (2 * noise**2))
        return mp.npdf(z, 0, noise) * ratio**order

    centre = [-12 * noise, 0, order / 2, order, order + 12 * noise]
    expected = mp.log(mp.quad(integrand, centre)) / (order - 1)
    divergence = SubsampledGaussian(noise, rate, steps=1).renyi(order)
    assert divergence == pytest.approx(float(expected), rel=1e-7, abs=1e-13)


def test_accounting_has_its_known_values_and_limits() -> None:
    assert SubsampledGaussian(2.0, 1.0, steps=1).renyi(8.0) == 1.0
    # Abadi et al. (2016), section 3.2: q = 0.01, m = 4, 10,000 steps, delta = 1e-5 is about 1.26 by moments with the
    # classical conversion; the improved one gives less.
    spent = dp_sgd_epsilon(noise_multiplier=4.0, sample_rate=0.01, steps=10_000, delta=1e-5)
    assert 0.9 < spent < 1.26


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 8.0])
def test_noise_is_the_least_that_keeps_to_epsilon(epsilon: float) -> None:
    noise = dp_sgd_noise_multiplier(epsilon, sample_rate=0.05, steps=200, delta=1e-5)
    assert dp_sgd_epsilon(noise_multiplier=noise, sample_rate=0.05, steps=200, delta=1e-5) <= epsilon
    assert dp_sgd_epsilon(noise_multiplier=noise * 0.999, sample_rate=0.05, steps=200, delta=1e-5) > epsilon
    assert dp_sgd_noise_multiplier(math.inf, sample_rate=0.05, steps=200, delta=1e-5) == 0


def test_privacy_loss_distributions_are_no_looser() -> None:
    pytest.importorskip("dp_accounting")
    setting = {"noise_multiplier": 1.0, "sample_rate": 0.05, "steps": 200, "delta": 1e-5}
    assert dp_sgd_epsilon(**setting, accountant="pld") <= dp_sgd_epsilon(**setting)


def test_the_learner_keeps_to_its_claim_and_learns() -> None:
    learner = DpSgd(epsilon=8.0, sample_rate=0.05, model=Mlp(epochs=10, batch_size=60, learning_rate=0.5, momentum=0.5))
    train = Examples(DIGITS[:1200], LABELS[:1200], 10)
    assert isinstance(learner, Learner)
    assert learner.claim().relation is Relation.ADD_REMOVE
    spent = dp_sgd_epsilon(noise_multiplier=learner.noise_multiplier(), sample_rate=0.05, steps=200, delta=1e-5)
    assert spent <= 8.0
    model = learner.fit(train, seed=SeedSequence(0), compute=CPU)
    assert (model.probabilities(DIGITS[1200:]).argmax(1) == LABELS[1200:]).mean() > 0.6


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (Mlp(standardise=True), "cannot use feature statistics"),
        (Mlp(mixup=1.0), "mixup couples examples"),
        (ResNet18(norm="batch", width=4), "batch norm"),
    ],
)
def test_recipes_that_couple_examples_are_rejected(model: Network, message: str) -> None:
    train = Examples(IMAGES[:20], LABELS[:20], 10)
    with pytest.raises(InputError, match=message):
        DpSgd(epsilon=1.0, model=model).fit(train, seed=SeedSequence(0), compute=CPU)
