"""Audits of language models that are what they claim: canaries that were never planted, and correct DP-SGD.

    python -m benchmarks.text_honest RUNS.jsonl [--seeds 1000] [--write]

* Never planted: a model is fine-tuned without privacy on other texts. Each audit makes its own canaries,
  tosses their coins after the training, and calls `dpaudit.estimate_text` with default settings. The true epsilon is 0.
* Releases: texts of a generator that copies some private texts. Either no canary was among them, or all canaries were
  and their coins are tossed after the release. The true epsilon of the coins is 0.
* Correct DP-SGD: `text_defects.play` without a defect, at the epsilon that the noise was calibrated to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import Any

import numpy as np
import torch

import dpaudit
from benchmarks.campaign import by_case, campaign, of_each
from benchmarks.text_defects import CASES, HONEST, base_model, play
from tests.language_models.small_language_models import domain_texts, small_tokenizer, trained

CANARIES, DELTA = 200, 1e-5
PRIVATE_RUNS = 15
"""Correct trainings of each engine and claim, at most."""
CONTEXTS = domain_texts(400, seed=7)
KINDS: Mapping[str, Mapping[str, Any]] = {
    "random-tokens": {"kind": "random-tokens", "length": 6, "context": 3},
    "new-token": {"kind": "new-token", "context": 6, "texts": CONTEXTS},
    "new-token four times": {"kind": "new-token", "context": 1, "length": 4, "texts": CONTEXTS},
}
RELEASED, COPIED = 2_000, 0.2
"""Texts of a release, and the share of them that are copies of private texts."""
SMALL_CLAIMS = (0.1, 1.0)
STRICT = 0.999
"""Confidence at which none of the audits should reject any claim."""
PRIVATE = {"own DP-SGD": (0.5, 2.0), "Opacus": (2.0,)}
"""Epsilon of the claims of the correct trainings."""
TRAINING_SIZE = {"canaries": 100, "hidden": 32, "epochs": 10}


@cache
def without_canaries(tokens: int) -> tuple[Any, Any]:
    """Return a model for this number of tokens before and after a fine-tuning on texts of the domain."""
    base = base_model("llama", 64)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        base.resize_token_embeddings(tokens, mean_resizing=False)
    return base, trained(base, small_tokenizer(), domain_texts(100, seed=1), epochs=5)


def never_planted(kind: str, number: int) -> dict[str, Any]:
    """Return the bound of an audit by canaries that no training has seen."""
    tokenizer = small_tokenizer()
    canaries = dpaudit.canaries(tokenizer, CANARIES, seed=1_000 + number, **KINDS[kind])
    base, model = without_canaries(len(tokenizer))
    return of_nothing(dpaudit.estimate_text(model, base, canaries, claim=(min(SMALL_CLAIMS), DELTA)))


def release(*, holds_canaries: bool, number: int) -> dict[str, Any]:
    """Return the bound of an audit of a release that does not depend on the coins."""
    canaries = dpaudit.canaries(small_tokenizer(), CANARIES, seed=1_000 + number, **KINDS["random-tokens"])
    rng = np.random.default_rng(number)
    private = domain_texts(100, seed=1) + [text.text for _, text in canaries.all_texts] * holds_canaries
    texts = domain_texts(RELEASED, seed=10_000 + number)
    for place in np.flatnonzero(rng.random(RELEASED) < COPIED):
        texts[place] = private[int(rng.integers(len(private)))]
    return of_nothing(dpaudit.estimate_text(release=texts, canaries=canaries, claim=(min(SMALL_CLAIMS), DELTA)))


def of_nothing(estimate: dpaudit.TextEstimate) -> dict[str, Any]:
    """Return the bounds of an audit without any leak."""
    assert estimate.convicting is not None
    assert estimate.convicting.confidence == STRICT
    return {"truth": 0.0, "bound": estimate.lower, "strict": estimate.convicting.lower}


def correct_training(engine: str, epsilon: float, number: int) -> dict[str, Any]:
    """Return the bound and the verdict of an audit of correct DP-SGD."""
    claim = dpaudit.Claim(epsilon, DELTA)
    estimate = play(CASES[HONEST][engine], 500 + number, claim=claim, **TRAINING_SIZE)
    return {"truth": epsilon, "bound": estimate.lower, "verdict": str(estimate.verdict)}


TRAININGS: dict[str, Callable[[int], dict[str, Any]]] = {
    **{f"never planted, {kind}": partial(never_planted, kind) for kind in KINDS},
    "release without canaries": lambda number: release(holds_canaries=False, number=number),
    "release, coins tossed after it": lambda number: release(holds_canaries=True, number=number),
    **{
        f"{engine}, epsilon {epsilon:g}": partial(correct_training, engine, epsilon)
        for engine, claims in PRIVATE.items()
        for epsilon in claims
    },
}


def cases(seeds: int) -> Iterator[Mapping[str, Any]]:
    """Yield all audits of canaries that were never planted, and at most `PRIVATE_RUNS` of each correct training."""
    yield from of_each((name for name in TRAININGS if "epsilon" not in name), seeds, by="training")
    yield from of_each((name for name in TRAININGS if "epsilon" in name), min(seeds, PRIVATE_RUNS), by="training")


def run(training: str, seed: int) -> dict[str, Any]:
    """Return the truth and the bounds of one audit."""
    return TRAININGS[training](seed)


def columns(audits: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return how many bounds exceed the truth and small claims, and the largest bound."""
    truth, total = audits[0]["truth"], len(audits)
    limits = {
        "bound above the truth": truth,
        **{f"bound above {claim:g}": claim for claim in SMALL_CLAIMS if not truth},
    }
    strict = [line["strict"] for line in audits if "strict" in line]
    return {
        **{name: f"{sum(line['bound'] > limit for line in audits)} of {total}" for name, limit in limits.items()},
        "bound above 0, 99.9 %": f"{sum(bound > 0 for bound in strict)} of {len(strict)}" if strict else "",
        "largest bound": f"{max(line['bound'] for line in audits):.2f}",
    }


if __name__ == "__main__":
    campaign(cases, run, columns, groups=by_case("training"), seeds=1_000)
