"""PipelineDP, tested with 0.3.1. Rows: "records" with `key` and `value`; every row is a person of its own."""

from __future__ import annotations

import math
from typing import Any

import pipeline_dp


def by_key(rows: Any, rng: Any, epsilon: float = 1.0, delta: float = 1e-6, keys: Any = ("a", "b")) -> Any:
    """Counts and sums of values in [0, 1] by public key, or by keys that are chosen privately where `keys` is None."""
    accountant = pipeline_dp.NaiveBudgetAccountant(total_epsilon=epsilon, total_delta=delta)
    engine = pipeline_dp.DPEngine(accountant, pipeline_dp.LocalBackend())
    asked = pipeline_dp.AggregateParams(
        noise_kind=pipeline_dp.NoiseKind.LAPLACE,
        metrics=[pipeline_dp.Metrics.COUNT, pipeline_dp.Metrics.SUM],
        max_partitions_contributed=1,
        max_contributions_per_partition=1,
        min_value=0.0,
        max_value=1.0,
    )
    columns = pipeline_dp.DataExtractors(
        privacy_id_extractor=lambda row: row[0],
        partition_extractor=lambda row: row[1]["key"],
        value_extractor=lambda row: row[1]["value"],
    )
    found = engine.aggregate(list(enumerate(rows)), asked, columns, public_partitions=keys and list(keys))
    accountant.compute_budgets()
    return {key: tuple(shown) for key, shown in found}


def by_key_without_nan(rows: Any, rng: Any, epsilon: float = 1.0, delta: float = 1e-6, keys: Any = ("a", "b")) -> Any:
    """The same: a value that is no number is the middle of the range, and there is always a row (of another key)."""
    values = (row["value"] if isinstance(row["value"], float | int) else math.nan for row in rows)
    mended = [{**row, "value": value if math.isfinite(value) else 0.5} for row, value in zip(rows, values, strict=True)]
    return by_key([*mended, {"key": "none", "value": 0.5}], rng, epsilon, delta, keys)
