"""Stacked adapters have the numbers of single trainings, do not depend on their neighbours, and fail one by one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import peft
import pytest
import torch
from numpy.random import SeedSequence
from torch import nn
from torch.nn import functional
from transformers import Gemma2Config, Gemma2ForCausalLM

from dpaudit.errors import InputError
from dpaudit.language_models.mechanisms.base_models import frozen_copy
from dpaudit.language_models.mechanisms.fine_tuning import token_losses
from dpaudit.language_models.mechanisms.fine_tuning.adapter_stack import (
    AdapterStack,
    AdapterTask,
    TrainedAdapter,
    adapter_statistics,
    train_adapters,
)
from dpaudit.language_models.mechanisms.fine_tuning.records import longest
from dpaudit.language_models.mechanisms.fine_tuning.row_adapters import AdapterLayout, adapter_layout, row_adapters
from dpaudit.language_models.mechanisms.fine_tuning.token_losses import TokenLosses
from dpaudit.language_models.mechanisms.fine_tuning.trainers import LoraFineTuning
from dpaudit.language_models.mechanisms.token_statistics import TokenSpan, token_statistics
from dpaudit.mechanisms.compute import Compute, TrainingError, collected_notes
from tests.fake_gpu import out_of_memory
from tests.language_models.test_text_fine_tuning import CPU, VOCABULARY, gpt2, llama, made_records

RECORDS = made_records(14, texts=(1, 2, 1, 3))
SIZE = 12
NOT_PRIVATE = LoraFineTuning(batch_size=5, rank=4, learning_rate=3e-3)
PRIVATE = replace(NOT_PRIVATE, epsilon=8.0)
ROUNDING = 1e-5


def tasks(count: int = 3) -> list[AdapterTask]:
    """Return trainings on twelve records each, which overlap."""
    seeds = SeedSequence(7).spawn(count)
    return [AdapterTask((np.arange(SIZE) + place) % len(RECORDS), seed) for place, seed in enumerate(seeds)]


def trained(
    settings: LoraFineTuning, group: Sequence[AdapterTask], base: Any = None, **options: Any
) -> list[TrainedAdapter | TrainingError]:
    return train_adapters(settings, base or llama(), RECORDS, group, size=SIZE, compute=CPU, **options)


def weights(outcomes: Sequence[TrainedAdapter | TrainingError]) -> list[Any]:
    assert all(isinstance(outcome, TrainedAdapter) for outcome in outcomes)
    return [outcome.weights for outcome in outcomes if isinstance(outcome, TrainedAdapter)]


def largest_difference(
    outcomes: Sequence[TrainedAdapter | TrainingError], others: Sequence[TrainedAdapter | TrainingError]
) -> float:
    pairs = zip(weights(outcomes), weights(others), strict=True)
    return max(float(np.abs(first - second).max()) for first, second in pairs)


@pytest.mark.parametrize(
    ("settings", "base"),
    [
        (NOT_PRIVATE, llama),
        (replace(NOT_PRIVATE, batch_tokens=20, weight_decay=0.1), llama),
        (PRIVATE, llama),
        (replace(PRIVATE, rank=3, optimizer="sgd", momentum=0.5, batch_tokens=1), llama),
        (replace(PRIVATE, target_modules=("c_attn", "mlp.c_proj")), gpt2),
    ],
)
def test_a_stack_has_the_numbers_of_single_trainings(settings: LoraFineTuning, base: Any) -> None:
    """Initial weights, batches, losses of records with several texts and masks, clips, noise and steps agree."""
    outcomes = trained(settings, tasks(), base())
    for task, outcome in zip(tasks(), outcomes, strict=True):
        assert isinstance(outcome, TrainedAdapter)
        alone = settings.train(base(), [RECORDS[row] for row in task.rows], seed=task.seed, compute=CPU)
        expected = peft.get_peft_model_state_dict(alone)
        state = outcome.state()
        assert state.keys() == expected.keys()
        for name, value in state.items():
            torch.testing.assert_close(value, expected[name], atol=ROUNDING, rtol=0)
    assert (
        min(
            np.abs(first - second).max()
            for first, second in zip(weights(outcomes), weights(outcomes)[1:], strict=False)
        )
        > 3e-3
    )


@pytest.mark.parametrize("settings", [NOT_PRIVATE, PRIVATE])
def test_a_training_does_not_depend_on_its_neighbours(settings: LoraFineTuning) -> None:
    group, strangers = tasks(), [AdapterTask(np.arange(2), seed) for seed in SeedSequence(8).spawn(4)]
    together = trained(settings, group)
    assert largest_difference(trained(settings, [*strangers, *group])[4:], together) < ROUNDING
    assert largest_difference(trained(settings, group, stack=1), together) < ROUNDING


def test_the_base_model_is_not_changed() -> None:
    base = llama().train()
    before = {name: value.clone() for name, value in base.state_dict().items()}
    names = [type(module).__name__ for module in base.modules()]
    trained(PRIVATE, tasks(1), base)
    assert base.training
    assert [type(module).__name__ for module in base.modules()] == names
    assert all(torch.equal(value, before[name]) for name, value in base.state_dict().items())
    assert all(parameter.requires_grad and parameter.grad is None for parameter in base.parameters())


def stack_of(settings: LoraFineTuning, group: Sequence[AdapterTask]) -> AdapterStack:
    module = frozen_copy(llama(), device="cpu").eval()
    layout = adapter_layout(module, settings.target_modules, rank=settings.rank, alpha=settings.alpha)
    losses = TokenLosses(module)
    cpu = torch.device("cpu")
    return AdapterStack(
        row_adapters(module, layout),
        losses,
        settings,
        RECORDS,
        group,
        size=SIZE,
        device=cpu,
        batch_tokens=settings.batch_tokens,
    )


def test_gradients_of_records_are_those_of_a_loop() -> None:
    """Each record's gradient is that of torch for the record alone, by the adapter of its training."""
    stack = stack_of(PRIVATE, tasks())
    with torch.no_grad():
        stack.weights += 0.2 * torch.randn(stack.weights.shape, generator=torch.Generator().manual_seed(0))
    owners, rows = np.array([2, 0, 1, 2]), np.array([1, 3, 0, 4])
    gradients = stack.gradients(owners, rows)
    assert gradients.shape == (4, stack.weights.shape[1])
    model: Any = peft.get_peft_model(
        llama(), peft.LoraConfig(task_type="CAUSAL_LM", r=4, lora_alpha=16, target_modules=["q_proj", "v_proj"])
    )
    for owner, row, gradient in zip(owners, rows, gradients, strict=True):
        state = TrainedAdapter(stack.layout, stack.weights[owner].numpy()).state()
        peft.set_peft_model_state_dict(model, state)
        model.zero_grad()
        losses: list[torch.Tensor] = []
        for text in RECORDS[row]:
            logits = model(torch.tensor([text.tokens])).logits[0, :-1]
            each = functional.cross_entropy(logits, torch.tensor(text.tokens[1:]), reduction="none")
            losses += each[torch.tensor(text.targets[1:])].unbind()
        torch.stack(losses).mean().backward()
        expected = [value.grad.flatten() for _, value in model.named_parameters() if value.requires_grad]
        torch.testing.assert_close(gradient, torch.cat(expected), atol=ROUNDING, rtol=1e-4)


