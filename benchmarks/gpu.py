"""Check on one GPU, in at most nine minutes, that trainings use it well and keep to their share of it.

    python -m benchmarks.gpu                            # on the first GPU
    python -m benchmarks.gpu --size small               # in seconds; on the CPU if there is no GPU
    python -m benchmarks.gpu --csv docs/data/gpu.csv    # also writes the rows to a file, after each measurement

The parts:

stacks    256 small CNNs trained as one stack and one after another: seconds a model, difference of their scores
dp-sgd    the same for 64 CNNs trained by DP-SGD
scores    models trained on the CPU and on the GPU: difference of their scores, and of two trainings on the GPU
data      four units on the same data: bytes that each copies to the GPU, seconds to copy them, and to standardise them
memory    a stack that is too large for its share of the GPU: it is halved until it fits
workers   two processes with half of the GPU each, at the same time: peak memory of each, and a limit that holds
text      64 LoRA adapters trained on one language model as one stack and one after another, and scores of canaries

Each part has its own time limit. If a part fails or runs too long, the next one starts. The exit code is 1 if a part
failed or a check says no. Without a GPU all parts run on the CPU at small size; a GPU's limits are then simulated or
left out, and the rows say so.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import torch
from numpy.random import SeedSequence
from numpy.typing import NDArray
from torch import Tensor

from dpaudit.actors.audited.signals import TimeLimitExceeded, time_limit
from dpaudit.actors.backend import Deadlines, InProcess
from dpaudit.actors.children import ChildProcesses
from dpaudit.actors.events import EventStream
from dpaudit.actors.storage.store import decode_unit
from dpaudit.actors.unit import Inputs, Resources, Unit
from dpaudit.mechanisms import gpu_memory
from dpaudit.mechanisms.compute import Compute, TrainingError, collected_notes
from dpaudit.mechanisms.examples import Examples
from dpaudit.mechanisms.gpu_memory import hold_share, release_resident, unit_bytes
from dpaudit.mechanisms.models.networks import Mlp, Network, SmallCnn
from dpaudit.mechanisms.training.inputs import scaling_of
from dpaudit.mechanisms.training.private.private_stack import train_private_stack
from dpaudit.mechanisms.training.private.private_steps import PrivateSteps
from dpaudit.mechanisms.training.recipe import StackPlan, TrainingTask
from dpaudit.mechanisms.training.stack import NetworkModel, Stack, stack_logits
from dpaudit.mechanisms.training.train import bytes_per_model, train_stack
from tools.rows import DATA, Row, measured_here, note_origin, setting, write

CLASSES = 10
TOLERANCE = 0.02  # largest difference of two probabilities that rounding may cause after a training
TOTAL_S = 540.0  # seconds of all parts together
TOO_LARGE = 8  # number of times that a stack exceeds its share in the part `memory`
SCORED = 256  # images of which the scores are compared, at most
COMPARED = 2  # models that are trained on the CPU and on the GPU
UNITS = 4  # units on the same data in the part `data`
MEETING_S = 60.0  # seconds that a worker waits for the other one

Images = NDArray[np.float32]


@dataclass(frozen=True)
class Size:
    """Amount of work.

    Attributes:
        models: Models of a stack.
        looped: Models that are also trained one after another.
        private: Models of a stack of DP-SGD.
        rows: Training images, of 3 x side x side.
        batch: Images of a batch.
        side: Pixels of a side.
        data_rows: Images that the part `data` copies.
    """

    models: int
    looped: int
    private: int
    rows: int
    batch: int
    side: int
    data_rows: int


SIZES = {
    "full": Size(models=256, looped=8, private=64, rows=2048, batch=64, side=32, data_rows=50_000),
    "small": Size(models=8, looped=2, private=4, rows=64, batch=8, side=8, data_rows=500),
}


@dataclass(frozen=True)
class Bench:
    """Amount of work, and where it runs."""

    size: Size
    compute: Compute

    @property
    def on_gpu(self) -> bool:
        """True if the work runs on a GPU."""
        return self.compute.device != "cpu"

    @property
    def is_small(self) -> bool:
        """True if the amount of work is that of a test."""
        return self.size == SIZES["small"]

    @property
    def resources(self) -> Resources:
        """Resources of a unit that has the whole device."""
        return Resources(gpus=1.0 if self.on_gpu else 0.0)

    def images(self, rows: int) -> tuple[Images, NDArray[np.int64]]:
        """Return images, each a pattern of its class under noise, and their labels."""
        rng = np.random.default_rng(0)
        patterns = rng.random((CLASSES, 3, self.size.side, self.size.side), dtype=np.float32)
        labels = rng.integers(0, CLASSES, rows)
        images = rng.random((rows, *patterns.shape[1:]), dtype=np.float32)
        return (images + 3 * patterns[labels]) / 2 - 1, labels

    def seconds(self, work: Callable[[], object]) -> float:
        """Return the seconds of the second call of `work`, until the GPU has finished."""
        work()
        self.finish()
        began = time.perf_counter()
        work()
        self.finish()
        return time.perf_counter() - began

    def finish(self) -> None:
        """Wait for the GPU."""
        if self.on_gpu:
            torch.cuda.synchronize(self.compute.device)


@dataclass(frozen=True)
class Measured:
    """One result of a part; `value` is "yes" or "no" for a check."""

    what: str
    value: str


def check(what: str, holds: bool) -> Measured:
    """Return the result of a check."""
    return Measured(what, "yes" if holds else "no")


def tasks_of(models: int, labels: NDArray[np.int64], rows: int | None = None) -> list[TrainingTask]:
    """Return one training for each model, on the first `rows` rows."""
    rows = rows or len(labels)
    return [TrainingTask(np.arange(rows), labels[:rows], seed) for seed in SeedSequence(0).spawn(models)]


def trained(outcomes: Sequence[NetworkModel | TrainingError]) -> list[NetworkModel]:
    """Return the models; raises the first error of a training."""
    for outcome in outcomes:
        if isinstance(outcome, TrainingError):
            raise outcome
    return [outcome for outcome in outcomes if isinstance(outcome, NetworkModel)]


def scores(models: Sequence[NetworkModel], images: Images) -> NDArray[np.float64]:
    """Return the probabilities of the models on the CPU, so that only the trainings differ."""
    logits = stack_logits([replace(model, compute=Compute()) for model in models], images[:SCORED], compute=Compute())
    odds = np.exp(logits - logits.max(-1, keepdims=True))
    return np.asarray(odds / odds.sum(-1, keepdims=True))


def differences(name: str, first: NDArray[np.float64], second: NDArray[np.float64]) -> Iterator[Measured]:
    """Yield the largest difference of two sets of probabilities, and if rounding explains it."""
    difference = float(np.abs(first - second).max())
    yield Measured(f"{name}: largest difference of a probability", f"{difference:.1e}")
    yield check(f"{name}: within {TOLERANCE:g}", difference <= TOLERANCE)


def stacks(bench: Bench) -> Iterator[Measured]:
    """Compare one stack of small CNNs with a loop over some of them."""
    size = bench.size
    images, labels = bench.images(size.rows)
    tasks = tasks_of(size.models, labels)
    for precision in ("float32", "bfloat16") if bench.on_gpu else ("float32",):
        recipe = SmallCnn(epochs=2, batch_size=size.batch, precision=precision)
        train = partial(train_stack, recipe, images, classes=CLASSES, compute=bench.compute)
        stacked = partial(train, tasks=tasks, plan=StackPlan("vmapped", size.models))
        looped = partial(train, tasks=tasks[: size.looped], plan=StackPlan("looped"))
        yield from _stacked_against_looped(bench, precision, stacked, looped, images, size.models)
    answers = scores(trained(stacked())[:1], images)[0]
    accuracy = float((answers.argmax(1) == labels[: len(answers)]).mean())
    yield Measured("share of training images that a model classifies correctly", f"{accuracy:.2f}")


def private_stacks(bench: Bench) -> Iterator[Measured]:
    """Compare one stack of small CNNs trained by DP-SGD with a loop over some of them."""
    size = bench.size
    images, labels = bench.images(size.rows)
    tasks = tasks_of(size.private, labels)
    steps = PrivateSteps(clip=1.0, noise_multiplier=1.0, sample_rate=size.batch / size.rows)
    recipe = SmallCnn(epochs=1, batch_size=size.batch)
    train = partial(train_private_stack, recipe, steps, images, classes=CLASSES, compute=bench.compute)
    stacked = partial(train, tasks=tasks, plan=StackPlan("vmapped", size.private))
    looped = partial(train, tasks=tasks[: size.looped], plan=StackPlan("vmapped", 1))
    yield from _stacked_against_looped(bench, "float32", stacked, looped, images, size.private)


def _stacked_against_looped(
    bench: Bench,
    precision: str,
    stacked: Callable[[], list[NetworkModel | TrainingError]],
    looped: Callable[[], list[NetworkModel | TrainingError]],
    images: Images,
    models: int,
) -> Iterator[Measured]:
    few = bench.size.looped
    alone, together = bench.seconds(looped) / few, bench.seconds(stacked) / models
    yield Measured(f"{precision}, one after another: seconds a model", f"{alone:.4f}")
    yield Measured(f"{precision}, a stack of {models}: seconds a model", f"{together:.4f}")
    yield Measured(f"{precision}: speed-up of the stack", f"{alone / together:.1f}")
    if precision == "float32":  # 16 bits round more than the tolerance
        pair = (scores(trained(work())[:few], images) for work in (stacked, looped))
        yield from differences("stack and loop", *pair)


def compared_scores(bench: Bench) -> Iterator[Measured]:
    """Compare models trained on the CPU with those trained on the device, and two trainings on the device."""
    size = bench.size
    images, labels = bench.images(size.rows)
    tasks, on_cpu = tasks_of(COMPARED, labels), Compute(threads=bench.compute.threads)
    recipes: dict[str, Network] = {
        "perceptron, standardised": Mlp(epochs=3, standardise=True, learning_rate=0.02),
        "small CNN": SmallCnn(epochs=3, batch_size=size.batch),
    }
    for name, recipe in recipes.items():
        train = partial(train_stack, recipe, images, tasks, classes=CLASSES)
        expected = scores(trained(train(compute=on_cpu)), images)
        for words, allowed in (("", True), (" without TF32", False)) if bench.on_gpu else (("", True),):
            with _allowed_tf32(allowed):
                first, second = (scores(trained(train(compute=bench.compute)), images) for _ in range(2))
            yield from differences(f"{name}, CPU and device{words}", expected, first)
            yield check(f"{name}, trained twice{words}: equal bits", bool((first == second).all()))
    # DP-SGD draws its noise on the device, so only trainings without noise can be compared.
    steps = PrivateSteps(clip=1.0, noise_multiplier=0.0, sample_rate=size.batch / size.rows)
    pair = (
        scores(
            trained(train_private_stack(recipes["small CNN"], steps, images, tasks, classes=CLASSES, compute=compute)),
            images,
        )
        for compute in (on_cpu, bench.compute)
    )
    yield from differences("DP-SGD without noise, CPU and device", *pair)


@contextlib.contextmanager
def _allowed_tf32(is_allowed: bool) -> Iterator[None]:
    """Allow or forbid that convolutions on a GPU round their inputs to 10 bits, which is torch's default."""
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = is_allowed
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = before


