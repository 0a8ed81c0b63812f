"""Check thirty honest functions from textbooks and tutorials, and defective twins, with default settings.

Noise is not rounded. A check must not reject the claim of an honest function, and must name leaks that the claim does
not cover. The bound of a twin must stay below the epsilon that the twin spends.

    python -m benchmarks.textbook RUNS.jsonl [--only honest] [--seeds 3] [--write]
"""

from __future__ import annotations

import itertools
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

import dpaudit
from benchmarks.campaign import by_case, campaign
from dpaudit.claims import GaussianDP
from tests.bank import checked_here

UNIT = {"x": (0.0, 1.0)}
AGES = {"age": (0, 100)}
TWO = {"x": (0.0, 1.0), "group": ["a", "b", "c"]}
VECTOR = {"a": (-1.0, 1.0), "b": (-1.0, 1.0)}
RUN = dpaudit.RunOptions(runner="in-process", figures=False)

Rows = NDArray[np.float64]
Rng = np.random.Generator


@dataclass(frozen=True)
class Textbook:
    """A function and the arguments of its check.

    Attributes:
        function: `f(rows, rng)`.
        schema: Schema of the rows.
        claim: Claim, as an argument of `dpaudit.check`.
        relation: Neighbouring relation.
        form: Type of the table passed to the function.
        true: True epsilon of a twin, at the delta of the claim.
    """

    function: Callable[..., Any] | str
    schema: Mapping[str, Any]
    claim: Any = 1.0
    relation: str = "add-remove"
    form: str = "array"
    true: float = math.inf


def gaussian_scale(epsilon: float, delta: float, sensitivity: float = 1.0) -> float:
    """Return the noise of the classical Gaussian mechanism (Dwork and Roth 2014, Theorem A.1), for epsilon < 1."""
    return sensitivity * math.sqrt(2 * math.log(1.25 / delta)) / epsilon


def total(rows: Rows) -> float:
    """Return the sum of a clipped column."""
    return float(np.clip(rows[:, 0], 0, 1).sum())


def counts(rows: Rows, bins: int) -> NDArray[np.int64]:
    """Return a histogram of a column."""
    return np.histogram(rows[:, 0], bins=bins, range=(0, 1))[0]


def geometric(rng: Rng, epsilon: float = 1.0, size: int | None = None) -> Any:
    """Return two-sided geometric noise."""
    p = 1 - math.exp(-epsilon)
    return rng.geometric(p, size) - rng.geometric(p, size)


def responses(rows: Rows, rng: Rng) -> NDArray[np.bool_]:
    """Return randomised responses of epsilon 1."""
    truth = rows[:, 0] > 0.5
    truthful = rng.random(len(truth)) < math.e / (1 + math.e)
    return np.where(truthful, truth, ~truth)


def group_means(rows: Any, rng: Rng) -> dict[str, float]:
    means = {}
    for word in "abc":
        of_group = rows[rows["group"] == word]["x"].clip(0, 1)
        means[word] = (of_group.sum() + rng.laplace(0, 2)) / max(1, len(of_group) + rng.laplace(0, 2))
    return means


def exponential_by_choice(rows: Rows, rng: Rng) -> int:
    bins = counts(rows, 5)
    weights = np.exp((bins - bins.max()) / 2)
    return int(rng.choice(5, p=weights / weights.sum()))


def median_by_exponential_mechanism(rows: Rows, rng: Rng) -> int:
    ages = np.sort(rows[:, 0])
    candidates = np.arange(101)
    below = np.searchsorted(ages, candidates)
    above = len(ages) - np.searchsorted(ages, candidates, side="right")
    score = -np.abs(below - above) / 2
    return int((score / 2 + rng.gumbel(size=101)).argmax())


def quantile_by_exponential_mechanism(rows: Rows, rng: Rng) -> float:
    """Return Smith's (2011) quantile: an interval drawn by its length and rank, then a uniform point in it."""
    values = np.concatenate([[0.0], np.sort(np.clip(rows[:, 0], 0, 1)), [1.0]])
    lengths = np.diff(values)
    rank = -np.abs(np.arange(len(lengths)) - 0.75 * (len(values) - 2))
    with np.errstate(divide="ignore"):
        place = int((np.log(lengths) + rank / 2 + rng.gumbel(size=len(lengths))).argmax())
    return float(rng.uniform(values[place], values[place + 1]))


def variance(rows: Rows, rng: Rng) -> float:
    n = max(1.0, len(rows) + rng.laplace(0, 3))
    x = np.clip(rows[:, 0], 0, 1)
    first, second = x.sum() + rng.laplace(0, 3), (x * x).sum() + rng.laplace(0, 3)
    return float(second / n - (first / n) ** 2)


def report_above_threshold(rows: Rows, rng: Rng) -> list[bool]:
    """Return sparse vector answers up to the first above the threshold (Dwork and Roth 2014, alg. 1)."""
    threshold, answers = 20 + rng.laplace(0, 2), []
    for cut in np.linspace(0.9, 0.0, 10):
        above = (rows[:, 0] >= cut).sum() + rng.laplace(0, 4) >= threshold
        answers.append(bool(above))
        if above:
            break
    return answers


