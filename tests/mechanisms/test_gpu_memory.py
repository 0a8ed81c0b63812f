"""A share of a GPU holds: its limit, data that stay on it, and stacks that do not fit in its memory."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from numpy.random import SeedSequence
from numpy.typing import NDArray

from dpaudit.mechanisms import gpu_memory
from dpaudit.mechanisms.compute import Compute, TrainingError, collected_notes
from dpaudit.mechanisms.examples import Examples
from dpaudit.mechanisms.gpu_memory import (
    RESIDENT_SHARE,
    digest_if_shared,
    fit_on_emptied_gpu,
    hold_share,
    is_out_of_memory,
    moved,
    on_device,
    release_resident,
    resident_bytes,
    shared_examples,
)
from dpaudit.mechanisms.models.networks import Mlp, SmallCnn
from dpaudit.mechanisms.training import checkpoint, inputs
from dpaudit.mechanisms.training.bag_stack import BagTask, train_on_bags
from dpaudit.mechanisms.training.inputs import scaling_of
from dpaudit.mechanisms.training.kernels import compiled_or_plain
from dpaudit.mechanisms.training.private.private_stack import PrivateStack, train_private_stack
from dpaudit.mechanisms.training.private.private_steps import PrivateSteps
from dpaudit.mechanisms.training.recipe import StackPlan, TrainingTask
from dpaudit.mechanisms.training.stack import NetworkModel, Stack, stack_logits
from dpaudit.mechanisms.training.train import train_stack
from tests.fake_gpu import GPU, FakeGpu, out_of_memory

ROWS, CPU = 60, Compute()
RNG = np.random.default_rng(0)
FEATURES = RNG.normal(size=(ROWS, 6)).astype(np.float32)
LABELS = (FEATURES[:, 0] > 0).astype(np.int64)
EXAMPLES = Examples(FEATURES, LABELS, 2)
RECIPE = Mlp(hidden=(8,), epochs=3, batch_size=16)


def tasks_of(models: int) -> list[TrainingTask]:
    """Return trainings on different numbers of rows."""
    return [
        TrainingTask(np.arange(ROWS - model), LABELS[: ROWS - model], seed)
        for model, seed in enumerate(SeedSequence(5).spawn(models))
    ]


def train(models: int, size: int, compute: Compute = GPU) -> NDArray[np.float32]:
    plan = StackPlan("batched", size)
    return weights(train_stack(RECIPE, FEATURES, tasks_of(models), classes=2, compute=compute, plan=plan))


def weights(outcomes: list[NetworkModel | TrainingError]) -> NDArray[np.float32]:
    models = [outcome for outcome in outcomes if isinstance(outcome, NetworkModel)]
    assert len(models) == len(outcomes)
    return np.stack([model.parameters for model in models])


def from_store(examples: Examples) -> Examples:
    """Return read-only examples at new addresses, as an object store maps them for each unit."""
    buffers: list[pickle.PickleBuffer] = []
    content = pickle.dumps(examples, protocol=5, buffer_callback=buffers.append)
    restored: Examples = pickle.loads(content, buffers=[bytes(buffer) for buffer in buffers])
    assert restored.features is not examples.features
    return restored


def move_in_unit(examples: Examples, compute: Compute = GPU) -> torch.Tensor:
    """Move the features of a unit's shared examples to its device."""
    assert isinstance(examples.features, np.ndarray)
    with shared_examples({"target": examples, "other": 3}):
        return on_device(examples.features, compute, digest_if_shared(examples.features))


