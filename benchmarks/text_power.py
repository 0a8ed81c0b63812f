"""The bound of one DP fine-tuning at a claim of 8 by kind of canary, attack and number of canaries.

    python -m benchmarks.text_power RUNS.jsonl [--seeds 1] [--write]

A transformer of 2.5 million parameters with tied embeddings, pre-trained on sentences of Python's documentation, is
fine-tuned by LoRA and rows of new tokens: DP-SGD on all records in each of 20 steps, for epsilon 8 at delta 1e-5, on
200 other sentences and about 500 planted canaries. "a Gaussian mechanism" is the mean bound of 20 simulations of the
same claim, in which each canary has a direction of its own that survives the clip: no attack shows more on average.
"""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.random import SeedSequence
from numpy.typing import NDArray
from scipy.stats import rankdata

import dpaudit
from benchmarks.campaign import by_case, campaign, of_each
from dpaudit.language_models.attacks.text_attacks import CalibratedLoss, GradientUpdate
from dpaudit.language_models.canary_texts.rates import maximum_bound
from dpaudit.language_models.canary_texts.view import TextView
from dpaudit.language_models.mechanisms.fine_tuning.records import TrainingText
from dpaudit.language_models.mechanisms.fine_tuning.trainers import LoraFineTuning
from dpaudit.language_models.mechanisms.fine_tuning.update_products import known_change, update_products
from dpaudit.language_models.mechanisms.token_statistics import TokenStatistics
from dpaudit.mechanisms.compute import Compute

DELTA, EPSILON, STEPS = 1e-5, 8.0, 20
DOMAIN, SENTENCE = 200, 12
"""Sentences of the domain in the training data, and their largest number of tokens."""
PRETRAINING = 60
"""Steps on batches of 32 sentences."""
SIMULATED = 20


@dataclass(frozen=True)
class Design:
    """Canaries of one training; about 500 of them are planted.

    Attributes:
        canaries: Number of canaries.
        kind: Name and fields of their kind.
    """

    canaries: int
    kind: Mapping[str, Any]

    @property
    def rate(self) -> float:
        return 500 / self.canaries


DESIGNS = {
    "4 tokens before a new one": Design(5_000, {"kind": "new-token", "context": 4}),
    "1 token before a new one": Design(5_000, {"kind": "new-token", "context": 1}),
    "1 token before a new one, 26,000 canaries": Design(26_000, {"kind": "new-token", "context": 1}),
}


def sentences() -> list[str]:
    """Return the sentences of 6 to 14 words in the documentation of Python, in an order of their own."""
    from pydoc_data.topics import topics

    parts = (part for topic in topics.values() for part in re.split(r"(?<=[.])\s+", topic))
    plain = sorted({re.sub(r"\s+", " ", part).strip() for part in parts})
    texts = [part for part in plain if 6 <= len(part.split()) <= 14 and part[0].isalpha()]
    np.random.default_rng(54).shuffle(texts)
    return texts


