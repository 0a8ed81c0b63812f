"""Tallies as Arrow: a dataclass of numbers and arrays is a row, whatever estimator it belongs to."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa


def tally_table(tallies: Iterable[Any]) -> pa.Table:
    """One row for each tally (all of one class, at least one), fields as columns, arrays as lists."""
    rows = list(tallies)
    made = type(rows[0])
    columns = {
        field.name: pa.array([_plain(getattr(row, field.name)) for row in rows]) for field in dataclasses.fields(made)
    }
    return pa.table(columns).replace_schema_metadata({"tally": f"{made.__module__}:{made.__qualname__}"})


def tallies_of(tables: Iterable[pa.Table]) -> list[Any]:
    """The tallies behind `tally_table`, in order."""
    found = []
    for table in tables:
        module, _, name = table.schema.metadata[b"tally"].decode().partition(":")
        made = getattr(importlib.import_module(module), name)
        found += [made(**{key: _array(value) for key, value in row.items()}) for row in table.to_pylist()]
    return found


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def _array(value: Any) -> Any:
    return np.asarray(value) if isinstance(value, list) else value
