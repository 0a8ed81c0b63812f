"""Bounds of `table-membership` where the privacy is known, and its power against generators that leak.

`python -m benchmarks.table_membership --coverage 100` plays small audits of noisy marginals of exact epsilon, and
prints the share of bounds above it. Without `--coverage`, generators are fitted to clinical rows with the default
numbers of fits, for the outlier and for average records.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from dpaudit.engine.attacks.output_set import OutputSet
from dpaudit.engine.data.bundled import BreastCancer
from dpaudit.engine.data.table_rows import ExampleRows
from dpaudit.estimators.measures import auc
from dpaudit.estimators.scores import Scores
from dpaudit.estimators.two_world.fair_coins import FairCoins
from dpaudit.mechanisms.queries.row_function import TableRows
from dpaudit.synthetic_tables.games.membership import TableMembershipGame
from dpaudit.synthetic_tables.mechanisms.copied_rows import CopiedRows
from dpaudit.synthetic_tables.mechanisms.gaussian_copula import GaussianCopula
from dpaudit.synthetic_tables.mechanisms.independent_marginals import IndependentMarginals
from tests.engine.pair_source_kit import played_scores

SCHEMA: Mapping[str, Any] = {
    "x1": (5.0, 30.0),
    "x2": (5.0, 45.0),
    "x5": (0.0, 0.2),
    "x6": (0.0, 0.5),
    "x21": (5.0, 40.0),
    "x28": (0.0, 0.4),
    "diagnosis": ["malignant", "benign"],
}


def scores(mechanism: Any, data: TableRows, fits: int, seed: int, attack: Any, **fields: Any) -> Scores:
    """Return the scores of `fits` fresh fits, by an attack that learns from as many shadow fits."""
    game = TableMembershipGame(trials=fits, search=fits, stack=fits, **fields)
    return played_scores(game, mechanism, data, attack=attack, seed=seed)


def coverage(audits: int) -> float:
    """Return the share of small audits whose bound at 95 % exceeds the exact epsilon of noisy marginals."""
    rows = ExampleRows(BreastCancer(standardise=False), SCHEMA, "diagnosis").load().take(np.arange(60))
    estimator = FairCoins()
    generator = IndependentMarginals(0.1, SCHEMA, count=12, bins=3)
    above = 0
    for seed in range(audits):
        replay = scores(generator, rows, 60, seed, OutputSet(classifiers=("linear",)), rows=12)
        above += estimator.bound([estimator.tally(replay)]).lower > generator.exact_epsilon()
    return above / audits


def power(fits: int) -> None:
    """Print bound and AUC of each generator, for the outlier and for average records."""
    rows = ExampleRows(BreastCancer(standardise=False), SCHEMA, "diagnosis").load()
    marginals, estimator = IndependentMarginals(1.0, SCHEMA), FairCoins()
    generators: Sequence[tuple[str, Any]] = (
        ("marginals, epsilon 1", marginals),
        ("marginals, a quarter of the noise", replace(marginals, noise_factor=0.25)),
        ("the same, counts hidden", replace(marginals, noise_factor=0.25, measurements=False)),
        ("copies of 10 %, jitter 0.02", CopiedRows(SCHEMA, share=0.1, jitter=0.02)),
        ("Gaussian copula", GaussianCopula(SCHEMA)),
    )
    for name, mechanism in generators:
        for target in ("outlier", "average"):
            started = time.process_time()
            replay = scores(mechanism, rows, fits, 0, OutputSet(), rows=len(rows) // 2, target=target)
            bound = estimator.bound([estimator.tally(replay)]).lower
            area = auc(
                *(np.sort(replay.score[replay.truth == world]) for world in (True, False)), confidence=0.95
            ).value
            seconds = time.process_time() - started
            print(f"{name:36} {target:8} epsilon >= {bound:.3f}  AUC {area:.3f}  {seconds:.0f} s", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--coverage", type=int, help="number of audits of known privacy")
    parser.add_argument("--fits", type=int, default=1_000, help="shadow fits and fresh fits each")
    options = parser.parse_args()
    if options.coverage:
        print(f"{coverage(options.coverage):.1%} of {options.coverage} bounds exceed the exact epsilon")
    else:
        power(options.fits)
