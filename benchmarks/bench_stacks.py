"""Processor seconds per model of identical trainings: our stacks against `jax.vmap` and `jax.jit`.

Both train 64 perceptrons on the same rows, with separate initial weights and orders: float32, SGD with momentum 0.9 and
learning rate 0.05, batches of 32. DP-SGD has Poisson batches, clip 1 and noise 1. JAX scans over an epoch's steps, and
numpy draws its batches. Its DP-SGD computes `vmap(grad)` of each example, as users write it, or norms from errors and
inputs, as ours does. Compilation is excluded. The result is the smaller of two runs.

    python -m benchmarks.bench_stacks            # ours
    PYTHON_WITH_JAX benchmarks/bench_stacks.py   # JAX's; needs jax, numpy and scikit-learn, not dpaudit

JAX is not a dependency. `taskset -c 0` restricts either command to one core; ours has an argument for the threads.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits

MODELS, BATCH, EPOCHS = 64, 32, 20
RATE, MOMENTUM, CLIP, NOISE = 0.05, 0.9, 1.0, 1.0
MOST = 64
"""Size of a Poisson batch for JAX, whose shapes are fixed; a batch with mean 32 exceeds it once in 10^7."""

Work = tuple[NDArray[np.float32], NDArray[np.int64], list[NDArray[np.int64]], int, int]
"""Features, labels, each model's rows, classes and epochs."""


def normal() -> Work:
    """Return 20,000 rows of 64 normal features, two classes, one epoch, for a 64-64-64-2 perceptron."""
    features = np.random.default_rng(0).normal(size=(20_000, 64)).astype(np.float32)
    return features, (features[:, 0] > 0).astype(np.int64), [np.arange(20_000)] * MODELS, 2, 1


