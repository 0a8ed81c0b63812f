"""Counts of answers as Arrow: one row a query and class."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa

from dpaudit.estimators.answers import AnswerCounts

SCHEMA = pa.schema(
    [
        pa.field("query", pa.int32(), metadata={"is": "number of the query, from 0"}),
        pa.field("answer", pa.int32(), metadata={"is": "number of the class, from 0"}),
        pa.field("world_1", pa.int64(), metadata={"is": "how often it was answered with the first data set"}),
        pa.field("world_0", pa.int64(), metadata={"is": "how often it was answered with its neighbour"}),
    ]
)


class AnswerTable:
    """The codec of `AnswerCounts`."""

    schema = SCHEMA

    def encode(self, evidence: Iterable[AnswerCounts]) -> pa.Table:
        """One row for each class of each query, classes in order."""
        return pa.Table.from_batches([_batch(counts) for counts in evidence], SCHEMA)

    def decode(self, table: pa.Table) -> Iterator[AnswerCounts]:
        """One query at a time, in order; rows of a query are together."""
        query = table.column("query").to_numpy()
        cuts = np.flatnonzero(np.diff(query)) + 1
        for first, last in zip([0, *cuts], [*cuts, len(query)], strict=True):
            part = table.slice(first, last - first)
            yield AnswerCounts(
                part.column("world_1").to_numpy(), part.column("world_0").to_numpy(), query=int(query[first])
            )


def _batch(counts: AnswerCounts) -> pa.RecordBatch:
    classes = counts.world_1.size
    return pa.record_batch(
        [
            pa.array(np.full(classes, counts.query, np.int32)),
            pa.array(np.arange(classes, dtype=np.int32)),
            pa.array(counts.world_1),
            pa.array(counts.world_0),
        ],
        schema=SCHEMA,
    )
