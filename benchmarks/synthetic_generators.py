"""Audit generators of synthetic tables with a known epsilon, and planted defects of them, each with three neighbours.

    python -m benchmarks.synthetic_generators RUNS.jsonl [--only honest tight] [--seeds 100] [--write]

All audits play the test of the claim that `dpaudit check` plays, without the tests of side
findings: `honest` and `defects` with a quick effort, `tight` with 10,000 fits. Honest audits try fast classifiers only:
whether a bound holds does not depend on the attack.
"""

from __future__ import annotations

import itertools
import math
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.campaign import campaign
from dpaudit import Relation, Report, RunOptions, audit
from dpaudit.engine.attacks.output_set import OutputSet
from dpaudit.engine.request.check import CheckOptions, CheckRequest, check_spec
from dpaudit.estimators.bound import Bound
from dpaudit.synthetic_tables.mechanisms.independent_marginals import IndependentMarginals
from dpaudit.synthetic_tables.mechanisms.schema_generator import ColumnCells, Releases
from dpaudit.synthetic_tables.mechanisms.table_summary import CellGrid, TableBatch

SCHEMA: dict[str, Any] = {"age": [0, 100], "city": ["a", "b", "c", "d"], "income": [0.0, 1e5]}
EPSILONS = (1.0, 4.0)
TIGHT_SEEDS = 5
FITS = 10_000
SEARCH_SHARE = 0.25
FAST_ATTACK = OutputSet(("laplace", "moved-laplace", "linear", "atoms"))
HERE = RunOptions(runner="in-process", figures=False, repeats=0)
Floats = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class PlantedMarginals(IndependentMarginals):
    """Noisy marginals with one of the defects below; `size` says how large it is, in the words of `DEFECTS`."""

    defect: str = ""
    columns: tuple[str, ...] = ("age", "city", "income")
    size: float = 0.0

    def released_count(self, rows: pa.Table) -> int:
        if self.defect != "row count":
            return super().released_count(rows)
        step = int(self.size)
        return max(1, len(rows) // step * step)

    def scales(self, rows: int) -> dict[str, float]:
        scales = super().scales(rows)
        factors = {"noise over n": 1 / max(1.0, float(rows) ** self.size), "less noise": self.size}
        factor = factors.get(self.defect, 1.0)
        return {name: scale * (factor if name in self.columns else 1.0) for name, scale in scales.items()}

    def _cells(self, rows: pa.Table) -> dict[str, ColumnCells]:
        cells = super()._cells(rows)
        if self.defect != "bounds from data":
            return cells
        for name in self.columns:
            numbers = np.asarray(rows[name].to_numpy(zero_copy_only=False), np.float64)
            column: Any = cells[name].grid.column
            if len(numbers):
                low, high = np.quantile(numbers, [self.size, 1 - self.size]).tolist()
                low, high = (math.floor(low), math.ceil(high)) if column.whole else (low, high)
                cells[name] = ColumnCells(CellGrid(replace(column, low=low, high=high), self.bins))
        return cells

    def exact_counts(self, name: str, column: ColumnCells, rows: pa.Table) -> Floats:
        if self.defect != "weights not clipped":
            return super().exact_counts(name, column, rows)
        weights = 1 + (self.size - 1) * rows["income"].to_numpy() / 1e5  # survey weights of up to `size`, assumed 1
        counts: Floats = np.bincount(column.codes(rows[name]), weights, column.count + 1).astype(np.float64)
        return counts[: column.count]

    def noisy_counts(self, name: str, exact: Floats, noise: Floats) -> Floats:
        if self.defect == "domain from data" and name in self.columns:
            noise = np.where(exact >= self.size, noise, 0.0)
        if self.defect == "cells without noise" and name in self.columns:
            noise = np.where(np.arange(len(exact)) >= len(exact) * (1 - self.size), 0.0, noise)
        return super().noisy_counts(name, exact, noise)

    def releases(self, rows: pa.Table, count: int, seeds: Sequence[int]) -> Releases:
        released = super().releases(rows, count, seeds)
        if self.defect != "looks again":
            return released
        return replace(released, tables=_looked_again(released.tables, rows, self.size, seeds))


def _looked_again(tables: TableBatch, rows: pa.Table, size: float, seeds: Sequence[int]) -> TableBatch:
    """Return tables after a second look at the real rows.

    Size 1 replaces rows whose combination of decade and city does not occur in the real rows by the first row. Size 2
    does so with cities that do not occur, size 3 with ages above the largest real one. Size 4 moves incomes to the
    nearest real one.
    """
    words = ["a", "b", "c", "d"]
    ages, incomes = (rows[name].to_numpy() for name in ("age", "income"))
    cities = np.array([words.index(word) for word in rows["city"].to_pylist()], np.int64)
    columns = dict(tables.columns)
    age, city, income = (columns[name] for name in ("age", "city", "income"))
    if size == 1:
        possible = np.isin(age // 10 * 10 + city, ages // 10 * 10 + cities)
    elif size == 2:
        possible = np.isin(city, cities)
    elif size == 3:
        possible = age <= (ages.max() if len(ages) else 100)
    else:
        ordered = np.sort(incomes) if len(incomes) else np.zeros(1)
        above = np.clip(np.searchsorted(ordered, income), 1, max(1, len(ordered) - 1))
        low, high = ordered[np.minimum(above - 1, len(ordered) - 1)], ordered[np.minimum(above, len(ordered) - 1)]
        columns["income"] = np.where(np.abs(income - low) <= np.abs(high - income), low, high)
        return replace(tables, columns=columns)
    columns = {name: np.where(possible, values, values[:, :1]) for name, values in columns.items()}
    return replace(tables, columns=columns)


def planted(defect: str, size: float, *columns: str, **fields: Any) -> PlantedMarginals:
    return PlantedMarginals(1.0, SCHEMA, defect=defect, size=size, columns=columns or tuple(SCHEMA), **fields)


REPLACE = {"relation": Relation.REPLACE}
DEFECTS: dict[str, dict[str, PlantedMarginals]] = {
    "domain from data": {
        "cells that occur": planted("domain from data", 1),
        "of one column": planted("domain from data", 1, "city"),
        "cells that occur twice": planted("domain from data", 2),
        "cells with 10 rows": planted("domain from data", 10),
    },
    "bounds from data": {
        "minimum and maximum": planted("bounds from data", 0, "age", "income"),
        "of one column": planted("bounds from data", 0, "income"),
        "quantiles 5 % and 95 %": planted("bounds from data", 0.05, "age", "income"),
        "quartiles": planted("bounds from data", 0.25, "age", "income"),
    },
    "noise over n": {
        "all columns": planted("noise over n", 1),
        "of one column": planted("noise over n", 1, "age"),
        "over the root of n": planted("noise over n", 0.5),
        "over the fourth root of n": planted("noise over n", 0.25),
    },
    "too little noise": {
        "a quarter": planted("less noise", 0.25),
        "a third": planted("less noise", 1 / 3),
        "half": planted("less noise", 0.5),
        "a quarter in two columns": planted("less noise", 0.25, "age", "city"),
    },
    "one marginal without noise": {
        "age": planted("less noise", 1e-9, "age"),
        "city": planted("less noise", 1e-9, "city"),
        "the upper half of its cells": planted("cells without noise", 0.5, "income"),
        "its last cell": planted("cells without noise", 0.1, "income"),
    },
    "epsilon not split": {
        "all columns": planted("less noise", 1 / 3),
        "split over two of three": planted("less noise", 2 / 3),
        "two columns": planted("less noise", 1 / 3, "age", "income"),
        "one column": planted("less noise", 1 / 3, "age"),
    },
    "sensitivity 1 under replace": {
        "all columns": planted("less noise", 0.5, **REPLACE),
        "root of 2": planted("less noise", math.sqrt(0.5), **REPLACE),
        "two columns": planted("less noise", 0.5, "age", "city", **REPLACE),
        "one column": planted("less noise", 0.5, "age", **REPLACE),
    },
    "weights not clipped": {
        "up to 10": planted("weights not clipped", 10),
        "up to 5": planted("weights not clipped", 5),
        "up to 3": planted("weights not clipped", 3),
        "up to 2": planted("weights not clipped", 2),
    },
    "row count released": {
        "exact": planted("row count", 1),
        "in pairs": planted("row count", 2),
        "rounded to 10": planted("row count", 10),
        "rounded to 25": planted("row count", 25),
    },
    "looks at the data again": {
        "rejects combinations": planted("looks again", 1),
        "rejects cities": planted("looks again", 2),
        "rejects ages": planted("looks again", 3),
        "moves incomes to real ones": planted("looks again", 4),
    },
}
"""Planted defects, each with three neighbours."""


def audited(
    mechanism: IndependentMarginals, seed: int, fits: int | None = None, attack: OutputSet | None = None
) -> dict[str, Any]:
    """Audit a generator by the test of its claim and return what was found.

    `fits` replaces those of a quick check, `attack` its attack.
    """
    began = time.process_time()
    spec = check_spec(CheckRequest(mechanism), CheckOptions(effort="quick", seed=seed, run=HERE))
    (first, *_), together = spec.audits, spec.together
    assert together is not None
    if fits is not None:
        search = int(fits * SEARCH_SHARE)
        first = replace(first, game=replace(first.game, search=search, trials=fits - search))
    first = first if attack is None else replace(first, attack=attack)
    spec = replace(
        spec, audits=(first,), together=replace(together, side={}, again={first.name: together.again[first.name]})
    )
    with tempfile.TemporaryDirectory() as folder:
        report: Report = audit(spec, output=Path(folder) / "run", quiet=True)
    assert report.joint is not None
    finding = report.joint.tests[0].finding
    return {
        "verdict": report.joint.verdict.value,
        "bound": finding.lower if isinstance(finding, Bound) else None,
        "fits": first.game.search + first.game.trials,
        "seconds": round(time.process_time() - began, 1),
    }


def cases(seeds: int) -> Iterator[dict[str, Any]]:
    """Yield kind and settings of each audit."""
    for epsilon, measured, seed in itertools.product(EPSILONS, (True, False), range(TIGHT_SEEDS)):
        yield {"kind": "tight", "epsilon": epsilon, "measurements": measured, "seed": seed}
    for epsilon in EPSILONS:
        yield {
            "kind": "defects",
            "defect": f"a quarter of the noise, claimed {epsilon:g}",
            "epsilon": epsilon,
            "seed": 0,
        }
    for defect, mechanisms in DEFECTS.items():
        yield from ({"kind": "defects", "defect": defect, "neighbour": each, "seed": 0} for each in mechanisms)
    for seed, epsilon in itertools.product(range(seeds), EPSILONS):
        yield {"kind": "honest", "epsilon": epsilon, "seed": seed}


def run(
    kind: str, seed: int, epsilon: float = 1.0, measurements: bool = True, defect: str = "", neighbour: str = ""
) -> dict[str, Any]:
    """Return what one audit found."""
    if kind == "tight":
        return audited(IndependentMarginals(epsilon, SCHEMA, measurements=measurements), seed, FITS)
    if kind == "honest":
        return audited(IndependentMarginals(epsilon, SCHEMA), seed, attack=FAST_ATTACK)
    if neighbour:
        return audited(DEFECTS[defect][neighbour], seed)
    return audited(IndependentMarginals(epsilon, SCHEMA, noise_factor=0.25), seed)


def groups(line: Mapping[str, Any]) -> list[tuple[dict[str, str], Mapping[str, Any]]]:
    """Return the row of an audit."""
    if line["kind"] == "defects":
        return [({name: line[name] for name in ("defect", "neighbour") if line.get(name)}, line)]
    epsilon = f"{line['epsilon']:g}"
    if line["kind"] == "honest":
        return [({"audits": "honest", "epsilon": epsilon}, line)]
    released = "table and noisy counts" if line["measurements"] else "table"
    return [({"audits": f"{FITS:,} fits", "epsilon": epsilon, "released": released}, line)]


def columns(audits: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return verdicts and bounds of a row."""
    kind, bounds = audits[0]["kind"], [line["bound"] for line in audits]
    if kind == "defects":
        return {"verdict": audits[0]["verdict"], "lower bound": "none" if bounds[0] is None else f"{bounds[0]:.2f}"}
    epsilon = audits[0]["epsilon"]
    if kind == "honest":
        return {
            "VIOLATION": str(sum(line["verdict"] == "VIOLATION" for line in audits)),
            "bounds above the truth": str(sum(bound > epsilon for bound in bounds)),
            "median bound": f"{statistics.median(bounds):.2f}",
        }
    mean = statistics.mean(bounds)
    return {
        "bound": (f"{mean:.2f}", f"({min(bounds):.2f}, {max(bounds):.2f})"),
        "share of the truth": f"{mean / epsilon:.0%}".replace("%", " %"),
    }


if __name__ == "__main__":
    campaign(cases, run, columns, groups=groups, seeds=100)
