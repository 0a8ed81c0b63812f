"""Audits of language models that are what they claim: canaries that were never planted, and correct DP-SGD.

    python -m benchmarks.text_honest OUTPUT.jsonl [--never 200] [--private 15] [--small]

Games that OUTPUT.jsonl holds are not played again; the table of all of them is written to `docs/data/text-honest.csv`.

* Never planted: a model is fine-tuned without privacy on other texts. Each audit makes its own canaries,
  tosses their coins after the training, and calls `dpaudit.estimate_text` with default settings. The true epsilon is 0.
* Correct DP-SGD: `text_defects.play` without a defect, at the epsilon that the noise was calibrated to.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch

import dpaudit
from benchmarks.text_defects import CASES, HONEST, base_model, play
from tests.language_models.small_language_models import domain_texts, small_tokenizer, trained
from tools.rows import DATA, Row, measured_here, note_origin, setting, write

CANARIES, DELTA = 200, 1e-5
CONTEXTS = domain_texts(400, seed=7)
KINDS: Mapping[str, Mapping[str, Any]] = {
    "random-tokens": {"length": 6, "context": 3},
    "new-token": {"context": 6, "texts": CONTEXTS},
}
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
    canaries = dpaudit.canaries(tokenizer, CANARIES, kind, seed=1_000 + number, **KINDS[kind])
    base, model = without_canaries(len(tokenizer))
    estimate = dpaudit.estimate_text(model, base, canaries, claim=(min(SMALL_CLAIMS), DELTA))
    assert estimate.convicting is not None
    assert estimate.convicting.confidence == STRICT
    return {"truth": 0.0, "bound": estimate.lower, "strict": estimate.convicting.lower}


def correct_training(engine: str, epsilon: float, number: int) -> dict[str, Any]:
    """Return the bound and the verdict of an audit of correct DP-SGD."""
    claim = dpaudit.Claim(epsilon, DELTA)
    estimate = play(CASES[HONEST][engine], 500 + number, claim=claim, **TRAINING_SIZE)
    return {"truth": epsilon, "bound": estimate.lower, "verdict": str(estimate.verdict)}


def games(never: int, private: int) -> Iterator[tuple[str, Any]]:
    """Yield the name of each game and a function that plays it."""
    for number in range(never):
        for kind in KINDS:
            yield f"never planted, {kind}, {number}", lambda kind=kind, number=number: never_planted(kind, number)
    for number in range(private):
        for engine, claims in PRIVATE.items():
            for epsilon in claims:
                yield (
                    f"{engine}, epsilon = {epsilon:g}, {number}",
                    lambda engine=engine, epsilon=epsilon, number=number: correct_training(engine, epsilon, number),
                )


def main() -> None:
    """Play the missing games, and write the table of all of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path, help="one JSON object a line for each game")
    parser.add_argument("--never", type=int, default=1_000, help="audits of each kind of canary")
    parser.add_argument("--private", type=int, default=15, help="correct trainings of each engine and claim")
    parser.add_argument("--small", action="store_true", help="three audits of each; no data file is written")
    options = parser.parse_args()
    counts = (3, 3) if options.small else (options.never, options.private)
    lines = [json.loads(line) for line in options.output.read_text().splitlines()] if options.output.exists() else []
    played = {line["game"] for line in lines}
    for name, play_game in games(*counts):
        if name in played:
            continue
        began = time.process_time()
        lines.append({"game": name, **play_game(), "seconds": time.process_time() - began})
        with options.output.open("a") as file:
            file.write(json.dumps(lines[-1]) + "\n")
    data = rows(lines)
    print(*data, sep="\n")
    if not options.small:
        write(DATA / "text-honest.csv", data)
        note_origin(measured_here("text-honest.csv", "python -m benchmarks.text_honest OUTPUT.jsonl"))


def rows(lines: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Return the rows of the data file: audits whose bound exceeds the truth, and bounds above small claims."""
    by_game: dict[str, list[Mapping[str, Any]]] = {}
    for line in lines:
        by_game.setdefault(line["game"].rpartition(", ")[0], []).append(line)
    result = []
    for name, audits in by_game.items():
        conditions, trials = setting({"training": name.replace(" = ", " ")}), str(len(audits))

        def count(above: float, audits: Sequence[Mapping[str, Any]] = audits) -> str:
            return f"{sum(line['bound'] > above for line in audits)} of {len(audits)}"

        result.append(Row(conditions, "bound above the truth", count(audits[0]["truth"]), trials=trials))
        claims = SMALL_CLAIMS if audits[0]["truth"] == 0 else ()
        result += [Row(conditions, f"bound above {claim:g}", count(claim), trials=trials) for claim in claims]
        if strict := [line["strict"] for line in audits if "strict" in line]:
            above = f"{sum(bound > 0 for bound in strict)} of {len(strict)}"
            result.append(Row(conditions, "bound above 0, 99.9 %", above, trials=trials))
        largest = max(line["bound"] for line in audits)
        result.append(Row(conditions, "largest bound", f"{largest:.2f}", trials=trials))
    return result


if __name__ == "__main__":
    main()
