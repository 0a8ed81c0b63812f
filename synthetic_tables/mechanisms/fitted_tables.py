"""Generators of synthetic tables without privacy: copied rows with jitter, and a Gaussian copula."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from scipy import special, stats

from dpaudit.claims import Claim, Relation
from dpaudit.errors import require
from dpaudit.field_checks import check_fields
from dpaudit.mechanisms.queries.schema import Category, Number
from dpaudit.registry import register
from dpaudit.synthetic_tables.mechanisms.schema_generator import (
    Releases,
    SchemaGenerator,
    normals,
    summary_of,
    uniforms,
)
from dpaudit.synthetic_tables.mechanisms.table_summary import TableBatch


@register("mechanism", "copy-with-jitter", source="Ours, a plain case of memorisation")
@dataclass(frozen=True)
class CopiedRows(SchemaGenerator):
    """Rows of which each is, with probability `share`, a jittered copy of a random real row; no privacy.

    The cells of other rows are uniform over the schema.

    Attributes:
        schema: For each column a range of numbers `[0, 100]` or words `[f, m]`.
        count: Number of synthetic rows that a call as a function releases, >= 1.
        share: Probability that a row is a copy, in [0, 1].
        jitter: Standard deviation of normal noise on copied numbers, as a share of the column's range, >= 0; a copied
            word is replaced by a random word of the schema with probability min(jitter, 1).
    """

    schema: Mapping[str, Any]
    count: int = 50
    share: float = 0.1
    jitter: float = 0.0

    def __post_init__(self) -> None:
        check_fields(self)
        require(0 <= self.share <= 1, "share must be in [0, 1]", share=self.share)
        require(0 <= self.jitter < math.inf, "jitter must be >= 0 and finite", jitter=self.jitter)
        self.require_schema()

    def claim(self) -> Claim:
        """Claims nothing: epsilon is infinite."""
        return Claim(math.inf, relation=Relation.ADD_REMOVE)

    def releases(self, rows: pa.Table, count: int, seeds: Sequence[int]) -> Releases:
        schema = summary_of(self).schema
        fitted = TableBatch.of(rows, schema)
        size = len(schema.columns)
        uniform = uniforms(seeds, (2 + 2 * size) * count).reshape(len(seeds), 2 + 2 * size, count)
        noise = normals(seeds, size * count).reshape(len(seeds), size, count)
        copied = (uniform[:, 0] < self.share) & (len(rows) > 0)
        source = np.minimum((uniform[:, 1] * len(rows)).astype(np.int64), max(0, len(rows) - 1))
        values = {}
        for place, (name, column) in enumerate(schema.columns.items()):
            fresh, is_real = uniform[:, 2 + 2 * place], uniform[:, 3 + 2 * place] >= self.jitter
            real = fitted.columns[name][0] if len(rows) else np.zeros(1, fitted.columns[name].dtype)
            if isinstance(column, Category):
                random = np.minimum((fresh * len(column.values)).astype(np.int64), len(column.values) - 1)
                values[name] = np.where(copied & is_real, real[source], random)
                continue
            jittered = real[source] + self.jitter * (column.high - column.low) * noise[:, place]
            if self.jitter:
                jittered = np.clip(jittered, column.low, column.high)
            random = column.low * (1 - fresh) + column.high * fresh
            if column.whole:
                jittered = np.round(jittered) if self.jitter else jittered
                random = np.floor(column.low + (column.high - column.low + 1) * fresh)
            values[name] = np.where(copied, jittered, random)
        return Releases(TableBatch(values, fitted.words), np.empty((len(seeds), 0)))


Floats = NDArray[np.float64]

RIDGE = 1e-6
"""Added to the variances of the normal scores, so that equal columns have a decomposition."""


@register("mechanism", "gaussian-copula", source="Nelsen (2006); Patki, Wedge and Veeramachaneni (2016)")
@dataclass(frozen=True)
class GaussianCopula(SchemaGenerator):
    """Rows whose columns have the correlations of normal scores and the empirical laws of the real ones; no privacy.

    A number lies between two neighbouring real ones. Words outside the schema are reproduced.

    Attributes:
        schema: For each column a range of numbers `[0, 100]` or words `[f, m]`.
        count: Number of synthetic rows that a call as a function releases, >= 1.
        measurements: True if the correlations are released too.
    """

    schema: Mapping[str, Any]
    count: int = 50
    measurements: bool = False

    def __post_init__(self) -> None:
        check_fields(self)
        self.require_schema()

    def claim(self) -> Claim:
        """Claims nothing: epsilon is infinite."""
        return Claim(math.inf, relation=Relation.ADD_REMOVE)

    def releases(self, rows: pa.Table, count: int, seeds: Sequence[int]) -> Releases:
        schema = summary_of(self).schema
        if not len(rows):  # nothing to fit: rows of the schema
            rows = schema.draw(1, np.random.default_rng(0))
        fitted = TableBatch.of(rows, schema)
        columns = [fitted.columns[name][0] for name in schema.columns]
        ordered = [np.sort(np.where(np.isnan(column), np.inf, column)) for column in columns]  # missing values last
        ranks = np.stack([stats.rankdata(np.where(np.isnan(column), np.inf, column)) for column in columns], axis=1)
        scores, size = special.ndtri(ranks / (len(ranks) + 1)), len(columns)
        centred = scores - scores.mean(axis=0)
        norms = np.sqrt((centred**2).sum(axis=0))
        normed = centred / np.where(norms > 1e-9, norms, np.inf)
        correlation = normed.T @ normed  # 0 for constant columns
        np.fill_diagonal(correlation, 1.0)
        noise = normals(seeds, count * size).reshape(len(seeds), count, size)
        shares = special.ndtr(noise @ np.linalg.cholesky(correlation + RIDGE * np.eye(size)).T)
        values = {}
        for place, (name, column) in enumerate(schema.columns.items()):
            is_real = isinstance(column, Number) and not column.whole
            numbers = _at_share(ordered[place], shares[..., place], between=is_real)
            values[name] = numbers.astype(np.int64) if isinstance(column, Category) else numbers
        upper = correlation[np.triu_indices(size, 1)]
        measurements = np.tile(upper if self.measurements else upper[:0], (len(seeds), 1))
        return Releases(TableBatch(values, fitted.words), measurements)


def _at_share(ordered: NDArray[Any], share: Floats, *, between: bool) -> Floats:
    """Return the values at a share of an ordered column; with `between`, interpolated between neighbouring numbers."""
    position = share * (len(ordered) if not between else len(ordered) - 1)
    below = np.minimum(position.astype(np.int64), len(ordered) - 1)
    values = ordered[below].astype(np.float64)
    if between:
        above = ordered[np.minimum(below + 1, len(ordered) - 1)]
        inside = np.isfinite(values) & np.isfinite(above)
        values = values + np.where(inside, np.where(inside, above, 0) - np.where(inside, values, 0), 0) * (
            position - below
        )
    return np.where(np.isinf(values), np.nan, values)