def test_the_share_of_a_process_is_set_once_for_each_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU has none, and a whole GPU needs no limit unless an earlier unit set one."""
    gpu = FakeGpu(monkeypatch)
    half = replace(GPU, device_share=0.5)
    hold_share(half)
    assert gpu.limits == [], "torch sees no GPU"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for compute in (CPU, GPU, half, half, replace(half, threads=2), CPU, GPU, GPU):
        hold_share(compute)
    assert gpu.limits == [(0.5, "cuda:0"), (1.0, "cuda:0")]


def test_shared_examples_are_moved_once_for_all_units(monkeypatch: pytest.MonkeyPatch) -> None:
    """Units get new arrays at new addresses; only other content is moved again."""
    gpu, other = FakeGpu(monkeypatch), Examples(FEATURES + 1, LABELS, 2)
    assert other.digest != EXAMPLES.digest
    for examples, copies in ((EXAMPLES, 1), (EXAMPLES, 1), (other, 2), (EXAMPLES, 2), (other, 2)):
        moved = move_in_unit(from_store(examples))
        np.testing.assert_array_equal(moved.numpy(), examples.features)
        assert len(gpu.moved) == copies
    release_resident()
    move_in_unit(from_store(EXAMPLES))
    assert len(gpu.moved) == 3


def test_arrays_that_may_change_have_no_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Writable features, features of no shared examples, and those of an earlier unit; tables never change."""
    writable, read_only = Examples(FEATURES.copy(), LABELS, 2), from_store(EXAMPLES)
    table = Examples(pa.table({"x": FEATURES[:, 0]}), LABELS, 2)
    with shared_examples({"a": writable, "b": read_only, "c": table}):
        assert digest_if_shared(writable.features) is None
        assert digest_if_shared(read_only.features[1:]) is None
        assert digest_if_shared(read_only.features) == EXAMPLES.digest
        assert digest_if_shared(table.features) == table.digest
    assert digest_if_shared(read_only.features) is None


def test_data_that_stay_on_a_gpu_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Room for two of three arrays: the one used longest ago leaves; an array above the bound is moved each time."""
    gpu = FakeGpu(monkeypatch, memory=int(2.5 * FEATURES.nbytes / RESIDENT_SHARE))
    for digest in ("a", "b", "a", "c"):
        on_device(FEATURES, GPU, digest)
    assert list(resident_bytes()) == ["a", "c"]
    assert len(gpu.moved) == 3
    large = np.tile(FEATURES, (3, 1))
    for _ in range(2):
        on_device(large, GPU, "large")
    assert len(gpu.moved) == 5
    assert sum(resident_bytes().values()) <= 2.5 * FEATURES.nbytes
    on_device(FEATURES, GPU)
    on_device(FEATURES, GPU)
    assert len(gpu.moved) == 7, "an array without a digest never stays"


def test_a_smaller_share_releases_the_data(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeGpu(monkeypatch)
    on_device(FEATURES, GPU, "a")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    hold_share(replace(GPU, device_share=0.25))
    assert resident_bytes() == {}


def test_no_copy_is_added_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    array = FEATURES.copy()
    tensor = on_device(array, CPU, "digest")
    assert tensor.data_ptr() == array.ctypes.data
    assert resident_bytes() == {}


def test_data_make_room_for_other_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU without room for both; data that do not fit alone end in a sentence."""
    gpu = FakeGpu(monkeypatch)
    gpu.largest_array = int(1.5 * FEATURES.nbytes)
    on_device(FEATURES, GPU, "a")
    on_device(FEATURES, GPU, "b")
    assert list(resident_bytes()) == ["b"]
    with pytest.raises(TrainingError, match=r"too little memory for the data, 2,880 bytes\. Give the unit"):
        on_device(np.tile(FEATURES, (2, 1)), GPU, "c")


def test_a_stack_that_does_not_fit_is_halved_with_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    """10 models, of which 3 fit: 8 and 4 do not, 2 do. The data are moved once and the models are those of a CPU."""
    gpu, expected = FakeGpu(monkeypatch), train(10, 10, CPU)
    gpu.largest_stack, gpu.trained = 3, []
    with collected_notes() as notes:
        np.testing.assert_allclose(train(10, 8), expected, atol=1e-6)
    assert gpu.trained == [8, 4, *[2] * 3 * 5]
    assert len(gpu.moved) == 1
    assert notes == [
        "stacks of 8 models did not fit in the GPU's memory, so models were trained in stacks of 2. This changes "
        "results by rounding only"
    ]
    with pytest.warns(RuntimeWarning, match="stacks of 8 models did not fit"):
        train(10, 8)


