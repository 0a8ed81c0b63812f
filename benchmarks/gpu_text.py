"""Part `text` of `benchmarks.gpu`: fine-tuning of many LoRA adapters on one language model, and scores of canaries.

The model has the shape of SmolLM2-135M and random weights. Operations are counted as 4 for each weight of a matrix and
token: 2 forward, 2 backward for the gradient of the inputs, and none for the gradient of the weights, which are frozen.
Attention adds 6 for each pair of tokens, unit of the hidden width and layer. The peak is that of a large matrix product
on the same device in the same precision.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.random import SeedSequence
from torch import nn

from benchmarks.gpu import Bench, Measured, check, last_line
from dpaudit.language_models.mechanisms.base_models import frozen_copy
from dpaudit.language_models.mechanisms.fine_tuning.adapter_stack import (
    AdapterStack,
    AdapterTask,
    TrainedAdapter,
    adapter_statistics,
    train_adapters,
)
from dpaudit.language_models.mechanisms.fine_tuning.records import Record, TrainingText
from dpaudit.language_models.mechanisms.fine_tuning.row_adapters import adapter_layout, row_adapters
from dpaudit.language_models.mechanisms.fine_tuning.token_losses import TokenLosses
from dpaudit.language_models.mechanisms.fine_tuning.trainers import LoraFineTuning
from dpaudit.language_models.mechanisms.token_statistics import TokenSpan, TokenStatistics, token_statistics
from dpaudit.mechanisms.compute import Compute, TrainingError

TOLERANCE = 0.01  # largest difference of two log-probabilities of a token that rounding in float32 may cause
SHARED = 4  # a text is in the training data of one adapter; a step has a quarter of them


@dataclass(frozen=True)
class TextSize:
    """Amount of work.

    Attributes:
        hidden, layers, heads, groups, inner, vocabulary: Shape of the model, as in `LlamaConfig`.
        adapters: Adapters of a stack.
        batch: Texts of a step of one adapter.
        length: Tokens of a text.
        batch_tokens: Tokens of a pass of the stack, several to choose from; the last is also compiled.
        seconds: Seconds for which a loop of steps is measured.
        canaries: Canaries that are scored.
    """

    hidden: int
    layers: int
    heads: int
    groups: int
    inner: int
    vocabulary: int
    adapters: int
    batch: int
    length: int
    batch_tokens: tuple[int, ...]
    seconds: float
    canaries: int


FULL = TextSize(576, 30, 9, 3, 1536, 49_152, 64, 16, 128, (32_768, 131_072), 2.0, 2_000)
SMALL = TextSize(36, 2, 3, 1, 64, 256, 3, 4, 12, (64, 256), 0.0, 30)


def language_models(bench: Bench) -> Iterator[Measured]:
    """Compare a stack of adapters with a loop over them, and batches of canaries with a loop over them."""
    size, device = (SMALL if bench.is_small else FULL), bench.compute.device
    base = random_model(size).to(device)
    yield Measured("weights of the model", f"{sum(p.numel() for p in base.parameters()):,}")
    operations = operations_per_token(base, size)
    yield Measured("operations of a trained token", f"{operations:,}")
    yield from equal_scores(bench, base, size)
    yield from scoring(bench, base, size)
    for precision in (torch.bfloat16, torch.float32) if bench.on_gpu else (torch.float32,):
        name = str(precision).removeprefix("torch.")
        model = base.to(precision)
        peak = matrix_rate(bench, precision, 8192 if bench.on_gpu else 256)
        yield Measured(f"{name}: peak, TFLOP/s of a matrix product", f"{peak / 1e12:.1f}")
        alone = {}
        for private in (False, True):
            words = f"{name}, {'private' if private else 'not private'}"
            loop = f"{words}, one adapter after another"
            with reported(f"{loop}: failed") as failures:
                alone[private] = rate(bench, plain_loop(model, size, device, private=private), size.seconds)
                yield from speeds(loop, alone[private], operations, peak)
            yield from failures
        is_main = precision is torch.bfloat16 or not bench.on_gpu  # the other one has fewer measurements
        for batch_tokens in size.batch_tokens if is_main else size.batch_tokens[:1]:
            is_compiled = bench.on_gpu and is_main and batch_tokens == size.batch_tokens[-1]
            for compiled in (False, True) if is_compiled else (False,):
                for private in (False, True):
                    words = f"{name}, {'private' if private else 'not private'}"
                    stack = f"{words}, a stack of {size.adapters}, {batch_tokens:,} tokens a pass"
                    stack += ", compiled" if compiled else ""
                    with reported(f"{stack}: failed") as failures:
                        step = partial(stack_loop, bench, model, size, private=private, compiled=compiled)
                        yield from stack_speeds(
                            bench, stack, partial(step, batch_tokens=batch_tokens), operations, peak, alone.get(private)
                        )
                    yield from failures


def stack_speeds(
    bench: Bench, words: str, build: Callable[[], Callable[[], int]], operations: int, peak: float, alone: float | None
) -> Iterator[Measured]:
    """Yield speeds and memory of a stack; `alone` are the tokens a second of one adapter after another."""
    step = build()
    began = time.perf_counter()
    step()
    bench.finish()
    yield Measured(f"{words}: seconds of the first step", f"{time.perf_counter() - began:.2f}")
    together = rate(bench, step, (SMALL if bench.is_small else FULL).seconds)
    yield from speeds(words, together, operations, peak)
    if alone:
        yield Measured(f"{words}: speed-up", f"{together / alone:.1f}")
    if bench.on_gpu:
        yield Measured(f"{words}: peak memory, GiB", f"{peak_gib(bench):.1f}")


@contextlib.contextmanager
def reported(what: str) -> Iterator[list[Measured]]:
    """Yield a list to which the exception of the block is added, which then ends no other measurement."""
    failures: list[Measured] = []
    try:
        yield failures
    except Exception as error:
        failures.append(Measured(what, f"{type(error).__name__}: {last_line(str(error))}"))


def speeds(words: str, tokens: float, operations: int, peak: float) -> Iterator[Measured]:
    """Yield tokens a second, operations a second and their share of the peak."""
    yield Measured(f"{words}: tokens a second", f"{tokens:,.0f}")
    yield Measured(f"{words}: TFLOP/s", f"{tokens * operations / 1e12:.1f}")
    yield Measured(f"{words}: share of the peak", f"{tokens * operations / peak:.3f}")


def random_model(size: TextSize) -> Any:
    """Return a Llama of the shape with random weights."""
    from transformers import LlamaConfig, LlamaForCausalLM

    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = LlamaConfig(
            vocab_size=size.vocabulary,
            hidden_size=size.hidden,
            intermediate_size=size.inner,
            num_hidden_layers=size.layers,
            num_attention_heads=size.heads,
            num_key_value_heads=size.groups,
            max_position_embeddings=2048,
            tie_word_embeddings=True,
        )
        model: Any = LlamaForCausalLM(config)
        return model.eval()


def operations_per_token(base: nn.Module, size: TextSize) -> int:
    """Return the operations of a trained token: matrices forward and backward, and causal attention."""
    matrices = sum(module.weight.numel() for module in base.modules() if isinstance(module, nn.Linear))
    return 4 * matrices + 6 * size.layers * size.hidden * size.length


def matrix_rate(bench: Bench, precision: torch.dtype, width: int) -> float:
    """Return operations a second of a product of two square matrices."""
    first, second = (torch.randn(width, width, device=bench.compute.device).to(precision) for _ in range(2))
    times = []
    for _ in range(6):
        bench.finish()
        began = time.perf_counter()
        torch.mm(first, second)
        bench.finish()
        times.append(time.perf_counter() - began)
    return 2 * width**3 / min(times)


def rate(bench: Bench, step: Callable[[], int], seconds: float) -> float:
    """Return tokens a second of steps that return their tokens; the first two steps are not measured."""
    step()
    step()
    bench.finish()
    began, tokens = time.perf_counter(), 0
    while not tokens or time.perf_counter() - began < seconds:
        tokens += step()
        bench.finish()
    return tokens / (time.perf_counter() - began)


def texts_of(size: TextSize, count: int, *, seed: int = 0) -> list[Record]:
    """Return records of one text of random tokens each."""
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, size.vocabulary, (count, size.length))
    return [(TrainingText(tuple(row)),) for row in tokens.tolist()]


def plain_loop(base: Any, size: TextSize, device: str, *, private: bool) -> Callable[[], int]:
    """Return a step of one adapter by PEFT, private by Opacus, which returns its tokens."""
    import peft

    config = peft.LoraConfig(task_type=peft.TaskType.CAUSAL_LM, r=8, lora_alpha=16, target_modules=["q_proj", "v_proj"])
    model: Any = peft.get_peft_model(frozen_copy(base, device=device), config)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer: Any = torch.optim.AdamW(trained, lr=1e-3)
    if private:
        from opacus import GradSampleModule
        from opacus.optimizers import DPOptimizer

        model = GradSampleModule(model)
        optimizer = DPOptimizer(optimizer, noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=size.batch)
    records = texts_of(size, size.batch * 4)
    batches = torch.tensor([record[0].tokens for record in records]).split(size.batch)
    number = 0

    def step() -> int:
        nonlocal number
        tokens = batches[number % len(batches)].to(device)
        number += 1
        optimizer.zero_grad()
        model(input_ids=tokens, labels=tokens, use_cache=False).loss.backward()
        optimizer.step()
        return int(tokens.numel())

    return step


def stack_loop(
    bench: Bench, base: Any, size: TextSize, *, batch_tokens: int, private: bool, compiled: bool
) -> Callable[[], int]:
    """Return a step of all adapters of a stack, which returns its tokens."""
    settings = LoraFineTuning(epsilon=8.0 if private else float("inf"), batch_size=size.batch)
    records = texts_of(size, SHARED * size.batch * size.adapters)
    rows = np.arange(len(records)).reshape(size.adapters, -1)
    tasks = [AdapterTask(row, seed) for row, seed in zip(rows, SeedSequence(0).spawn(size.adapters), strict=True)]
    if bench.on_gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(bench.compute.device)
    module = frozen_copy(base, device=bench.compute.device).eval()
    layout = adapter_layout(module, settings.target_modules, rank=settings.rank, alpha=settings.alpha)
    losses = TokenLosses(module, compiled=compiled)
    stack = AdapterStack(
        row_adapters(module, layout, compiled=compiled),
        losses,
        settings,
        records,
        tasks,
        size=rows.shape[1],
        device=torch.device(bench.compute.device),
        batch_tokens=batch_tokens,
    )
    number = 0

    def step() -> int:
        nonlocal number
        tokens = len(stack.sample(number)[0]) * size.length
        stack.step(number)
        number += 1
        return tokens

    return step


def peak_gib(bench: Bench) -> float:
    """Return the peak of the memory of the GPU since the last stack was made, in GiB."""
    return torch.cuda.max_memory_allocated(bench.compute.device) / 2**30


def equal_scores(bench: Bench, base: Any, size: TextSize) -> Iterator[Measured]:
    """Compare scores of canaries after trainings in float32 on the CPU and the device, together and alone."""
    settings = LoraFineTuning(batch_size=4, epochs=1, learning_rate=3e-3)
    records = texts_of(size, 16)
    tasks = [AdapterTask(np.arange(place, 12 + place), seed) for place, seed in enumerate(SeedSequence(1).spawn(2))]
    spans = canaries(size, 16)
    on_cpu = Compute(threads=bench.compute.threads)

    def scored(compute: Compute, groups: Sequence[Sequence[AdapterTask]]) -> list[TokenStatistics]:
        adapters = [
            adapter
            for group in groups
            for adapter in train_adapters(settings, base, records, group, size=12, compute=compute)
        ]
        return adapter_statistics(base, [trained(adapter) for adapter in adapters], spans, compute=compute)

    together = scored(bench.compute, [tasks])
    base_scores = token_statistics(base, spans)
    yield from difference("the training and the base model", together, [base_scores] * 2, at_least=1e-4)
    alone = scored(bench.compute, [[task] for task in tasks])
    yield from difference("two adapters together and alone", together, alone)
    if bench.on_gpu:
        yield from difference("CPU and GPU", together, scored(on_cpu, [tasks]))
        base.to(bench.compute.device)


def trained(outcome: TrainedAdapter | TrainingError) -> TrainedAdapter:
    """Return an adapter; raises the error of a failed training."""
    if isinstance(outcome, TrainingError):
        raise outcome
    return outcome


def difference(
    words: str, first: Sequence[TokenStatistics], second: Sequence[TokenStatistics], *, at_least: float | None = None
) -> Iterator[Measured]:
    """Yield the largest difference of a token's log-probability, and if rounding explains it or it is `at_least`."""
    largest = max(
        float(np.nanmax(np.abs(score.log_probability - expected.log_probability)))
        for score, expected in zip(first, second, strict=True)
    )
    yield Measured(f"{words}: largest difference of a token's log-probability", f"{largest:.1e}")
    if at_least is None:
        yield check(f"{words}: within {TOLERANCE:g}", largest <= TOLERANCE)
    else:
        yield check(f"{words}: at least {at_least:g}", largest >= at_least)