def digits() -> Work:
    """Return random halves of digits, 20 epochs, for a 64-64-64-10 perceptron."""
    data, rng = load_digits(), np.random.default_rng(0)
    halves = [np.sort(rng.permutation(len(data.target))[: len(data.target) // 2]) for _ in range(MODELS)]
    return (data.data / 16).astype(np.float32), data.target.astype(np.int64), halves, 10, EPOCHS


def ours(threads: int) -> Iterator[tuple[str, float, float]]:
    """Yield (name, processor seconds per model, wall seconds per model) of our engine."""
    from numpy.random import SeedSequence

    from dpaudit.mechanisms.compute import Compute
    from dpaudit.mechanisms.models.networks import Mlp
    from dpaudit.mechanisms.training.private.private_stack import train_private_stack
    from dpaudit.mechanisms.training.private.private_steps import PrivateSteps
    from dpaudit.mechanisms.training.recipe import StackPlan, TrainingTask
    from dpaudit.mechanisms.training.train import train_stack

    common: dict[str, Any] = {"compute": Compute(threads=threads), "plan": StackPlan("batched", MODELS)}
    for name, (features, labels, subsets, classes, epochs) in (("normal", normal()), ("digits", digits())):
        seeds = SeedSequence(0).spawn(MODELS)
        tasks = [TrainingTask(rows, labels[rows], seed) for rows, seed in zip(subsets, seeds, strict=True)]
        trainer = Mlp(epochs=epochs, batch_size=BATCH, learning_rate=RATE, momentum=MOMENTUM)
        yield name, *least_seconds(partial(train_stack, trainer, features, tasks, classes=classes, **common))
        steps = PrivateSteps(clip=CLIP, noise_multiplier=NOISE, sample_rate=BATCH / len(subsets[0]))
        private = partial(train_private_stack, trainer, steps, features, tasks, classes=classes, **common)
        yield f"{name}, DP-SGD", *least_seconds(private)


def jaxes() -> Iterator[tuple[str, float, float]]:
    """Yield (name, processor seconds per model, wall seconds per model) of JAX."""
    import jax
    import jax.numpy as jnp

    def forward(layers: Any, inputs: Any) -> list[Any]:
        activations = [inputs]
        for depth, (weight, bias) in enumerate(layers):
            outputs = activations[-1] @ weight.T + bias
            activations.append(outputs if depth == len(layers) - 1 else jax.nn.relu(outputs))
        return activations

    def losses(layers: Any, inputs: Any, labels: Any) -> Any:
        logs = jax.nn.log_softmax(forward(layers, inputs)[-1])
        return -jnp.take_along_axis(logs, labels[:, None], 1)[:, 0]

    def moved(layers: Any, velocity: Any, gradient: Any) -> Any:
        velocity = jax.tree.map(lambda old, new: MOMENTUM * old + new, velocity, gradient)
        return jax.tree.map(lambda old, new: old - RATE * new, layers, velocity), velocity

    def plain(layers: Any, velocity: Any, features: Any, labels: Any, rows: Any, shares: Any) -> Any:
        def total(layers: Any) -> Any:
            return (losses(layers, features[rows], labels[rows]) * shares).sum()

        return moved(layers, velocity, jax.grad(total)(layers))

    def each_example(layers: Any, inputs: Any, labels: Any, present: Any) -> Any:
        def single(layers: Any, example: Any, label: Any) -> Any:
            return losses(layers, example[None], label[None])[0]

        gradients = jax.vmap(jax.grad(single), (None, 0, 0))(layers, inputs, labels)
        squares = sum((part.reshape(len(part), -1) ** 2).sum(1) for part in jax.tree.leaves(gradients))
        factors = jnp.minimum(1, CLIP / (jnp.sqrt(squares) + 1e-6)) * present
        return jax.tree.map(lambda part: jnp.tensordot(factors, part, 1), gradients)

    def from_errors(layers: Any, inputs: Any, labels: Any, present: Any) -> Any:
        activations = forward(layers, inputs)
        errors = [jax.nn.softmax(activations[-1]) - jax.nn.one_hot(labels, activations[-1].shape[1])]
        for (weight, _), activated in zip(layers[:0:-1], activations[-2:0:-1], strict=True):
            errors.insert(0, (errors[0] @ weight) * (activated > 0))
        pairs = list(zip(errors, activations[:-1], strict=True))
        squares = sum((error**2).sum(1) * ((activation**2).sum(1) + 1) for error, activation in pairs)
        factors = (jnp.minimum(1, CLIP / (jnp.sqrt(squares) + 1e-6)) * present)[:, None]
        return [((error * factors).T @ activation, (error * factors).sum(0)) for error, activation in pairs]

    def private(
        clipped: Any, layers: Any, velocity: Any, features: Any, labels: Any, rows: Any, present: Any, key: Any
    ) -> Any:
        parts, tree = jax.tree.flatten(clipped(layers, features[rows], labels[rows], present))
        keys = jax.random.split(key, len(parts))
        noisy = [
            (part + CLIP * NOISE * jax.random.normal(key, part.shape)) / BATCH
            for part, key in zip(parts, keys, strict=True)
        ]
        return moved(layers, velocity, jax.tree.unflatten(tree, noisy))

    def epoch_of(step: Any, arrays: int) -> Any:
        stacked = jax.vmap(step, (0, 0, None, None, *[0] * arrays))

        @partial(jax.jit, donate_argnums=(0, 1))
        def run(layers: Any, velocity: Any, features: Any, labels: Any, *batches: Any) -> Any:
            def once(state: Any, now: Any) -> Any:
                return stacked(*state, features, labels, *now), None

            return jax.lax.scan(once, (layers, velocity), batches)[0]

        return run

    def train(epoch: Any, work: Work, batches: Callable[..., Any]) -> None:
        features, labels, subsets, classes, epochs = work
        rng = np.random.default_rng(1)
        widths = (features.shape[1], 64, 64, classes)
        layers = [
            tuple(
                jnp.asarray((rng.random((MODELS, *shape), np.float32) * 2 - 1) / np.float32(np.sqrt(before)))
                for shape in ((after, before), (after,))
            )
            for before, after in pairwise(widths)
        ]
        velocity = jax.tree.map(jnp.zeros_like, layers)
        on_device = jnp.asarray(features), jnp.asarray(labels.astype(np.int32))
        for number in range(epochs):
            layers, velocity = epoch(layers, velocity, *on_device, *batches(rng, subsets, number))
        jax.block_until_ready(layers)

    def keyed(rng: np.random.Generator, subsets: list[NDArray[np.int64]], number: int) -> Any:
        rows, present = poisson(rng, subsets)
        return rows, present, jax.random.split(jax.random.key(number), rows.shape[:2])

    by_shuffling = epoch_of(plain, 2)
    by_norms, one_by_one = (epoch_of(partial(private, clipped), 3) for clipped in (from_errors, each_example))
    for name, work in (("normal", normal()), ("digits", digits())):
        yield name, *least_seconds(partial(train, by_shuffling, work, lambda rng, subsets, _: shuffled(rng, subsets)))
        yield f"{name}, DP-SGD, norms from errors", *least_seconds(partial(train, by_norms, work, keyed))
    yield "digits, DP-SGD, vmap(grad)", *least_seconds(partial(train, one_by_one, digits(), keyed), repeats=1)


def shuffled(rng: np.random.Generator, subsets: list[NDArray[np.int64]]) -> tuple[NDArray[Any], NDArray[np.float32]]:
    """Return rows and loss weights of an epoch, both (steps, models, batch); all subsets have one size."""
    count = len(subsets[0])
    steps = -(-count // BATCH)
    rows, shares = np.zeros((MODELS, steps * BATCH), np.int32), np.zeros((MODELS, steps * BATCH), np.float32)
    sizes = np.minimum(BATCH, count - BATCH * np.arange(steps))
    for model, subset in enumerate(subsets):
        rows[model, :count] = subset[rng.permutation(count)]
    shares[:, :count] = np.repeat(1 / sizes, sizes)
    first, second = (np.ascontiguousarray(part.reshape(MODELS, steps, BATCH).swapaxes(0, 1)) for part in (rows, shares))
    return first, second


def poisson(rng: np.random.Generator, subsets: list[NDArray[np.int64]]) -> tuple[NDArray[Any], NDArray[np.float32]]:
    """Return rows of Poisson batches and a mask of filled places, both (steps, models, places)."""
    count = len(subsets[0])
    steps = round(count / BATCH)
    rows, present = np.zeros((steps, MODELS, MOST), np.int32), np.zeros((steps, MODELS, MOST), np.float32)
    for step in range(steps):
        for model, subset in enumerate(subsets):
            size = min(MOST, rng.binomial(count, BATCH / count))
            rows[step, model, :size] = subset[rng.choice(count, size, replace=False, shuffle=False)]
            present[step, model, :size] = 1
    return rows, present


def least_seconds(work: Callable[[], object], repeats: int = 2) -> tuple[float, float]:
    """Return the least processor and wall seconds per model over `repeats` runs of `work`, after a warm-up run."""
    work()
    processor, clock = [], []
    for _ in range(repeats):
        starts = time.process_time(), time.perf_counter()
        work()
        processor.append(time.process_time() - starts[0])
        clock.append(time.perf_counter() - starts[1])
    return min(processor) / MODELS, min(clock) / MODELS


if __name__ == "__main__":
    threads = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    try:
        import dpaudit  # noqa: F401, an interpreter with dpaudit measures our engine

        figures, what = ours(threads), f"ours, {threads} threads"
    except ImportError:
        figures, what = jaxes(), f"JAX, {len(os.sched_getaffinity(0))} cores"
    for name, processor, clock in figures:
        load = os.getloadavg()[0]
        print(f"{processor:8.5f} processor s a model {clock:8.5f} s  load {load:4.1f}  {what}: {name}", flush=True)
