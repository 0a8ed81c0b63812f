"""Posteriors as Arrow: one row an example."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa

from dpaudit.estimators.posteriors import Posteriors

SCHEMA = pa.schema(
    [
        pa.field("release", pa.int32(), metadata={"is": "number of the release, from 0"}),
        pa.field("bag", pa.int64(), metadata={"is": "which bag the example is released in"}),
        pa.field("prior", pa.float64(), metadata={"is": "P[label = 1] before the release"}),
        pa.field("posterior", pa.float64(), metadata={"is": "P[label = 1] once the release is known"}),
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
            yield Posteriors(prior, posterior, bag, release=int(release[first]))


def _batch(beliefs: Posteriors) -> pa.RecordBatch:
    return pa.record_batch(
        [
            pa.array(np.full(beliefs.prior.size, beliefs.release, np.int32)),
            pa.array(beliefs.bag),
            pa.array(beliefs.prior),
            pa.array(beliefs.posterior),
        ],
        schema=SCHEMA,
    )
