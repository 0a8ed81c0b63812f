"""Steps of DP fine-tunings of language models: correct ones, and ones with too little noise, in one or two trainings.

    python -m benchmarks.text_steps OUTPUT.jsonl [--games 10] [--weights SmolLM2-135M-Instruct.Q4_1.gguf]

Games that OUTPUT.jsonl holds are not played again; the table of all of them is written to `docs/data/text-steps.csv`.

Each game plays `dp-sgd-steps` on a fine-tuning at epsilon = 8, delta = 1e-5: on a transformer of one layer, 200 steps
of one training; with `--weights`, on that model once, 48 steps of two trainings.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dpaudit import audit, load_spec
from dpaudit.language_models.data.plain_texts import MadeSentences
from dpaudit.language_models.mechanisms.base_models.pretrained_model import PretrainedModel
from dpaudit.language_models.mechanisms.base_models.tiny_transformer import TinyTransformer
from dpaudit.language_models.mechanisms.fine_tuned_model import FineTunedModel
from dpaudit.language_models.mechanisms.fine_tuning.full import FullFineTuning
from dpaudit.language_models.mechanisms.fine_tuning.lora import LoraFineTuning
from dpaudit.language_models.mechanisms.opacus_lora import OpacusLora
from tests.language_models.own_text_trainers import (
    HalfNoise,
    MirroredNoise,
    NoiseOfFirstStep,
    NoiseOnFactorA,
    NoiseOnFactorB,
    with_defect,
)
from tools.rows import DATA, Row, measured_here, note_origin, setting, write

EPSILON = 8.0
TRAINERS: Mapping[str, Any] = {
    "correct, lora": LoraFineTuning,
    "correct, full": FullFineTuning,
    "correct, opacus-lora": OpacusLora,
    "half of the noise": with_defect(HalfNoise),
    "noise on the factors A only": with_defect(NoiseOnFactorA),
    "noise on the factors B only": with_defect(NoiseOnFactorB),
    "the same noise in all steps": with_defect(NoiseOfFirstStep),
    "second half of the noise is minus the first": with_defect(MirroredNoise),
}
TINY, LARGE = "one layer", "135 million parameters"
ON_LARGE = ("correct, lora", "half of the noise", "noise on the factors A only", "the same noise in all steps")
SETTINGS: Mapping[str, Mapping[str, Any]] = {
    TINY: {"batch_size": 16, "epochs": 50},
    LARGE: {"batch_size": 4, "epochs": 2, "rank": 8},
}
TEXTS: Mapping[str, int] = {TINY: 64, LARGE: 48}
TRAININGS: Mapping[str, int] = {TINY: 1, LARGE: 2}


def play(model: str, case: str, seed: int, weights: str) -> dict[str, Any]:
    """Return verdict and counts of one game."""
    base = TinyTransformer(hidden=16, layers=1, steps=0) if model == TINY else PretrainedModel(path=weights)
    trainer = TRAINERS[case](epsilon=EPSILON, **SETTINGS[model])
    began = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        spec = load_spec(
            {
                "seed": seed,
                "data": MadeSentences(TEXTS[model]),
                "split": {"target": 1.0, "reference": 0.0, "test": 0.0},
                "mechanism": FineTunedModel(base=base, trainer=trainer, max_tokens=48),
                "game": {"name": "dp-sgd-steps", "trainings": TRAININGS[model]},
                "run": {"runner": "in-process", "figures": False, "repeats": 0},
            }
        )
        (result,) = audit(spec, output=Path(folder) / "run", quiet=True).results
    counts = dict(result.finding.counts)  # type: ignore[union-attr]
    seconds = time.process_time() - began
    return {"verdict": str(result.verdict), "steps": counts["steps"], "right": counts["correct"], "seconds": seconds}


def games(count: int, weights: str) -> Iterator[tuple[str, str, int]]:
    """Yield model, case and number of each game; correct trainings are played four times as often as others."""
    for case in TRAINERS:
        for number in range(4 * count if case.startswith("correct") else count):
            yield TINY, case, number
    for case in ON_LARGE if weights else ():
        yield LARGE, case, 0


def main() -> None:
    """Play the missing games, and write the table of all of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path, help="one JSON object a line for each game")
    parser.add_argument("--games", type=int, default=10, help="games of each defect on the small model")
    parser.add_argument("--weights", default="", help="GGUF file of a model that is fine-tuned too")
    options = parser.parse_args()
    lines = [json.loads(line) for line in options.output.read_text().splitlines()] if options.output.exists() else []
    played = {(line["model"], line["case"], line["number"]) for line in lines}
    for model, case, number in games(options.games, options.weights):
        if (model, case, number) in played:
            continue
        line = {"model": model, "case": case, "number": number, **play(model, case, 1_000 + number, options.weights)}
        lines.append(line)
        print(line, flush=True)
        with options.output.open("a") as file:
            file.write(json.dumps(line) + "\n")
    write(DATA / "text-steps.csv", rows(lines))
    note_origin(measured_here("text-steps.csv", "python -m benchmarks.text_steps OUTPUT.jsonl --weights FILE"))


def rows(lines: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Return the rows of the data file: verdicts, and the share of right guesses."""
    result = []
    for model, case in dict.fromkeys((line["model"], line["case"]) for line in lines):
        audits = [line for line in lines if (line["model"], line["case"]) == (model, case)]
        conditions, trials = setting({"model": model, "steps of a fine-tuning": case}), str(len(audits))
        rejected = sum(line["verdict"] == "VIOLATION" for line in audits)
        right = sum(line["right"] for line in audits) / sum(line["steps"] for line in audits)
        seconds = sum(line["seconds"] for line in audits) / len(audits)
        result += [
            Row(conditions, "VIOLATION", f"{rejected} of {trials}", trials=trials),
            Row(conditions, "steps", str(audits[0]["steps"]), trials=trials),
            Row(conditions, "right guesses", f"{100 * right:.0f} %", trials=trials),
            Row(conditions, "seconds", f"{seconds:.0f}", trials=trials),
        ]
    return result


if __name__ == "__main__":
    main()
