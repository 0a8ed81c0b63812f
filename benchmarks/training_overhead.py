"""Audit of a training with 134 million weights: processor time of a step, memory, and half of the noise in 48 steps.

    python -m benchmarks.training_overhead RUNS.jsonl [--seeds 3] [--write]

A step of DP-SGD in plain torch on one core: the clipped gradients of four records are added up, noise is added, and the
weights change. Each run is a process of its own, with or without `dpaudit.TrainingAudit`. One has half the
noise.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from benchmarks.campaign import by_case, campaign

LAYERS, WIDTH, RECORDS, STEPS, CLIP, RATE = 8, 4096, 4, 8, 1.0, 1e-3
WITH, WITHOUT, HALF = "with the audit", "without", "with half of the noise, 48 steps"


def train(*, case: str, seed: int) -> dict[str, Any]:
    """Return the processor seconds of a step and of the result, the largest memory, and verdict and p-value."""
    import torch

    import dpaudit

    torch.set_num_threads(1)
    torch.manual_seed(seed)
    layers = [torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)]
    model = torch.nn.Sequential(*(part for layer in layers for part in (layer, torch.nn.ReLU())))
    parameters = list(model.parameters())
    steps, noise = (48, 0.5 * CLIP) if case == HALF else (STEPS, CLIP)
    audit = (
        None
        if case == WITHOUT
        else dpaudit.TrainingAudit(1.0, clip=CLIP, seed=seed, steps=steps if case == HALF else None)
    )
    seconds = []
    for _ in range(steps):
        began = time.process_time()
        total = [torch.zeros_like(parameter) for parameter in parameters]
        for record in torch.randn(RECORDS, WIDTH):
            model.zero_grad()
            model(record).square().mean().backward()
            gradients = [parameter.grad for parameter in parameters]
            norm = torch.sqrt(sum(gradient.square().sum() for gradient in gradients))
            for part, gradient in zip(total, gradients, strict=True):
                part.add_(gradient, alpha=min(1.0, CLIP / float(norm)))
        if audit is not None:
            audit.join(total, in_place=True)
        for part in total:
            part.add_(torch.randn_like(part), alpha=noise)
        if audit is not None:
            audit.observe(total)
        with torch.no_grad():
            for parameter, part in zip(parameters, total, strict=True):
                parameter.add_(part, alpha=-RATE / RECORDS)
        seconds.append(time.process_time() - began)
    began = time.process_time()
    answer = {}
    if audit is not None:
        answer = {"verdict": str(audit.result.verdict), "p_value": audit.result.p_value}
    return answer | {
        "weights": sum(parameter.numel() for parameter in parameters),
        "first_s": seconds[0],
        "step_s": median(seconds[1:]),
        "result_s": time.process_time() - began,
        "memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def cases(seeds: int) -> Iterator[Mapping[str, Any]]:
    yield from ({"case": case, "seed": seed} for seed in range(seeds) for case in (WITHOUT, WITH))
    yield {"case": HALF, "seed": 0}


def run(*, case: str, seed: int) -> dict[str, Any]:
    """Return the numbers of a training in a process of its own."""
    call = f"print(json.dumps(train(case={case!r}, seed={seed})))"
    code = f"import json; from benchmarks.training_overhead import train; {call}"
    completed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    values: dict[str, Any] = json.loads(completed.stdout.splitlines()[-1])
    return values


def columns(lines: Sequence[Mapping[str, Any]]) -> Mapping[str, str | tuple[str, str]]:
    """Return the medians of all trainings of a case."""

    def middle(name: str) -> float:
        return median(line[name] for line in lines)

    spread = [line["step_s"] for line in lines]
    if lines[0]["case"] == HALF:
        return {"verdict": lines[0]["verdict"], "p-value": f"{lines[0]['p_value']:.1g}"}
    return {
        "weights": f"{middle('weights'):,.0f}",
        "processor seconds of a step": (f"{middle('step_s'):.3f}", f"({min(spread):.3f}, {max(spread):.3f})"),
        "of the first step": f"{middle('first_s'):.3f}",
        "of the result": f"{middle('result_s'):.3f}",
        "memory in MB": f"{middle('memory_mb'):,.0f}",
    }


if __name__ == "__main__":
    campaign(cases, run, columns, groups=by_case("case"), seeds=3)
