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
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.random import SeedSequence
from numpy.typing import NDArray
from scipy.stats import rankdata

import dpaudit
from dpaudit import Canaries
from dpaudit.language_models.canary_texts.rates import maximum_bound
from dpaudit.language_models.mechanisms.fine_tuning.base_model import load_base
from dpaudit.language_models.mechanisms.fine_tuning.lora import LoraFineTuning
from dpaudit.language_models.mechanisms.fine_tuning.records import Record, TrainingText, in_parts, make_batch
from dpaudit.language_models.mechanisms.token_statistics import TokenStatistics
from dpaudit.mechanisms.compute import Compute
from tools.rows import DATA, Row, measured_here, note_origin, setting, write

SEED = 54
DELTA = 1e-5
CONTEXT = 4
"""Tokens of a canary before its secret."""
DOMAIN = 200
"""Sentences of the domain in the training data."""
SENTENCE = 12
"""Largest number of tokens of such a sentence."""
SIMULATED = 20
"""Simulated Gaussian mechanisms."""
TOSSES = 200
"""Negative controls: coins tossed after the training."""
ATTACKS = ("calibrated-loss", "loss-difference", "min-k-plus-plus", "gradient-update")
"""The first one gives the order of guesses without privacy, the last one that of DP-SGD."""
SHAPE = {
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "max_position_embeddings": 2048,
}
"""Shape of SmolLM2-135M."""
STATISTICS = ("log_probability", "mean", "deviation")
WITHOUT_PRIVACY: dict[str, Any] = {"canaries": 1000, "rate": 0.5, "epochs": 4, "batch_size": 32, "learning_rate": 2e-3}
PRIVATE: dict[str, Any] = {
    "canaries": 5000,
    "rate": 0.1,
    "epochs": 20,
    "batch_size": 10**6,
    "learning_rate": 0.5,
    "optimizer": "sgd",
    "accountant": "pld",
}


class Clock:
    """Adds up the seconds of each part of the work over all runs of the program."""

    def __init__(self, path: Path) -> None:
        self._path, self._began = path, time.perf_counter()
        self.seconds: dict[str, float] = json.loads(path.read_text()) if path.exists() else {}

    def lap(self, part: str) -> None:
        """Add the seconds since the last part to this one."""
        now = time.perf_counter()
        self.seconds[part] = self.seconds.get(part, 0.0) + now - self._began
        self._began = now
        self._path.write_text(json.dumps(self.seconds), encoding="utf-8")
        print(f"{part}: {self.seconds[part]:.0f} s", flush=True)


def sentences() -> list[str]:
    """Return the sentences of 6 to 14 words in the documentation of Python, in alphabetical order."""
    from pydoc_data.topics import topics

    parts = (part for topic in topics.values() for part in re.split(r"(?<=[.])\s+", topic))
    plain = {re.sub(r"\s+", " ", part).strip() for part in parts}
    return sorted(part for part in plain if 6 <= len(part.split()) <= 14 and part[0].isalpha())


def loaded(weights: str, device: str, texts: list[str]) -> tuple[Any, Any]:
    """Return the base model on a device and its tokenizer."""
    from transformers import AutoTokenizer

    if weights == "random":
        return random_model(texts, device)
    path = Path(weights)
    tokenizer = AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)
    return load_base(path, device=device), tokenizer


