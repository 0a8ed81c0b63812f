"""Audit a LoRA fine-tuning of a real language model on two cores, without privacy and by DP-SGD.

    python -m benchmarks.text_case_study FOLDER --weights SmolLM2-135M-Instruct.Q4_1.gguf
    python -m benchmarks.text_case_study FOLDER --weights SmolLM2-135M-Instruct.Q4_1.gguf --epsilon 8
    python -m benchmarks.text_case_study FOLDER --rows    # writes docs/data/text-case-study.csv

The domain is the documentation of Python in the standard library. A canary is the beginning of a sentence, continued by
a new token. Run a command again after an interruption: canaries, scores of the base model and checkpoints are kept in
FOLDER. `--weights random` takes random weights of the same shape, to time another device.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.random import SeedSequence

import dpaudit
from dpaudit import Canaries
from dpaudit.mechanisms.compute import Compute
from dpaudit.mechanisms.language_models.fine_tuning.base_model import load_base
from dpaudit.mechanisms.language_models.fine_tuning.lora import LoraFineTuning
from dpaudit.mechanisms.language_models.fine_tuning.records import Record, TrainingText, in_parts, make_batch
from dpaudit.mechanisms.language_models.token_statistics import TokenStatistics

SEED = 54
DELTA = 1e-5
CONTEXT = 4
"""Tokens of a canary before its secret."""
DOMAIN = 200
"""Sentences of the domain in the training data."""
SENTENCE = 12
"""Largest number of tokens of such a sentence."""
TOSSES = 200
"""Negative controls: coins tossed after the training."""
WITHOUT_PRIVACY = {"canaries": 1000, "rate": 0.5, "epochs": 4, "batch_size": 32, "learning_rate": 2e-3}
PRIVATE = {
    "canaries": 5000,
    "rate": 0.1,
    "epochs": 20,
    "batch_size": 10**6,
    "learning_rate": 0.5,
    "optimizer": "sgd",
    "accountant": "pld",
}


def sentences() -> list[str]:
    """Return the sentences of 6 to 14 words in the documentation of Python, in alphabetical order."""
    from pydoc_data.topics import topics

    parts = (part for topic in topics.values() for part in re.split(r"(?<=[.])\s+", topic))
    plain = {re.sub(r"\s+", " ", part).strip() for part in parts}
    return sorted(part for part in plain if 6 <= len(part.split()) <= 14 and part[0].isalpha())


def loaded(weights: str, device: str) -> tuple[Any, Any]:
    """Return the base model on a device and its tokenizer."""
    from transformers import AutoTokenizer

    path = Path(weights)
    tokenizer = AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)
    return load_base(path, device=device), tokenizer


def made_canaries(tokenizer: Any, count: int, rate: float, texts: list[str]) -> Canaries:
    """Return the canaries of the study; their new tokens are added to the tokenizer."""
    return dpaudit.canaries(tokenizer, count, "new-token", context=CONTEXT, texts=texts, rate=rate, seed=SEED)


def with_rows(base: Any, tokens: int) -> None:
    """Add rows of embeddings for new tokens, the same ones at every call."""
    with torch.random.fork_rng():
        torch.manual_seed(SEED)
        base.resize_token_embeddings(tokens)


def training_records(tokenizer: Any, canaries: Canaries, domain: list[str]) -> list[Record]:
    """Return the planted canaries and the sentences of the domain, one text a record."""
    planted = [TrainingText(text.tokens) for row, text in canaries.all_texts if canaries.planted[row]]
    others = [TrainingText(tuple(tokenizer.encode(text)[:SENTENCE])) for text in domain]
    return [[text] for text in [*planted, *others]]


def cached_statistics(path: Path, model: Any, canaries: Canaries) -> TokenStatistics:
    """Return the log-probabilities of all secrets, from a file if they were computed before."""
    if not path.exists():
        values = dpaudit.text_statistics(model, canaries)
        with path.open("wb") as file:
            np.savez(file, **{name: getattr(values, name) for name in ("log_probability", "mean", "deviation")})
    with np.load(path) as saved:
        return TokenStatistics(**saved)


def trained_model(settings: LoraFineTuning, base: Any, records: list[Record], folder: Path, compute: Compute) -> Any:
    """Return the fine-tuned model: from its file, else trained from the last checkpoint, with progress."""
    began = time.perf_counter()

    def progress(step: int, steps: int) -> None:
        print(f"step {step} of {steps}, {time.perf_counter() - began:.0f} s", flush=True)

    return settings.train(base, records, seed=SeedSequence(SEED), compute=compute, progress=progress)


def study(folder: Path, weights: str, epsilon: float, device: str, threads: int) -> None:
    """Train, audit, and write one line of JSON."""
    seconds: dict[str, float] = {}
    began = time.perf_counter()

    def lap(name: str) -> None:
        nonlocal began
        now = time.perf_counter()
        seconds[name], began = round(now - began, 1), now
        print(f"{name}: {seconds[name]} s", flush=True)

    torch.set_num_threads(threads)
    plan = dict(WITHOUT_PRIVACY if math.isinf(epsilon) else PRIVATE)
    count, rate = int(plan.pop("canaries")), float(plan.pop("rate"))
    folder = folder / ("without-privacy" if math.isinf(epsilon) else f"epsilon-{epsilon:g}")
    folder.mkdir(parents=True, exist_ok=True)
    base, tokenizer = loaded(weights, device)
    texts = sentences()
    np.random.default_rng(SEED).shuffle(texts)
    canaries = made_canaries(tokenizer, count, rate, texts[DOMAIN:])
    records = training_records(tokenizer, canaries, texts[:DOMAIN])
    with_rows(base, len(tokenizer))
    lap("load")
    before = cached_statistics(folder / "base.npz", base, canaries)
    lap("base losses")
    size = len(records)
    settings = LoraFineTuning(
        epsilon=epsilon,
        delta=DELTA,
        trained_tokens=tuple(text.tokens[-1] for _, text in canaries.all_texts),
        **{**plan, "batch_size": min(plan["batch_size"], size)},
    )
    claim = settings.claim(size)
    print(canaries, f"\nclaim: {claim}; maximum detectable {canaries.maximum_epsilon(delta=DELTA):.3f}", flush=True)
    batches = (make_batch(part, "cpu") for part in in_parts(records, settings.batch_tokens))
    record = dpaudit.preflight(canaries, ({"input_ids": b.tokens, "labels": b.labels} for b in batches))
    model = trained_model(settings, base, records, folder, Compute(threads=threads, device=device, scratch=folder))
    torch.save({n: p.detach().cpu() for n, p in model.named_parameters() if p.requires_grad}, folder / "trained.pt")
    lap("training")
    after = cached_statistics(folder / "trained.npz", model, canaries)
    lap("trained losses")
    result = dpaudit.estimate_text(after, before, canaries, claim=claim, delta=DELTA, training=record)
    lap("estimate")
    print(result)
    print(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--weights")
    parser.add_argument("--epsilon", type=float, default=math.inf)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    study(args.folder, args.weights, args.epsilon, args.device, args.threads)


if __name__ == "__main__":
    main()
