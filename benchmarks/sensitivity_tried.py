"""Rejection rates of planted under-noising, by the factor that a check or an audit states as detectable.

    python -m benchmarks.sensitivity_tried RUNS.jsonl [--only MECHANISM ...] [--seeds 1] [--planted 40] [--write]

The program checks each honest mechanism, or audits it by one of the examples. Then it divides the mechanism's noise by
the stated factor, and repeats the run with other seeds and the same claim. 90 of 100 repeats should end in VIOLATION.
Functions of rows are checked at the effort "quick", their claims alone, the others with default settings. The last
two mechanisms leak without limit where no table was tried: they should state no factor.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from benchmarks.campaign import by_case, campaign, of_each
from dpaudit import AuditResult, Claim, Relation, Verdict, from_summary
from dpaudit.engine.request.build import build
from dpaudit.mechanisms.learners.dp_sgd import DpSgd
from dpaudit.mechanisms.models.networks import Mlp
from dpaudit.mechanisms.training.private.private_stack import PrivateStack
from dpaudit.mechanisms.training.private.private_steps import dp_sgd_epsilon
from tests.bank import checked_here, claim_alone
from tests.bank.planted import FLAT_DIGITS

EXAMPLES = Path(__file__).parent.parent / "examples"
Outcome = tuple[Verdict, AuditResult | None]
Run = Callable[[float, int], Outcome]
"""Function from a factor and a seed to the verdict and the deciding test; the run is honest at factor 1."""
CLAIM = Claim(1.0)
MODEL: dict[str, Any] = {"hidden": (32,), "epochs": 10, "batch_size": 70, "learning_rate": 1.0, "momentum": 0.0}
REPLACED = Claim(1.0, relation=Relation.REPLACE)


def mean(X: Any, y: Any, seed: int, *, factor: float) -> Any:
    """Return the mean of one coordinate in [0, 1], with Laplace noise of epsilon = `factor`."""
    return X[:, :1].mean(0) + np.random.default_rng(seed).laplace(0, 1 / len(X) / factor, 1)


def _numbers(rows: Any, low: float, high: float) -> Any:
    return np.clip(np.nan_to_num(np.asarray(rows, float), nan=low, posinf=high, neginf=low), low, high).reshape(-1)


def laplace_sum(rows: Any, rng: Any, *, factor: float) -> float:
    return float(_numbers(rows, 0, 1).sum() + rng.laplace(0, 1 / factor))


def geometric_count(rows: Any, rng: Any, *, factor: float) -> int:
    stop = -math.expm1(-factor)
    return round(_numbers(rows, 0, 1).sum()) + int(rng.geometric(stop)) - int(rng.geometric(stop))


def gaussian_sum(rows: Any, rng: Any, *, factor: float) -> float:
    return float(_numbers(rows, 0, 1).sum() + rng.normal(0, 1 / factor))


def histogram(rows: Any, rng: Any, *, factor: float) -> Any:
    counts = np.bincount(np.rint(_numbers(rows, 0, 7)).astype(int), minlength=8)
    return counts + rng.laplace(0, 1 / factor, 8)


def noisy_maximum(rows: Any, rng: Any, *, factor: float) -> int:
    """Return the place of the largest count with exponential noise."""
    counts = np.bincount(np.rint(_numbers(rows, 0, 4)).astype(int), minlength=5)
    return int(np.argmax(counts + rng.exponential(1 / factor, 5)))


def gaussian_histogram(rows: Any, rng: Any, *, factor: float) -> Any:
    counts = np.bincount(np.rint(_numbers(rows, 0, 7)).astype(int), minlength=8)
    return counts + rng.normal(0, 1 / factor, 8)


def exponential_choice(rows: Any, rng: Any, *, factor: float) -> int:
    """Return a place with probability in proportion to exp(factor * count): a row raises one count only."""
    counts = np.bincount(np.rint(_numbers(rows, 0, 4)).astype(int), minlength=5)
    return int(np.argmax(factor * counts + rng.gumbel(0, 1, 5)))


def median(rows: Any, rng: Any, *, factor: float) -> int:
    """Return a number in 0 .. 7 by the exponential mechanism; its loss is the difference of the rows on both sides."""
    numbers, candidates = np.rint(_numbers(rows, 0, 7)), np.arange(8)[:, None]
    loss = np.abs((numbers < candidates).sum(1) - (numbers > candidates).sum(1))
    return int(np.argmax(-factor * loss / 2 + rng.gumbel(0, 1, 8)))


def above_threshold(rows: Any, rng: Any, *, factor: float) -> int:
    """Return the first noisy count above a noisy threshold: both have Laplace noise of scale 2 (counts only rise)."""
    counts = np.bincount(np.rint(_numbers(rows, 0, 4)).astype(int), minlength=5)
    above = counts + rng.laplace(0, 2 / factor, 5) >= 10 + rng.laplace(0, 2 / factor)
    return int(np.argmax(above)) if above.any() else -1


def three_sums(rows: Any, rng: Any, *, factor: float) -> Any:
    return _numbers(rows, 0, 1).reshape(-1, 3).sum(0) + rng.laplace(0, 3 / factor, 3)


def mean_of_rows(rows: Any, rng: Any, *, factor: float) -> float:
    return float(_numbers(rows, 0, 1).mean() + rng.laplace(0, 1 / len(rows) / factor))


def responses(rows: Any, rng: Any, *, factor: float) -> Any:
    """Return the bit of each row, flipped with probability 1 / (1 + exp(factor))."""
    bits = np.rint(_numbers(rows, 0, 1)).astype(int)
    return bits ^ (rng.random(bits.size) >= 1 / (1 + math.exp(-factor)))


def password(rows: Any, rng: Any, *, factor: float) -> bool:
    """Return True if a number is in the rows, one of ten million, which no search tries."""
    return bool((np.rint(_numbers(rows, 0, 1e7)) == 7_294_513).any()) or rng.random() < 0.5


def password_beside(rows: Any, rng: Any, *, factor: float) -> float:
    """Return a random number, exact to the last digit if a number is in the rows."""
    return 2.0 if (np.rint(_numbers(rows, 0, 1e7)) == 7_294_513).any() else float(rng.normal())


def labels(name: str, **fields: Any) -> Callable[[float], tuple[Any, Claim, Any]]:
    """Return a mechanism for labels whose noise follows from epsilon."""
    return lambda factor: ({"name": name, "epsilon": factor, **fields}, CLAIM, None)


def dp_sgd(factor: float) -> tuple[Any, Claim, Any]:
    """Return DP-SGD on digits, with the noise for epsilon = 1 divided by `factor`."""
    honest = DpSgd(1.0, sample_rate=0.1, model=Mlp(**MODEL))
    noise = honest.noise_multiplier() / factor
    spent = dp_sgd_epsilon(noise_multiplier=noise, sample_rate=0.1, steps=honest.steps(), delta=honest.delta)
    return DpSgd(spent, sample_rate=0.1, model=Mlp(**MODEL)), honest.claim(), FLAT_DIGITS


def checked(make: Callable[[float], tuple[Any, Claim, Any]]) -> Run:
    """Return the run of one check with default settings."""

    def run(factor: float, seed: int) -> Outcome:
        mechanism, claim, data = make(factor)
        joint = checked_here(mechanism, data, claim=claim, seed=seed).joint
        assert joint is not None
        return joint.verdict, joint.deciding

    return run


def called(function: Callable[..., Any], schema: Mapping[str, Any], claim: Any = 1.0) -> Run:
    """Return the run of one quick check of a function of rows."""

    def run(factor: float, seed: int) -> Outcome:
        options = {"claim": claim, "schema": schema, "form": "array", "effort": "quick", "seed": seed}
        with claim_alone():
            joint = checked_here(partial(function, factor=factor), None, **options).joint
        assert joint is not None
        return joint.verdict, joint.deciding

    return run


def example(path: str, number: int, plant: Callable[[dict[str, Any], float], Any], claim: Any, **game: Any) -> Run:
    """Return the run of one audit from `examples` with these game fields; `plant` reduces the mechanism's noise."""

    def run(factor: float, seed: int) -> Outcome:
        spec = yaml.safe_load((EXAMPLES / path).read_text(encoding="utf-8"))
        chosen = spec["audits"][number] if "audits" in spec else {}
        audit = {key: value for key, value in spec.items() if key not in ("audits", "grid")} | chosen
        audit |= {"mechanism": plant(audit["mechanism"], factor), "claim": claim, "name": "under-noising"}
        audit["game"] = audit["game"] | game if game else audit["game"]
        audit["run"] = {"runner": "in-process", "figures": False, "repeats": 0}
        with tempfile.TemporaryDirectory() as folder:
            (result,) = audit(audit, output=Path(folder) / "run", seed=seed, quiet=True).results
        return result.verdict, result

    return run


