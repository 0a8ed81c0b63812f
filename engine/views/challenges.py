"""Challenge points: whose membership a two-world game is about."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dpaudit.mechanisms.examples import Examples, Features

FEATURE = "feature:"


@dataclass(frozen=True, eq=False)
class Challenges:
    """k challenge points, each audited by models of its own.

    Attributes:
        examples: The points with the labels they are trained with, k rows.
        rows: The row of the pool each one is, or is made from, shape (k,); -1 = from none. Those rows are kept out of
            the base set.
        crafted: Whether they are made, and so not among the pool's own rows.
        weight: What they were chosen by, larger = more exposed, shape (k,); 0 where nothing was compared.
    """

    examples: Examples
    rows: NDArray[np.int64]
    crafted: bool
    weight: NDArray[np.float64]

    def points(self, pool: int) -> NDArray[np.int64]:
        """Where they stand in the pool of `pool` rows with the crafted ones behind it, shape (k,)."""
        return pool + np.arange(len(self.rows)) if self.crafted else self.rows


def with_crafted(pool: Examples, challenges: Challenges | None) -> Examples:
    """The pool with the crafted challenge points behind it."""
    if challenges is None or not challenges.crafted:
        return pool
    added = challenges.examples
    features: Features
    if isinstance(pool.features, pa.Table):
        features = pa.concat_tables([pool.features, added.features])
    else:
        features = np.concatenate([pool.features, added.features])
    return pool.with_(features=features, labels=np.concatenate([pool.labels, added.labels]))


def challenge_table(challenges: Challenges) -> pa.Table:
    """Challenge points as a unit's result; `challenges_of` reads it back."""
    features = challenges.examples.features
    if isinstance(features, pa.Table):
        columns = {f"{FEATURE}{name}": features[name] for name in features.column_names}
    else:
        flat = np.ascontiguousarray(features).reshape(len(features), -1)
        columns = {FEATURE: pa.FixedSizeListArray.from_arrays(pa.array(flat.ravel()), flat.shape[1])}
    table = pa.table(
        {"row": challenges.rows, "label": challenges.examples.labels, "weight": challenges.weight, **columns}
    )
    return table.replace_schema_metadata({"crafted": str(int(challenges.crafted))})


def challenges_of(table: pa.Table, like: Examples) -> Challenges:
    """The challenge points of a unit; their features have the form of those of `like`."""
    features: Features
    if isinstance(like.features, pa.Table):
        names = like.features.column_names
        features = pa.table({name: table[f"{FEATURE}{name}"] for name in names}).cast(like.features.schema)
    else:
        flat = table[FEATURE].combine_chunks().flatten().to_numpy(zero_copy_only=False)
        features = flat.reshape(table.num_rows, *like.features.shape[1:])
    labels = table["label"].to_numpy().astype(np.int64)
    return Challenges(
        like.with_(features=features, labels=labels),
        table["row"].to_numpy().astype(np.int64),
        table.schema.metadata[b"crafted"] == b"1",
        table["weight"].to_numpy().astype(np.float64),
    )
