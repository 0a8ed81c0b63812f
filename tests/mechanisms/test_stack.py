"""Training of stacks: a model's numbers do not depend on the other models of its stack."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.random import SeedSequence
from numpy.typing import NDArray
from scipy.special import softmax
from sklearn.datasets import load_digits
from torch import nn

from dpaudit.errors import InputError
from dpaudit.mechanisms.compute import Compute, TrainingError, epoch_generator, spawned, torch_generator
from dpaudit.mechanisms.models.networks import Mlp, Network, ResNet18, SmallCnn
from dpaudit.mechanisms.training import checkpoint
from dpaudit.mechanisms.training.augment import OPERATIONS, Augment, RandAugment, crop, flip
from dpaudit.mechanisms.training.inputs import Scaling
from dpaudit.mechanisms.training.kernels import (
    BatchedMlp,
    CrossEntropy,
    Kernel,
    Looped,
    Vmapped,
    compiled_or_plain,
    draw_weights,
)
from dpaudit.mechanisms.training.optimizers import Optimizer, schedule_factor
from dpaudit.mechanisms.training.recipe import StackPlan, TrainingTask
from dpaudit.mechanisms.training.stack import NetworkModel, Stack, stack_logits
from dpaudit.mechanisms.training.train import (
    bytes_per_model,
    default_plan,
    private_plan,
    train_stack,
)
from dpaudit.plain_files import write_sealed
from tests.fake_gpu import GPU, FakeGpu

CPU = Compute()
DATA = load_digits()
DIGITS = (DATA.data / 16).astype(np.float32)
IMAGES = DIGITS.reshape(-1, 1, 8, 8)
LABELS = DATA.target.astype(np.int64)


def tasks_of(models: int, *, rows: int = 200, uneven: bool = False) -> list[TrainingTask]:
    rng = np.random.default_rng(3)
    sizes = [rows - 7 * k if uneven else rows for k in range(models)]
    subsets = [np.sort(rng.choice(len(LABELS), size, replace=False)) for size in sizes]
    seeds = SeedSequence(11).spawn(models)
    return [TrainingTask(subset, LABELS[subset], seed) for subset, seed in zip(subsets, seeds, strict=True)]


def scores(outcomes: list[NetworkModel | TrainingError], features: NDArray[np.float32]) -> NDArray[np.float64]:
    models = [outcome for outcome in outcomes if isinstance(outcome, NetworkModel)]
    assert len(models) == len(outcomes)
    return np.stack([model.probabilities(features) for model in models])


MLPS = [
    Mlp(epochs=4, batch_size=32),
    Mlp(epochs=4, batch_size=32, activation="tanh", standardise=True, weight_decay=1e-3, nesterov=True),
    Mlp(epochs=4, batch_size=32, optimizer="adam", learning_rate=1e-3, schedule="cosine", mixup=1.0),
]


@pytest.mark.parametrize("trainer", MLPS)
@pytest.mark.parametrize("method", ["batched", "vmapped"])
def test_a_stack_of_64_gives_each_model_the_numbers_of_a_stack_of_1(trainer: Mlp, method: str) -> None:
    """Different subsets and sizes; 1e-4 is the promise, float32 rounding over 28 steps stays well below it."""
    tasks = tasks_of(64, rows=500, uneven=True)
    together = train_stack(trainer, DIGITS, tasks, classes=10, compute=CPU, plan=StackPlan(method, 64))
    some = [0, 17, 63]
    alone = [train_stack(trainer, DIGITS, [tasks[k]], classes=10, compute=CPU)[0] for k in some]
    np.testing.assert_allclose(scores([together[k] for k in some], DIGITS), scores(alone, DIGITS), atol=1e-4)


@pytest.mark.parametrize("trainer", [SmallCnn(epochs=2, augment="crop-flip-cutout"), ResNet18(epochs=1, width=8)])
def test_stacked_convolutions_agree_with_the_loop(trainer: Network) -> None:
    tasks = tasks_of(3, rows=80, uneven=True)
    images = IMAGES
    if isinstance(trainer, ResNet18):
        # 24x24: at 8x8 the last stage is one pixel, group norm sees two numbers a group and turns them into signs.
        images = np.ascontiguousarray(IMAGES.repeat(3, 2).repeat(3, 3))
    plans = [StackPlan("looped"), StackPlan("vmapped", 3)]
    looped, stacked = (
        scores(train_stack(trainer, images, tasks, classes=10, compute=CPU, plan=plan), images[:50]) for plan in plans
    )
    np.testing.assert_allclose(stacked, looped, atol=1e-4)


def test_training_agrees_with_torch_optim() -> None:
    """A slow twin from the same first weights and orders: torch.nn, torch.optim, plain loop."""
    trainer = Mlp(epochs=3, batch_size=50, learning_rate=0.1, momentum=0.9, weight_decay=1e-2, nesterov=True)
    (task,) = tasks_of(1, rows=190)
    (model,) = train_stack(trainer, DIGITS, [task], classes=10, compute=CPU)
    weights, order, _ = spawned(task.seed, 3)
    module = trainer.module((64,), 10)
    nn.utils.vector_to_parameters(draw_weights(module, torch_generator(weights)), module.parameters())
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-2, nesterov=True)
    x, y = torch.from_numpy(DIGITS[task.rows]), torch.from_numpy(LABELS[task.rows])
    for epoch in range(3):
        for batch in torch.from_numpy(epoch_generator(order, epoch).permutation(190)).split(50):
            optimizer.zero_grad()
            nn.functional.cross_entropy(module(x[batch]), y[batch]).backward()
            optimizer.step()
    expected = torch.softmax(module(torch.from_numpy(DIGITS)), 1).detach().numpy()
    np.testing.assert_allclose(scores([model], DIGITS)[0], expected, atol=1e-5)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_optimizers_agree_with_torch(optimizer: str) -> None:
    trainer = Mlp(optimizer=optimizer, learning_rate=0.01, weight_decay=0.1)
    ours = torch.randn(2, 5, generator=torch.Generator().manual_seed(0))
    theirs = ours.clone().requires_grad_()
    kinds = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}
    extra = {"momentum": 0.9} if optimizer == "sgd" else {}
    reference = kinds[optimizer]([theirs], lr=0.01, weight_decay=0.1, **extra)
    stepper = Optimizer(trainer, ours)
    for step in range(5):
        gradient = torch.sin(torch.arange(10.0) + step).view(2, 5)
        theirs.grad = gradient.clone()
        reference.step()
        stepper.step(ours, gradient, trainer.learning_rate)
    torch.testing.assert_close(ours, theirs.detach())


def kernels(module: nn.Module) -> list[Kernel]:
    loss = CrossEntropy()
    kernels: list[Kernel] = [Vmapped(module, loss=loss)]
    if BatchedMlp.supports(module):
        assert isinstance(module, nn.Sequential)
        kernels.append(BatchedMlp(module, loss=loss))
    with torch.device("meta"):
        fresh = SmallCnn().module((1, 8, 8), 10) if not BatchedMlp.supports(module) else Mlp().module((64,), 10)
    return [*kernels, Looped(fresh, loss=loss, device=torch.device("cpu"))]


@pytest.mark.parametrize(("trainer", "shape"), [(Mlp(), (64,)), (SmallCnn(), (1, 8, 8))])
def test_kernels_agree_on_gradients_and_clipped_gradients(trainer: Network, shape: tuple[int, ...]) -> None:
    with torch.device("meta"):
        module = trainer.module(shape, 10)
    generator = torch.Generator().manual_seed(0)
    flat = draw_weights(module, generator)[None]
    x, y = torch.rand(1, 9, *shape, generator=generator), torch.eye(10)[LABELS[:9]][None]
    coefficients = torch.rand(1, 9, generator=generator)
    plain, clipped = [], []
    for kernel in kernels(module):
        out = torch.empty_like(flat)
        kernel.gradient(flat, x, y, coefficients, out)
        plain.append(out.clone())
        kernel.clipped_gradient(flat, x, y, (coefficients > 0.3).float(), 0.5, out)
        clipped.append(out.clone())
    for other in range(1, len(plain)):
        torch.testing.assert_close(plain[other], plain[0], atol=1e-6, rtol=1e-4)
        torch.testing.assert_close(clipped[other], clipped[0], atol=1e-6, rtol=1e-4)
    assert clipped[0].norm() <= 0.5 * 9


def test_soft_labels_that_are_one_hot_are_hard_labels() -> None:
    (task,) = tasks_of(1)
    soft = TrainingTask(task.rows, np.eye(10, dtype=np.float32)[task.labels], task.seed)
    both = [train_stack(Mlp(epochs=2), DIGITS, [variant], classes=10, compute=CPU)[0] for variant in (task, soft)]
    np.testing.assert_array_equal(*scores(both, DIGITS))


def test_a_failed_model_does_not_affect_the_others() -> None:
    tasks = tasks_of(3)
    poisoned = np.concatenate([DIGITS, np.full((1, 64), np.nan, np.float32)])
    rows = np.append(tasks[1].rows, len(DIGITS))
    bad = TrainingTask(rows, LABELS[np.minimum(rows, 0)], tasks[1].seed)
    plan = StackPlan("batched", 3)
    first, second, third = train_stack(
        Mlp(epochs=2), poisoned, [tasks[0], bad, tasks[2]], classes=10, compute=CPU, plan=plan
    )
    assert isinstance(second, TrainingError)
    expected = train_stack(Mlp(epochs=2), DIGITS, [tasks[0], tasks[2]], classes=10, compute=CPU, plan=plan)
    np.testing.assert_allclose(scores([first, third], DIGITS), scores(expected, DIGITS), atol=1e-5)


@pytest.mark.parametrize("network", [Mlp(epochs=9, learning_rate=1e30), SmallCnn(epochs=9, learning_rate=1e30)])
def test_a_stack_stops_when_all_models_have_failed(network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[int] = []
    honest = Stack.run_epoch
    monkeypatch.setattr(Stack, "run_epoch", lambda self, epoch: (ran.append(epoch), honest(self, epoch)))
    features = DIGITS if isinstance(network, Mlp) else IMAGES
    plan = StackPlan("batched", 2) if isinstance(network, Mlp) else StackPlan("vmapped", 2)
    outcomes = train_stack(network, features, tasks_of(2), classes=10, compute=CPU, plan=plan)
    assert all(isinstance(outcome, TrainingError) for outcome in outcomes)
    assert len(ran) <= 2


def test_a_model_with_infinite_weights_after_its_last_step_has_failed() -> None:
    """Its loss was computed before that step and is finite."""
    (task,) = tasks_of(1)
    network = Mlp(hidden=(), epochs=1, learning_rate=float(np.finfo(np.float32).max), batch_size=len(task.rows))
    plan = StackPlan("batched", 1)
    (outcome,) = train_stack(network, 1000 * DIGITS, [task], classes=10, compute=CPU, plan=plan)
    assert isinstance(outcome, TrainingError)


@pytest.mark.parametrize(
    "trainer", [Mlp(epochs=3, optimizer="adam", learning_rate=1e-3), SmallCnn(epochs=2, augment="flip")]
)
def test_an_interrupted_training_resumes_from_its_checkpoint(
    trainer: Network, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed in the last epoch of the second stack; only that epoch reruns, with the same numbers."""
    monkeypatch.setattr(checkpoint, "CHECKPOINT_EVERY_S", 0.0)
    features = DIGITS if isinstance(trainer, Mlp) else IMAGES
    tasks = tasks_of(2, rows=80)
    plan = StackPlan("batched") if isinstance(trainer, Mlp) else StackPlan("looped")
    expected = scores(train_stack(trainer, features, tasks, classes=10, compute=CPU, plan=plan), features)
    compute = Compute(scratch=tmp_path)
    ran: list[int] = []
    honest = Stack.run_epoch

    def cut_off(self: Stack, epoch: int) -> None:
        if len(ran) == 2 * trainer.epochs - 1:
            raise KeyboardInterrupt
        ran.append(epoch)
        honest(self, epoch)

    monkeypatch.setattr(Stack, "run_epoch", cut_off)
    with pytest.raises(KeyboardInterrupt):
        train_stack(trainer, features, tasks, classes=10, compute=compute, plan=plan)
    again: list[int] = []
    monkeypatch.setattr(Stack, "run_epoch", lambda self, epoch: (again.append(epoch), honest(self, epoch)))
    outcomes = train_stack(trainer, features, tasks, classes=10, compute=compute, plan=plan)
    np.testing.assert_array_equal(scores(outcomes, features), expected)
    assert again == [trainer.epochs - 1]


