"""The under-noising that a check says it would have refuted, planted: how often it is refuted.

    python -m benchmarks.under_noising OUTPUT.jsonl [honest checks] [planted checks of each] [NAME ...]

Each honest mechanism is checked; then the same mechanism with its noise too small by the factor that this check stated,
with other seeds and the same claim. At least 85 of 100 should end in VIOLATION. Lines that OUTPUT has are kept.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.check_defects import FLAT_DIGITS, checked_here
from dpaudit import Claim, Relation, Report, Verdict, from_summary
from dpaudit.mechanisms.learners.dp_sgd import DpSgd, dp_sgd_epsilon
from dpaudit.mechanisms.models.networks import Mlp

CLAIM = Claim(1.0)
MODEL: dict[str, Any] = {"hidden": (32,), "epochs": 10, "batch_size": 70, "learning_rate": 1.0, "momentum": 0.0}
REPLACED = Claim(1.0, relation=Relation.REPLACE)


def mean(X: Any, y: Any, seed: int, *, factor: float) -> Any:
    """The mean of one coordinate in [0, 1], with Laplace noise of epsilon = `factor`."""
    return X[:, :1].mean(0) + np.random.default_rng(seed).laplace(0, 1 / len(X) / factor, 1)


def labels(name: str, **fields: Any) -> Callable[[float], tuple[Any, Claim, Any]]:
    """A mechanism for labels whose noise follows from epsilon."""
    return lambda factor: ({"name": name, "epsilon": factor, **fields}, CLAIM, None)


def dp_sgd(factor: float) -> tuple[Any, Claim, Any]:
    """DP-SGD on digits, with a part of the noise that epsilon = 1 takes."""
    honest = DpSgd(1.0, sample_rate=0.1, model=Mlp(**MODEL))
    noise = honest.noise_multiplier() / factor
    spent = dp_sgd_epsilon(noise_multiplier=noise, sample_rate=0.1, steps=honest.steps(), delta=honest.delta)
    return DpSgd(spent, sample_rate=0.1, model=Mlp(**MODEL)), honest.claim(), FLAT_DIGITS


MECHANISMS: dict[str, Callable[[float], tuple[Any, Claim, Any]]] = {
    "randomized-response": labels("randomized-response"),
    "one-hot-laplace": labels("one-hot-laplace"),
    "lp-1st": labels("lp-1st", model="recall"),
    "mean": lambda factor: (from_summary(mean, REPLACED, factor=factor), REPLACED, None),
}


def checked(made: tuple[Any, Claim, Any], seed: int) -> Report:
    mechanism, claim, data = made
    return checked_here(mechanism, data, claim=claim, seed=seed)


def main(output: Path, honest: int = 2, planted: int = 10, *names: str) -> None:
    """Makes the runs that are missing, then prints how often what was stated was refuted."""
    known = [json.loads(line) for line in output.read_text().splitlines()] if output.exists() else []
    done = {(line["mechanism"], line["seed"]): line for line in known}
    for name in names or MECHANISMS:
        for seed in range(honest):
            if (name, seed) in done:
                continue
            report = checked(MECHANISMS[name](1.0), seed)
            assert report.joint is not None
            look = report.joint.deciding
            factor = None if look is None else look.detectable_factor
            found = []
            for again in range(planted if factor else 0):
                joint = checked(MECHANISMS[name](factor or 1.0), 1000 * (seed + 1) + again).joint
                found.append(joint is not None and joint.verdict is Verdict.VIOLATION)
            line = {
                "mechanism": name,
                "seed": seed,
                "verdict": report.joint.verdict.value,
                "test": None if look is None else look.name,
                "factor": factor,
                "found": sum(found),
                "checks": len(found),
            }
            done[name, seed] = line
            with output.open("a") as file:
                file.write(json.dumps(line) + "\n")
            print(line, flush=True)
    print("| mechanism | honest checks | factors | planted | found |\n" + "| --- " * 5 + "|")
    for name in MECHANISMS:
        own = [line for (of, _), line in done.items() if of == name]
        factors = ", ".join(f"{line['factor']:.2f}" if line["factor"] else "none" for line in own)
        counts = (sum(line[key] for line in own) for key in ("checks", "found"))
        print(f"| {name} | {len(own)} | {factors} | {' | '.join(map(str, counts))} |")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:4]), *sys.argv[4:])
