"""Synthetic tables from a Gaussian copula with the empirical marginals: no privacy."""

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
from dpaudit.field_checks import check_fields
from dpaudit.mechanisms.queries.schema import Category, Number
from dpaudit.registry import register
from dpaudit.synthetic_tables.mechanisms.schema_generator import Releases, SchemaGenerator, normals, summary_of
from dpaudit.synthetic_tables.mechanisms.table_summary import TableBatch

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
        correlation = _correlation(np.stack([_normal_scores(column) for column in columns], axis=1))
        size = len(columns)
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


def _normal_scores(column: NDArray[Any]) -> Floats:
    """Return the normal quantiles of the ranks of a column; missing values have the largest rank."""
    ranks = stats.rankdata(np.where(np.isnan(column), np.inf, column))
    return np.asarray(special.ndtri(ranks / (len(column) + 1)))


def _correlation(scores: Floats) -> Floats:
    """Return the correlations of columns, 0 for constant ones."""
    centred = scores - scores.mean(axis=0)
    norms = np.sqrt((centred**2).sum(axis=0))
    scaled = centred / np.where(norms > 1e-9, norms, np.inf)
    correlation = scaled.T @ scaled
    np.fill_diagonal(correlation, 1.0)
    return np.asarray(correlation)


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
