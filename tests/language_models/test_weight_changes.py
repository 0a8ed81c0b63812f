"""Parameters that a training changes: those outside the optimizer, without noise, and of other models are named."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from dpaudit.language_models.canary_texts.weight_changes import WeightChanges


@pytest.fixture
def model() -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Embedding(12, 4), torch.nn.Linear(4, 3), torch.nn.Linear(3, 2))


def step(model: Any, optimizer: Any, noise: float = 0.0) -> None:
    """Make a step on three of the twelve tokens."""
    model.zero_grad()
    model(torch.tensor([1, 2, 3])).sum().backward()
    for parameter in model.parameters():
        if noise:
            parameter.grad += noise * torch.randn_like(parameter.grad)
    optimizer.step()


def sgd(*parts: Any) -> Any:
    return torch.optim.SGD([parameter for part in parts for parameter in part.parameters()], lr=0.1)


def test_a_training_with_noise_on_everything_has_no_remark(model: Any) -> None:
    optimizer = sgd(model)
    changes = WeightChanges(model, optimizer)
    step(model, optimizer, noise=1.0)
    step(model, optimizer, noise=1.0)
    changes.end()
    step(model, optimizer)  # after the end
    assert changes.steps == 2
    assert changes.remarks == []
    assert len(changes.changed) == 5
    assert not changes.nothing_changed


def test_parameters_outside_the_optimizer_are_named(model: Any) -> None:
    optimizer, other = sgd(*model[1:]), sgd(model[0])
    changes = WeightChanges(model, optimizer)
    step(model, optimizer, noise=1.0)
    other.step()
    changes.end()
    assert changes.remarks == [
        "1 parameters (0.weight) changed and are not in the optimizer that was given: its clipping and noise do not "
        "apply to them"
    ]


def test_gradients_without_noise_are_named(model: Any) -> None:
    optimizer = sgd(model)
    changes = WeightChanges(model, optimizer)
    step(model, optimizer)
    changes.end()
    (remark,) = changes.remarks
    assert remark.startswith("the gradient of 1 parameters (0.weight) had entries of exactly 0 in a step")
    assert changes.without_noise == [remark]


@pytest.mark.parametrize("every_row", [False, True])
def test_sparse_gradients_are_read(every_row: bool) -> None:
    """A sparse gradient without the rows of absent tokens holds no noise; one with a noisy entry everywhere may."""
    embedding = torch.nn.Embedding(12, 4, sparse=True)
    optimizer = sgd(embedding)
    changes = WeightChanges(embedding, optimizer)
    embedding(torch.tensor([1, 1, 3])).sum().backward()
    if every_row:
        embedding.weight.grad = torch.randn(12, 4).to_sparse(1)
    optimizer.step()
    changes.end()
    assert bool(changes.without_noise) is not every_row


def test_parameters_that_nothing_moves_are_not_blamed(model: Any) -> None:
    """Frozen, by a gradient that is missing or 0 throughout; a gradient that is 0 in the first step alone is blamed."""
    for wakes_up in (False, True):
        optimizer = sgd(model)
        changes = WeightChanges(model, optimizer)
        for number in range(3):
            for name, parameter in model.named_parameters():
                parameter.grad = None if name == "0.weight" else torch.randn_like(parameter)
            if not (wakes_up and number):
                model[1].weight.grad.zero_()
            optimizer.step()
        changes.end()
        assert [sentence[:44] for sentence in changes.without_noise] == (
            ["the gradient of 1 parameters (1.weight) had "] if wakes_up else []
        )


def test_an_optimizer_that_is_not_used_is_told(model: Any) -> None:
    from opacus.optimizers import DPOptimizer

    used, unused = sgd(model), sgd(model)
    private = DPOptimizer(unused, noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=3)
    changes = WeightChanges(model, private)
    step(model, used)
    changes.end()
    (remark,) = changes.remarks
    assert remark.startswith("the optimizer that was given never made a step, and 5 parameters (")


def test_an_optimizer_of_flat_copies_is_not_blamed(model: Any) -> None:
    """DeepSpeed steps copies of all parameters and writes them back."""
    flat = torch.nn.Parameter(torch.nn.utils.parameters_to_vector(model.parameters()).detach())
    optimizer = torch.optim.SGD([flat], lr=0.1)
    changes = WeightChanges(model, optimizer)
    flat.grad = torch.randn_like(flat)
    optimizer.step()
    torch.nn.utils.vector_to_parameters(flat, model.parameters())
    changes.end()
    assert changes.steps == 1
    assert len(changes.changed) == 5
    assert changes.remarks == []


def test_the_optimizer_inside_opacus_is_counted(model: Any) -> None:
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer

    wrapped = GradSampleModule(model)
    private = DPOptimizer(sgd(model), noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=3)
    changes = WeightChanges(wrapped, private)
    for _ in range(3):
        private.zero_grad()
        wrapped(torch.tensor([[1], [2], [3]])).sum().backward()
        private.step()
    changes.end()
    assert changes.steps == 3
    assert changes.remarks == []
    again = WeightChanges(wrapped, private)
    private.zero_grad()
    wrapped(torch.tensor([[1], [2], [3]])).sum().backward()
    private.original_optimizer.step()
    again.end()
    assert again.remarks[0].startswith("1 of 1 steps were made by the optimizer inside the private one")
    assert set(changes.changed) == {name for name, _ in model.named_parameters()}


def test_models_with_other_weights_are_recognised(model: Any) -> None:
    before, optimizer = copy.deepcopy(model), sgd(model)
    changes = WeightChanges(model)
    assert not changes.nothing_changed  # the training has not ended
    step(model, optimizer)
    changes.end()
    assert changes.unlike(model) == ""
    assert changes.unlike(lambda tokens: tokens) == ""
    assert changes.unlike(before).startswith("the scored model differs from the trained one")
    assert changes.is_untrained(before)
    assert not changes.is_untrained(model)
    idle = WeightChanges(model)
    idle.end()
    assert idle.nothing_changed
    assert not idle.is_untrained(model)
    assert idle.remarks == []
