"""Run `dpaudit check` on every planted defect and on honest mechanisms: verdict, deciding game, bound, seconds.

    python -m benchmarks.check_defects RUNS.jsonl [--only honest] [--seeds N] [--write]

`check` receives the mechanism alone; DP-SGD also receives digits, to have learnable data. A VIOLATION
of an honest mechanism is a false positive, allowed in at most one of a thousand runs.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from benchmarks.campaign import by_case, campaign
from dpaudit import Claim, Relation, Report, RunOptions, Verdict, check
from dpaudit.mechanisms.adapters.diffprivlib import PYTHON

ROOT = Path(__file__).parent.parent
SPECS = ROOT / "examples" / "violations"
HERE = RunOptions(runner="in-process", figures=False, repeats=0)
FLAT_DIGITS = {"name": "digits", "flat": True}
MODEL = {"name": "mlp", "hidden": [32], "epochs": 10, "batch_size": 70, "learning_rate": 1.0, "momentum": 0.0}


@dataclass(frozen=True)
class Checked:
    """A mechanism and the arguments of its check.

    Attributes:
        mechanism: The mechanism, as in a spec.
        claim: Claim that replaces the mechanism's.
        data: Data, as in a spec; None for generated data.
        budget: Budget of one check.
    """

    mechanism: dict[str, Any]
    claim: Claim | None = None
    data: Any = None
    budget: str = "5m"


def of(name: str, **fields: Any) -> Checked:
    """Return a mechanism that claims epsilon 1."""
    return Checked({"name": name, "epsilon": 1.0, **fields})


def dp_sgd(name: str, *, budget: str = "5m") -> Checked:
    """Return DP-SGD of ten epochs on digits, with epsilon 1."""
    mechanism = {"name": name, "epsilon": 1.0, "sample_rate": 0.1, "model": MODEL}
    return Checked(mechanism, data=FLAT_DIGITS, budget=budget)


def labels(mechanism: str, **fields: Any) -> Checked:
    """Return a label mechanism with noise on one-hot vectors, and a model that memorises them."""
    return Checked({"name": "noisy-one-hot-labels", "labels": {"name": mechanism, "epsilon": 1.0, **fields}})


def votes(name: str, teachers: int, model: Any) -> Checked:
    """Return PATE on digits, whose teachers answer 600 rows."""
    settings = {"teachers": teachers, "queries": 600, "vote": "argmax", "model": model}
    return Checked({"name": name, "epsilon": 1.0, **settings}, data=FLAT_DIGITS)


def of_spec(stem: str) -> Checked:
    """Return the mechanism and the data of a spec in `examples/violations`."""
    content = yaml.safe_load((SPECS / f"{stem}.yaml").read_text(encoding="utf-8"))
    stated = content.get("claim")
    claim = stated and Claim(stated["epsilon"], relation=Relation(stated["relation"]))
    return Checked(content["mechanism"], claim, content["data"])


def has_diffprivlib() -> bool:
    """Return True if the environment names a Python with diffprivlib; set it to that of `make diffprivlib`."""
    interpreter = ROOT / ".venv-diffprivlib" / "bin" / "python"
    if interpreter.exists():
        os.environ.setdefault(PYTHON, str(interpreter))
    return PYTHON in os.environ


LOGISTIC = {"name": "logistic-regression"}
DEFECTS = {
    "rr-twice-the-claim": Checked({"name": "randomized-response", "epsilon": 2.0}, Claim(1.0)),
    "rr-leaky": of("rr-leaky"),
    "rr-binary-formula": of("tests.bank.planted_learners:BinaryFormulaResponse"),
    "rr-one-draw-per-label": of("tests.bank.planted_learners:OneDrawPerLabelResponse"),
    "rr-constant-seed": of("tests.bank.planted_learners:ConstantSeedResponse"),
    "half-scale, labels": of("tests.bank.planted_learners:OneHotLaplaceHalfScale"),
    "sigma-for-b, labels": of("tests.bank.planted_learners:OneHotLaplaceSigmaForB"),
    "half-scale": labels("tests.bank.planted_learners:OneHotLaplaceHalfScale"),
    "sigma-for-b": labels("tests.bank.planted_learners:OneHotLaplaceSigmaForB"),
    "alibi-half-scale": Checked(
        {"name": "tests.bank.planted_learners:AlibiHalfScale", "epsilon": 1.0, "model": "mlp"}, data=FLAT_DIGITS
    ),
    "noise-averaged": of("planted-lp-1st-drawn-again", draws=2, model="recall"),
    "noise-redrawn": of("planted-lp-1st-drawn-again", draws=10, model="recall"),
    "prior-not-paid-for": of(
        "tests.bank.planted_learners:LP1STDomainPriorUncharged", prior_epsilon=4.0, clusters=7_000, model="recall"
    ),
    "lp-2st-reused-randomness": of("tests.bank.planted_learners:LP2STReusedRandomness", model="recall"),
    "votes-without-noise": votes("tests.bank.planted_learners:PATEWithoutNoise", 1, "recall"),
    "votes-without-noise-20-teachers": votes("tests.bank.planted_learners:PATEWithoutNoise", 20, LOGISTIC),
    "naive-bayes-exposed-size": Checked(
        {"name": "planted-naive-bayes-exposed-size", "epsilon": 0.1}, data={"name": "iris"}
    ),
    "dp-sgd-half-the-noise": dp_sgd("planted-half-the-noise"),
    "dp-sgd-no-clipping": dp_sgd("planted-no-clipping"),
    "dp-sgd-clip-each-coordinate": dp_sgd("tests.bank.planted_dp_sgd:ClipEachCoordinateDpSgd"),
    "dp-sgd-noise-seeded-each-step": dp_sgd("tests.bank.planted_dp_sgd:NoiseSeededEachStepDpSgd"),
    "dp-sgd-fixed-batches": dp_sgd("tests.bank.planted_dp_sgd:FixedBatchesDpSgd"),
    "dp-sgd-shuffled-batches": dp_sgd("tests.bank.planted_dp_sgd:ShuffledBatchesDpSgd"),
    "dp-sgd-clip-doubled": dp_sgd("tests.bank.planted_dp_sgd:ClipDoubledAfterWarmUpDpSgd"),
    "dp-sgd-clip-batch-mean": dp_sgd("planted-clip-batch-mean"),
    "dp-sgd-noise-over-batch": dp_sgd("planted-noise-over-batch"),
    "dp-sgd-no-noise-in-last-step": dp_sgd("tests.bank.planted_dp_sgd:NoNoiseInLastStepDpSgd"),
}
"""Planted defects by name; the name is that of a spec in `examples/violations` if there is one."""
LIBRARY = ("forest-labels", "logistic-norm", "naive-bayes-bounds", "naive-bayes-counts", "naive-bayes-shares")
HONEST = {
    "rr": of("randomized-response"),
    "rr with prior": of("rr-with-prior", prior=[0.3, 0.2, *[0.5 / 8] * 8]),
    "one-hot": of("one-hot-laplace"),
    "noisy rows": labels("one-hot-laplace"),
    "lp-1st": of("lp-1st", model="recall"),
    "lp-2st": of("lp-2st", model="recall"),
    "pate, 20 teachers": votes("pate", 20, LOGISTIC),
    "dp-sgd": dp_sgd("dp-sgd", budget="5m, 512 trainings"),
}


def checked_here(mechanism: Any, data: Any, **options: Any) -> Report:
    """Return the report of a check in this process, without a run folder."""
    with tempfile.TemporaryDirectory() as folder:
        return check(mechanism, data, run=HERE, output=Path(folder) / "run", quiet=True, **options)


SETS = {"defects": DEFECTS, "honest": HONEST}


def cases(seeds: int) -> Iterator[dict[str, Any]]:
    """Yield set, mechanism and seed of each check."""
    for seed in range(seeds):
        yield from (
            {"set": name, "mechanism": each, "seed": seed} for name, mechanisms in SETS.items() for each in mechanisms
        )


def run(set: str, mechanism: str, seed: int) -> dict[str, Any]:
    """Return what one check found."""
    began, checked = time.monotonic(), SETS[set][mechanism]
    report = checked_here(checked.mechanism, checked.data, claim=checked.claim, budget=checked.budget, seed=seed)
    joint = report.joint
    assert joint is not None
    test = joint.deciding
    return {
        "verdict": joint.verdict.value,
        "game": None if test is None else test.name,
        "headline": joint.answer.headline,
        "not_confirmed": [
            test.name
            for test in joint.tests
            if test.name in joint.confirmations and test.verdict is not Verdict.VIOLATION
        ],
        "played": {result.name: result.headline for result in report.results},
        "failures": [failure.error for result in report.results for failure in result.failures],
        "seconds": round(time.monotonic() - began, 1),
    }


def columns(checks: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return first passes and verdicts of a mechanism, the games that rejected it, and the seconds."""
    violations = [line for line in checks if line["verdict"] == Verdict.VIOLATION.value]
    took = [line["seconds"] for line in checks]
    return {
        "refuted in the first pass": str(len(violations) + sum(bool(line["not_confirmed"]) for line in checks)),
        "VIOLATION": str(len(violations)),
        "game": ", ".join(sorted({str(line["game"]) for line in violations})),
        "seconds, median": f"{statistics.median(took):.0f}",
        "slowest": f"{max(took):.0f}",
    }


if __name__ == "__main__":
    campaign(
        cases,
        run,
        columns,
        groups=by_case("mechanism"),
        program="benchmarks.check_defects",
        file="checks-of-honest-mechanisms.csv",
    )
