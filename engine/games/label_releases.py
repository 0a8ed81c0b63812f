"""Releasing labels again and again, each time by a mechanism that has released nothing before."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dpaudit.actors.seed import Seed
from dpaudit.engine.views.answers import checked_release
from dpaudit.mechanisms.examples import Examples

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class RepeatedReleases:
    """Several releases of one label mechanism, each with noise of its own.

    Attributes:
        mechanism: What is audited.
        count: How many releases.
        seed: Each release's seeds are children of this one.
    """

    mechanism: Any
    count: int
    seed: Seed

    def released(self, labels: Ints, target: Examples, release: int) -> Ints:
        """What a copy of the mechanism that has released nothing before releases."""
        mechanism = copy.deepcopy(self.mechanism)
        rng = np.random.default_rng(self.seed.child(release, "noise").sequence())
        given = Examples(target.features, labels, target.classes)
        released = mechanism.release(labels.copy(), classes=target.classes, rng=rng)
        return checked_release(released, given, type(self.mechanism).__qualname__).labels


def releases_table(
    columns: Mapping[str, NDArray[Any]], classes: int, about: Mapping[str, str] | None = None
) -> pa.Table:
    """Columns of shape (releases, n) as a unit's result, one release below the other; `about` is kept beside them."""
    releases = len(next(iter(columns.values())))
    table = pa.table({name: values.ravel() for name, values in columns.items()})
    return table.replace_schema_metadata({"classes": str(classes), "releases": str(releases), **(about or {})})


def releases_column(table: pa.Table, name: str) -> NDArray[Any]:
    """A column of `releases_table`, shape (releases, n)."""
    values: NDArray[Any] = table[name].to_numpy()
    return values.reshape(int(table.schema.metadata[b"releases"]), -1)
