"""Generated rows of a schema, for functions on rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpaudit.errors import require
from dpaudit.field_checks import check_fields
from dpaudit.mechanisms.queries.row_function import TableRows
from dpaudit.mechanisms.queries.schema import Schema
from dpaudit.registry import register

MAX_ROWS = 1_000_000


@register("data", "schema-rows", source="Ours")
@dataclass(frozen=True)
class SchemaRows:
    """Generated rows of a schema, each cell uniform on the range or the categories of its column.

    Attributes:
        schema: For each column a range of numbers `[0, 100]` (integers if both ends are) or categories `[f, m]`.
        rows: Number of rows, in 1 .. 1,000,000.
    """

    schema: Mapping[str, Any]
    rows: int = 50

    def __post_init__(self) -> None:
        check_fields(self)
        require(1 <= self.rows <= MAX_ROWS, f"rows must be in 1 .. {MAX_ROWS:,}", rows=self.rows)
        Schema.of(self.schema)

    def load(self, *, seed: int = 0) -> TableRows:
        """Return the rows that `seed` determines."""
        schema = Schema.of(self.schema)
        rng = np.random.default_rng(np.random.SeedSequence(seed))
        return TableRows(schema.draw(self.rows, rng), schema, f"{self.rows} rows of {', '.join(schema.columns)}")