def canaries(size: TextSize, count: int) -> list[TokenSpan]:
    """Return texts of random tokens of several lengths, whose second half is scored."""
    rng = np.random.default_rng(2)
    lengths = rng.integers(size.length // 4, size.length // 2 + 1, count)
    return [
        TokenSpan(tuple(rng.integers(0, size.vocabulary, length).tolist()), int(length) // 2, int(length))
        for length in lengths
    ]


def scoring(bench: Bench, base: Any, size: TextSize) -> Iterator[Measured]:
    """Score canaries one by one, in batches by length, and under several adapters at once, in bfloat16 on a GPU."""
    model = frozen_copy(base, device=bench.compute.device)
    model = model.to(torch.bfloat16) if bench.on_gpu else model
    spans, batch_tokens = canaries(size, size.canaries), size.batch_tokens[0]
    layout = adapter_layout(model, ("q_proj", "v_proj"), rank=8, alpha=16.0)
    generator = torch.Generator().manual_seed(0)
    adapters = [TrainedAdapter(layout, layout.initial(generator).numpy()) for _ in range(min(8, size.adapters))]
    few = spans[: max(1, len(spans) // 20)]

    def one_by_one() -> int:
        token_statistics(model, few, batch_tokens=1)
        return sum(len(span.tokens) for span in few)

    def in_batches() -> int:
        token_statistics(model, spans, batch_tokens=batch_tokens)
        return sum(len(span.tokens) for span in spans)

    def under_adapters() -> int:
        adapter_statistics(model, adapters, spans, compute=bench.compute, batch_tokens=batch_tokens)
        return len(adapters) * sum(len(span.tokens) for span in spans)

    for words, step in {
        "one by one": one_by_one,
        "in batches by length": in_batches,
        f"under {len(adapters)} adapters at once": under_adapters,
    }.items():
        yield Measured(f"canaries scored {words}: tokens a second", f"{rate(bench, step, size.seconds / 3):,.0f}")