@dataclass(frozen=True)
class TrainsOnShared:
    """Unit that trains two small CNNs on some rows of the shared images."""

    number: int
    size: Size

    def run(self, inputs: Inputs, compute: Compute) -> pa.Table:
        """Return one row when the models are trained."""
        examples: Examples = inputs.shared["images"]
        tasks = tasks_of(2, examples.labels, self.size.rows)
        recipe = SmallCnn(epochs=1, batch_size=self.size.batch, standardise=True)
        plan = StackPlan("vmapped", 2)
        trained(train_stack(recipe, examples.features, tasks, classes=CLASSES, compute=compute, plan=plan))
        return pa.table({"unit": [self.number]})


@dataclass
class Moves:
    """Copies of arrays to the device."""

    bytes: int = 0
    seconds: float = 0.0


@contextlib.contextmanager
def counted_moves(bench: Bench) -> Iterator[Moves]:
    """Count the copies in a block."""
    moves, moved = Moves(), gpu_memory.moved

    def counted(array: NDArray[np.float32], device: str) -> Tensor:
        began = time.perf_counter()
        tensor = moved(array, device)
        bench.finish()
        moves.bytes += array.nbytes
        moves.seconds += time.perf_counter() - began
        return tensor

    with mock.patch.object(gpu_memory, "moved", counted):
        yield moves


