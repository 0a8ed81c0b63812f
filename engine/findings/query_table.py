"""Answers to queries as Arrow: one row a query."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa

from dpaudit.estimators.answered_queries import AnsweredQuery

_COUNTS, _NUMBERS = pa.list_(pa.int64()), pa.list_(pa.float64())
SCHEMA = pa.schema(
    [
        pa.field("query", pa.int32(), metadata={"is": "number of the query, from 0"}),
        pa.field("world_1", _COUNTS, metadata={"is": "how often each answer was given with the records"}),
        pa.field("world_0", _COUNTS, metadata={"is": "the same without them"}),
        pa.field("chosen", pa.list_(pa.bool_()), metadata={"is": "answers in the set chosen on other draws"}),
        pa.field("law_1", _NUMBERS, metadata={"is": "exact probability of each answer with the records"}),
        pa.field("law_0", _NUMBERS, metadata={"is": "the same without them"}),
        pa.field("resampled_1", pa.list_(_NUMBERS), metadata={"is": "the same by laws fitted to resampled trainings"}),
        pa.field("resampled_0", pa.list_(_NUMBERS), metadata={"is": "the same without the records"}),
        pa.field("unmoved_1", pa.list_(_NUMBERS), metadata={"is": "the same with records that change nothing"}),
        pa.field("flips_1", _NUMBERS, metadata={"is": "log probability that noise changes the winner, by histogram"}),
        pa.field("flips_0", _NUMBERS, metadata={"is": "the same without the records"}),
        pa.field("checks_1", _NUMBERS, metadata={"is": "log probability of the rarer outcome of the threshold"}),
        pa.field("checks_0", _NUMBERS, metadata={"is": "the same without the records"}),
        pa.field("sigma", pa.float64(), metadata={"is": "deviation of the noise on each count"}),
        pa.field("threshold_sigma", pa.float64(), metadata={"is": "deviation of the noise at the threshold"}),
        pa.field("fitted", pa.bool_(), metadata={"is": "whether the law of the votes is a model of it"}),
        pa.field("asked", pa.int64(), metadata={"is": "answers to it that a total counts"}),
        pa.field("together", pa.bool_(), metadata={"is": "whether all queries are about one pair of data sets"}),
    ]
)


class QueryTable:
    """The codec of `AnsweredQuery`."""

    schema = SCHEMA

    def encode(self, evidence: Iterable[AnsweredQuery]) -> pa.Table:
        """One row for each query."""
        rows = [
            {
                name: value.tolist() if isinstance(value := getattr(query, name), np.ndarray) else value
                for name in SCHEMA.names
            }
            for query in evidence
        ]
        return pa.Table.from_pylist(rows, SCHEMA)

    def decode(self, table: pa.Table) -> Iterator[AnsweredQuery]:
        """One query at a time, in order."""
        for row in table.to_pylist():
            classes = len(row["world_1"])
            yield AnsweredQuery(
                query=row["query"],
                world_1=np.array(row["world_1"], np.int64),
                world_0=np.array(row["world_0"], np.int64),
                chosen=np.array(row["chosen"], np.bool_),
                law_1=np.array(row["law_1"], np.float64),
                law_0=np.array(row["law_0"], np.float64),
                resampled_1=np.array(row["resampled_1"], np.float64).reshape(-1, classes),
                resampled_0=np.array(row["resampled_0"], np.float64).reshape(-1, classes),
                unmoved_1=np.array(row["unmoved_1"], np.float64).reshape(-1, classes),
                flips_1=np.array(row["flips_1"], np.float64),
                flips_0=np.array(row["flips_0"], np.float64),
                checks_1=np.array(row["checks_1"], np.float64),
                checks_0=np.array(row["checks_0"], np.float64),
                sigma=row["sigma"],
                threshold_sigma=row["threshold_sigma"],
                fitted=row["fitted"],
                asked=row["asked"],
                together=row["together"],
            )
