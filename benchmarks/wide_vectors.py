"""Detection by the game `neighbours` of learners with too little noise, on banknote-like and one-hot tables.

    python -m benchmarks.wide_vectors RUNS.jsonl [--seeds 3] [--write]

The tables are generated: four numbers, as for banknotes, and 13 or 40 one-hot columns of about 470 patients. A learner
with an epsilon of `factor` is audited against a claim of 1 by 6,000 trainings, as in `dpaudit check`: 3,000 to search,
3,000 fresh.
"""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.campaign import by_case, campaign
from dpaudit import Audit, AuditSpec, Claim, Examples, Relation, RunOptions, audit
from dpaudit.engine.data.partition import Partition
from dpaudit.engine.games.neighbours.game import Neighbours
from dpaudit.engine.games.neighbours.poisonings.rows import Automatic
from dpaudit.mechanisms.learners.gaussian_naive_bayes import GaussianNaiveBayes
from dpaudit.mechanisms.learners.logistic_regression import LogisticOutputPerturbation

TRAININGS = 3_000
"""Number of search trainings, equal to the number of fresh trainings."""
LEARNERS: dict[str, Any] = {
    "naive Bayes, replace": lambda epsilon: GaussianNaiveBayes(epsilon, relation=Relation.REPLACE),
    "naive Bayes, add-remove": GaussianNaiveBayes,
    "output perturbation": LogisticOutputPerturbation,
}


def banknotes(rows: int = 1372) -> Examples:
    """Return two classes of four correlated numbers."""
    rng = np.random.default_rng(0)
    labels = (rng.random(rows) < 0.445).astype(np.int64)
    mixing = np.array([[2.0, -3.0, 1.5, 0.4], [0.0, 5.0, -4.0, 1.2], [0.0, 0.0, 3.0, -1.0], [0.0, 0.0, 0.0, 2.0]])
    numbers = rng.standard_normal((rows, 4)) @ mixing + np.where(
        labels[:, None], [-1.9, -1.0, 2.1, -1.2], [2.3, 4.3, 0.8, -1.1]
    )
    return Examples(numbers.astype(np.float32), labels, 2, "banknote-like")


def patients(columns: int, rows: int = 470) -> Examples:
    """Return two classes, 15 % of the second, with answers of two to five categories as one-hot columns."""
    rng = np.random.default_rng(columns)
    labels = (rng.random(rows) < 0.15).astype(np.int64)
    indicators: list[Any] = []
    while len(indicators) < columns:
        categories = min(int(rng.integers(2, 6)), columns - len(indicators))
        usual = rng.dirichlet(np.ones(categories), 2)
        law = usual[0] * 0.8 + usual[1] * 0.2
        values = np.array([rng.choice(categories, p=law if label else usual[0]) for label in labels])
        indicators += [values == category for category in range(categories)]
    return Examples(np.stack(indicators, 1).astype(np.float32), labels, 2, f"patients, {columns} columns")


FACTORS = (1.0, 4.0)
TABLES = {"banknotes": banknotes, "13 columns": lambda: patients(13), "40 columns": lambda: patients(40)}


def run(learner: str, table: str, factor: float, seed: int) -> dict[str, Any]:
    """Run one audit and return its line."""
    mechanism, began = LEARNERS[learner](factor), time.monotonic()
    claim = Claim(1.0, relation=mechanism.claim().relation)
    planned = Audit(
        mechanism,
        TABLES[table](),
        game=Neighbours(trials=TRAININGS, search=TRAININGS, stack=500, poisoning=Automatic(share=0.55)),
        split=Partition(target=1.0, reference=0.0, test=0.0),
        claim=claim,
    )
    run_options = RunOptions(runner="in-process", figures=False, repeats=0)
    with tempfile.TemporaryDirectory() as folder:
        spec = AuditSpec((planned,), seed=seed, confidence=0.999, run=run_options)
        (result,) = audit(spec, output=Path(folder) / "run", quiet=True).results
    assert result.comparison is not None
    return {
        "verdict": result.verdict.value,
        "observed": round(result.comparison.observed, 3),
        "detectable": result.sensitivity.factor,
        "sensitivity": result.answer.line("sensitivity"),
        "seconds": round(time.monotonic() - began, 1),
    }


def cases(seeds: int) -> Iterator[dict[str, Any]]:
    """Yield learner, table, factor and seed of each audit."""
    for factor, seed, learner, table in itertools.product(FACTORS, range(seeds), LEARNERS, TABLES):
        yield {"learner": learner, "table": table, "factor": factor, "seed": seed}


def columns(audits: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return verdicts, bounds and stated factors."""
    stated = ("none" if line["detectable"] is None else f"{line['detectable']:.2f}" for line in audits)
    return {
        "runs": str(len(audits)),
        "VIOLATION": str(sum(line["verdict"] == "VIOLATION" for line in audits)),
        "bounds": ", ".join(f"{line['observed']:.2f}" for line in audits),
        "detectable": ", ".join(stated),
    }


if __name__ == "__main__":
    campaign(cases, run, columns, groups=by_case("learner", "table", "factor"), seeds=3, counted=False)