def test_a_checkpoint_of_another_training_is_not_used(tmp_path: Path) -> None:
    tasks = tasks_of(4)
    (source,), (target,) = (kept_by_training(tasks[first : first + 2], tmp_path / str(first)) for first in (0, 2))
    target.write_bytes(source.read_bytes())
    outcome = train_two(tasks[2:], Compute(scratch=target.parent))
    np.testing.assert_array_equal(scores(outcome, DIGITS), scores(train_two(tasks[2:], CPU), DIGITS))


def train_two(tasks: list[TrainingTask], compute: Compute) -> list[NetworkModel | TrainingError]:
    """Train one model after the other, so that there is a checkpoint."""
    return train_stack(Mlp(epochs=1), DIGITS, tasks, classes=10, compute=compute, plan=StackPlan("batched", 1))


def kept_by_training(tasks: list[TrainingTask], folder: Path) -> list[Path]:
    """Return the checkpoints that two trainings write to a folder."""
    train_two(tasks, Compute(scratch=folder))
    return list(folder.iterdir())


def test_a_checkpoint_runs_no_code_and_an_unreadable_one_is_ignored(tmp_path: Path) -> None:
    mark, tasks = tmp_path / "ran", tasks_of(2)
    expected = scores(train_two(tasks, CPU), DIGITS)
    (path,) = kept_by_training(tasks, tmp_path / "kept")
    write_sealed(path, partial(torch.save, {"digest": "", "finished": [Touches(mark)], "running": None}))
    executable = path.read_bytes()
    for content in (executable, executable[:100], b"", b"\x80\x04nonsense"):
        path.write_bytes(content)
        with pytest.warns(RuntimeWarning, match="cannot use a checkpoint"):
            outcomes = train_two(tasks, Compute(scratch=path.parent))
        np.testing.assert_array_equal(scores(outcomes, DIGITS), expected)
    assert not mark.exists()