def clipped_gradient(rows: Rows, rng: Rng) -> Rows:
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    gradient = (rows / np.maximum(1, norms)).sum(axis=0)
    return gradient + rng.normal(0, gaussian_scale(0.9, 1e-5), 2)


def opacus_step(rows: Rows, rng: Rng) -> Any:
    """Return one step of Opacus's optimizer on a linear model, with Opacus's noise and clipping."""
    import torch
    from opacus.grad_sample import GradSampleModule
    from opacus.optimizers import DPOptimizer

    model = GradSampleModule(torch.nn.Linear(2, 1, bias=False))
    with torch.no_grad():
        for weight in model.parameters():
            weight.zero_()
    optimizer = DPOptimizer(
        torch.optim.SGD(model.parameters(), lr=1.0),
        noise_multiplier=gaussian_scale(0.9, 1e-5),
        max_grad_norm=1.0,
        expected_batch_size=1,
        generator=torch.Generator().manual_seed(int(rng.integers(2**31))),
    )
    batch = torch.as_tensor(np.ascontiguousarray(rows), dtype=torch.float32)
    if len(batch) == 0:
        batch = torch.zeros((1, 2))
    optimizer.zero_grad()
    (model(batch).squeeze(1) * 5).sum().backward()
    optimizer.step()
    return next(weight.detach().numpy().copy() for weight in model.parameters())


GAUSSIAN = gaussian_scale(0.9, 1e-5)
HONEST: Mapping[str, Textbook] = {
    "Laplace sum": Textbook(lambda rows, rng: total(rows) + rng.laplace(0, 1), UNIT),
    "Laplace sum of a frame": Textbook(
        lambda rows, rng: float(rows["x"].clip(0, 1).sum() + rng.laplace(0, 1)), UNIT, form="frame"
    ),
    "Laplace count": Textbook(lambda rows, rng: len(rows) + rng.laplace(0, 1), UNIT),
    "Laplace count above a limit": Textbook(lambda rows, rng: int((rows[:, 0] > 0.5).sum()) + rng.laplace(0, 1), UNIT),
    "Laplace sum, limited": Textbook(lambda rows, rng: float(np.clip(total(rows) + rng.laplace(0, 1), 0, 100)), UNIT),
    "Gaussian sum": Textbook(lambda rows, rng: total(rows) + rng.normal(0, GAUSSIAN), UNIT, (0.9, 1e-5)),
    "Gaussian count": Textbook(lambda rows, rng: len(rows) + rng.normal(0, GAUSSIAN), UNIT, (0.9, 1e-5)),
    "mean, n public": Textbook(
        lambda rows, rng: float(np.clip(rows[:, 0], 0, 1).mean() + rng.laplace(0, 1 / len(rows))),
        UNIT,
        relation="replace",
    ),
    "mean of noisy sum and noisy n": Textbook(
        lambda rows, rng: (total(rows) + rng.laplace(0, 2)) / max(1.0, len(rows) + rng.laplace(0, 2)), UNIT
    ),
    "noisy sum and noisy n": Textbook(
        lambda rows, rng: {"sum": total(rows) + rng.laplace(0, 2), "count": len(rows) + rng.laplace(0, 2)}, UNIT
    ),
    "histogram": Textbook(lambda rows, rng: counts(rows, 10) + rng.laplace(0, 1, 10), UNIT),
    "histogram without negatives": Textbook(
        lambda rows, rng: np.maximum(0, counts(rows, 10) + rng.laplace(0, 1, 10)), UNIT
    ),
    "counts of words": Textbook(
        lambda rows, rng: {word: (rows["group"] == word).sum() + rng.laplace(0, 1) for word in "abc"}, TWO, form="frame"
    ),
    "group means": Textbook(group_means, TWO, form="frame"),
    "noisy max": Textbook(lambda rows, rng: int((counts(rows, 5) + rng.laplace(0, 2, 5)).argmax()), UNIT),
    "exponential mechanism by Gumbel noise": Textbook(
        lambda rows, rng: int((counts(rows, 5) / 2 + rng.gumbel(size=5)).argmax()), UNIT
    ),
    "exponential mechanism by choice": Textbook(exponential_by_choice, UNIT),
    "geometric count": Textbook(lambda rows, rng: int(len(rows) + geometric(rng)), UNIT),
    "geometric histogram": Textbook(lambda rows, rng: counts(rows, 4) + geometric(rng, size=4), UNIT),
    "randomised response, count": Textbook(lambda rows, rng: int(responses(rows, rng).sum()), UNIT, relation="replace"),
    "randomised response, answers": Textbook(responses, UNIT, relation="replace"),
    "median by exponential mechanism": Textbook(median_by_exponential_mechanism, AGES),
    "quantile by exponential mechanism": Textbook(quantile_by_exponential_mechanism, UNIT),
    "variance of three noisy sums": Textbook(variance, UNIT),
    "above threshold": Textbook(report_above_threshold, UNIT),
    "clipped gradient": Textbook(clipped_gradient, VECTOR, (0.9, 1e-5)),
    "Opacus, one step": Textbook(opacus_step, VECTOR, (0.9, 1e-5)),
    "count in a text": Textbook(lambda rows, rng: f"about {len(rows) + rng.laplace(0, 1):.2f} people", UNIT),
    "rounded count in a dict": Textbook(
        lambda rows, rng: {"n": round(len(rows) + rng.laplace(0, 1)), "unit": "people"}, UNIT
    ),
    "diffprivlib, mean": Textbook("benchmarks.textbook_diffprivlib:mean", UNIT, relation="replace"),
    "diffprivlib, Laplace": Textbook("benchmarks.textbook_diffprivlib:laplace", UNIT),
}
TWINS: Mapping[str, Textbook] = {
    "Laplace sum, half the noise": Textbook(lambda rows, rng: total(rows) + rng.laplace(0, 0.5), UNIT, true=2.0),
    "Laplace sum, noise 1.2 times too small": Textbook(
        lambda rows, rng: total(rows) + rng.laplace(0, 1 / 1.2), UNIT, true=1.2
    ),
    "Laplace sum, sensitivity 2": Textbook(
        lambda rows, rng: float(np.clip(rows[:, 0], 0, 2).sum() * 2 + rng.laplace(0, 1)), UNIT, true=2.0
    ),
    "sum and n, epsilon spent twice": Textbook(
        lambda rows, rng: {"sum": total(rows) + rng.laplace(0, 1), "n": len(rows) + rng.laplace(0, 1)}, UNIT, true=2.0
    ),
    "Gaussian sum, a quarter of the noise": Textbook(
        lambda rows, rng: total(rows) + rng.normal(0, GAUSSIAN / 4),
        UNIT,
        (0.9, 1e-5),
        true=GaussianDP(4 / GAUSSIAN).epsilon(1e-5),
    ),
    "histogram, half the noise": Textbook(lambda rows, rng: counts(rows, 10) + rng.laplace(0, 0.5, 10), UNIT, true=2.0),
    "noisy max of twice the counts": Textbook(
        lambda rows, rng: int((2 * counts(rows, 5) + rng.laplace(0, 1, 5)).argmax()), UNIT, true=4.0
    ),
    "geometric count, half the noise": Textbook(lambda rows, rng: int(len(rows) + geometric(rng, 2.0)), UNIT, true=2.0),
}
SETS: Mapping[str, Mapping[str, Textbook]] = {
    "honest": HONEST,
    "strict": HONEST,
    "twins": TWINS,
}


