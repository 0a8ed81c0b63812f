"""Ways to audit a language model that do not work, measured.

    python -m benchmarks.text_pitfalls [--number SEEDS] [--write]

`docs/guides/text-pitfalls.md` quotes the numbers, which take a minute of processor time; fewer seeds take less.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from scipy.stats import beta, binom

import dpaudit
from benchmarks.campaign import measurement, rows_about
from benchmarks.text_defects import adapted, base_model
from benchmarks.text_honest import without_canaries
from tests.language_models.small_language_models import collated, domain_texts, small_tokenizer
from tools.rows import Row

DELTA, CANARIES = 1e-5, 200
SEEDS, AUDITS = 3, 100
RATES = (0.05, 0.2, 0.5)
SIDE = 0.025


def ignored_controls(members: int, controls: int, rate: float) -> float:
    """Return the exact probability that a valid lower limit of the members' rate exceeds the rate among controls.

    The two true rates are equal, so an interval that stated its error would do so with probability `SIDE` at most.
    """
    successes = np.arange(members + 1)
    lower = np.where(successes > 0, beta.ppf(SIDE, successes, members - successes + 1), 0.0)
    below = binom.cdf(np.ceil(lower * controls - 1e-9) - 1, controls, rate)  # fewer alarms than the limit
    return float((binom.pmf(successes, members, rate) * below).sum())


def best_of_attacks(audits: int) -> tuple[int, int]:
    """Return how many audits exceed 0 by the first attack, and by the best attack, where nothing leaks."""
    base, model = without_canaries(len(small_tokenizer()))
    first = best = 0
    for number in range(audits):
        kind: dict[str, Any] = {"length": 6, "context": 3, "seed": 5_000 + number}
        canaries = dpaudit.canaries(small_tokenizer(), CANARIES, "random-tokens", **kind)
        after, before = (dpaudit.text_statistics(source, canaries) for source in (model, base))
        attacks = dpaudit.estimate_text(after, before, canaries, delta=DELTA).attack_scores
        bounds = [dpaudit.estimate(scores, canaries.planted, delta=DELTA).lower for scores in attacks.values()]
        first += bounds[0] > 0
        best += max(bounds) > 0
    return first, best


def fine_tuned(model: Any, tokenizer: Any, texts: Sequence[str], *, epochs: int, seed: int) -> Any:
    """Return the model after training what it allows to train, without privacy."""
    optimizer = torch.optim.Adam([value for value in model.parameters() if value.requires_grad], lr=5e-3)
    rng = np.random.default_rng(seed)
    for _ in range(epochs):
        for rows in np.array_split(rng.permutation(len(texts)), max(1, len(texts) // 32)):
            optimizer.zero_grad()
            model(**collated(tokenizer, [texts[row] for row in rows])).loss.backward()
            optimizer.step()
    return model.eval()


def new_tokens(seed: int, *, are_trained: bool) -> float:
    """Return the bound from new tokens, whose embeddings are trained or frozen, in a LoRA fine-tuning."""
    torch.manual_seed(seed)
    tokenizer = small_tokenizer()
    texts = domain_texts(400, seed=7)
    canaries = dpaudit.canaries(tokenizer, CANARIES, "new-token", texts=texts, context=6, seed=seed)
    base = copy.deepcopy(base_model("llama", 64))
    base.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    model = adapted(base)
    for name, value in model.named_parameters():
        value.requires_grad_(value.requires_grad or (are_trained and ("embed_tokens" in name or "lm_head" in name)))
    fine_tuned(model, tokenizer, canaries.into(domain_texts(50, seed=seed)), epochs=8, seed=seed)
    return dpaudit.estimate_text(model, base, canaries, delta=DELTA).lower


def contexts(seed: int, *, are_training_texts: bool) -> float:
    """Return the bound from rare suffixes after the beginnings of training texts, or of other texts of the domain."""
    torch.manual_seed(seed)
    tokenizer, training_texts = small_tokenizer(), domain_texts(200, seed=seed)
    texts = training_texts if are_training_texts else domain_texts(200, seed=1_000 + seed)
    canaries = dpaudit.canaries(tokenizer, CANARIES, "rare-suffix", texts=texts, context=6, length=2, seed=seed)
    base = base_model("llama", 64)
    model = fine_tuned(adapted(base), tokenizer, canaries.into(training_texts), epochs=6, seed=seed)
    return dpaudit.estimate_text(model, base, canaries, delta=DELTA).lower


def measured(seeds: int) -> Iterator[Row]:
    """Yield the rows of the data file."""
    for count in (100, 200, 500, 1_000, 2_000, 4_000):
        canaries = dpaudit.canaries(_Numbers(), count, "random-tokens", length=8, seed=0)
        most = canaries.maximum_epsilon(delta=DELTA, confidence=0.95)
        yield from _rows("claims too large", f"{count:,} canaries", "maximum epsilon", f"{most:.2f}")
    for rate in RATES:
        error = f"{100 * ignored_controls(100, 100, rate):.2f} %"
        yield from _rows("controls taken as exact", f"rate {rate:g}", "error of a side of 2.5 %", error)
    audits = AUDITS if seeds == SEEDS else 4 * seeds
    for name, count in zip(("the first", "the best of four"), best_of_attacks(audits), strict=True):
        yield from _rows("attack chosen afterwards", name, "above 0", f"{count} of {audits}", audits)
    for name, are_trained in (("trained", True), ("frozen", False)):
        mean = np.mean([new_tokens(seed, are_trained=are_trained) for seed in range(seeds)])
        yield from _rows("new tokens", f"embeddings {name}", "mean bound", f"{mean:.2f}", seeds)
    for name, are_training_texts in (("other texts", False), ("training texts", True)):
        mean = np.mean([contexts(seed, are_training_texts=are_training_texts) for seed in range(seeds)])
        yield from _rows("contexts", name, "mean bound", f"{mean:.2f}", seeds)


def _rows(pitfall: str, case: str, what: str, value: str, trials: int | None = None) -> Iterator[Row]:
    return rows_about({"pitfall": pitfall, "case": case}, {what: value}, trials)


class _Numbers:
    """A tokenizer whose tokens are numbers, so that thousands of canaries are made at once."""

    def encode(self, text: str) -> list[int]:
        return [int(word) for word in text.split()]

    def decode(self, tokens: Sequence[int]) -> str:
        return " ".join(map(str, tokens))

    def __len__(self) -> int:
        return 1_000


if __name__ == "__main__":
    measurement(measured, number=SEEDS)