def random_model(texts: list[str], device: str) -> tuple[Any, Any]:
    """Return random weights in the shape of SmolLM2-135M, and a byte-level tokenizer of the texts."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=8000, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    config = LlamaConfig(**SHAPE, tie_word_embeddings=True)
    with torch.random.fork_rng():
        torch.manual_seed(SEED)
        model = LlamaForCausalLM(config).to(device).eval()
    return model, PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def made_canaries(tokenizer: Any, count: int, rate: float, texts: list[str]) -> Canaries:
    """Return the canaries of the study; their new tokens are added to the tokenizer."""
    return dpaudit.canaries(tokenizer, count, "new-token", context=CONTEXT, texts=texts, rate=rate, seed=SEED)


def with_rows(base: Any, tokens: int) -> None:
    """Add rows of embeddings for new tokens if there are too few, the same ones at every call."""
    if tokens <= base.get_input_embeddings().num_embeddings:
        return
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
        partial = path.with_suffix(".part")
        with partial.open("wb") as file:
            np.savez(file, **{name: getattr(values, name) for name in STATISTICS})
        partial.replace(path)
    with np.load(path) as saved:
        return TokenStatistics(**saved)


def trained_model(settings: LoraFineTuning, base: Any, records: list[Record], folder: Path, compute: Compute) -> Any:
    """Return the fine-tuned model: from its file, else trained on from the last checkpoint, with progress."""
    path, began = folder / "trained.pt", time.perf_counter()
    if path.exists():
        model = settings.trainable(base, device=compute.device)
        model.load_state_dict(torch.load(path, weights_only=True), strict=False)
        return model.eval()

    def progress(step: int, steps: int) -> None:
        print(f"step {step} of {steps}, {time.perf_counter() - began:.0f} s", flush=True)

    model = settings.train(base, records, seed=SeedSequence(SEED), compute=compute, progress=progress)
    trained = {name: value.detach().cpu() for name, value in model.named_parameters() if value.requires_grad}
    torch.save(trained, path.with_suffix(".part"))
    path.with_suffix(".part").replace(path)
    return model


def auc(scores: NDArray[np.float64], planted: NDArray[np.bool_]) -> float:
    """Return the probability that a planted canary scores higher than another one."""
    ranks = rankdata(scores)[planted].sum() - planted.sum() * (planted.sum() + 1) / 2
    return float(ranks / (planted.sum() * (~planted).sum()))


def bound_of(scores: NDArray[np.float64], canaries: Canaries, planted: NDArray[np.bool_]) -> float:
    """Return the bound from scores and coins."""
    fair = canaries.rate == 0.5
    method, options = (
        ("simultaneous-guess-count", {"guess": "any-tail"}) if fair else ("rare-canaries", {"rate": canaries.rate})
    )
    return dpaudit.estimate(scores, planted, delta=DELTA, method=method, **options).lower


def controls(scores: NDArray[np.float64], canaries: Canaries) -> int:
    """Return how many audits exceed 0 whose coins were tossed after the training."""
    rng = np.random.default_rng(SEED)
    tosses = (rng.random(len(canaries)) < canaries.rate for _ in range(TOSSES))
    return sum(bound_of(scores, canaries, planted) > 0 for planted in tosses)


def gaussian_bound(canaries: Canaries, settings: LoraFineTuning, size: int) -> float:
    """Return the mean bound of simulated Gaussian mechanisms that add each record in every step, without sampling."""
    steps = settings.claimed_steps(size)
    signal = math.sqrt(steps.count) / steps.private.noise_multiplier
    bounds = []
    for seed in range(SIMULATED):
        rng = np.random.default_rng(seed)
        planted = rng.random(len(canaries)) < canaries.rate
        bounds.append(bound_of(signal * planted + rng.normal(size=len(canaries)), canaries, planted))
    return float(np.mean(bounds))


def study(folder: Path, weights: str, epsilon: float, device: str, threads: int) -> None:
    """Train, audit, and write `result.json`; everything that is in the folder already is used."""
    torch.set_num_threads(threads)
    plan = dict(WITHOUT_PRIVACY if math.isinf(epsilon) else PRIVATE)
    count, rate = int(plan.pop("canaries")), float(plan.pop("rate"))
    folder = folder / ("without privacy" if math.isinf(epsilon) else f"DP-SGD, epsilon {epsilon:g}").replace(" ", "_")
    folder.mkdir(parents=True, exist_ok=True)
    clock = Clock(folder / "seconds.json")
    texts = sentences()
    np.random.default_rng(SEED).shuffle(texts)
    base, tokenizer = loaded(weights, device, texts)
    canaries = made_canaries(tokenizer, count, rate, texts[DOMAIN:])
    records = training_records(tokenizer, canaries, texts[:DOMAIN])
    with_rows(base, len(tokenizer))
    clock.lap("load")
    before = cached_statistics(folder / "base.npz", base, canaries)
    clock.lap("losses of the base model")
    settings = LoraFineTuning(
        epsilon=epsilon,
        delta=DELTA,
        trained_tokens=tuple(text.tokens[-1] for _, text in canaries.all_texts),
        **{**plan, "batch_size": min(plan["batch_size"], len(records))},
    )
    claim = settings.claim(len(records))
    print(f"{canaries}\nclaim: {claim}", flush=True)
    batches = (make_batch(part, "cpu") for part in in_parts(records, settings.batch_tokens))
    record = dpaudit.preflight(canaries, ({"input_ids": b.tokens, "labels": b.labels} for b in batches))
    model = trained_model(settings, base, records, folder, Compute(threads=threads, device=device, scratch=folder))
    clock.lap("training")
    result = dpaudit.estimate_text(
        model,
        before,
        canaries,
        claim=claim,
        delta=DELTA,
        training=record,
        attacks=ATTACKS,
        order=ATTACKS[-1 if settings.is_private else 0],
    )
    clock.lap("losses, gradients and bound")
    print(result, flush=True)
    write_result(folder / "result.json", result, canaries, settings, records, clock)


def write_result(
    path: Path,
    result: dpaudit.TextEstimate,
    canaries: Canaries,
    settings: LoraFineTuning,
    records: list[Record],
    clock: Clock,
) -> None:
    """Write numbers of the training, of the audit, and of each attack as the only one."""
    attacks = {
        name: {
            "bound": f"{bound_of(scores, canaries, canaries.planted):.3f}",
            "AUC": f"{auc(scores, canaries.planted):.3f}",
            "controls above 0": f"{controls(scores, canaries)} of {TOSSES}",
        }
        for name, scores in result.attack_scores.items()
    }
    clock.lap("controls")
    maximum = maximum_bound(canaries.planted, canaries.rate, delta=DELTA, confidence=0.95, one_attack=True)
    audit = {
        "canaries": f"{len(canaries):,}",
        "planted": f"{int(canaries.planted.sum()):,}",
        "tokens trained on": f"{settings.epochs * sum(len(text.tokens) for record in records for text in record):,}",
        "maximum detectable": f"{maximum.lower:.3f}",
        "bound for a Gaussian mechanism": f"{gaussian_bound(canaries, settings, len(records)):.3f}"
        if settings.is_private
        else "",
        **{f"{name}, s": f"{seconds:.0f}" for name, seconds in clock.seconds.items()},
        "seconds": f"{sum(clock.seconds.values()):.0f}",
    }
    path.write_text(json.dumps({"audit": audit, "attacks": attacks}, indent=1), encoding="utf-8")
    print(path.read_text(encoding="utf-8"))


def write_rows(folder: Path) -> None:
    """Write the numbers of all trainings in the folder to docs/data."""
    rows = []
    for path in sorted(folder.glob("*/result.json")):
        result, training = json.loads(path.read_text(encoding="utf-8")), path.parent.name.replace("_", " ")
        rows += [Row(setting({"training": training}), what, value) for what, value in result["audit"].items()]
        for attack, numbers in result["attacks"].items():
            where = setting({"training": training, "attack": attack})
            rows += [Row(where, what, value) for what, value in numbers.items()]
    write(DATA / "text-case-study.csv", rows)
    program = "python -m benchmarks.text_case_study FOLDER --weights FILE [--epsilon 8]"
    note_origin(measured_here("text-case-study.csv", program))


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("folder", type=Path, help="folder of results and checkpoints")
    parser.add_argument("--weights", help="GGUF file of the base model, or random")
    parser.add_argument("--epsilon", type=float, default=math.inf, help="claim of DP-SGD; left out: no privacy")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rows", action="store_true", help="write docs/data/text-case-study.csv")
    args = parser.parse_args()
    if args.rows:
        write_rows(args.folder)
    elif args.weights is None:
        parser.error("--weights must be a GGUF file, or random")
    else:
        study(args.folder, args.weights, args.epsilon, args.device, args.threads)


if __name__ == "__main__":
    main()