def times_epsilon(mechanism: dict[str, Any], factor: float) -> dict[str, Any]:
    """Return the mechanism with its epsilon times `factor`, which determines its noise."""
    if "labels" in mechanism:
        return mechanism | {"labels": times_epsilon(mechanism["labels"], factor)}
    return mechanism | {"epsilon": mechanism["epsilon"] * factor}


@cache
def _weaker(factor: float) -> type[PrivateStack]:
    class Stack(PrivateStack):
        def noise_deviation(self, *, last: bool) -> float:
            return super().noise_deviation(last=last) / factor

    return Stack


@dataclass(frozen=True)
class UnderNoised(DpSgd):
    """DP-SGD with less noise than it accounts for."""

    too_small: float = 1.0  # how many times

    def stack_type(self) -> type[PrivateStack]:
        return _weaker(self.too_small)


def under_noised(mechanism: dict[str, Any], factor: float) -> UnderNoised:
    return UnderNoised(**vars(build("mechanism", mechanism, location="mechanism")), too_small=factor)


NATURE = {"name": "neighbours", "poisoning": "corner-flip", "copies": 4}
RUNS: dict[str, Run] = {
    "laplace sum": called(laplace_sum, {"v": (0.0, 1.0)}),
    "geometric count": called(geometric_count, {"v": (0, 1)}),
    "gaussian sum": called(gaussian_sum, {"v": (0.0, 1.0)}, "mu=1"),
    "histogram": called(histogram, {"v": (0, 7)}),
    "noisy maximum": called(noisy_maximum, {"v": (0, 4)}),
    "gaussian histogram": called(gaussian_histogram, {"v": (0, 7)}, "mu=1"),
    "exponential choice": called(exponential_choice, {"v": (0, 4)}),
    "median": called(median, {"v": (0, 7)}),
    "above threshold": called(above_threshold, {"v": (0, 4)}),
    "three sums": called(three_sums, dict.fromkeys("abc", (0.0, 1.0))),
    "mean of rows": called(mean_of_rows, {"v": (0.0, 1.0)}, REPLACED),
    "responses": called(responses, {"v": (0, 1)}, REPLACED),
    "randomized-response": checked(labels("randomized-response")),
    "one-hot-laplace": checked(labels("one-hot-laplace")),
    "lp-1st": checked(labels("lp-1st", model="recall")),
    "mean": checked(lambda factor: (from_summary(mean, REPLACED, factor=factor), REPLACED, None)),
    "dp-sgd": checked(dp_sgd),
    "dp-sgd-steps.yaml": example("dp-sgd-steps.yaml", 0, under_noised, None),
    "label-aggregation.yaml": example("label-aggregation.yaml", -1, times_epsilon, {"epsilon": 1.0}),
    "lira-digits.yaml": example("lira-digits.yaml", -1, under_noised, None),
    "ml-audit-naive-bayes.yaml": example(
        "ml-audit-naive-bayes.yaml", 0, times_epsilon, {"epsilon": 1.0, "relation": "replace"}, **NATURE
    ),
    "password": called(password, {"v": (0, 10_000_000)}),
    "password beside noise": called(password_beside, {"v": (0, 10_000_000)}),
}


