"""Fine-tunings of a language model with a planted defect, and what an audit with default settings says of each.

    python -m benchmarks.text_defects RUNS.jsonl [--only CASE ...] [--seeds 3] [--write]

Each game plants canaries of random tokens in the training data of a small transformer, trains a LoRA adapter by DP-SGD
as a user would write it, with one defect, and calls `dpaudit.estimate_text` with the claim that a correct training
keeps. The model, the adapter and the number of steps suffice to learn every canary without privacy.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import torch
from torch.nn.functional import cross_entropy

import dpaudit
from benchmarks.campaign import campaign
from dpaudit.language_models.mechanisms.fine_tuning.records import NO_LOSS
from dpaudit.mechanisms.training.private.private_steps import dp_sgd_noise_multiplier
from tests.language_models.small_language_models import collated, domain_texts, small_model, small_tokenizer, trained

TOKENIZER = small_tokenizer()
CLAIM = dpaudit.Claim(2.0, 1e-5)
CANARIES, OTHER_TEXTS, BATCH, EPOCHS = 400, 100, 64, 20
SECRET, CONTEXT = 6, 3
NORM, LEARNING_RATE, MICRO_BATCH = 0.1, 5e-3, 8
Batch = Mapping[str, Any]
Rng = np.random.Generator


@dataclass(frozen=True)
class Training:
    """A fine-tuning by DP-SGD; the defaults are correct.

    Attributes:
        sampler: A key of `SAMPLERS`.
        clip: Part of a batch whose gradient is clipped: "record", "batch", "micro-batch" or "none".
        norm: Clipping norm, in units of the norm that the noise is scaled to.
        noiseless: Parts of the names of parameters of the adapter that get no noise.
        outside: Parts of the names of parameters that a second optimizer trains without clipping and noise.
        engine: "own", "opacus", or a key of `ENGINES` that names a mistake in its use.
        change: Function of a batch that changes what reaches the model.
        packed: Tokens of the sequences into which all texts are joined and cut before the training; 0 for no packing.
        others: Number of texts that are not canaries.
        batch: Expected number of records in a step.
        architecture: "llama" or "gpt2".
    """

    sampler: str = "poisson"
    clip: str = "record"
    norm: float = 1.0
    noiseless: tuple[str, ...] = ()
    outside: tuple[str, ...] = ()
    engine: str = "own"
    change: Callable[[dict[str, Any]], Batch] | None = field(default=None, compare=False)
    packed: int = 0
    others: int = OTHER_TEXTS
    batch: int = BATCH
    architecture: str = "llama"


def poisson(count: int, steps: int, size: int, rate: float, rng: Rng) -> Iterator[np.ndarray]:
    """Yield the rows of each step: every row by a coin of its own."""
    for _ in range(steps):
        yield np.flatnonzero(rng.random(count) < rate)


def shuffled(
    count: int, steps: int, size: int, rate: float, rng: Rng, *, drop_last: bool = False, once: bool = False
) -> Iterator[np.ndarray]:
    """Yield batches of one size from a new order in each epoch, or from one order for all."""
    order, batches = rng.permutation(count), 0
    while True:
        for first in range(0, count, size):
            if drop_last and first + size > count:
                break
            if batches == steps:
                return
            yield order[first : first + size]
            batches += 1
        order = order if once else rng.permutation(count)


def fixed_size(count: int, steps: int, size: int, rate: float, rng: Rng) -> Iterator[np.ndarray]:
    """Yield a random subset of one size in each step."""
    for _ in range(steps):
        yield rng.choice(count, size, replace=False)


SAMPLERS: dict[str, Callable[[int, int, int, float, Rng], Iterator[np.ndarray]]] = {
    "poisson": poisson,
    "shuffled": shuffled,
    "shuffled, last batch dropped": lambda *of: shuffled(*of, drop_last=True),
    "one order for all epochs": lambda *of: shuffled(*of, once=True),
    "batches of one size": fixed_size,
}


def masked_secrets(batch: dict[str, Any]) -> Batch:
    """Mask all but the first three tokens, as a mask of answers instead of prompts does."""
    labels = batch["labels"].clone()
    labels[:, CONTEXT:] = NO_LOSS
    return {**batch, "labels": labels}


def masked_padding(batch: dict[str, Any]) -> Batch:
    """Mask tokens that are also special ones, wherever they stand: here four words of the vocabulary."""
    special = torch.isin(batch["input_ids"], torch.tensor(TOKENIZER.encode("w7 w8 w9 w10")))
    return {**batch, "labels": batch["labels"].masked_fill(special, NO_LOSS)}


def dropped_answers(batch: dict[str, Any]) -> Batch:
    """Keep the first three tokens, as a chat template that leaves out the answer does."""
    return {name: values[:, :CONTEXT] for name, values in batch.items()}


def packed(texts: Sequence[str], length: int) -> list[str]:
    """Return all texts joined and cut into sequences of `length` words, each one token."""
    words = " ".join(texts).split()
    return [" ".join(words[first : first + length]) for first in range(0, len(words), length)]


HONEST = "none"
CASES: dict[str, dict[str, Training]] = {
    HONEST: {
        "own DP-SGD": Training(),
        "Opacus": Training(engine="opacus"),
    },
    "noise": {
        "noise on half of the adapter": Training(noiseless=("self_attn",)),
        "noise on the matrices A only": Training(noiseless=("lora_B",)),
        "noise on the matrices B only": Training(noiseless=("lora_A",)),
        "noise on the last layer only": Training(noiseless=("layers.0.",)),
    },
    "clipping": {
        "the batch mean is clipped": Training(clip="batch", others=800, batch=256),
        "the batch mean is clipped, small batches, mostly canaries": Training(clip="batch"),
        "the mean of each micro-batch is clipped": Training(clip="micro-batch", others=800, batch=256),
        "norm ten times too large": Training(norm=10, others=800, batch=256),
        "no clipping": Training(clip="none"),
    },
    "sampling": {
        "shuffled, counted as Poisson": Training(sampler="shuffled"),
        "batches of one size": Training(sampler="batches of one size"),
        "shuffled, last batch dropped": Training(sampler="shuffled, last batch dropped"),
        "one order for all epochs": Training(sampler="one order for all epochs"),
    },
    "outside the engine": {
        "embeddings": Training(outside=("embed_tokens",)),
        "head": Training(outside=("lm_head",)),
        "norms": Training(outside=("norm",)),
        "position embeddings": Training(outside=("wpe",), architecture="gpt2"),
    },
    "engine not used": {
        "the optimizer inside the engine is called": Training(engine="optimizer inside"),
        "the engine has another optimizer": Training(engine="other optimizer"),
        "a copy is trained": Training(engine="copy"),
        "the model from before is scored": Training(engine="scored before"),
    },
    "no loss": {
        "secrets masked": Training(change=masked_secrets),
        "padding is a token of secrets": Training(change=masked_padding),
        "answers dropped by a template": Training(change=dropped_answers),
        "packing cuts secrets": Training(packed=16),
    },
}


@cache
def base_model(architecture: str, hidden: int) -> Any:
    """Return a model trained on other texts of the domain and on other words."""
    rng = np.random.default_rng(3)
    words = [" ".join(f"w{word}" for word in rng.integers(220, size=9)) for _ in range(300)]
    if architecture == "llama":
        model = small_model(TOKENIZER, hidden=hidden, layers=2)
    else:
        from transformers import GPT2Config, GPT2LMHeadModel

        with torch.random.fork_rng():
            torch.manual_seed(0)
            size: dict[str, Any] = {"n_embd": hidden, "n_layer": 2, "n_head": 4, "n_positions": 128}
            off: dict[str, Any] = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
            model = GPT2LMHeadModel(GPT2Config(vocab_size=len(TOKENIZER), **size, **off))
    return trained(model, TOKENIZER, domain_texts(200, seed=9) + words, epochs=3)


def adapted(base: Any) -> Any:
    """Return a copy of the model with a new LoRA adapter in all linear layers."""
    from peft import LoraConfig, get_peft_model

    kinds = {"target_modules": "all-linear", "fan_in_fan_out": base.config.model_type == "gpt2"}
    return get_peft_model(copy.deepcopy(base), LoraConfig(r=16, lora_alpha=32, lora_dropout=0.0, **kinds)).train()


def loss_of_records(logits: Any, labels: Any) -> Any:
    """Return the sum over records of the mean loss of their tokens."""
    losses = cross_entropy(logits[:, :-1].transpose(1, 2), labels[:, 1:], ignore_index=NO_LOSS, reduction="none")
    return (losses.sum(1) / (labels[:, 1:] != NO_LOSS).sum(1).clamp(min=1)).sum()


def private_gradient(grads: Sequence[Any], training: Training, noise: float) -> Iterator[tuple[Any, float]]:
    """Yield the gradient of each parameter and the scale of its noise, from gradients of records.

    Args:
        grads: Gradients of each parameter, shape (records, ...).
        training: The training.
        noise: Noise multiplier.
    """
    records, count = len(grads[0]), float(training.batch)
    if training.clip == "none":
        parts = [gradient.sum(0, keepdim=True) for gradient in grads]
        factors = torch.ones(1)
    else:
        size = {"record": 1, "micro-batch": MICRO_BATCH, "batch": max(records, 1)}[training.clip]
        count = training.batch / size if training.clip != "batch" else 1
        parts = [torch.stack([part.mean(0) for part in gradient.split(size)]) for gradient in grads]
        norms = torch.stack([part.flatten(1).norm(dim=1) for part in parts]).norm(dim=0)
        factors = (training.norm * NORM / (norms + 1e-12)).clamp(max=1)
    for part in parts:
        yield torch.tensordot(factors, part, 1) / count, noise * NORM / training.batch


def by_own_engine(model: Any, batches: Iterator[Batch], training: Training, noise: float, record: Any) -> Any:
    """Train by per-record gradients of Opacus, with clipping and noise written by hand."""
    from opacus import GradSampleModule

    outside = [
        parameter.requires_grad_(True)
        for name, parameter in model.named_parameters()
        if any(part in name for part in training.outside) and "lora" not in name
    ]
    names = [name for name, value in model.named_parameters() if value.requires_grad and "lora" in name]
    wrapped = GradSampleModule(model, loss_reduction="sum", strict=False)
    inside = [dict(model.named_parameters())[name] for name in names]
    optimizer = torch.optim.Adam(inside, lr=LEARNING_RATE)
    plain = torch.optim.Adam(outside, lr=LEARNING_RATE) if outside else None
    with record.of(model, optimizer):
        for batch in batches:
            wrapped.zero_grad()
            loss_of_records(wrapped(**batch).logits, batch["labels"]).backward()
            gradients = private_gradient([value.grad_sample for value in inside], training, noise)
            for name, value, (gradient, scale) in zip(names, inside, gradients, strict=True):
                is_noised = not any(part in name for part in training.noiseless)
                value.grad = gradient + is_noised * scale * torch.randn_like(gradient)
            optimizer.step()
            if plain is not None:
                for parameter in outside:
                    parameter.grad /= training.batch
                plain.step()
    wrapped.remove_hooks()
    return model


def by_opacus(model: Any, batches: Iterator[Batch], training: Training, noise: float, record: Any) -> Any:
    """Train with the optimizer of Opacus, or with the one inside it."""
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer

    values = [value for value in model.parameters() if value.requires_grad]
    inner = torch.optim.Adam(values, lr=LEARNING_RATE)
    attached = torch.optim.Adam(values, lr=LEARNING_RATE) if training.engine == "other optimizer" else inner
    private = DPOptimizer(
        attached, noise_multiplier=noise, max_grad_norm=NORM, expected_batch_size=training.batch, loss_reduction="mean"
    )
    before, other = copy.deepcopy(model), copy.deepcopy(model)
    if training.engine == "copy":
        values = [value for value in other.parameters() if value.requires_grad]
        inner = torch.optim.Adam(values, lr=LEARNING_RATE)
    is_private = training.engine in ("opacus", "scored before")
    called = other if training.engine == "copy" else model
    called = GradSampleModule(called, loss_reduction="mean", strict=False) if is_private else called
    with record.of(model, private):
        for batch in batches:
            optimizer = private if is_private else inner
            optimizer.zero_grad()
            (loss_of_records(called(**batch).logits, batch["labels"]) / len(batch["labels"])).backward()
            optimizer.step()
    if is_private:
        called.remove_hooks()
    return {"copy": other, "scored before": before}.get(training.engine, model)


def planted_canaries(count: int, seed: int) -> dpaudit.Canaries:
    """Return the canaries of a game."""
    return dpaudit.canaries(TOKENIZER, count, "random-tokens", length=SECRET, context=CONTEXT, seed=seed)


def play(
    training: Training,
    seed: int,
    *,
    claim: dpaudit.Claim = CLAIM,
    canaries: int = CANARIES,
    hidden: int = 64,
    epochs: int = EPOCHS,
) -> Any:
    """Return the estimate of one training, whose noise is that of a correct training that keeps the claim."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    planted = planted_canaries(canaries, seed)
    texts = planted.into(domain_texts(training.others, seed=seed))
    rate = training.batch / (training.others + canaries / 2)  # public: expects half of the canaries
    steps = round(epochs / rate)
    noise = dp_sgd_noise_multiplier(claim.epsilon, sample_rate=rate, steps=steps, delta=claim.delta)

    if training.packed:
        texts = packed(texts, training.packed)

    def batches() -> Iterator[Batch]:
        for rows in SAMPLERS[training.sampler](len(texts), steps, training.batch, rate, rng):
            batch = collated(TOKENIZER, [texts[row] for row in rows])
            yield batch if training.change is None else training.change(batch)

    record = dpaudit.LossRecord(planted, sampling_rate=rate)
    base = base_model(training.architecture, hidden)
    train = by_own_engine if training.engine == "own" else by_opacus
    model = train(adapted(base), batches(), training, noise, record)
    return dpaudit.estimate_text(model.eval(), base, planted, claim=claim, training=record)


