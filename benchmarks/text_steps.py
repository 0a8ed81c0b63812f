"""Steps of DP fine-tunings of language models: correct ones, and ones with too little noise, in one or two trainings.

    python -m benchmarks.text_steps RUNS.jsonl [--seeds 10] [--weights SmolLM2-135M-Instruct.Q4_1.gguf] [--write]

Each game plays `dp-sgd-steps` on a fine-tuning at epsilon = 8, delta = 1e-5: on a transformer of one layer, 200 steps
of one training; with `--weights`, on that model once, 48 steps of two trainings.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.campaign import campaign
from dpaudit import audit, load_spec
from dpaudit.language_models.data.plain_texts import MadeSentences
from dpaudit.language_models.mechanisms.base_models import PretrainedModel, TinyTransformer
from dpaudit.language_models.mechanisms.fine_tuned_model import FineTunedModel
from dpaudit.language_models.mechanisms.fine_tuning.trainers import FullFineTuning, LoraFineTuning
from dpaudit.language_models.mechanisms.opacus_lora import OpacusLora
from tests.language_models.own_text_trainers import (
    HalfNoise,
    MirroredNoise,
    NoiseOfFirstStep,
    NoiseOnFactorA,
    NoiseOnFactorB,
    with_defect,
)

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


def run(model: str, case: str, seed: int, weights: str) -> dict[str, Any]:
    """Return verdict and counts of one game."""
    base = TinyTransformer(hidden=16, layers=1, steps=0) if model == TINY else PretrainedModel(path=weights)
    trainer = TRAINERS[case](epsilon=EPSILON, **SETTINGS[model])
    with tempfile.TemporaryDirectory() as folder:
        spec = load_spec(
            {
                "seed": 1_000 + seed,
                "data": MadeSentences(TEXTS[model]),
                "split": {"target": 1.0, "reference": 0.0, "test": 0.0},
                "mechanism": FineTunedModel(base=base, trainer=trainer, max_tokens=48),
                "game": {"name": "dp-sgd-steps", "trainings": TRAININGS[model]},
                "run": {"runner": "in-process", "figures": False, "repeats": 0},
            }
        )
        (result,) = audit(spec, output=Path(folder) / "run", quiet=True).results
    counts = dict(result.finding.counts)  # type: ignore[union-attr]
    return {"verdict": str(result.verdict), "steps": counts["steps"], "right": counts["correct"]}


def cases(seeds: int, weights: str) -> Iterator[dict[str, Any]]:
    """Yield model, case and seed of each game; correct trainings are played four times as often as others."""
    for case in TRAINERS:
        for seed in range(4 * seeds if case.startswith("correct") else seeds):
            yield {"model": TINY, "case": case, "seed": seed}
    yield from ({"model": LARGE, "case": case, "seed": 0} for case in (ON_LARGE if weights else ()))


def columns(audits: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return verdicts, steps, and the share of right guesses."""
    right = sum(line["right"] for line in audits) / sum(line["steps"] for line in audits)
    return {
        "VIOLATION": f"{sum(line['verdict'] == 'VIOLATION' for line in audits)} of {len(audits)}",
        "steps": str(audits[0]["steps"]),
        "right guesses": f"{100 * right:.0f} %",
        "seconds": f"{sum(line['seconds'] for line in audits) / len(audits):.0f}",
    }


def groups(line: Mapping[str, Any]) -> list[tuple[dict[str, str], Mapping[str, Any]]]:
    """Return the row of a game."""
    return [({"model": line["model"], "steps of a fine-tuning": line["case"]}, line)]


if __name__ == "__main__":
    campaign(
        cases,
        run,
        columns,
        groups=groups,
        seeds=10,
        settings={"weights": "GGUF file of a model that is fine-tuned too"},
    )