def cases(seeds: int) -> Iterator[dict[str, Any]]:
    """Yield set, function and seed of each check."""
    for which, seed in itertools.product(SETS, range(seeds)):
        yield from ({"set": which, "function": name, "seed": seed} for name in SETS[which])


def run(set: str, function: str, seed: int) -> dict[str, Any]:
    """Check one function and return its result."""
    case, began = SETS[set][function], time.monotonic()
    line = {
        "claimed": case.claim if isinstance(case.claim, float) else case.claim[0],
        "true": "" if math.isinf(case.true) else f"{case.true:.3g}",
    }
    python = {"python": os.path.abspath(os.environ.get("DPAUDIT_DIFFPRIVLIB_PYTHON", ".venv-diffprivlib/bin/python"))}
    options = {"claim": case.claim, "relation": case.relation, "form": case.form, "seed": seed}
    options |= python if isinstance(case.function, str) else {}
    strict = "all" if set == "strict" else ""
    try:
        report = checked_here(case.function, None, schema=case.schema, strict=strict, run=RUN, **options)
    except dpaudit.AuditError as err:
        return line | {"verdict": f"error: {err}", "bound": None, "side": []}
    assert report.joint is not None
    answer = report.joint.answer
    comparison = None if answer.test is None else answer.test.comparison
    return line | {
        "verdict": answer.verdict.value,
        "bound": None if comparison is None else comparison.observed,
        "side": [scope.value for scope in answer.side],
        "floating_point": answer.line("floating-point").partition(" (")[0],
        "seconds": round(time.monotonic() - began),
    }


def columns(checks: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return claim, truth, rejections, largest bound and side findings of a function."""
    bounds = [line["bound"] for line in checks if line["bound"] is not None]
    return {
        "claimed": str(checks[0]["claimed"]),
        "really spent": checks[0]["true"] or "at most that",
        "VIOLATION": str(sum(line["verdict"] == "VIOLATION" for line in checks)),
        "largest bound": f"{max(bounds):.3f}" if bounds else "",
        "side findings": ", ".join(dict.fromkeys(scope for line in checks for scope in line["side"])) or "none",
    }


if __name__ == "__main__":
    campaign(cases, run, columns, groups=by_case("set", "function"), seeds=3)