REMARKS = {
    "were masked": "secrets masked",
    "a sequence ended before": "secrets cut",
    "never arrived": "secrets absent",
    "began at the first token": "secrets first in a sequence",
    "holds no batch": "no batch reached the recorded model",
    "no parameter of the recorded model changed": "the recorded model did not change",
    "has the weights from before": "weights from before the training",
    "batches were shuffled": "shuffled batches",
    "batches held": "batches of one size",
    "not the stated sampling rate": "another sampling rate",
    "are not in the optimizer": "parameters outside the optimizer",
    "never made a step": "the optimizer made no step",
    "by the optimizer inside the private one": "steps of the optimizer inside",
    "no noise was added": "gradients without noise",
    "differs from the trained one": "other weights scored",
}
"""Short names of what the lines of an answer say, by a part of the line."""


def remarks_in(estimate: Any) -> list[str]:
    """Return short names of the reasons and remarks in an answer."""
    text = estimate.text(verbose=True).lower()
    return [name for part, name in REMARKS.items() if part.lower() in text]


def cases(seeds: int) -> Iterator[dict[str, Any]]:
    """Yield kind, case and seed of each game, the first game of all cases first."""
    for seed in range(seeds):
        for kind, names in CASES.items():
            yield from ({"kind": kind, "case": name, "seed": seed} for name in names)


def run(kind: str, case: str, seed: int) -> dict[str, Any]:
    """Return bound, verdict and remarks of one game."""
    estimate = play(CASES[kind][case], 100 + seed)
    return {"bound": estimate.lower, "verdict": str(estimate.verdict), "remarks": remarks_in(estimate)}


def columns(audits: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return verdicts, mean bound and remarks of a case."""
    verdicts = [line["verdict"] for line in audits]
    counts = Counter(remark for line in audits for remark in line["remarks"])
    shares = [remark + ("" if count == len(audits) else f" ({count})") for remark, count in counts.items()]
    return {
        **{name: f"{verdicts.count(name)} of {len(audits)}" for name in ("VIOLATION", "UNDECIDED", "INCONCLUSIVE")},
        "mean bound": f"{np.mean([line['bound'] for line in audits]):.2f}",
        "remarks": ", ".join(shares) or "nothing",
    }


def groups(line: Mapping[str, Any]) -> list[tuple[dict[str, str], Mapping[str, Any]]]:
    """Return the row of a game."""
    return [({"kind": line["kind"], "defect": line["case"]}, line)]


if __name__ == "__main__":
    campaign(cases, run, columns, groups=groups, seeds=2)
