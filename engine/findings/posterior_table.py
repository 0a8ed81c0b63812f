"""Posteriors as Arrow: one row an example."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dpaudit.estimators.posteriors import Posteriors

SCHEMA = pa.schema(
    [
        pa.field("release", pa.int32(), metadata={"is": "number of the release, from 0"}),
        pa.field("bag", pa.int64(), metadata={"is": "which bag the example is released in; -1 where in none"}),
        pa.field("prior", pa.float64(), metadata={"is": "P[label = 1] before the release"}),
        pa.field("posterior", pa.float64(), metadata={"is": "P[label = 1] once the release is known"}),
        pa.field("shift", pa.float64(), metadata={"is": "how far the log-odds moved, nats; null where not known"}),
        pa.field(
            "expected", pa.float64(), metadata={"is": "additive advantage over all releases; null where not known"}
        ),
        pa.field("label", pa.int8(), metadata={"is": "the true label; null where not known"}),
    ]
)


class PosteriorTable:
    """The codec of `Posteriors`."""

    schema = SCHEMA

    def encode(self, evidence: Iterable[Posteriors]) -> pa.Table:
        """One row for each example of each release."""
        return pa.Table.from_batches([_batch(beliefs) for beliefs in evidence], SCHEMA)

    def decode(self, table: pa.Table) -> Iterator[Posteriors]:
        """One release at a time, in order; rows of a release are together."""
        release = table.column("release").to_numpy()
        cuts = np.flatnonzero(np.diff(release)) + 1
        for first, last in zip([0, *cuts], [*cuts, len(release)], strict=True):
            part = table.slice(first, last - first)
            prior, posterior, bag = (part.column(name).to_numpy() for name in ("prior", "posterior", "bag"))
            shift, expected, labels = (_known(part.column(name)) for name in ("shift", "expected", "label"))
            whole = None if labels is None else labels.astype(np.int64)
            yield Posteriors(prior, posterior, bag, int(release[first]), shift, expected, whole)


def _batch(beliefs: Posteriors) -> pa.RecordBatch:
    return pa.record_batch(
        [
            pa.array(np.full(beliefs.prior.size, beliefs.release, np.int32)),
            pa.array(beliefs.bag),
            pa.array(beliefs.prior),
            pa.array(beliefs.posterior),
            _nullable(beliefs.shift, beliefs.prior.size, pa.float64()),
            _nullable(beliefs.expected, beliefs.prior.size, pa.float64()),
            _nullable(beliefs.labels, beliefs.prior.size, pa.int8()),
        ],
        schema=SCHEMA,
    )


def _nullable(column: NDArray[Any] | None, rows: int, kind: pa.DataType) -> pa.Array:
    return pa.nulls(rows, kind) if column is None else pa.array(column).cast(kind)


def _known(column: pa.ChunkedArray) -> NDArray[Any] | None:
    return None if column.null_count else column.to_numpy()
