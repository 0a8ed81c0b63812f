"""Rejection rates of the audits in `examples/dp-sgd-steps.yaml`, over many seeds.

    python -m benchmarks.dp_sgd_steps RUNS [FILE]

Each run adds a line of JSON to FILE. The program skips runs that FILE has, so the same command resumes. Planted defects
get a tenth of the runs.
Prints for each audit: runs, refuted, median number of steps after which the claim was refuted, median seconds.
"""

from __future__ import annotations

import json
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from dpaudit import load_spec
from dpaudit.actors.seed import Seed
from dpaudit.engine.games.steps.dp_sgd_steps import score_steps, train_steps
from dpaudit.engine.planning.plan import PlannedAudit, make_plan
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


def one_run(entry: PlannedAudit, shared: Any, number: int) -> dict[str, Any]:
    """Run one training with a separate seed, and return the evidence of its steps."""
    began = time.perf_counter()
    game, target = entry.audit.game, shared[entry.game.trainings[0].shared[0]]
    seed = Seed(number).child("honest")
    audited, attack = entry.audit.mechanism, entry.audit.attack
    steps = train_steps(
        audited, attack, game.canary, target, None, (), Compute(), size=len(target), without_search=True, seed=seed
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
        "audit": entry.audit.name,
        "run": number,
        "refuted": estimator.find([tally]).violation_point(curve) is not None,
        "steps": int(tally.looks[looked.index(True)]) if True in looked else None,
        "of": int(tally.looks[-1]),
        "p_value": guess_band_p_value(odds, tally.right, tally.looks),
        "seconds": time.perf_counter() - began,
    }


def runs(count: int, file: Path) -> Iterator[dict[str, Any]]:
    """All runs, those of the file and new ones."""
    plan = make_plan(load_spec(SPEC))
    lines = file.read_text().splitlines() if file.exists() else []
    finished = {(line["audit"], line["run"]): line for line in map(json.loads, lines)}
    for number in range(count):
        for entry in plan.audits:
            if number * 10 >= count and isinstance(entry.audit.mechanism, PLANTED):
                continue
            key = entry.audit.name, number
            if key not in finished:
                finished[key] = one_run(entry, plan.shared, number)
                with file.open("a") as out:
                    out.write(json.dumps(finished[key]) + "\n")
            yield finished[key]


def main(count: int, file: Path) -> None:
    by_audit = defaultdict(list)
    for run in runs(count, file):
        by_audit[run["audit"]].append(run)
    for name, audit_runs in by_audit.items():
        steps = [run["steps"] for run in audit_runs if run["steps"] is not None]
        seconds = np.median([run["seconds"] for run in audit_runs])
        print(
            f"{name}: {len(audit_runs)} runs, {sum(run['refuted'] for run in audit_runs)} refuted, "
            f"median step {np.median(steps) if steps else '-'} of {audit_runs[0]['of']}, {seconds:.2f} s"
        )


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2] if len(sys.argv) > 2 else "dp-sgd-steps.jsonl"))