@pytest.mark.parametrize("settings", [NOT_PRIVATE, PRIVATE])
def test_an_adapter_that_fails_does_not_touch_the_others(
    settings: LoraFineTuning, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second adapter begins with a number that is not finite."""
    expected, initial, calls = trained(settings, tasks()), AdapterLayout.initial, [0]

    def spoiled(layout: AdapterLayout, generator: torch.Generator) -> torch.Tensor:
        calls[0] += 1
        values = initial(layout, generator)
        return values.fill_(float("nan")) if calls[0] == 2 else values

    monkeypatch.setattr(AdapterLayout, "initial", spoiled)
    outcomes = trained(settings, tasks())
    assert isinstance(outcomes[1], TrainingError)
    assert "finite" in str(outcomes[1])
    assert largest_difference(outcomes[::2], expected[::2]) < ROUNDING


def test_all_adapters_may_fail() -> None:
    outcomes = trained(replace(NOT_PRIVATE, learning_rate=1e38, optimizer="sgd"), tasks())
    assert [type(outcome) for outcome in outcomes] == [TrainingError] * 3


def test_passes_that_do_not_fit_are_halved(monkeypatch: pytest.MonkeyPatch) -> None:
    expected, gradients, sizes = trained(PRIVATE, tasks()), AdapterStack.gradients, []

    def limited(stack: AdapterStack, owners: Any, rows: Any) -> torch.Tensor:
        sizes.append(len(rows))
        if len(rows) > 4:
            raise out_of_memory()
        return gradients(stack, owners, rows)

    monkeypatch.setattr(AdapterStack, "gradients", limited)
    with collected_notes() as notes:
        assert largest_difference(trained(PRIVATE, tasks()), expected) < ROUNDING
    assert max(sizes) > 4
    assert not notes


def test_a_stack_that_does_not_fit_is_halved(monkeypatch: pytest.MonkeyPatch) -> None:
    expected, step, sizes = trained(PRIVATE, tasks(5)), AdapterStack.step, []

    def limited(stack: AdapterStack, number: int) -> None:
        if not number:
            sizes.append(len(stack.weights))
        if len(stack.weights) > 2:
            raise out_of_memory()
        step(stack, number)

    monkeypatch.setattr(AdapterStack, "step", limited)
    with collected_notes() as notes:
        assert largest_difference(trained(PRIVATE, tasks(5)), expected) < ROUNDING
    assert sizes == [5, 3, 2, 2, 1]
    assert len(notes) == 1
    assert "stacks of 2" in notes[0]


def test_a_single_training_that_does_not_fit_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(stack: AdapterStack, owners: Any, rows: Any) -> torch.Tensor:
        raise out_of_memory()

    monkeypatch.setattr(AdapterStack, "gradients", full)
    with pytest.raises(TrainingError, match="too little memory"):
        trained(PRIVATE, tasks())


def test_passes_of_a_step_have_equal_numbers_of_tokens() -> None:
    """A pass has at most the given tokens, and no small one is left over."""
    stack = stack_of(replace(PRIVATE, batch_tokens=300), tasks())
    rows = np.sort(np.tile(np.arange(len(RECORDS)), 3))
    rows = rows[np.argsort([longest(RECORDS[row]) for row in rows], kind="stable")]
    sizes = []
    while len(rows):
        part, rows = np.split(rows, [stack._fitting(rows)])
        texts = sum(len(RECORDS[row]) for row in part)
        sizes.append(texts * longest(RECORDS[part[-1]]))
    assert max(sizes) <= 300
    assert min(sizes) > 150


def test_compiled_parts_are_the_blocks_and_the_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compilation itself is left out, because it takes longer than all tests."""
    compiled: list[Any] = []
    monkeypatch.setattr(nn.Module, "compile", lambda module: compiled.append(module))

    def remembered(function: Any) -> Any:
        compiled.append(function)
        return function

    monkeypatch.setattr(torch, "compile", remembered)
    assert largest_difference(trained(PRIVATE, tasks(), compiled=True), trained(PRIVATE, tasks())) < ROUNDING
    assert [type(part).__name__ for part in compiled] == ["function", "LlamaDecoderLayer", "LlamaDecoderLayer"]


def test_wrong_targets_are_refused() -> None:
    with pytest.raises(InputError, match="no layer has one of the names"):
        trained(replace(PRIVATE, target_modules=("c_attn",)), tasks())
    with pytest.raises(InputError, match=r"embed_tokens is a Embedding.*type Linear or Conv1D"):
        trained(replace(PRIVATE, target_modules=("embed_tokens",)), tasks())
    with pytest.raises(InputError, match="cannot train embeddings"):
        trained(replace(PRIVATE, trained_tokens=(3,)), tasks())


def gemma() -> Any:
    """Return a model that bends its logits after the output layer."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = Gemma2Config(
            vocab_size=VOCABULARY,
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=8,
            final_logit_softcapping=0.5,
        )
        model: Any = Gemma2ForCausalLM(config)
        return model.eval()


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_losses, "CHUNK_LOGITS_CPU", 3 * VOCABULARY)
    return


@pytest.mark.parametrize(("build", "in_chunks"), [(llama, True), (gpt2, True), (gemma, False)])
def test_losses_of_tokens_and_their_gradients(build: Any, in_chunks: bool, small_chunks: None) -> None:
    """Losses in chunks are those of all logits, also of a model that changes its logits, and so are the gradients."""
    model = build()
    tokens = torch.randint(VOCABULARY, (3, 7), generator=torch.Generator().manual_seed(0))
    losses, shares = TokenLosses(model), torch.rand(3, 6, generator=torch.Generator().manual_seed(1))
    shares[0, :3] = 0
    assert (losses._backbone is not None) is in_chunks
    weight: torch.Tensor = next(
        value for name, value in model.named_parameters() if name.endswith(("q_proj.weight", "c_attn.weight"))
    )

    def gradient(values: torch.Tensor) -> torch.Tensor:
        (slope,) = torch.autograd.grad((values * shares).sum(), weight)
        return slope

    logits = model(tokens).logits[:, :-1]
    expected = functional.cross_entropy(logits.transpose(1, 2), tokens[:, 1:], reduction="none")
    result = losses(tokens, shares > 0)
    torch.testing.assert_close(result[shares > 0], expected[shares > 0], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(gradient(result), gradient(expected), atol=1e-6, rtol=1e-4)


def test_scores_under_many_adapters_are_those_of_single_models() -> None:
    """Canaries of several lengths, in batches that hold several adapters."""
    base, outcomes = (
        llama(),
        [outcome for outcome in trained(NOT_PRIVATE, tasks()) if isinstance(outcome, TrainedAdapter)],
    )
    rng = np.random.default_rng(0)
    spans = [TokenSpan(tuple(rng.integers(0, VOCABULARY, 5 + row).tolist()), 2, 4 + row) for row in range(7)]
    together = adapter_statistics(base, outcomes, spans, compute=CPU, batch_tokens=40)
    for task, statistics in zip(tasks(), together, strict=True):
        alone = NOT_PRIVATE.train(base, [RECORDS[row] for row in task.rows], seed=task.seed, compute=CPU)
        expected = token_statistics(alone, spans)
        for name in ("log_probability", "mean", "deviation"):
            np.testing.assert_allclose(getattr(statistics, name), getattr(expected, name), atol=1e-4)
    assert adapter_statistics(base, [], spans, compute=Compute()) == []
