"""Rejection rates of the audits in `examples/dp-sgd-steps.yaml`, over many seeds.

python -m benchmarks.dp_sgd_steps RUNS.jsonl [--seeds 200] [--write]
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.campaign import by_case, campaign
from dpaudit import load_spec
from dpaudit.actors.seed import Seed
from dpaudit.engine.games.steps.dp_sgd_steps import score_steps, train_steps
from dpaudit.engine.planning.plan import Plan, make_plan
from dpaudit.estimators.one_run.guess_band import guess_band_p_value
from dpaudit.mechanisms.compute import Compute
from dpaudit.mechanisms.planted.dp_sgd import (
    ClipBatchMeanDpSgd,
    HalfTheNoiseDpSgd,
    NoClippingDpSgd,
    NoiseOverBatchDpSgd,
)

PLANTED = (HalfTheNoiseDpSgd, NoClippingDpSgd, ClipBatchMeanDpSgd, NoiseOverBatchDpSgd)
SPEC = Path(__file__).parent.parent / "examples" / "dp-sgd-steps.yaml"


def run(training: str, seed: int) -> dict[str, Any]:
    """Run one training with a separate seed, and return the evidence of its steps."""
    began = time.perf_counter()
    (entry,) = (entry for entry in planned().audits if entry.audit.name == training)
    game, target = entry.audit.game, planned().shared[entry.game.trainings[0].shared[0]]
    honest, audited, attack = Seed(seed).child("honest"), entry.audit.mechanism, entry.audit.attack
    steps = train_steps(
        audited, attack, game.canary, target, None, (), Compute(), size=len(target), without_search=True, seed=honest
    )
    (scores,) = score_steps(None, (steps,))
    estimator, curve = entry.audit.estimator, entry.effective_claim.curve
    tally = estimator.tally(scores)
    odds = 2 * np.arctanh(curve.delta(0.0))
    looked = [
        guess_band_p_value(odds, tally.right[:place], tally.looks[:place]) <= 1 - estimator.confidence
        for place in range(1, tally.looks.size + 1)
    ]
    return {
        "refuted": estimator.find([tally]).violation_point(curve) is not None,
        "steps": int(tally.looks[looked.index(True)]) if True in looked else None,
        "of": int(tally.looks[-1]),
        "p_value": guess_band_p_value(odds, tally.right, tally.looks),
        "seconds": time.perf_counter() - began,
    }


@cache
def planned() -> Plan:
    """Return the plan of the spec."""
    return make_plan(load_spec(SPEC))


def cases(seeds: int) -> Iterator[dict[str, Any]]:
    """Yield audit and seed of each training; planted defects get a tenth of the trainings."""
    for seed in range(seeds):
        for entry in planned().audits:
            if seed * 10 < seeds or not isinstance(entry.audit.mechanism, PLANTED):
                yield {"training": entry.audit.name, "seed": seed}


def columns(trainings: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return refuted trainings, the median step after which they were, and median seconds."""
    steps = [line["steps"] for line in trainings if line["steps"] is not None]
    return {
        "refuted": str(sum(line["refuted"] for line in trainings)),
        "step": f"{np.median(steps):.0f}" if steps else "",
        "seconds": f"{np.median([line['seconds'] for line in trainings]):.1f}",
    }


if __name__ == "__main__":
    campaign(cases, run, columns, groups=by_case("training"), seeds=200)