def data_on_device(bench: Bench) -> Iterator[Measured]:
    """Run units on the same images, and standardise them."""
    images, labels = bench.images(bench.size.data_rows)
    examples = Examples(images, labels, CLASSES)
    assert examples.digest  # as in a run, the driver computes it once
    backend = InProcess({"images": examples})
    for number in range(UNITS):
        unit = Unit(TrainsOnShared(number, bench.size), f"unit {number}", ("images",), (), bench.resources)
        with counted_moves(bench) as moves:
            backend.submit(unit, (), needed=False)
            (completion,) = backend.wait()
        if completion.attempt.error:
            raise RuntimeError(completion.attempt.error)
        yield Measured(f"unit {number + 1}: bytes copied to the device", f"{moves.bytes:,}")
        yield Measured(f"unit {number + 1}: seconds", f"{completion.attempt.seconds:.3f}")
        if number == 0:
            yield Measured("seconds to copy the data once", f"{moves.seconds:.4f}")
        elif bench.on_gpu:
            yield check(f"unit {number + 1} finds the data on the GPU", moves.bytes == 0)
    release_resident()
    data = gpu_memory.on_device(images, bench.compute)
    rows = np.arange(0, len(images), 2)
    if bench.on_gpu:
        torch.cuda.reset_peak_memory_stats(bench.compute.device)
        before = torch.cuda.memory_allocated(bench.compute.device)
    yield Measured("seconds to standardise for one model", f"{bench.seconds(lambda: scaling_of(data, rows)):.4f}")
    if bench.on_gpu:
        added = torch.cuda.max_memory_allocated(bench.compute.device) - before
        yield Measured("bytes added on the GPU to standardise", f"{added:,}")
        yield check("standardising copies less than half of the rows", added < images.nbytes / 4)