def run(mechanism: str, seed: int, planted: str = "") -> dict[str, Any]:
    """Return the factor that an honest run states, and how often runs with so much less noise are rejected."""
    verdict, test = RUNS[mechanism](1.0, seed)
    factor = None if test is None else test.sensitivity.factor
    many = int(planted or 40) if factor is not None and factor < math.inf else 0
    seeds = range(1000 * (seed + 1), 1000 * (seed + 1) + many)
    return {
        "verdict": verdict.value,
        "test": None if test is None else test.name,
        "factor": "none" if factor is None else f"{factor:.2f}",
        "found": sum(RUNS[mechanism](factor or 1.0, again)[0] is Verdict.VIOLATION for again in seeds),
        "checks": many,
    }


def columns(checks: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the stated factors and the rejections."""
    return {
        "honest runs": str(len(checks)),
        "factors": ", ".join(line["factor"] for line in checks),
        "planted": str(sum(line["checks"] for line in checks)),
        "found": str(sum(line["found"] for line in checks)),
    }


if __name__ == "__main__":
    campaign(
        lambda seeds, planted: of_each(RUNS, seeds, by="mechanism"),
        run,
        columns,
        groups=by_case("mechanism"),
        counted=False,
        settings={"planted": "runs with less noise for each honest run that states a factor; 40 by default"},
    )
