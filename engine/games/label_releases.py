"""Releasing labels again and again, each time by a mechanism that has released nothing before, and guessing in some."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dpaudit.actors.seed import Seed
from dpaudit.actors.unit import Inputs
from dpaudit.engine.findings.score_table import SCHEMA
from dpaudit.engine.views.answers import checked_release
from dpaudit.mechanisms.examples import Examples
from dpaudit.mechanisms.protocols import Compute

Ints = NDArray[np.int64]


def released_anew(mechanism: Any, labels: Ints, target: Examples, noise: Seed) -> Ints:
    """What a copy of the mechanism that has released nothing before releases.

    Args:
        mechanism: What is audited.
        labels: What it is given, shape (n,).
        target: The rows that the labels belong to.
        noise: The release's seed.
    """
    rng = np.random.default_rng(noise.child("noise").sequence())
    given = Examples(target.features, labels, target.classes)
    released = copy.deepcopy(mechanism).release(labels.copy(), classes=target.classes, rng=rng)
    return checked_release(released, given, type(mechanism).__qualname__).labels


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


@dataclass(frozen=True)
class GuessReleases:
    """The attack learns from some releases and scores others: one replay.

    Attributes:
        attack: The adversary.
        search: Key of the unit that released what is learned from.
        fresh: Keys of the units that released what is guessed.
    """

    attack: Any
    search: str
    fresh: tuple[str, ...]

    def run(self, inputs: Inputs, compute: Compute) -> pa.Table:
        """A score table of one replay."""
        return pa.Table.from_batches(list(self.batches(inputs)), SCHEMA)

    def asked(self, inputs: Inputs, name: str) -> NDArray[Any]:
        """A column of what is guessed, shape (releases, n); (0,) where nothing was released."""
        tables = (inputs.tables[key] for key in self.fresh)
        made = [releases_column(table, name) for table in tables if table.num_rows]
        return np.concatenate(made) if made else np.empty(0)

    @abstractmethod
    def batches(self, inputs: Inputs) -> Iterator[pa.RecordBatch]:
        """The one replay."""


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