def too_large_stack(bench: Bench) -> Iterator[Measured]:
    """Train a stack in a share of the GPU that holds about an eighth of it; on a CPU, simulate its memory."""
    size = bench.size
    images, labels = bench.images(size.rows)
    recipe = SmallCnn(epochs=1, batch_size=size.batch)
    tasks, plan = tasks_of(size.models, labels), StackPlan("vmapped", size.models)
    train = partial(train_stack, recipe, images, tasks, classes=CLASSES, plan=plan)
    expected = scores(trained(train(compute=bench.compute))[: size.looped], images)
    compute = bench.compute
    if bench.on_gpu:
        shape = images.shape[1:]
        need = size.models * bytes_per_model(recipe, recipe.meta_module(shape, CLASSES), shape, rows=size.rows)
        share = (need / TOO_LARGE + images.nbytes) / unit_bytes(compute)
        compute = replace(compute, device_share=min(1.0, share))
        hold_share(compute)
        yield Measured("share of the GPU", f"{compute.device_share:.4f}")
    else:
        yield Measured("share of the GPU", f"simulated on the CPU: {size.models // TOO_LARGE} models fit")
    sizes: list[int] = []
    with _recorded_sizes(sizes, None if bench.on_gpu else size.models // TOO_LARGE), collected_notes() as notes:
        models = trained(train(compute=compute))
    yield Measured("sizes of the stacks that were tried", ", ".join(map(str, dict.fromkeys(sizes))))
    yield Measured("note", "; ".join(notes) or "none")
    yield check("the stack was too large, and a note says so", bool(notes))
    yield check(f"all {size.models} models were trained", len(models) == size.models)
    yield from differences("small stacks and one stack", scores(models[: size.looped], images), expected)


@contextlib.contextmanager
def _recorded_sizes(sizes: list[int], largest: int | None) -> Iterator[None]:
    """Record the sizes of stacks that start an epoch; larger ones than `largest` fail as on a full GPU."""
    run_epoch = Stack.run_epoch

    def recorded(stack: Stack, epoch: int) -> None:
        sizes.append(len(stack.tasks))
        if largest is not None and len(stack.tasks) > largest:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory (simulated)")
        run_epoch(stack, epoch)

    with mock.patch.object(Stack, "run_epoch", recorded):
        yield


@dataclass(frozen=True)
class WorksOnHalf:
    """Unit that trains a stack while another process does the same."""

    number: int
    workers: int
    size: Size
    folder: str  # where the workers wait for each other

    def run(self, inputs: Inputs, compute: Compute) -> pa.Table:
        """Return begin, end, peak memory and limit, and if memory above the limit was refused."""
        bench = Bench(self.size, compute)
        images, labels = bench.images(self.size.rows)
        if bench.on_gpu:
            torch.cuda.init()
        (Path(self.folder) / str(self.number)).touch()
        while len(list(Path(self.folder).iterdir())) < self.workers:
            time.sleep(0.01)
        began = time.time()
        tasks, plan = tasks_of(self.size.models, labels), StackPlan("vmapped", self.size.models)
        recipe = SmallCnn(epochs=1, batch_size=self.size.batch)
        trained(train_stack(recipe, images, tasks, classes=CLASSES, compute=compute, plan=plan))
        bench.finish()
        row: dict[str, Any] = {"began": began, "ended": time.time(), "peak": 0, "limit": 0, "refused": False}
        if bench.on_gpu:
            row |= {"peak": torch.cuda.max_memory_reserved(compute.device), "limit": unit_bytes(compute)}
            torch.cuda.empty_cache()
            row["refused"] = is_refused(int(1.1 * unit_bytes(compute)), compute.device)
        return pa.table({name: [value] for name, value in row.items()})


def is_refused(count: int, device: str) -> bool:
    """True if `count` bytes cannot be allocated on the device."""
    try:
        torch.empty(count, dtype=torch.uint8, device=device)
    except torch.cuda.OutOfMemoryError:
        return True
    return False


def two_workers(bench: Bench) -> Iterator[Measured]:
    """Run two units in two processes, each with half of the GPU."""
    resources = Resources(gpus=0.5 if bench.on_gpu else 0.0)
    with tempfile.TemporaryDirectory() as folder:
        backend = ChildProcesses({}, None, EventStream(), Deadlines(MEETING_S), count=2)
        try:
            for number in range(2):
                task = WorksOnHalf(number, 2, bench.size, folder)
                backend.submit(Unit(task, f"worker {number + 1}", (), (), resources), (), needed=False)
            completions = backend.wait()
            while len(completions) < 2:
                completions += backend.wait()
        finally:
            backend.close()
    errors = [completion.attempt.error for completion in completions if completion.attempt.error]
    if errors:
        raise RuntimeError(errors[0])
    rows = [decode_unit(completion.attempt.content).to_pylist()[0] for completion in completions]
    yield check("both workers finish", len(rows) == 2)
    overlap = min(row["ended"] for row in rows) - max(row["began"] for row in rows)
    yield check("they train at the same time", overlap > 0)
    for number, row in enumerate(rows, 1):
        yield Measured(f"worker {number}: seconds", f"{row['ended'] - row['began']:.3f}")
        if bench.on_gpu:
            yield Measured(f"worker {number}: peak and limit, bytes", f"{row['peak']:,} of {row['limit']:,}")
            yield check(f"worker {number}: peak within its share", row["peak"] <= row["limit"])
            yield check(f"worker {number}: more than its share is refused", row["refused"])
    if not bench.on_gpu:
        yield Measured("limit of memory", "left out on a CPU")


def text(bench: Bench) -> Iterator[Measured]:
    """Train adapters of a language model (packages transformers, peft and opacus)."""
    from benchmarks.gpu_text import language_models

    yield from language_models(bench)


@dataclass(frozen=True)
class Part:
    """A part and its time limit in seconds."""

    run: Callable[[Bench], Iterator[Measured]]
    limit_s: float


PARTS = {
    "stacks": Part(stacks, 80.0),
    "dp-sgd": Part(private_stacks, 60.0),
    "scores": Part(compared_scores, 60.0),
    "data": Part(data_on_device, 50.0),
    "memory": Part(too_large_stack, 50.0),
    "workers": Part(two_workers, 60.0),
    "text": Part(text, 240.0),
}


def run_parts(
    bench: Bench, names: Sequence[str], *, record: Callable[[str, list[Measured]], None], total_s: float = TOTAL_S
) -> bool:
    """Run parts, each within its limit; `record` receives each result. True if all parts and checks hold."""
    began, is_good = time.monotonic(), True
    for name in names:
        part, results = PARTS[name], list[Measured]()
        limit_s = min(part.limit_s, total_s - (time.monotonic() - began))
        try:
            if limit_s <= 0:
                raise TimeLimitExceeded
            with time_limit(limit_s):
                for result in part.run(bench):
                    results.append(result)
                    record(name, [result])
        except TimeLimitExceeded:
            results.append(Measured("failed", f"not finished within {max(0.0, limit_s):.0f} s"))
        except Exception as error:  # a failed part must not end the others
            results.append(Measured("failed", f"{type(error).__name__}: {last_line(str(error))}"))
        if results and results[-1].what == "failed":
            record(name, results[-1:])
        release_resident()
        hold_share(bench.compute)
        is_good &= not any(result.what == "failed" or result.value == "no" for result in results)
    return is_good


def last_line(text: str) -> str:
    """Return the last line of an error text, in which a table's separators are replaced."""
    return (text.strip().splitlines() or [""])[-1].replace("|", "/")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the parts, print a table, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    has_gpu = torch.cuda.is_available()
    parser.add_argument("--size", choices=SIZES, default="full" if has_gpu else "small", help="amount of work")
    parser.add_argument("--device", default="cuda:0" if has_gpu else "cpu", help="where to run, such as cuda:0 or cpu")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), metavar="PART", help="run these parts")
    parser.add_argument("--csv", type=Path, help="file for the rows; in docs/data, its origin is noted in index.csv")
    parser.add_argument("--seconds", type=float, default=TOTAL_S, help="time limit of all parts together")
    options = parser.parse_args(arguments)
    threads = min(8, os.cpu_count() or 1) if options.size == "full" else 1
    bench = Bench(SIZES[options.size], Compute(threads=threads, device=options.device))
    name = torch.cuda.get_device_name(options.device) if bench.on_gpu else "CPU, no GPU"
    rows: list[Row] = []
    print(f"{name}, size {options.size}\n\n|part|measured|value|\n|-|-|-|", flush=True)

    def record(part: str, results: list[Measured]) -> None:
        for result in results:
            print(f"|{part}|{result.what}|{result.value}|", flush=True)
            conditions = {"part": part, "size": options.size, "device": name, "measured": result.what}
            rows.append(Row(setting(conditions), "value", result.value))
        if options.csv:
            write(options.csv, rows)

    is_good = run_parts(bench, options.only, record=record, total_s=options.seconds)
    if options.csv and options.csv.resolve().parent == DATA:
        command = f"python -m benchmarks.gpu --size {options.size} --device {options.device}"
        command += "" if options.only == list(PARTS) else f" --only {' '.join(options.only)}"
        note_origin(measured_here(options.csv.name, command, gpu=name if bench.on_gpu else "no GPU"))
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