def test_a_last_stack_with_fewer_models_is_no_smaller_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeGpu(monkeypatch)
    with collected_notes() as notes:
        train(10, 8)
    assert notes == []


def test_other_data_leave_before_a_stack_is_halved(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = FakeGpu(monkeypatch)
    on_device(FEATURES + 1, GPU, "of an earlier unit")
    gpu.largest_stack = 3
    with collected_notes():
        train(4, 4)
    assert gpu.trained == [4, 4, *[2] * 3 * 2]
    assert "of an earlier unit" not in resident_bytes()


def test_one_model_that_does_not_fit_is_a_training_error(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = FakeGpu(monkeypatch)
    gpu.largest_stack = 0
    with pytest.raises(TrainingError, match=r"too little memory for one model\. Lower batch_size, give the unit"):
        train(4, 4)
    assert gpu.trained == [4, 2, 1]


def test_other_errors_halve_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(stack: Stack, epoch: int) -> None:
        raise RuntimeError("CUDA error: device-side assert triggered")

    monkeypatch.setattr(Stack, "run_epoch", broken)
    with pytest.raises(RuntimeError, match="device-side assert"):
        train(4, 4, CPU)


def test_a_halved_stack_of_dp_sgd_gives_the_same_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """Canaries and observed steps belong to the same models; the observer sees every step of each model."""
    gpu, steps = FakeGpu(monkeypatch), PrivateSteps(clip=1.0, noise_multiplier=1.0, sample_rate=0.25)
    run_epoch = PrivateStack.run_epoch
    canaries = [np.full(8 * 7 + 2 * 9, model, np.float32) if model % 2 else None for model in range(5)]

    def limited(stack: PrivateStack, epoch: int) -> None:
        run_epoch(stack, epoch)  # fails late, when steps were already observed
        if len(stack.tasks) > gpu.largest_stack:
            raise out_of_memory()

    monkeypatch.setattr(PrivateStack, "run_epoch", limited)

    def trained(compute: Compute) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
        observed = np.full((5, steps.steps(RECIPE.epochs)), np.nan)

        def observe(places: NDArray[np.int64], step: int, parameters: torch.Tensor, released: torch.Tensor) -> None:
            observed[places, step] = released.double().sum(1)

        outcomes = train_private_stack(
            RECIPE,
            steps,
            FEATURES,
            tasks_of(5),
            classes=2,
            compute=compute,
            plan=StackPlan("batched", 5),
            canaries=canaries,
            observer=observe,
        )
        return weights(outcomes), observed

    expected = trained(CPU)
    gpu.largest_stack = 2
    with collected_notes() as notes:
        halved = trained(GPU)
    assert "in stacks of 2" in notes[0]
    for values, expected_values in zip(halved, expected, strict=True):
        np.testing.assert_allclose(values, expected_values, atol=1e-5)


def test_a_halved_training_resumes_from_its_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stacks of 8, 4 and 2 models; killed in the last epoch of the second stack of 2. The next run has its size."""
    monkeypatch.setattr(checkpoint, "CHECKPOINT_EVERY_S", 0.0)
    gpu, compute = FakeGpu(monkeypatch), replace(GPU, scratch=tmp_path)
    expected = train(8, 8, CPU)
    gpu.largest_stack, gpu.trained, limited = 2, [], Stack.run_epoch

    def killed(stack: Stack, epoch: int) -> None:
        if len(gpu.trained) == 2 + 3 + 2:
            raise KeyboardInterrupt
        limited(stack, epoch)

    monkeypatch.setattr(Stack, "run_epoch", killed)
    with pytest.raises(KeyboardInterrupt):
        train(8, 8, compute)
    gpu.trained = []
    monkeypatch.setattr(Stack, "run_epoch", limited)
    with collected_notes() as notes:
        np.testing.assert_allclose(train(8, 8, compute), expected, atol=1e-6)
    assert gpu.trained == [2, *[2] * 3 * 2], "the epoch that was lost, and two further stacks"
    assert "in stacks of 2" in notes[0]


def test_epochs_of_a_stack_that_no_longer_fits_are_discarded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process takes the memory in the second epoch; the smaller stacks start from their own weights."""
    monkeypatch.setattr(checkpoint, "CHECKPOINT_EVERY_S", 0.0)
    gpu, expected = FakeGpu(monkeypatch), train(4, 4, CPU)
    gpu.trained, limited = [], Stack.run_epoch

    def filled(stack: Stack, epoch: int) -> None:
        if epoch == 1:
            gpu.largest_stack = 2
        limited(stack, epoch)

    monkeypatch.setattr(Stack, "run_epoch", filled)
    with collected_notes():
        np.testing.assert_allclose(train(4, 4, replace(GPU, scratch=tmp_path)), expected, atol=1e-6)
    assert gpu.trained == [4, 4, *[2] * 3 * 2]


def test_bags_are_trained_on_data_that_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two trainings in one unit move the shared features once; the models are those of a CPU."""
    gpu, examples = FakeGpu(monkeypatch), from_store(EXAMPLES)
    rows = np.arange(ROWS).reshape(-1, 4)
    shares, targets = np.full(rows.shape, 0.25, np.float32), np.full((len(rows), 2), 0.5, np.float32)
    tasks = [BagTask(rows, shares, targets, 0.1, SeedSequence(1))]
    recipe = replace(RECIPE, standardise=True)

    def trained(compute: Compute) -> NDArray[np.float32]:
        with shared_examples({"target": examples}):
            return weights(train_on_bags(recipe, examples.features, tasks, classes=2, compute=compute))

    np.testing.assert_array_equal(trained(GPU), trained(CPU))
    trained(GPU)
    assert len(gpu.moved) == 1


def test_predictions_use_the_data_that_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """A unit trains and predicts on one copy of its features; other features are copied once a call, not a model."""
    gpu, examples = FakeGpu(monkeypatch), from_store(EXAMPLES)
    assert isinstance(examples.features, np.ndarray)
    recipe = SmallCnn(epochs=1)
    images = np.random.default_rng(1).random((9, 1, 8, 8)).astype(np.float32)
    plan = StackPlan("looped")
    tasks = [TrainingTask(np.arange(9), LABELS[:9], SeedSequence(1))] * 2
    cnns = train_stack(recipe, images, tasks, classes=2, compute=CPU, plan=plan)
    models = [outcome for outcome in cnns if isinstance(outcome, NetworkModel)]
    expected = stack_logits(models, images, compute=CPU)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with shared_examples({"target": examples}):
        (model,) = train_stack(RECIPE, examples.features, tasks_of(1), classes=2, compute=GPU)
        assert isinstance(model, NetworkModel)
        stack_logits([model], examples.features, compute=GPU)
    assert len(gpu.moved) == 1
    np.testing.assert_array_equal(stack_logits(models, images, compute=GPU), expected)
    assert len(gpu.moved) == 2


@pytest.mark.parametrize("shape", [(1,), (2,), (5,), (3, 4, 4)])
@pytest.mark.parametrize("has_missing", [True, False])
def test_scaling_is_that_of_numpy(shape: tuple[int, ...], has_missing: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit for bit, in one block of rows and in many, with missing numbers and a constant feature."""
    features = (RNG.normal(size=(211, *shape)) * 10 ** RNG.normal(size=(211, *shape))).astype(np.float32)
    if has_missing:
        features[RNG.random(features.shape) < 0.05] = np.nan
        features[7] = np.inf
    features.reshape(len(features), -1)[:, 0] = 3
    rows = RNG.permutation(len(features))[:200]
    expected = numpy_scaling(features[rows])
    for numbers in (inputs.BLOCK_NUMBERS, 17 * int(np.prod(shape))) if shape > (1,) else (2**22,):
        monkeypatch.setattr(inputs, "BLOCK_NUMBERS", numbers)
        scaling = scaling_of(torch.from_numpy(features), rows)
        for ours, numpys in zip((scaling.mean, scaling.deviation), expected, strict=True):
            np.testing.assert_array_equal(ours, numpys)
            assert ours.dtype == np.float32


def test_blocks_of_rows_are_added_in_numpy_s_order() -> None:
    """In 64 bits, where another order shows."""
    rows = RNG.normal(size=(999, 7)) * 10 ** RNG.normal(size=(999, 7))
    total = None
    for block in torch.from_numpy(rows).split(100):
        total = inputs._added(total, block)
    assert total is not None
    np.testing.assert_array_equal(total.numpy(), rows.sum(0))


def numpy_scaling(features: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return mean and deviation of features in memory, in 64 bits."""
    wide = features.astype(np.float64)
    finite = np.isfinite(wide)
    counts = np.maximum(finite.sum(0), 1)
    mean = np.where(finite, wide, 0.0).sum(0) / counts
    deviation = np.asarray(np.sqrt((np.where(finite, wide - mean, 0.0) ** 2).sum(0) / counts))
    deviation[deviation <= 1e-6 * np.maximum(np.abs(mean), 1.0)] = 1.0
    return mean.astype(np.float32), deviation.astype(np.float32)


def test_scaling_copies_one_block_of_rows_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    copied: list[int] = []
    select = torch.Tensor.index_select

    def counted(tensor: torch.Tensor, dimension: int, rows: torch.Tensor) -> torch.Tensor:
        copied.append(len(rows))
        return select(tensor, dimension, rows)

    monkeypatch.setattr(inputs, "BLOCK_NUMBERS", 60)
    monkeypatch.setattr(torch.Tensor, "index_select", counted)
    scaling_of(torch.from_numpy(FEATURES), np.arange(ROWS))
    assert max(copied) == 10
    assert sum(copied) == 2 * ROWS


def test_one_training_is_repeated_on_an_emptied_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A learner without stacks fails as long as other data are there; on an empty GPU it ends in a sentence."""
    FakeGpu(monkeypatch)
    on_device(FEATURES, GPU, "of an earlier unit")
    calls: list[int] = []

    def fit(fits_alone: bool) -> str:
        calls.append(len(resident_bytes()))
        if calls[-1] or not fits_alone:
            raise out_of_memory()
        return "model"

    assert fit_on_emptied_gpu(lambda: fit(True)) == "model"
    assert calls == [1, 0]
    with pytest.raises(TrainingError, match="too little memory for one model"):
        fit_on_emptied_gpu(lambda: fit(False))
    with pytest.raises(ZeroDivisionError):
        fit_on_emptied_gpu(lambda: str(1 / 0))


def test_errors_of_a_full_gpu_are_recognised() -> None:
    full = ("CUDA error: out of memory", "cuDNN error: CUDNN_STATUS_ALLOC_FAILED", "CUBLAS_STATUS_ALLOC_FAILED when")
    assert all(map(is_out_of_memory, (out_of_memory(), *map(RuntimeError, full))))
    assert not any(map(is_out_of_memory, (RuntimeError("shape mismatch"), MemoryError(), ValueError(full[0]))))


def test_a_full_gpu_is_no_failure_of_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiled function is kept for the smaller stack."""

    def full(*arguments: object) -> object:
        raise out_of_memory()

    monkeypatch.setattr(torch, "compile", lambda function: full)
    function: Callable[..., object] = compiled_or_plain(lambda x: (2 * x, x))
    for _ in range(2):
        with pytest.raises(torch.cuda.OutOfMemoryError):
            function(torch.ones(1))


def test_memory_is_released_without_a_gpu() -> None:
    assert gpu_memory.release_resident() == 0


def test_arrays_in_another_order_are_copied_once() -> None:
    """Otherwise flattening the rows copies all of them for each model and epoch."""
    pictures = np.moveaxis(np.arange(48, dtype=np.float32).reshape(2, 4, 2, 3), 3, 1)
    read_only = pictures.copy(order="K")
    read_only.flags.writeable = False
    for array in (pictures, read_only):
        assert not array.flags.c_contiguous
        tensor = moved(array, "cpu")
        assert tensor.is_contiguous()
        np.testing.assert_array_equal(tensor.numpy(), array)