@cache
def base_model() -> tuple[Any, Any]:
    """Return the pre-trained model and its tokenizer."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    torch.set_num_threads(1)
    texts = sentences()[DOMAIN:]
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    inner.train_from_iterator(
        texts,
        trainers.BpeTrainer(vocab_size=1024, special_tokens=["<pad>"], initial_alphabet=alphabet, show_progress=False),
    )
    tokenizer: Any = PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="<pad>")
    rng = np.random.default_rng(0)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=192,
            intermediate_size=768,
            num_hidden_layers=4,
            num_attention_heads=4,
            max_position_embeddings=64,
            pad_token_id=tokenizer.pad_token_id,
            tie_word_embeddings=True,
        )
        model = LlamaForCausalLM(config).train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
        for _ in range(PRETRAINING):
            rows = [texts[row] for row in rng.integers(len(texts), size=32)]
            batch = tokenizer(rows, padding=True, truncation=True, max_length=32, return_tensors="pt")
            labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
            optimizer.zero_grad()
            model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], labels=labels).loss.backward()
            optimizer.step()
    return model.eval(), tokenizer


def bound_of(score: NDArray[np.float64], planted: NDArray[np.bool_], rate: float) -> float:
    """Return the bound from scores and coins."""
    return dpaudit.estimate(score, planted, method="rare-canaries", rate=rate, delta=DELTA).lower


def scores_of(base: Any, tuned: Any, canaries: dpaudit.Canaries) -> dict[str, NDArray[np.float64]]:
    """Return the scores of each attack; few canaries have losses, and are compared with each other."""
    products = update_products(
        tuned, known_change(tuned), [TrainingText(text.tokens) for _, text in canaries.all_texts]
    )
    unknown = np.zeros((len(canaries), 1))
    view = TextView(TokenStatistics(unknown, unknown, unknown), update=products)
    alone = replace(view, update=replace(products, cosine=None))
    scores = {"products": GradientUpdate(separate=False).score(view), "by parameter": GradientUpdate().score(alone)}
    if products.cosine is not None:
        losses = TextView(*(dpaudit.text_statistics(model, canaries) for model in (tuned, base)))
        scores |= {"less other texts": GradientUpdate().score(view), "calibrated loss": CalibratedLoss().score(losses)}
    return scores


def run(design: str, seed: int) -> dict[str, Any]:
    """Return bound and AUC of each attack on one fine-tuning, the mean bound of a Gaussian mechanism, the maximum."""
    plan, texts = DESIGNS[design], sentences()
    model, tokenizer = copy.deepcopy(base_model())
    fields = {"texts": texts[DOMAIN:], "rate": plan.rate, "seed": 100 + seed, **plan.kind}
    canaries = dpaudit.canaries(tokenizer, plan.canaries, **fields)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model.resize_token_embeddings(len(tokenizer))
    planted = [TrainingText(text.tokens) for row, text in canaries.all_texts if canaries.planted[row]]
    others = [TrainingText(tuple(tokenizer.encode(text)[:SENTENCE])) for text in texts[:DOMAIN]]
    records = [[text] for text in [*planted, *others]]
    settings = LoraFineTuning(
        epsilon=EPSILON,
        delta=DELTA,
        epochs=STEPS,
        batch_size=len(records),
        learning_rate=0.5,
        optimizer="sgd",
        accountant="pld",
        trained_tokens=tuple(text.tokens[-1] for _, text in canaries.all_texts),
    )
    tuned = settings.train(model, records, seed=SeedSequence(seed), compute=Compute())
    coins, result = canaries.planted, {}
    for attack, score in scores_of(model, tuned, canaries).items():
        result |= {f"{attack}, bound": bound_of(score, coins, plan.rate), f"{attack}, AUC": auc(score, coins)}
    maximum = maximum_bound(coins, plan.rate, delta=DELTA, confidence=0.95, one_attack=True).lower
    claimed = settings.claimed_steps(len(records))
    signal = math.sqrt(claimed.count) / claimed.private.noise_multiplier
    ideal = gaussian_bound(signal, plan.canaries, plan.rate)
    return {**result, "a Gaussian mechanism, bound": ideal, "maximum detectable": maximum}


def gaussian_bound(signal: float, canaries: int, rate: float) -> float:
    """Return the mean bound of simulated Gaussian mechanisms whose attacker sees each canary's own noisy signal."""
    bounds = []
    for seed in range(SIMULATED):
        rng = np.random.default_rng(seed)
        planted = rng.random(canaries) < rate
        bounds.append(bound_of(signal * planted + rng.normal(size=canaries), planted, rate))
    return float(np.mean(bounds))


def auc(score: NDArray[np.float64], planted: NDArray[np.bool_]) -> float:
    """Return the probability that a planted canary scores higher than another one."""
    inside = int(planted.sum())
    return float((rankdata(score)[planted].sum() / inside - (inside + 1) / 2) / (planted.size - inside))


def cases(seeds: int) -> Iterator[Mapping[str, Any]]:
    """Yield all trainings of each design."""
    yield from of_each(DESIGNS, seeds, by="design")


def columns(runs: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the mean of each number over the trainings."""
    names = [name for name in runs[0] if name not in ("design", "seed")]
    return {name: f"{np.mean([line[name] for line in runs]):.2f}" for name in names}


if __name__ == "__main__":
    campaign(cases, run, columns, groups=by_case("design"), seeds=1)
