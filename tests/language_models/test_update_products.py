"""Products of texts' gradients with the change of weights: against torch, one text at a time."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from numpy.random import SeedSequence
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from dpaudit.errors import InputError
from dpaudit.language_models.mechanisms.fine_tuning.records import TrainingText
from dpaudit.language_models.mechanisms.fine_tuning.trainers import FineTuner, FullFineTuning, LoraFineTuning
from dpaudit.language_models.mechanisms.fine_tuning.update_products import known_change, update_products
from dpaudit.mechanisms.compute import Compute
from tests.loops import Cases

VOCABULARY = 40
LORA = LoraFineTuning(rank=2, trained_tokens=(3, 39), epochs=4, batch_size=8, learning_rate=0.02)
FULL = FullFineTuning(epochs=4, batch_size=8, learning_rate=0.01)


def llama() -> Any:
    """Return a Llama of two layers with random weights and tied embeddings."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            max_position_embeddings=64,
            tie_word_embeddings=True,
        )
        model: Any = LlamaForCausalLM(config)
        return model.eval()


def texts_of(count: int, seed: int = 0) -> list[TrainingText]:
    rng = np.random.default_rng(seed)
    return [TrainingText(tuple(rng.integers(VOCABULARY, size=rng.integers(3, 9)).tolist())) for _ in range(count)]


def trained(settings: FineTuner, base: Any) -> Any:
    records = [[text] for text in texts_of(16)]
    return settings.train(base, records, seed=SeedSequence(1), compute=Compute())


def gradients(model: Any, change: Mapping[str, Tensor], texts: Sequence[TrainingText]) -> Tensor:
    """Return the gradient of each text at the middle by torch, shape (texts, changed parameters)."""
    middle = copy.deepcopy(model).requires_grad_(False)
    parameters = dict(middle.named_parameters())
    for name, value in change.items():
        parameters[name] -= value / 2
        parameters[name].requires_grad_(True)
    rows = []
    for text in texts:
        tokens = torch.tensor([text.tokens])
        loss = middle(input_ids=tokens, labels=tokens).loss
        parts = torch.autograd.grad(loss, [parameters[name] for name in change])
        rows.append(torch.cat([part.flatten() for part in parts]))
    return torch.stack(rows)


def test_products_norms_and_cosines_are_those_of_torch() -> None:
    base, texts = llama(), texts_of(12, seed=5)
    with Cases() as cases:
        for settings in (LORA, FULL):
            with cases.case(type(settings).__name__):
                model = trained(settings, base)
                change = known_change(model, base)
                before = {name: value.clone() for name, value in model.state_dict().items()}
                required = [value.requires_grad for value in model.parameters()]
                products = update_products(model, change, texts, batch_tokens=20)
                expected = gradients(model, change, texts).double()
                flat = torch.cat([value.flatten() for value in change.values()]).double()
                np.testing.assert_allclose(products.product, -(expected @ flat).numpy(), rtol=1e-4, atol=1e-6)
                np.testing.assert_allclose(products.norm, expected.norm(dim=1).numpy(), rtol=1e-4)
                assert products.by_parameter is not None
                parts = expected.split([value.numel() for value in change.values()], dim=1)
                norms = np.stack([part.norm(dim=1).numpy() for part in parts], axis=1)
                by_name = np.sort(products.by_parameter[1], axis=1)
                np.testing.assert_allclose(by_name, np.sort(norms, axis=1), rtol=1e-4, atol=1e-6)
                np.testing.assert_allclose(products.by_parameter[0].sum(1), products.product, rtol=1e-6)
                directions = expected / expected.norm(dim=1, keepdim=True)
                assert products.cosine is not None
                # The error of a sketch of 2^15 numbers is about 0.006.
                np.testing.assert_allclose(products.cosine, (directions @ directions.T).numpy(), atol=0.05)
                assert [value.requires_grad for value in model.parameters()] == required
                for name, value in model.state_dict().items():
                    assert torch.equal(value, before[name]), name


def test_the_change_of_an_adapter_is_known_where_it_began_with_known_numbers() -> None:
    base = llama()
    model = trained(LORA, base)
    change = known_change(model)
    kinds = {"lora_B" if "lora_B" in name else "tokens" if "trainable_tokens" in name else name for name in change}
    assert kinds == {"lora_B", "tokens"}
    values = dict(model.named_parameters())
    for name, value in change.items():
        if "lora_B" in name:
            assert torch.equal(value, values[name])
        else:
            assert torch.equal(value, values[name] - base.get_input_embeddings().weight[[3, 39]])
    # With the adapter before training, the first factors are known too.
    with torch.random.fork_rng():
        first = LORA.trainable(base, device="cpu")
    assert any("lora_A" in name for name in known_change(model, first))
    full = trained(FULL, base)
    assert known_change(full, base).keys() == dict(base.named_parameters()).keys()
    assert known_change(base, copy.deepcopy(base)) == {}
    with pytest.raises(InputError, match="some weights must have changed"):
        update_products(base, {}, texts_of(2))


def test_many_texts_are_not_compared_with_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    base, texts = llama(), texts_of(20)
    model = trained(LORA, base)
    change = known_change(model)
    compared = update_products(model, change, texts)
    monkeypatch.setattr("dpaudit.language_models.mechanisms.fine_tuning.update_products.MOST_COMPARED", 19)
    products = update_products(model, change, texts)
    assert compared.cosine is not None
    assert products.cosine is None
    np.testing.assert_allclose(products.product, compared.product, rtol=1e-6)
