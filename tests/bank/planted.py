"""Mechanisms of the package with a planted defect, as in `examples/violations`, and honest ones of the same kinds.

`check` receives the mechanism alone; DP-SGD also receives digits, to have learnable data.
"""

from __future__ import annotations

from typing import Any

from dpaudit import Claim
from tests.bank import Case

FLAT_DIGITS = {"name": "digits", "flat": True}
MODEL = {"name": "mlp", "hidden": [32], "epochs": 10, "batch_size": 70, "learning_rate": 1.0, "momentum": 0.0}
LOGISTIC = {"name": "logistic-regression"}
LEARNERS, DP_SGD = "tests.bank.planted_learners:", "tests.bank.planted_dp_sgd:"


def of(name: str, *, data: Any = None, epsilon: float = 1.0, **fields: Any) -> Case:
    """Return a mechanism that claims epsilon 1."""
    return Case(lambda: {"name": name, "epsilon": epsilon, **fields}, data=data)


def dp_sgd(name: str, *, budget: str = "5m") -> Case:
    """Return DP-SGD of ten epochs on digits, with epsilon 1."""
    mechanism = {"name": name, "epsilon": 1.0, "sample_rate": 0.1, "model": MODEL}
    return Case(lambda: mechanism, data=FLAT_DIGITS, budget=budget)


def labels(mechanism: str) -> Case:
    """Return a label mechanism with noise on one-hot vectors, and a model that memorises them."""
    return Case(lambda: {"name": "noisy-one-hot-labels", "labels": {"name": mechanism, "epsilon": 1.0}})


def votes(name: str, teachers: int, model: Any) -> Case:
    """Return PATE on digits, whose teachers answer 600 rows."""
    return of(name, data=FLAT_DIGITS, teachers=teachers, queries=600, vote="argmax", model=model)


DEFECTS: dict[str, Case] = {
    "rr-twice-the-claim": Case(lambda: {"name": "randomized-response", "epsilon": 2.0}, claim=Claim(1.0)),
    "rr-leaky": of("rr-leaky"),
    "rr-binary-formula": of(f"{LEARNERS}BinaryFormulaResponse"),
    "rr-one-draw-per-label": of(f"{LEARNERS}OneDrawPerLabelResponse"),
    "rr-constant-seed": of(f"{LEARNERS}ConstantSeedResponse"),
    "half-scale, labels": of(f"{LEARNERS}OneHotLaplaceHalfScale"),
    "sigma-for-b, labels": of(f"{LEARNERS}OneHotLaplaceSigmaForB"),
    "half-scale": labels(f"{LEARNERS}OneHotLaplaceHalfScale"),
    "sigma-for-b": labels(f"{LEARNERS}OneHotLaplaceSigmaForB"),
    "alibi-half-scale": of(f"{LEARNERS}AlibiHalfScale", data=FLAT_DIGITS, model="mlp"),
    "noise-averaged": of("planted-lp-1st-drawn-again", draws=2, model="recall"),
    "noise-redrawn": of("planted-lp-1st-drawn-again", draws=10, model="recall"),
    "prior-not-paid-for": of(f"{LEARNERS}LP1STDomainPriorUncharged", prior_epsilon=4.0, clusters=7_000, model="recall"),
    "lp-2st-reused-randomness": of(f"{LEARNERS}LP2STReusedRandomness", model="recall"),
    "votes-without-noise": votes(f"{LEARNERS}PATEWithoutNoise", 1, "recall"),
    "votes-without-noise-20-teachers": votes(f"{LEARNERS}PATEWithoutNoise", 20, LOGISTIC),
    "naive-bayes-exposed-size": of("planted-naive-bayes-exposed-size", data={"name": "iris"}, epsilon=0.1),
    "dp-sgd-half-the-noise": dp_sgd("planted-half-the-noise"),
    "dp-sgd-no-clipping": dp_sgd("planted-no-clipping"),
    "dp-sgd-clip-each-coordinate": dp_sgd(f"{DP_SGD}ClipEachCoordinateDpSgd"),
    "dp-sgd-noise-seeded-each-step": dp_sgd(f"{DP_SGD}NoiseSeededEachStepDpSgd"),
    "dp-sgd-fixed-batches": dp_sgd(f"{DP_SGD}FixedBatchesDpSgd"),
    "dp-sgd-shuffled-batches": dp_sgd(f"{DP_SGD}ShuffledBatchesDpSgd"),
    "dp-sgd-clip-doubled": dp_sgd(f"{DP_SGD}ClipDoubledAfterWarmUpDpSgd"),
    "dp-sgd-clip-batch-mean": dp_sgd("planted-clip-batch-mean"),
    "dp-sgd-noise-over-batch": dp_sgd("planted-noise-over-batch"),
    "dp-sgd-no-noise-in-last-step": dp_sgd(f"{DP_SGD}NoNoiseInLastStepDpSgd"),
}
"""Planted defects by name; the name is that of a spec in `examples/violations` if there is one."""
HONEST: dict[str, Case] = {
    "rr": of("randomized-response"),
    "rr with prior": of("rr-with-prior", prior=[0.3, 0.2, *[0.5 / 8] * 8]),
    "one-hot": of("one-hot-laplace"),
    "noisy rows": labels("one-hot-laplace"),
    "lp-1st": of("lp-1st", model="recall"),
    "lp-2st": of("lp-2st", model="recall"),
    "pate, 20 teachers": votes("pate", 20, LOGISTIC),
    "dp-sgd": dp_sgd("dp-sgd", budget="5m, 512 trainings"),
}
