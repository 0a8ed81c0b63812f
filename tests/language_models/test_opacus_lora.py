"""Adapters trained by Opacus: the gradients of both engines, and the training of the text trainer `opacus-lora`."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from numpy.random import SeedSequence

from dpaudit.claims import Relation
from dpaudit.errors import InputError
from dpaudit.language_models.mechanisms.fine_tuning.records import make_batch
from dpaudit.language_models.mechanisms.fine_tuning.trainers import LoraFineTuning, TextTrainer
from dpaudit.language_models.mechanisms.fine_tuning.training import FineTuning, summed_loss
from dpaudit.language_models.mechanisms.opacus_lora import OpacusLora
from dpaudit.mechanisms.compute import Compute
from tests.language_models.test_text_fine_tuning import llama, made_records, training

opacus = pytest.importorskip("opacus")
CPU = Compute()
TRAINER = OpacusLora(epsilon=8.0, accountant="rdp", batch_size=4, epochs=3, rank=2, learning_rate=1e-2)


@pytest.mark.filterwarnings("ignore:Full backward hook")
def test_gradients_and_clipped_sums_are_those_of_opacus() -> None:
    records = made_records(6)
    run = training("lora", records, clip=0.1)
    batch = make_batch(records, "cpu")
    gradients = run.gradients.of(lambda: run.loss(batch), batch.places)
    ours = {name: gradient.whole() for name, gradient in gradients.items()}
    sums = run.clipped_sums(records)
    wrapped = opacus.GradSampleModule(run.module.train(), loss_reduction="sum")
    summed_loss(run.module, batch).backward()
    for name, value in run.parameters.items():
        theirs, values = value.grad_sample, ours[name]  # type: ignore[attr-defined]
        assert values is not None
        assert float((theirs - values).abs().max()) < 1e-5 * max(1.0, float(theirs.abs().max())), name
    norms = torch.stack([value.grad_sample.flatten(1).norm(dim=1) for value in run.parameters.values()])  # type: ignore[attr-defined]
    factors = (0.1 / (norms.norm(dim=0) + 1e-6)).clamp(max=1.0)
    for name, value in run.parameters.items():
        expected = torch.tensordot(factors, value.grad_sample, 1)  # type: ignore[attr-defined]
        assert torch.allclose(sums[name], expected, atol=1e-6), name
    wrapped.to_standard_module()


@pytest.mark.filterwarnings("ignore:Secure RNG", "ignore:Full backward hook", "ignore:Optimal order")
def test_opacus_trains_the_adapters_of_lora() -> None:
    """Many steps of 13 records at batches of one are empty; the seed decides the weights."""
    base, records = llama(tied=True), made_records(13)
    trainer = replace(TRAINER, batch_size=1)
    assert isinstance(trainer, TextTrainer)
    steps: list[tuple[int, int]] = []
    batches: list[int] = []
    first = trainer.train(
        base,
        records,
        seed=SeedSequence(0),
        compute=CPU,
        progress=lambda step, total: steps.append((step, total)),
        on_batch=lambda tokens, _: batches.append(len(tokens)),
    )
    assert steps == [(number, 39) for number in range(1, 40)]
    assert len(batches) < 39
    again, other = (trainer.train(base, records, seed=SeedSequence(seed), compute=CPU) for seed in (0, 1))
    weights = [torch.cat([value.flatten() for _, value in model.named_parameters()]) for model in (first, again, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    names = [name for name, _ in LoraFineTuning(rank=2).trainable(base, device="cpu").named_parameters()]
    assert [name for name, _ in first.named_parameters()] == names
    tokens = torch.tensor([[3, 7, 11]])
    with torch.no_grad(), first.disable_adapter():
        assert torch.allclose(first(tokens).logits, base(tokens).logits, atol=1e-5)


def test_the_claim_is_that_of_opacus() -> None:
    claim = TRAINER.claim(13)
    assert claim is not None
    assert (claim.epsilon, claim.delta, claim.relation) == (8.0, 1e-5, Relation.ADD_REMOVE)
    steps = TRAINER.claimed_steps(13)
    assert (steps.private.sample_rate, steps.count) == (1 / 4, 12)
    accountant = opacus.accountants.RDPAccountant()
    accountant.history = [(steps.private.noise_multiplier, 1 / 4, 12)]
    assert 7.9 < accountant.get_epsilon(delta=1e-5) <= 8
    assert replace(TRAINER, epsilon=math.inf).claim(13) is None


def test_without_privacy_it_trains_as_lora() -> None:
    base, records = llama(), made_records(6)
    trainers = replace(TRAINER, epsilon=math.inf), LoraFineTuning(batch_size=4, epochs=3, rank=2, learning_rate=1e-2)
    first, second = (trainer.train(base, records, seed=SeedSequence(0), compute=CPU) for trainer in trainers)
    for value, other in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(value, other)


def test_what_opacus_cannot_do_is_refused() -> None:
    with pytest.raises(InputError, match="Opacus cannot clip PEFT's trained tokens"):
        OpacusLora(trained_tokens=(1,))
    with pytest.raises(InputError, match="accountant must be one of prv, rdp"):
        OpacusLora(accountant="pld")
    with pytest.raises(InputError, match="opacus-lora trains in float32"):
        OpacusLora(precision="bfloat16")
    with pytest.raises(InputError, match="must be one text"):
        TRAINER.train(llama(), made_records(4, texts=(2,)), seed=SeedSequence(0), compute=CPU)
    assert FineTuning is TRAINER.training_type()
