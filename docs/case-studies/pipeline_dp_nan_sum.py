"""PipelineDP 0.3.1, SUM: one value that is not a number makes the sum of its partition not a number."""

import math

import pipeline_dp
from two_tables import compare

ASKED = pipeline_dp.AggregateParams(
    noise_kind=pipeline_dp.NoiseKind.LAPLACE,
    metrics=[pipeline_dp.Metrics.SUM],
    max_partitions_contributed=1,
    max_contributions_per_partition=1,
    min_value=0.0,
    max_value=1.0,
)


def released(rows):
    accountant = pipeline_dp.NaiveBudgetAccountant(total_epsilon=1.0, total_delta=1e-6)
    engine = pipeline_dp.DPEngine(accountant, pipeline_dp.LocalBackend())
    columns = pipeline_dp.DataExtractors(
        privacy_id_extractor=lambda row: row[0],
        partition_extractor=lambda row: "all",
        value_extractor=lambda row: row[1],
    )
    found = engine.aggregate(list(enumerate(rows)), ASKED, columns, public_partitions=["all"])
    accountant.compute_budgets()
    return float(dict(found)["all"][0])


def filled(rows):
    return released([0.5 if math.isnan(value) else value for value in rows])


plain = 50 * [0.5]
broken = [*plain, math.nan]
compare("sum", released, plain, broken, claim=1, runs=10_000, delta=1e-6)
compare("values that are none set to 0.5 beforehand", filled, plain, broken, claim=1, runs=10_000, delta=1e-6)