class Touches:
    """Creates a file when unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.path,)


def test_failed_and_scaled_models_survive_a_checkpoint(tmp_path: Path) -> None:
    """Buffers of batch norm, a scaling and an error survive the round trip unchanged."""
    written = checkpoint.TrainingCheckpoint(Compute(scratch=tmp_path), "digest", of_mlp)
    scaling = Scaling(np.zeros(64, np.float32), np.ones(64, np.float32))
    model = of_mlp(np.arange(5, dtype=np.float32), {"mean": np.ones(3, np.float32)}, scaling)
    written.finish([model, TrainingError("the loss became NaN")])
    restored, failed = checkpoint.TrainingCheckpoint(Compute(scratch=tmp_path), "digest", of_mlp).finished
    assert isinstance(restored, NetworkModel)
    np.testing.assert_array_equal(restored.parameters, model.parameters)
    np.testing.assert_array_equal(restored.buffers["mean"], model.buffers["mean"])
    assert restored.scaling is not None
    np.testing.assert_array_equal(restored.scaling.deviation, scaling.deviation)
    assert str(failed) == "the loss became NaN"


of_mlp = partial(NetworkModel, Mlp(), (64,), 10)


def test_logits_of_a_stack_are_those_of_each_model() -> None:
    outcomes = train_stack(MLPS[1], DIGITS, tasks_of(5), classes=10, compute=CPU)
    models = [outcome for outcome in outcomes if isinstance(outcome, NetworkModel)]
    np.testing.assert_allclose(
        softmax(stack_logits(models, DIGITS, compute=CPU), axis=-1), scores(outcomes, DIGITS), atol=1e-6
    )


def test_batch_norm_is_never_stacked() -> None:
    trainer = ResNet18(epochs=1, width=4, norm="batch")
    assert default_plan(trainer, (1, 8, 8), classes=10, models=9, rows=200, compute=CPU) == StackPlan("looped")
    with pytest.raises(InputError, match="batch norm cannot be stacked"):
        train_stack(trainer, IMAGES, tasks_of(2), classes=10, compute=CPU, plan=StackPlan("vmapped", 2))


def test_training_continues_without_a_failing_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: object) -> object:
        raise RuntimeError("no compiler found")

    monkeypatch.setattr(torch, "compile", lambda function: broken)
    doubled = compiled_or_plain(lambda x: (2 * x, x))
    with pytest.warns(UserWarning, match="no compiler found"):
        assert doubled(torch.ones(1))[0] == 2
    assert doubled(torch.ones(1))[0] == 2  # and it is not tried again


def test_schedules() -> None:
    assert schedule_factor("constant", 0.7) == 1
    assert schedule_factor("cosine", 0.0) == 1
    assert schedule_factor("cosine", 1.0) == pytest.approx(0)
    assert schedule_factor("cosine-7-16", 1.0) == pytest.approx(np.cos(7 * np.pi / 16))
    assert schedule_factor("warmup-fifths", 0.075) == pytest.approx(0.5)
    assert schedule_factor("warmup-fifths", 0.65) == pytest.approx(0.04)
    assert schedule_factor("warmup-tenths", 0.95) == pytest.approx(1e-3)


def test_flip_and_crop_move_pixels_as_drawn() -> None:
    image = torch.arange(16.0).view(1, 1, 4, 4)
    assert torch.equal(flip(image, torch.tensor([0.4])), image.flip(3))
    assert torch.equal(flip(image, torch.tensor([0.6])), image)
    zero, most = torch.tensor([0.0]), torch.tensor([0.999])
    moved = crop(image, zero, most, padding=1)  # the window starts one row above, one column to the right
    assert torch.equal(moved[0, 0, 1:, :3], image[0, 0, :3, 1:])
    assert not moved[0, 0, 0].any()
    assert not moved[0, 0, :, 3].any()


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", list(OPERATIONS))
def test_operations_keep_shape_and_range_and_each_image_apart(name: str, channels: int) -> None:
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(6, channels, 12, 12, generator=generator)
    strength = torch.linspace(0, 1, 6)
    sign = torch.tensor([-1.0, 1, -1, 1, -1, 1])
    changed = OPERATIONS[name](images, strength, sign)
    assert changed.shape == images.shape
    assert changed.min() >= 0
    assert changed.max() <= 1
    torch.testing.assert_close(OPERATIONS[name](images[2:3], strength[2:3], sign[2:3])[0], changed[2])
    if name not in ("identity", "autocontrast", "equalize") and not (name == "color" and channels == 1):
        assert (changed[5] - images[5]).abs().max() > 0.01


def test_augmentations_use_the_stated_number_of_draws() -> None:
    images = torch.rand(4, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    for augment in (Augment("crop-flip-cutout", (3, 16, 16)), RandAugment()):
        draws = torch.rand(4, augment.draws, generator=torch.Generator().manual_seed(1))
        whole = augment(images, draws)
        torch.testing.assert_close(augment(images[1:2], draws[1:2])[0], whole[1])
    assert Augment("none", (64,)).draws == 0
    with pytest.raises(InputError, match="takes images of shape"):
        Augment("flip", (64,))


def test_a_stack_on_a_gpu_is_as_large_as_fits_on_its_part_of_the_card(monkeypatch: pytest.MonkeyPatch) -> None:
    """A card of 100 models, of which 70 % is used, and at least 20 % by data; on a CPU all models are one stack."""
    recipe, shape = Mlp(hidden=(64,)), (64,)
    each = bytes_per_model(recipe, recipe.meta_module(shape, 2), shape, rows=100)
    FakeGpu(monkeypatch, memory=100 * each + 9)

    def plan(models: int = 500, **compute: Any) -> StackPlan:
        return default_plan(recipe, shape, classes=2, models=models, rows=100, compute=Compute(**compute))

    assert plan().size == 500
    assert plan(device="cuda:0").size == 50
    assert plan(device="cuda:0", device_share=0.25).size == 12
    assert plan(models=8, device="cuda:0").size == 8
    private = private_plan(recipe, shape, classes=2, models=64, rows=100, compute=GPU)
    assert private.size < 50 // 2, "DP-SGD holds each example's gradient"


def test_large_data_leave_room_for_fewer_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """Data of half the card, then of all of it; a model also has its rows and labels on the card."""
    recipe, shape = Mlp(hidden=(64,)), (64,)
    bytes_of_model = partial(bytes_per_model, recipe, recipe.meta_module(shape, 2), shape)
    memory = 2 * 4 * 64 * 10_000
    FakeGpu(monkeypatch, memory=memory)
    each = bytes_of_model(rows=10_000)
    assert each == bytes_of_model(rows=0) + 20 * 10_000
    for rows, expected in ((10_000, int(0.2 * memory) // each), (20_000, 1)):
        assert default_plan(recipe, shape, classes=2, models=500, rows=rows, compute=GPU).size == expected
