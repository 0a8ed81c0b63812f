"""Synthetic tables of which a share is copied from the real rows, with jitter: no privacy."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from dpaudit.claims import Claim, Relation
from dpaudit.errors import require
from dpaudit.field_checks import check_fields
from dpaudit.mechanisms.queries.schema import Category
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
