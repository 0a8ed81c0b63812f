"""Scores as Arrow, one row a canary; and what units say beside their tables."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dpaudit.actors.work import beside
from dpaudit.estimators.scores import Scores

SCHEMA = pa.schema(
    [
        pa.field(
            "unit", pa.dictionary(pa.int32(), pa.string()), metadata={"is": "key of the unit that ran the mechanism"}
        ),
        pa.field("replay", pa.int32(), metadata={"is": "number of the replay, from 0"}),
        pa.field("canary", pa.int32(), metadata={"is": "row of the canary among the canaries, from 0"}),
        pa.field("truth", pa.bool_(), metadata={"is": "world 1: the training label, or a member, was shown"}),
        pa.field("score", pa.float32(), metadata={"is": "the attack's score, larger = more likely world 1"}),
    ]
)
TRIAL_ERRORS = b"trial-errors"
"""Metadata of a table: JSON, a list of sentences about single trials."""


def score_rows(unit: str, replay: int, truth: NDArray[np.bool_], score: NDArray[np.float64]) -> pa.RecordBatch:
    """The rows of one replay; `truth` and `score` have shape (canaries,)."""
    count = len(truth)
    return pa.record_batch(
        [
            pa.DictionaryArray.from_arrays(pa.array(np.zeros(count, np.int32)), pa.array([unit])),
            pa.array(np.full(count, replay, np.int32)),
            pa.array(np.arange(count, dtype=np.int32)),
            pa.array(truth),
            pa.array(score.astype(np.float32)),
        ],
        schema=SCHEMA,
    )


@dataclass(frozen=True)
class ScoreTable:
    """The codec of scores.

    Attributes:
        kind: Of which kind.
    """

    kind: type[Scores] = Scores
    schema: ClassVar[pa.Schema] = SCHEMA

    def encode(self, evidence: Iterable[Scores]) -> pa.Table:
        """One row a score; who ran the mechanism is left blank, canaries keep their numbers."""
        batches = []
        for scores in evidence:
            batch = score_rows("", scores.replay, scores.truth, scores.score)
            batches.append(batch.set_column(2, SCHEMA.field(2), pa.array(scores.canary.astype(np.int32))))
        return pa.Table.from_batches(batches, SCHEMA)

    def decode(self, table: pa.Table) -> Iterator[Scores]:
        """One replay at a time, in order; rows of a replay are together."""
        replays = table.column("replay").to_numpy()
        cuts = np.flatnonzero(np.diff(replays)) + 1
        for first, last in zip([0, *cuts], [*cuts, len(replays)], strict=True):
            part = table.slice(first, last - first)
            yield self.kind(
                score=part.column("score").to_numpy().astype(np.float64),
                truth=part.column("truth").to_numpy(),
                replay=int(replays[first]),
                canary=part.column("canary").to_numpy().astype(np.int64),
            )


def trial_errors(table: pa.Table) -> list[str]:
    """Why single trials of a unit failed, for units that say so in a column `error` or beside their table."""
    said = beside(table)
    if said.failures:
        return list(said.failures)
    own = table["error"].to_pylist() if "error" in table.column_names else []
    stored: dict[bytes, bytes] = table.schema.metadata or {}
    return [error for error in (*own, *json.loads(stored.get(TRIAL_ERRORS, b"[]"))) if error]


def metrics_of(table: pa.Table) -> dict[str, float]:
    """The metrics stored beside a unit's table."""
    said = beside(table)
    if said.metrics:
        return dict(said.metrics)
    stored = table.schema.metadata or {}
    return {
        name.decode().removeprefix("metric:"): float(value)
        for name, value in stored.items()
        if name.startswith(b"metric:")
    }


def told_by(table: pa.Table) -> str:
    """What a unit says of what it chose; "" for one that chose nothing."""
    said = beside(table)
    if said.notes:
        return " ".join(said.notes)
    stored: dict[bytes, bytes] = table.schema.metadata or {}
    return stored.get(b"told", b"").decode()
